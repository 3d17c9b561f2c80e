"""The measures that end a local phase, for many clients in one pass: whether weights are finite, the answers to each
client's own test samples, and the sums that prototypes are made of.

On a GPU each client would launch dozens of small kernels for that and wait for the GPU half a dozen times, which takes
longer than the steps of a small model. Here all are launched once, and read at once. Clients measure for themselves
what cannot be stacked, or would need too much memory (`Client.end`).

Legend: N clients, M samples of the largest set, C classes, D length of the embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ml.methods.base import Method, Samples, State
from ml.methods.common.prototypes import ClassSums, sum_by_class
from ml.models.base import Model
from ml.tasks import CLASSIFICATION
from ml.training.criterion import NO_CLASS
from ml.training.functional import PREFIX, make_function_of_weights
from ml.training.loop import MAX_GATHERED_BYTES
from ml.training.metrics import SCORES, Judged, tally


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Holds what was measured of a client after its last step: whether its weights are finite, the answers to the
    matched test set, and the sums of its own samples' embeddings. None stands for what the client has to measure
    itself."""

    is_finite: bool
    judged: Judged | None = None
    sums: ClassSums | None = None


@torch.no_grad()
def measure_together(method: Method, states: Sequence[State]) -> list[Measured]:
    """Measures clients of one method that have been trained in one pass."""
    model = states[0].model.eval()
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    weights = {
        PREFIX + name: torch.stack([state.model.get_parameter(name).detach() for state in states]) for name in names
    }
    is_finite_N = torch.stack([tensor.isfinite().flatten(1).all(1) for tensor in weights.values()]).all(0)
    judged = _judge(method, states, weights)
    sums = _sum(method, states, weights)
    return [Measured(*one) for one in zip(is_finite_N.tolist(), judged, sums, strict=True)]


def _judge(method: Method, states: Sequence[State], weights: Mapping[str, Tensor]) -> Sequence[Judged | None]:
    """Returns the answers to the matched test sets, for methods that answer with the model itself."""
    kind, sets = method.spec.task.kind, [state.data.matched for state in states]
    is_asked = kind == CLASSIFICATION and getattr(method, "is_answered_by_model", False)
    if not is_asked or (stacked := _stack(sets)) is None:
        return [None] * len(states)

    def judge_one(model: Model, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, labels, *_ = method.predict(State(model, states[0].data), x)
        return logits, labels, tally(logits, labels, y, kind)

    judge_all = torch.func.vmap(make_function_of_weights(states[0].model, judge_one))
    logits_NMC, labels_NM, totals_N2 = judge_all(weights, *stacked)
    found: list[Judged | None] = []
    for num, logits_MC, labels_M, (correct, loss) in zip(
        map(len, sets), logits_NMC, labels_NM, totals_N2.tolist(), strict=True
    ):
        metrics = {SCORES[kind]: correct / num, "loss": loss / num} if num else {}
        found.append(Judged(metrics, [logits_MC[:num]], [labels_M[:num]]) if num else None)
    return found


def _sum(method: Method, states: Sequence[State], weights: Mapping[str, Tensor]) -> Sequence[ClassSums | None]:
    """Returns the sums of the training samples' embeddings, in host memory, for methods that send prototypes of
    them."""
    num_classes, sets = states[0].data.num_classes, [state.data.train for state in states]
    if not getattr(method, "sends_class_means", False) or (stacked := _stack(sets)) is None:
        return [None] * len(states)

    def sum_one(model: Model, x: Tensor, y: Tensor) -> Tensor:
        return sum_by_class(model.embed(x), y, num_classes)

    sum_all = torch.func.vmap(make_function_of_weights(states[0].model, sum_one))
    sums_NCD = sum_all(weights, *stacked).cpu()
    return [ClassSums(sums_CD, state.data.counts) for sums_CD, state in zip(sums_NCD, states, strict=True)]


def _stack(sets: Sequence[Samples]) -> tuple[Tensor, Tensor] | None:
    """Returns x_NMCHW and y_NM of sets, each padded with samples of no class; None if there are no samples or too
    many."""
    x = sets[0].x
    num_bytes = len(sets) * max(map(len, sets)) * math.prod(x.shape[1:]) * x.element_size()
    if not 0 < num_bytes <= MAX_GATHERED_BYTES:
        return None
    x = pad_sequence([samples.x for samples in sets], batch_first=True)
    return x, pad_sequence([samples.y for samples in sets], batch_first=True, padding_value=NO_CLASS)
