"""The parts that most methods share, written once: plain training, sending a model, sending prototypes.

A method that sends its model takes over the mean of all (`SharesModel`), and may store its own besides
(`RemembersModel`). One that sends prototypes keeps its weights to itself and stores the prototypes that it receives
(`SharesPrototypes`). The file of each method has its loss. The validators' side is `ml.specs.sharing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ml.errors import AggregationError, MlError
from ml.methods.base import Blobs, Round, State
from ml.methods.common.contrast import Represent, embed, freeze, represent
from ml.methods.common.losses import GlobalPrototypes
from ml.methods.common.prototypes import PrototypeRows, average, sum_embeddings
from ml.models.base import Model, dump_parameters, load_parameters
from ml.payload import Array, Arrays
from ml.specs import MethodSpec, add_kind, get_kind
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.sharing import ModelSpec, PrototypeSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors, compute_cross_entropy
from ml.training.metrics import Prediction, answer
from ml.training.prior import ClassScores
from ml.training.private import PrototypePrivacy

AnySpec = TypeVar("AnySpec", bound=MethodSpec)
AnyModelSpec = TypeVar("AnyModelSpec", bound=ModelSpec)
AnyPrototypeSpec = TypeVar("AnyPrototypeSpec", bound=PrototypeSpec)


class Classifies(Generic[AnySpec]):
    """Trains by cross-entropy, or the task's own loss, on the client's own samples; the classifier answers."""

    def __init__(self, spec: AnySpec) -> None:
        self.spec = spec

    def init(self, state: State) -> None:
        pass

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        return Prepared()

    def compute_loss(self, model: Model, batch: Batch, context: Tensors) -> Tensor:
        return compute_cross_entropy(model, batch, context)

    @property
    def takes_padding(self) -> bool:
        return type(self).compute_loss is Classifies.compute_loss

    @property
    def is_answered_by_model(self) -> bool:
        """Says whether `predict` returns the model's own answer, whatever else the state has."""
        return type(self).predict is Classifies.predict

    def predict(self, state: State, x: Tensor) -> Prediction:
        return answer(state.model(x), self.spec.task.kind)

    def score_classes(self, state: State, x: Tensor, rows_N: Tensor | None = None) -> ClassScores:
        return ClassScores(state.model(x))

    def represent(self, state: State, x: Tensor) -> Tensor:
        return state.model.embed(x)

    def list_prototypes(self, state: State) -> PrototypeRows | None:
        return None


def make_prototype_privacy(hyper: Hyperparameters, round_: Round) -> PrototypePrivacy | None:
    """Returns the noise settings that hide samples in the prototypes of a round; None if nothing hides them."""
    if not hyper.is_private:
        return None
    stream = round_.secret_stream("noise in prototypes")
    return PrototypePrivacy(hyper.dp.prototype_noise, hyper.dp.prototype_clip, stream)


class SharesModel(Classifies[AnyModelSpec]):
    """Sends the whole model, and takes over the mean of all."""

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        sent = self.spec.schemas(round_.height)["model"].arrays
        parameters = dump_parameters(state.model)
        return self.get_weight(state), {"model": {name: array for name, array in parameters.items() if name in sent}}

    def get_weight(self, state: State) -> int:
        return self.spec.hyperparameters.choose_weight(len(state.data.train), self.spec.task.max_weight)

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        load_parameters(state.model, get_agreed(aggregate, "model", round_))


class SharesPart(SharesModel[AnyModelSpec]):
    """Sends a part of the model, and takes over the mean of that part. The rest stays the client's own."""

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        common, agreed = self.spec.common_schema.arrays, get_agreed(aggregate, "model", round_)
        taken = {name: array for name, array in agreed.items() if name in common}  # a run begins with a whole model
        load_parameters(state.model, dump_parameters(state.model) | taken)


class RemembersModel(SharesModel[AnyModelSpec]):
    """Sends the whole model, and stores the client's own after its last local phase, under "previous/" in the state."""

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        state.arrays = add_kind("previous", dump_parameters(state.model))
        return super().finish(state, round_)

    def prepare_contrast(self, state: State, schedule: Schedule, mu: float, how: Represent = embed) -> Prepared:
        """Returns `global` and `previous` by sample: its unit representation by the model as it is, with which the
        round begins, and by the previous one. `mu` in the context is 0 while there is no previous model."""
        x, rows = state.data.train.x, schedule.drawn
        common, kept = represent(state.model, x, rows, how), get_kind(state.arrays, "previous")
        if kept is None:
            previous, mu = torch.zeros_like(common), 0.0
        else:
            previous = represent(freeze(state.model, kept), x, rows, how)
        return Prepared({"mu": torch.tensor(mu, device=x.device)}, {"global": common, "previous": previous})


class SharesPrototypes(Classifies[AnyPrototypeSpec]):
    """Sends prototypes, and stores P_r, those received: `classes` int64[n] and `prototypes` float32[n, D] in the state,
    absent in round 1."""

    sends_class_means = True  # means of the embeddings of all own samples

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        hyper, data = self.spec.hyperparameters, state.data
        privacy, sums = make_prototype_privacy(hyper, round_), round_.sums
        if sums is None or privacy is not None:  # the known sums are of embeddings that are not cut
            sums = sum_embeddings(state.model, data.train.x, data.train.y, data.num_classes, privacy)
        local = average(sums, hyper.min_class_samples, privacy)  # DFPL's Eq. (1)
        payload = {"classes": local.classes, "prototypes": local.prototypes}
        if hyper.proto_agg == "samples":  # class sizes leave the client only where the average needs them
            payload["counts"] = local.counts.clip(max=self.spec.task.max_weight)
        return 1, {"prototypes": payload}

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float] | None:
        agreed = get_agreed(aggregate, "prototypes", round_)
        state.arrays = {name: agreed[name].copy() for name in ("classes", "prototypes")}
        return None

    def get_prototypes(self, state: State, device: torch.device | None = None) -> GlobalPrototypes | None:
        """Returns P_r on a device, by default the client's; None before the first round."""
        if "classes" not in state.arrays:
            return None
        arrays, where = state.arrays, device or state.data.device
        return GlobalPrototypes.from_arrays(arrays["classes"], arrays["prototypes"], state.data.num_classes, where)

    def list_prototypes(self, state: State) -> PrototypeRows | None:
        if "classes" not in state.arrays:
            return None
        return PrototypeRows(state.arrays["classes"], state.arrays["prototypes"])

    def score_classes(self, state: State, x: Tensor, rows_N: Tensor | None = None) -> ClassScores:
        if getattr(self.spec.hyperparameters, "infer", "classifier") == "prototype":
            raise MlError(
                f"{self.spec.name}: expected infer classifier, whose logits a prior is added to; got prototype"
            )
        return super().score_classes(state, x, rows_N)

    def predict_nearest(self, state: State, x: Tensor, *, normalize: bool = False) -> Prediction:
        """Predicts by the nearest P^i among the client's own classes, as in FedProto's code, with `normalize` at unit
        length; while there is none, by the classifier."""
        z_ND = state.model.embed(x)
        logits = state.model.classify(z_ND)
        target = self.get_prototypes(state)
        if target is not None:
            if normalize:
                z_ND, target = F.normalize(z_ND, dim=1), target.normalize()
            own = state.data.classes[target.held[state.data.classes] > 0]
            if len(own):
                distances = torch.cdist(z_ND, target.vectors[own], compute_mode="donot_use_mm_for_euclid_dist")
                distances_N, nearest_N = distances.min(1)
                return Prediction(logits, own[nearest_N], distances_N)
        return Prediction(logits, logits.argmax(1))


def flatten(model: Model, spec: MethodSpec) -> Tensor:
    """Returns a copy of all trained parameters in one vector, [P]."""
    parameters = dict(model.named_parameters())
    return torch.cat([parameters[name].reshape(-1) for name in spec.task.parameter_schema.arrays])


def get_agreed(aggregate: Arrays | None, kind: str, round_: Round) -> dict[str, Array]:
    """Returns the arrays of one kind in a round's aggregate. Raises AggregationError if there are none."""
    agreed = get_kind(aggregate, kind)
    if agreed is None:
        raise AggregationError(f"round {round_.height}: expected {kind} in the aggregate, got none")
    return agreed
