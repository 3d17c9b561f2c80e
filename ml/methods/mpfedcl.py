"""MP-FedCL: FedAvg, whose embeddings are contrasted with several prototypes of each class (ALGORITHMS §3).

Qiao et al., *MP-FedCL: Multiprototype Federated Contrastive Learning for Edge Intelligence*. Client i sends, besides
its model, the centroids u_{i,j} of K clusters of its embeddings v(x) of each class j it owns. The pool U_j of a class
has what everyone sent; each client's k-th centroids are a codebook; and v(x) is drawn to its own class in every
codebook:

    (6)  V_{i,j} = { v(x) : x in D_{i,j} }       (7) u_{i,j} = k-means(V_{i,j}, K)       (8) U_j = union of u_{i,j}
    (11) L_R     = mean over the N*K codebooks of -log( exp(v.u_y / tau) / sum over classes a of exp(v.u_a / tau) )
    (12) L       = CE + weight * L_R             (13) yhat = argmin_j min over u in U_j of || v(x) - u ||

Before the first pool L_R is 0 and the classifier answers; with weight 0 training is FedAvg's. With `cluster: mean` this
is SP-FedCL; with `dbscan` DP-FedCL, where K of Eq. (10) is the most clusters that a client has of a class. Codebooks,
Eqs. (9) and (10), are `ml.methods.common.codebooks`.

Where we deviate, or decide: the positives of Eq. (11) are the sample's own class; those "distinct from y" would drive
it away from that (M1, `positives: letter`), and y is in the denominator (M7). L_R is the batch's mean, `reduction: sum`
its sum (M2). v is the last hidden layer, 256 wide in the paper's networks, as table II counts it, and `embed: encoder`
the layer before (M3). It has unit length, or tau 0.07 would saturate the softmax. If the model does not normalise it,
it is normalised here, and the classifier still sees the unchanged embedding, so that weight 0 is FedAvg (M4). The
learning rate decays by the round, `decay_unit: step` is the letter (M5). For a class with fewer than K centroids all
slots of a client's codebooks are padded, while what it sent stays in the pool; `padding: false` pads nothing (M6). The
averaged model is tested with the pool; `eval_model: local` tests the client's own, from which it does not go on (M8):
all train the average, as in algorithm 1 (M9). The pool is of the clients' models before they were averaged, as in the
paper: then prototypes of one model answer for another. `reembed` is ours: each round's prototypes are of the averaged
model with which it begins, by one more forward pass, and the last round of a run exchanges them alone. So is
`own_samples`: a client's own embeddings by the averaged model, which it keeps, answer beside the pool, as the local
memory of kNN-Per does (Marfoq et al., *Personalized Federated Learning through Local Memorization*, 2022).

The paper's own values are lr 0.01, momentum 0.5, decay 0.95, 1 epoch of batches of 32, tau 0.07, and K = 2 for MNIST, 4
for Digit-5 and Office-10, 3 for DomainNet; the defaults are those of all methods, so that they are compared at the same
work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ml.data.chunks import get_chunk
from ml.methods.base import Blobs, Round, State
from ml.methods.common.clustering import Clusters, cluster_by_density, cluster_by_kmeans, cluster_by_mean
from ml.methods.common.codebooks import Codebooks, Pool, compute_contrastive_loss, find_nearest, measure_by_class
from ml.methods.common.contrast import freeze
from ml.methods.common.prototypes import PrototypeRows, find_sent_classes
from ml.methods.common.sharing import SharesModel, get_agreed, make_prototype_privacy
from ml.models.base import Model, dump_parameters
from ml.payload import Array, Arrays
from ml.seeding import numpy_rng
from ml.specs import add_kind, get_kind
from ml.specs.methods.mpfedcl import MpFedClSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors, compute_cross_entropy
from ml.training.metrics import Prediction
from ml.training.prior import ClassScores, adjust, compute_log_prior


class MpFedCl(SharesModel[MpFedClSpec]):
    """Trains by cross-entropy, and by that of the embedding against everyone's codebooks.

    The state besides the model is the pool, under "pool/", the client's own embeddings, under "own/", and with
    `eval_model: local` the client's own model as its last local phase left it, under "local/".
    """

    # ---- training

    def __init__(self, spec: MpFedClSpec) -> None:
        super().__init__(spec)
        if spec.hyperparameters.cluster == "dbscan":
            import_module("sklearn.cluster")  # imported here, since that takes as long as some local phases

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        hyper, pool = self.spec.hyperparameters, self.get_pool(state)
        before = partial(self.reembed, state, round_) if hyper.reembed else None
        if pool is None or not hyper.weight:
            return Prepared(before=before)
        context = self.make_codebooks(pool).to_tensors(state.data.num_classes, hyper.tau, state.data.device)
        return Prepared(context, before=before)

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        if not context:
            return compute_cross_entropy(model, batch, context)
        hyper = self.spec.hyperparameters
        v_BD, z_BD = self.embed(model, batch.x)
        is_letter = hyper.positives == "letter"
        contrast = compute_contrastive_loss(v_BD, batch.y, context, hyper.reduction, is_letter=is_letter)
        return torch.add(model.criterion(model.classify(z_BD), batch.y), contrast, alpha=hyper.weight)  # Eq. (12)

    def embed(self, model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns v(x), Eq. (6), and the classifier's input, from one forward pass."""
        if self.spec.hyperparameters.embed == "head_hidden":
            v_BD = z_BD = model.embed(x)
        elif self.spec.task.layout.features:
            v_BD = model.precompute(x)
            z_BD = model.embed(v_BD)
        else:
            *_, v_BD, z_BD = model.embed_layers(x)
        if self.spec.hyperparameters.normalize and not self.spec.model_normalizes:
            v_BD = F.normalize(v_BD.float(), dim=1)
        return v_BD, z_BD

    # ---- exchange

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        if self.spec.is_closing(round_.height):
            return self.get_weight(state), {}
        weight, payloads = super().finish(state, round_)
        if self.spec.hyperparameters.reembed:
            return weight, payloads
        if self.spec.hyperparameters.eval_model == "local":
            kept = add_kind("pool", get_kind(state.arrays, "pool") or {})
            state.arrays = kept | add_kind("local", dump_parameters(state.model))
        own = self.cluster(state, round_)
        return weight, {**payloads, "prototypes": {"classes": own.classes, "prototypes": own.prototypes}}

    def reembed(self, state: State, round_: Round) -> Mapping[str, Arrays]:
        """Returns the prototypes of the model as it is, before the phase's steps; none if nothing has been averaged
        yet."""
        own = self.cluster(state, round_) if round_.height > 1 else self._make_none()
        return {"prototypes": {"classes": own.classes, "prototypes": own.prototypes}}

    def _make_none(self) -> Clusters:
        return Clusters(np.empty(0, np.int64), np.empty((0, self.spec.prototype_dim), np.float32))

    @torch.no_grad()
    def cluster(self, state: State, round_: Round) -> Clusters:
        """Computes u_{i,j}, Eq. (7), from all local samples with the model in eval mode."""
        hyper, samples = self.spec.hyperparameters, state.data.train
        v_ND = self._embed_all(state.model, samples.x)
        is_sent_N = find_sent_classes(torch.bincount(samples.y), hyper.min_class_samples)[samples.y]
        v_ND, y_N = v_ND[is_sent_N], samples.y[is_sent_N]
        if not len(y_N):
            return self._make_none()
        if hyper.cluster == "mean":
            privacy = make_prototype_privacy(hyper, round_)
            return cluster_by_mean(v_ND, y_N, state.data.num_classes, privacy)
        if hyper.cluster == "dbscan":
            return cluster_by_density(v_ND, y_N, hyper.eps, hyper.min_samples, hyper.max_clusters)
        return cluster_by_kmeans(
            v_ND, y_N, hyper.num_prototypes, lambda c: numpy_rng(round_.seed, "kmeans", round_.height, c)
        )

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        pool = Pool.from_arrays(get_agreed(aggregate, "prototypes", round_))
        super().apply(state, round_, aggregate, blobs)
        kept = add_kind("local", get_kind(state.arrays, "local") or {})
        kept |= {name: array.copy() for name, array in add_kind("pool", pool.to_arrays()).items()}
        state.arrays = kept | add_kind("own", self.remember(state, round_))

    @torch.no_grad()
    def remember(self, state: State, round_: Round) -> dict[str, Array]:
        """Returns what `own_samples` keeps: `rows` int64[n] of the client's training samples, their `classes`, and
        their `embeddings` float32[n, D] by the model as it is; {} if it is not set."""
        samples, most = state.data.train, self.spec.hyperparameters.own_samples
        if most is None:
            return {}
        rows = np.arange(len(samples))
        if len(rows) > most:
            rows = np.sort(round_.rng("own samples").choice(len(rows), most, replace=False))
        own = samples.take(rows)
        v_nD = self._embed_all(state.model, own.x)
        return {"rows": rows, "classes": own.y.cpu().numpy(), "embeddings": v_nD.float().cpu().numpy()}

    def _embed_all(self, model: Model, x: Tensor) -> Tensor:
        """Computes v(x) of many samples, with the model in eval mode."""
        model.eval()
        return torch.cat([self.embed(model, x_chunk)[0] for x_chunk in torch.split(x, get_chunk(x.shape))])

    def get_pool(self, state: State) -> Pool | None:
        """Returns U, Eq. (8); None before the first round, and if nobody has sent a prototype."""
        arrays = get_kind(state.arrays, "pool")
        return Pool.from_arrays(arrays) if arrays and len(arrays["classes"]) else None

    def make_codebooks(self, pool: Pool) -> Codebooks:
        hyper = self.spec.hyperparameters
        num_slots = None if hyper.cluster == "dbscan" else hyper.max_prototypes
        return Codebooks.from_pool(pool, num_slots, padding=hyper.padding)

    # ---- inference

    def predict(self, state: State, x: Tensor) -> Prediction:
        if kappa := self.spec.hyperparameters.prior:
            log_prior_C = compute_log_prior(state.data.train.y, state.data.num_classes)
            return adjust(self.score_classes(state, x), log_prior_C, kappa)
        v_ND, logits, pool = self._compare(state, x)
        if pool is None:
            return Prediction(logits, logits.argmax(1))
        return Prediction(logits, *find_nearest(v_ND, pool))

    def score_classes(self, state: State, x: Tensor, rows_N: Tensor | None = None) -> ClassScores:
        v_ND, logits, pool = self._compare(state, x)
        if pool is None:
            return ClassScores(logits)
        own, left_out_NR = get_kind(state.arrays, "own"), None
        if own is not None and rows_N is not None:
            rows_R = np.concatenate([np.full(len(pool.classes) - len(own["rows"]), -1), own["rows"]])
            left_out_NR = rows_N[:, None] == torch.tensor(rows_R, device=x.device)
        distances_NC, authors_NC = measure_by_class(v_ND, pool, state.data.num_classes, left_out_NR)
        return ClassScores(-distances_NC.square() / (2 * self.spec.hyperparameters.tau), distances_NC, authors_NC)

    def _compare(self, state: State, x: Tensor) -> tuple[Tensor, Tensor, Pool | None]:
        """Returns v(x), the classifier's logits, and the pool that answers, the client's own embeddings last; None
        before there is a pool."""
        model, pool = self.get_tested_model(state), self.get_pool(state)
        v_ND, z_ND = self.embed(model, x)
        if pool is not None and self.spec.hyperparameters.pool_in_inference == "padded":
            pool = self.make_codebooks(pool).to_pool()
        if pool is not None and (own := get_kind(state.arrays, "own")) is not None:
            pool = pool.add_own(own["classes"], own["embeddings"])
        return v_ND, model.classify(z_ND), pool

    def represent(self, state: State, x: Tensor) -> Tensor:
        return self.embed(self.get_tested_model(state), x)[0]

    def list_prototypes(self, state: State) -> PrototypeRows | None:
        pool = self.get_pool(state)
        return None if pool is None else PrototypeRows(pool.classes, pool.prototypes, pool.authors)

    def get_tested_model(self, state: State) -> Model:
        """Returns the model as it is; with `eval_model: local` the client's own, once it has trained."""
        own = get_kind(state.arrays, "local")
        return state.model if own is None else freeze(state.model, own)
