"""CriticalFL: more peers while the gradients grow, fewer again when they no longer do (ALGORITHMS §9).

Yan, Wang, Li, *CriticalFL: A Critical Learning Periods Augmented Client Selection Framework for Efficient Federated
Learning*, 2023. A client takes over FedAvg's mean over itself and its N_com peers. In round r, with g_k the gradient of
the loss at a local step and eta the learning rate at the beginning of the round,

    FGN(r) = eta * mean over the local epochs of the sum over their steps of ||g_k||^2

Every second round its FGN is added to a window of the last ten. If their mean is more than 1 % above that of the ten
before the newest, or if this is one of the first five checks, the period is critical and N_com doubles, to 3/4 of the
authors at most; once it has reached that it never doubles again. Otherwise it halves, down to its first value.

As in the reference code, norms are added to the window when they are checked, norms before the first count as zero, and
halving rounds up. With `local_iterations` an iteration replaces the epoch, which is a constant factor.

Where we deviate: the paper's FGN is the mean over the clients that a server has chosen, and determines how many it
chooses; here each client has its own, and draws by it. N is the number of authors of the last block it has seen, and
there is no check before the first. Gradients are not clipped first. In critical periods the reference sends only the
fifth of the model that has changed most; here it is always sent whole. Its optimiser is SGD with momentum 0.9 and
weight decay 1e-5, lr 0.01, 3 epochs of batches of 16; the defaults are those of all methods, so that they are compared
at the same work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ml.methods.base import Blobs, Round, State
from ml.methods.common.mixing import AveragesParts
from ml.methods.common.sharing import get_agreed
from ml.payload import Array, Arrays
from ml.specs.methods.criticalfl import CriticalFlSpec
from ml.training.loop import Prepared, Schedule

FIRST_CHECKS = 5  # they are critical whatever the norms
MAX_SHARE = 0.75  # of the authors
LEAST_NORM = 1e-7  # the least mean of norms by which something is divided


@dataclass(frozen=True, slots=True)
class PeerCount:
    """Holds N_com and what determines it: the window of norms, oldest first and one more than are averaged, the number
    of checks so far, and whether the maximum was ever reached."""

    num_peers: int
    window: tuple[float, ...]
    num_checks: int = 0
    is_spent: bool = False

    @classmethod
    def start(cls, num_peers: int, window: int) -> Self:
        return cls(num_peers, (0.0,) * (window + 1))

    def check(self, norm: float, num_authors: int, least: int, threshold: float) -> Self:
        """Returns the count after a check of `norm`, in a round of `num_authors`."""
        window, num_checks = (*self.window[1:], norm), self.num_checks + 1
        old, new = max(float(np.mean(window[:-1])), LEAST_NORM), float(np.mean(window[1:]))
        is_critical = (new - old) / old > threshold or num_checks <= FIRST_CHECKS
        most = max(least, int(MAX_SHARE * num_authors))
        num_peers = self.num_peers
        if not is_critical:
            num_peers = max(least, num_peers - max(num_peers // 2, 1))
        elif not self.is_spent:
            num_peers = min(most, 2 * num_peers)
        is_spent = self.is_spent or num_peers >= most
        return replace(self, num_peers=num_peers, window=window, num_checks=num_checks, is_spent=is_spent)

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        num_peers, num_checks, is_spent = arrays["count"].tolist()
        return cls(num_peers, tuple(arrays["window"].tolist()), num_checks, bool(is_spent))

    def to_arrays(self) -> dict[str, Array]:
        return {
            "count": np.array([self.num_peers, self.num_checks, self.is_spent], np.int64),
            "window": np.array(self.window, np.float64),
        }


class CriticalFl(AveragesParts[CriticalFlSpec]):
    """Trains and averages as FedAvg among peers, with a varying number of them. The state besides the model is a
    `PeerCount`; `norm` float64[1], the FGN of the local phase up to its last step; and `num_authors` int64[1], those of
    the last block."""

    def init(self, state: State) -> None:
        hyper = self.spec.hyperparameters
        start = PeerCount.start(hyper.num_peers, hyper.window)
        state.arrays = {**start.to_arrays(), "norm": np.zeros(1), "num_authors": np.zeros(1, np.int64)}

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        lr = self.spec.compute_lr(round_.number, len(schedule.batches))
        factor = lr / max(schedule.num_iterations, 1)
        state.arrays = state.arrays | {"norm": np.zeros(1)}

        def add(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
            norm = state.arrays["norm"] + factor * compute_squared_norm(gradients)
            state.arrays = state.arrays | {"norm": norm}
            return gradients

        return Prepared(on_gradients=add)

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        hyper, peer_count = self.spec.hyperparameters, PeerCount.from_arrays(state.arrays)
        norm, num_authors = float(state.arrays["norm"][0]), int(state.arrays["num_authors"][0])
        if num_authors and round_.height % hyper.check_every == 0:
            peer_count = peer_count.check(norm, num_authors, hyper.num_peers, hyper.threshold)
            state.arrays = state.arrays | peer_count.to_arrays()
        weight, parts = super().finish(state, round_)
        return weight, {**parts, "unit": {"num_peers": np.array([peer_count.num_peers], np.int64)}}

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> Mapping[str, float]:
        get_agreed(aggregate, "unit", round_)  # raises without it, as nobody could draw peers
        if round_.offers:
            state.arrays = state.arrays | {"num_authors": np.array([len(round_.offers)], np.int64)}
        return super().apply(state, round_, aggregate, blobs)


def compute_squared_norm(gradients: Sequence[Tensor]) -> float:
    """Computes ||g||^2 over all gradients, squared and added up in float64."""
    return float(torch.stack(torch._foreach_norm(list(gradients))).double().square().sum())
