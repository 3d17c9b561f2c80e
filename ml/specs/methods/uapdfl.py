"""UA-PDFL: the similarity of two clients' data decides how much of a model they share (ALGORITHMS §5).

Zhu, Fan, Xie, *UA-PDFL: A Personalized Approach for Decentralized Federated Learning*. A client sends its model's
representations of one input, a constant: its unit representation I, Eq. (5), and its auxiliary representation A, Eq.
(11). Both are voted on, so that everyone can recompute how far each two were apart, Eq. (6), and what each drew and
pulled:

    all d_j <= th_I    client-wise dropout: the whole model of one of Q replaces the client's own
    otherwise          layer-wise personalisation: g from all of Q, h from S = {j in Q: d_j < th_I}

The paper's clients are asynchronous. Here a block has a round's contributions, and with `staleness` a client that is in
the block may also draw members that are not, for so many rounds after their last: the aggregate carries their I and A
on (`ml.specs.stale`), and their g and h are those that they committed to then.

Where we deviate: Eq. (6) is called Jensen-Shannon and is the symmetrised Kullback-Leibler divergence; `div: js` is the
true one, and by its values the one that the paper's figure 4 was drawn with. The paper states no th_I and mu: by
default th_I is 0.5 (symkl) or 0.1 (js), at ten classes, and mu 0.01. Representations are sent before models, as in
algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ml.errors import PayloadError, SpecError
from ml.payload import Array, Arrays, ArraySchema, ArraySpec
from ml.specs.hyperparameters import Hyperparameters, choice, flag, number, option, up_to
from ml.specs.peers import PeerHyperparameters, PeerSpec
from ml.specs.selection import Authors, Offer, Offers
from ml.specs.stale import carry_stale, describe_stale, get_stale_rows, list_stale
from ml.tasks import CLASSIFICATION

LEAST = 1e-8  # the least probability in a logarithm
AUTO_THRESHOLDS = {"symkl": 0.5, "js": 0.1}
MAX_PAIRED = 10  # clients of a simulation that reports the distance of each pair; more lines could not be distinguished
MAX_STALENESS = 100  # rounds; members that pull models keep them for so long
STACKS = ("auxiliary/auxiliary", "unit/unit")  # in an aggregate
SUM_TOLERANCE = 1e-3  # of a unit representation: a softmax in float32, in whatever order it was summed


def compute_divergence(p: Array, q: Array, kind: str = "symkl") -> float:
    """Computes Div(i, j) of two distributions float[C], Eq. (6): `symkl`, or `js`, which is at most ln 2. In
    float64."""
    p_C, q_C = (np.maximum(x.astype(np.float64), LEAST) for x in (p, q))
    if kind == "js":
        mean_C = (p_C + q_C) / 2
        return (_compute_kl(p_C, mean_C) + _compute_kl(q_C, mean_C)) / 2
    return (_compute_kl(p_C, q_C) + _compute_kl(q_C, p_C)) / 2


def _compute_kl(p_C: NDArray[np.float64], q_C: NDArray[np.float64]) -> float:
    return math.fsum((p_C * np.log(p_C / q_C)).tolist())  # Eq. (7)


@dataclass(frozen=True, kw_only=True)
class UaPdflHyperparameters(PeerHyperparameters):
    """Settings of UA-PDFL. `div` measures how far two unit representations are apart; `th` is th_I, by default what
    suits `div`; `mu` weighs the auxiliary loss of Eq. (12). X_unit of Eq. (4) is the same for all, `unit_value` at
    every pixel after normalisation, or with `unit: mean` the mean of a client's own training samples, which nobody else
    sees.

    Without `dropout` no whole model is ever taken over; without `personalise` h is shared with all of Q, as g is.
    `staleness` is for how many rounds a member that no longer contributes can still be drawn.
    """

    div: str = choice("symkl", "js")
    th: float | None = number(None, "(-inf, inf)")
    mu: float = number(0.01, "[0, inf)")
    unit: str | None = option("constant", "mean")
    unit_value: float = number(1.0, "(-inf, inf)")
    dropout: bool = flag(True)
    personalise: bool = flag(True)
    staleness: int | None = up_to(MAX_STALENESS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.staleness == 0:  # a setting of None is left out of genesis
            object.__setattr__(self, "staleness", None)
        if self.unit == "mean" and self.unit_value != 1.0:
            raise SpecError("method.unit_value", f"expected none with unit: mean, got {self.unit_value:g}")

    @property
    def threshold(self) -> float:
        """The threshold th_I."""
        return AUTO_THRESHOLDS[self.div] if self.th is None else self.th


@dataclass(frozen=True, slots=True)
class Decision:
    """Holds a client's decision in a round: Q in the order of the draw, the distance of each, S, those that are
    similar, and in the dropout branch the one of Q whose whole model it takes over."""

    peers: tuple[Offer, ...]
    divergences: tuple[float, ...]
    similar: tuple[Offer, ...]
    donor: Offer | None

    @property
    def is_dropout(self) -> bool:
        return self.donor is not None


@dataclass(frozen=True)
class UaPdflSpec(PeerSpec):
    """UA-PDFL's spec. Voted, as stacks in author order, are `unit` float32[C], a distribution, and `auxiliary`
    float32[D]. On demand are `g` and `h`."""

    name: ClassVar[str] = "uapdfl"
    needed_parts: ClassVar[tuple[str, ...]] = ("g", "h")
    tasks: ClassVar[tuple[str, ...]] = (CLASSIFICATION,)  # I_i is a distribution over classes
    settings: ClassVar[type[Hyperparameters]] = UaPdflHyperparameters

    hyperparameters: UaPdflHyperparameters

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        unit = ArraySchema({"unit": ArraySpec("float32", (self.task.num_classes,))})
        auxiliary = ArraySchema({"auxiliary": ArraySpec("float32", (self.task.embedding_dim,))})
        return {"unit": unit, "auxiliary": auxiliary, **self.part_schemas}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        return {"unit": "stack", "auxiliary": "stack"}

    # ---- stale entries

    @property
    def staleness(self) -> int:
        """The number of rounds for which the newest entry of a member may be used that is in no later block."""
        return self.hyperparameters.staleness or 0

    def reads_parent(self, height: int) -> bool:
        return super().reads_parent(height) or (self.staleness > 0 and height > 1)

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        if not self.staleness:
            return {}
        kinds = [name.partition("/") for name in STACKS]
        return describe_stale({f"{kind}/{name}": self._schemas[kind].arrays[name] for kind, _, name in kinds})

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        if not self.staleness:
            return {}
        before = parent if height > 1 else None  # a run's first round takes nothing from the run before
        return carry_stale(authors, {name: made[name] for name in STACKS}, before, self.staleness)

    def list_stale(self, aggregate: Arrays | None) -> Sequence[tuple[bytes, int]]:
        return list_stale(aggregate) if self.staleness else ()

    def needed_until(self, height: int) -> int | None:
        """Returns the last height whose local phase may read the blobs of `height`. Stale offers are pulled like all
        others: once a block is final, before the local phase of the height above."""
        return height + self.staleness + 1 if self.staleness else height

    def get_rows(self, stack: str, offers: Offers, aggregate: Arrays) -> dict[bytes, Array]:
        """Returns the rows of one of STACKS by author: the block's own, and those of stale entries."""
        stale = get_stale_rows(aggregate, stack) if self.staleness else {}
        present = (offer.author for offer in offers if offer.author not in stale)
        return {**dict(zip(present, aggregate[stack], strict=True)), **stale}

    def draw(
        self, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None = None, gone: Authors = ()
    ) -> tuple[Offer, ...]:
        """Draws peers as all methods do. A stale member is no author of the block, and draws nobody."""
        if any(me == author for author, _ in self.list_stale(aggregate)):
            return ()
        return super().draw(beacon, me, offers, aggregate, gone)

    # ---- voted kinds

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        if kind != "unit":
            return
        unit = arrays["unit"].astype(np.float64)
        total = math.fsum(unit.tolist())  # rounded once, whatever the machine: validators must agree
        if unit.min() < 0 or abs(total - 1) > SUM_TOLERANCE:
            raise PayloadError(f"payload 'unit': expected probabilities that sum to 1, got {unit.tolist()}")

    def decide(
        self, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None, gone: Authors = ()
    ) -> Decision:
        """Returns the branch of `me` and what belongs to it; an empty decision if it has nobody to pull from.

        `offers` are the block's in author order, as the rows of its aggregate are, and stale ones.
        """
        hyper, drawn = self.hyperparameters, self.draw(beacon, me, offers, aggregate, gone)
        if not drawn or aggregate is None:
            return Decision((), (), (), None)
        rows = self.get_rows("unit/unit", offers, aggregate)
        distances = tuple(compute_divergence(rows[me], rows[offer.author], hyper.div) for offer in drawn)
        if hyper.dropout and all(distance <= hyper.threshold for distance in distances):
            return Decision(drawn, distances, (), drawn[0])  # the draw is in random order, so its first is random
        similar = tuple(
            offer
            for offer, distance in zip(drawn, distances, strict=True)
            if distance < hyper.threshold or not hyper.personalise
        )
        return Decision(drawn, distances, similar, None)

    def wanted(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, aggregate: Arrays | None, gone: Authors = ()
    ) -> Sequence[bytes]:
        """Returns the digests of one whole model in the dropout branch, else of g of all of Q and h of S."""
        decision = self.decide(beacon, me, offers, aggregate, gone)
        if decision.donor is not None:
            return (decision.donor.digests["g"], decision.donor.digests["h"])
        return (*(offer.digests["g"] for offer in decision.peers), *(offer.digests["h"] for offer in decision.similar))

    def compute_divergences(self, aggregate: Arrays) -> list[list[float]]:
        """Computes Div(i, j) of all pairs, in author order."""
        units = aggregate["unit/unit"]
        return [[compute_divergence(p, q, self.hyperparameters.div) for q in units] for p in units]

    def explain(
        self, height: int, beacon: bytes, offers: Offers, aggregate: Arrays | None, *, shared: Offers = ()
    ) -> Mapping[str, Any] | None:
        """Returns `threshold`; `divergences`, a row of numbers for each author in author order; and for each author
        `peers`, `similar` and `donor` as places in `offers`, and its `branch`. Peers that an author could not reach are
        not known here."""
        if aggregate is None:
            return None
        hyper = self.hyperparameters
        place = {offer.author: i for i, offer in enumerate(offers)}
        nodes = []
        for offer in offers[: len(aggregate["unit/unit"])]:
            decision = self.decide(beacon, offer.author, offers, aggregate)
            branch = "dropout" if decision.is_dropout else "personalise" if decision.peers else "alone"
            nodes.append(
                {
                    "branch": branch,
                    "peers": [place[peer.author] for peer in decision.peers],
                    "similar": [place[peer.author] for peer in decision.similar],
                    "donor": None if decision.donor is None else place[decision.donor.author],
                }
            )
        return {
            "div": hyper.div,
            "threshold": hyper.threshold,
            "divergences": self.compute_divergences(aggregate),
            "nodes": nodes,
        }
