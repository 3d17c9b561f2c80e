"""FedEDS: encrypted samples are shared once, and local epochs grow fewer (ALGORITHMS §4).

Li et al., *Efficient Federated Learning with Encrypted Data Sharing for Data-Heterogeneous Edge Devices*. f is the
model, c its classifier, g its extractor, and l client i's stochastic layer theta^l_i between the two:

    (2) E_c epochs on CE(y, f(x; g, c))            (3) E_g epochs on CE(y, f(unet(x); g, c, l)), of the encryptor alone
    (4) x' = unet(x), y' = softmax(f(x'; g, c, l)), sent once with l: client i's set F_i
    (6) L_dis = mean over a batch of F_i of KL(y' || f(x'; g, c, l_i))
    (8) L = lambda_c * CE + lambda_dis * L_dis     Eqs. (5), (9) and (10), how E and the lambdas change, are the spec's

Height 1 is the sharing round, (2) to (4), after which all have block 0's model again; t = 1 is at height 2. Between
rounds it is FedAvg, FedProx (whose term is added to (8), not to (2)) or FedNova, by `base`. The set that a client
trains on is drawn from the block before, so that peers can check it (see the spec); its rows, and theta^l, from the
client's own seed. Once lambda_dis is 0, or with nobody to draw, training is that of `base` alone.

Where we deviate, or decide: the layer is a frozen Gaussian matrix before the last Linear (E1), the "encrypted label"
the frozen model's answer through it (E2), and KL is of the label against the student (E3). One other client at a time
wherever the paper sums over all (E4), each local batch beside an equally large one of its set. m = 3 is used as
printed, by which sharing has an effect in t = 1 and 2 alone; `lambda_clock: fraction` is the other reading (E5).
FedNova is FedNova's, not algorithm 4's (E6 to E8). x' are made in eval mode (E12). Models with dropout or batch norm
see the encrypted half of a step in eval mode, so that their statistics are of samples only.

A set may be poisoned. Beyond the validators' bounds, a phase leaves a set out if, on some of its rows, the model with
which the phase begins has an L_dis above MAX_DIVERGENCE, or a gradient so long that one step along it would be longer
than all weights together. Epochs that drew it train without a set.

The paper's own values are lr 0.01, momentum 0.9, weight decay 1e-4, which are not the defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.aggregation.nova import MAX_STEPS
from ml.fededs.encryptor import EncryptorSettings, count_encryptor_steps, make_encrypted_set, train_encryptor
from ml.fededs.shared_set import Draw, EncryptedSet, find_first, gather_draws
from ml.fededs.stochastic_layer import apply_layer, classify_through, compute_distillation, make_layer
from ml.methods.base import Round, State
from ml.methods.common.losses import compute_proximal_term
from ml.methods.common.sharing import SharesModel, flatten
from ml.models.base import Model
from ml.payload import Arrays, compute_chunk_digests
from ml.seeding import numpy_rng
from ml.specs import Offer
from ml.specs.methods.fededs import FedEdsSpec
from ml.training.loop import Batch, ByStep, Prepared, Schedule, Stepping, Tensors, compute_cross_entropy
from ml.training.optimizers import compute_gradients

MAX_DIVERGENCE = 50.0  # nats of L_dis: an honest set has a few, and log C before anything is learned
PROBED = 256  # rows of a set that are checked before it is trained on

_log = logging.getLogger(__name__)


class FedEds(SharesModel[FedEdsSpec]):
    """Trains by Eq. (8), beside other clients' sets. With base fednova the state besides the model is `local_steps`
    int64[1], tau of the local phase that is running; between phases, and with another base, nothing."""

    # ---- training

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        if self.spec.is_sharing(round_.height):
            return self.prepare_sharing(state, round_)
        hyper, context = self.spec.hyperparameters, dict[str, Tensor]()
        if hyper.base == "fednova":
            num_steps = schedule.num_iterations if hyper.unit == "epochs" else len(schedule.batches)
            state.arrays = {"local_steps": np.array([num_steps], np.int64)}
        if hyper.base == "fedprox" and hyper.mu:
            context["anchor"] = flatten(state.model, self.spec).detach()
        if not hyper.share:
            return Prepared(context)
        lambda_c, lambda_dis = self.spec.compute_lambdas(round_.height)
        sets = self.open_sets(state, round_)
        used = {author: set_ for author, set_ in sets.items() if set_ is not None}
        metrics = {"lambda_dis": lambda_dis, "sets": float(len(used))}
        if dropped := len(sets) - len(used):
            metrics["sets_dropped"] = float(dropped)
        if not used:
            return Prepared(context, metrics=metrics)
        context["lambda_c"] = torch.tensor(lambda_c, device=state.data.device)
        context["lambda_dis"] = torch.tensor(lambda_dis, device=state.data.device)
        return Prepared(context, by_step=self.draw_rows(round_, schedule, used), metrics=metrics)

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        loss = self.compute_shared_loss(model, batch, context) if batch.extra else None
        if loss is None:
            loss = compute_cross_entropy(model, batch, context)
        if "anchor" not in context:
            return loss
        return loss + self.spec.hyperparameters.mu * compute_proximal_term(flatten(model, self.spec), context["anchor"])

    def compute_shared_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        """Computes Eq. (8) for a batch that comes with one of another's set."""
        x, layer, num_own = batch.extra["x"], batch.extra.get("layer"), len(batch.x)
        if self.spec.task.layout.is_batchable:  # samples are independent: one pass computes both
            s = model.enter_slot(model.embed(torch.cat([batch.x, x])))
            logits = model.leave_slot(torch.cat([s[:num_own], apply_layer(s[num_own:], layer)]))
            own, others = logits[:num_own], logits[num_own:]
        else:
            own = model(batch.x)
            model.eval()
            others = classify_through(model, x, layer)
            model.train()
        ce, distillation = model.criterion(own, batch.y), compute_distillation(others, batch.extra["y"])
        return context["lambda_c"] * ce + context["lambda_dis"] * distillation

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        if self.spec.is_sharing(round_.height):
            return self.get_weight(state), {}
        weight, payloads = super().finish(state, round_)
        if self.spec.hyperparameters.base != "fednova":
            return weight, payloads
        num_steps = min(int(state.arrays["local_steps"][0]), MAX_STEPS)
        state.arrays = {}
        return weight, {"model": {**payloads["model"], **self.spec.make_numbers(num_steps)}}

    # ---- making a set

    def prepare_sharing(self, state: State, round_: Round) -> Prepared:
        """Prepares the sharing round: its steps are the warm-up, Eq. (2); then the set is made."""
        hyper, num_train = self.spec.hyperparameters, len(state.data.train)
        num_steps = count_encryptor_steps(num_train, hyper.batch_size, hyper.encryptor_epochs)
        return Prepared(then=partial(self.make_set, state, round_), then_steps=num_steps)

    def make_set(self, state: State, round_: Round, stepping: Stepping) -> Mapping[str, Arrays]:
        """Makes F_i by the model as it is: Eq. (3) on all samples, Eq. (4) on those that are shared."""
        hyper, samples, model = self.spec.hyperparameters, state.data.train, state.model
        layer = make_layer(hyper.layer, self.spec.task.slot_dim, numpy_rng(round_.seed, "layer"))
        unet = train_encryptor(
            model,
            None if layer is None else torch.tensor(layer, device=state.data.device),
            samples.x,
            samples.y,
            EncryptorSettings.from_hyperparameters(hyper),
            rng=round_.rng("encryptor"),
            stepping=stepping,
        )
        encrypted_set = make_encrypted_set(
            model,
            layer,
            unet,
            samples.x,
            self.choose_shared(samples.y.cpu().numpy(), round_),
            dtype=hyper.share_dtype,
            batch_size=hyper.batch_size,
            should_stop=stepping.should_stop,
        )
        digests = compute_chunk_digests(encrypted_set)
        return {"encrypted_set": encrypted_set, "chunk_digests": {"digests": digests}}

    def choose_shared(self, labels_N: NDArray[np.int64], round_: Round) -> NDArray[np.int64]:
        """Chooses the samples to share, in random order: up to `share_max`, of each class up to `share_per_class`."""
        hyper, rows = self.spec.hyperparameters, round_.rng("share").permutation(len(labels_N))
        if hyper.share_per_class is not None:
            rows = rows[find_first(labels_N[rows], hyper.share_per_class)]
        return rows[: hyper.share_max]

    # ---- others' sets

    def open_sets(self, state: State, round_: Round) -> dict[bytes, EncryptedSet | None]:
        """Returns the drawn sets by author, None for one that is left out."""
        drawn = self.spec.get_drawn(round_.height, round_.beacon, round_.me, round_.offers, round_.gone)
        return {offer.author: self.open_set(state, round_, offer) for offer in drawn}

    def open_set(self, state: State, round_: Round, offer: Offer) -> EncryptedSet | None:
        arrays, per_class = round_.blobs[offer.digests["encrypted_set"]], self.spec.hyperparameters.share_per_class
        set_ = EncryptedSet.open(arrays, state.data.device, per_class)
        reason = self.explain_left_out(state.model, set_, round_)
        if reason is None:
            return set_
        _log.warning("Left out the encrypted set of %s in round %d: %s", offer.author.hex()[:8], round_.number, reason)
        return None

    def explain_left_out(self, model: Model, set_: EncryptedSet, round_: Round) -> str | None:
        """Explains why a phase leaves the set out: it is too far from the model at the phase's beginning, or would
        change it too much. None if it is used."""
        x, y = set_.read(set_.draw(PROBED, round_.rng("probe")))
        model.eval()
        parameters = tuple(parameter for parameter in model.parameters() if parameter.requires_grad)
        loss = compute_distillation(classify_through(model, x, set_.layer), y)
        divergence = loss.item()
        if not divergence <= MAX_DIVERGENCE:
            return f"expected a divergence of {MAX_DIVERGENCE:g} at most, got {divergence:g}"
        lr = self.spec.compute_lr(round_.number)
        step = lr * _compute_length(compute_gradients(loss, parameters))
        length = _compute_length(tuple(parameter.detach() for parameter in parameters))
        if not step <= length:
            return f"expected a step shorter than the weights, {length:g}, got {step:g}"
        return None

    def draw_rows(self, round_: Round, schedule: Schedule, used: Mapping[bytes, EncryptedSet]) -> ByStep:
        """Draws, for each local batch, an equally large one, or all there is, of the set that is drawn for its step."""
        num_steps, rng = len(schedule.batches), round_.rng("sets")
        steps = {"epoch": num_steps // schedule.num_iterations, "batch": 1, "round": num_steps}
        draws: list[Draw | None] = []
        for start in range(0, num_steps, length := steps[self.spec.hyperparameters.draw]):
            offer = self.spec.draw(round_.beacon, round_.me, round_.offers, start // length, round_.gone)
            set_ = None if offer is None else used.get(offer.author)
            for batch in schedule.batches[start : start + length]:
                draws.append(None if set_ is None else Draw(set_, set_.draw(len(batch), rng)))
        layout = tuple(0 if draw is None else len(draw.rows) for draw in draws)
        return ByStep(layout, partial(gather_draws, draws))


def _compute_length(tensors: tuple[Tensor, ...]) -> float:
    """Computes the norm of all tensors together."""
    length: Tensor = torch.stack(torch._foreach_norm(tensors)).norm()
    return length.item()
