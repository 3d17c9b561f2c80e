"""CriticalFL: more peers while the gradients grow, fewer again when they no longer do (ALGORITHMS §9).

Yan, Wang, Li, *CriticalFL: A Critical Learning Periods Augmented Client Selection Framework for Efficient Federated
Learning*, 2023. How many peers a client draws follows from its gradients, which nobody else sees. So it sends that
number, which is voted on before the draw: everyone can then repeat the draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ml.payload import Arrays, ArraySchema, ArraySpec
from ml.specs.hyperparameters import MAX_COUNT, Hyperparameters, count, number
from ml.specs.peers import PeerHyperparameters, PeerSpec
from ml.specs.selection import Offers


@dataclass(frozen=True, kw_only=True)
class CriticalFlHyperparameters(PeerHyperparameters):
    """Settings of CriticalFL. `num_peers` is the number with which a client begins, and its least. Every `check_every`
    rounds it compares means of `window` gradient norms; a period is critical if the mean is more than the fraction
    `threshold` above the one before."""

    threshold: float = number(0.01, "[0, inf)")
    window: int = count(10)
    check_every: int = count(2)


@dataclass(frozen=True)
class CriticalFlSpec(PeerSpec):
    """CriticalFL's spec. Voted, as a stack in author order, is `unit`, whose `num_peers` int64[1] is the author's N_com
    of this very round. On demand are `g` and `h`, both wanted of all of Q."""

    name: ClassVar[str] = "criticalfl"
    settings: ClassVar[type[Hyperparameters]] = CriticalFlHyperparameters

    hyperparameters: CriticalFlHyperparameters

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        num_peers = ArraySpec("int64", (1,), (self.hyperparameters.num_peers, MAX_COUNT - 1))
        return {"unit": ArraySchema({"num_peers": num_peers}), **self.part_schemas}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        return {"unit": "stack"}

    def get_num_peers(self, me: bytes, offers: Offers, aggregate: Arrays | None) -> int:
        """Returns the number of peers that `me` has announced, in its row of the aggregate."""
        if aggregate is None:
            return self.hyperparameters.num_peers
        row = next(i for i, offer in enumerate(offers) if offer.author == me)
        return int(aggregate["unit/num_peers"][row, 0])
