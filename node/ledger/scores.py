"""Scores of the contributions of a round, as this node sees them, for people who look for a faulty member. Nothing is
ever decided by them.

A score has two parts: a distance (`ml.scores`), which needs the payloads, and an effect on the loss of the node's own
test samples, which needs a worker too (`node.admin.scorer`). Payloads are pruned after a while
(`node.payloads.retention`); scores computed before that stay with the round's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from chain.block import Block
from chain.errors import InvalidAggregate
from chain.genesis import Genesis
from chain.store.sqlite import SqliteStore
from ml.errors import MlError
from ml.scores import compute_distances, get_compared_kinds
from ml.specs import unpack_all
from node.ledger.audit import Call, Inputs, call_directly, read_inputs
from node.pb import admin_pb2 as pb
from node.runs.specs import RunRound

NOTHING_COMBINED = "members combine nothing in this round, and take from single peers at most"
NOT_HELD = "the payloads of this round are not held here"
TOO_FEW = "fewer than three have anything in common with it, or most others are the same to the bit"
STOPPED = "a stopped node evaluates nothing: ask it while it runs"


@dataclass(slots=True)
class Scores:
    """The known scores of one round, in author order, and the reasons why others are missing. `is_done` says that no
    more can be known."""

    scores: list[pb.Score]
    no_distance: str | None = None
    no_effect: str | None = None
    is_done: bool = False

    @classmethod
    def from_round(cls, shown: pb.Round) -> Self:
        """Takes the scores in a round's record."""
        known = {score.author: score for score in shown.scores}
        scores = [
            known.get(author) or pb.Score(author=author, name=name)
            for author, name in zip(shown.contributors, shown.contributor_names, strict=True)
        ]
        return cls(scores, is_done=all(one.HasField("distance") and one.HasField("effect") for one in scores))

    def set_distances(self, distances: Sequence[float | None]) -> None:
        for score, distance in zip(self.scores, distances, strict=True):
            if distance is not None:
                score.distance = distance

    def refuse(self, why: str) -> None:
        """Sets the reason why no more scores can be computed."""
        self.no_distance = self.no_effect = why

    def show(self, shown: pb.Round, late: str | None = None) -> None:
        """Puts the scores into a round, with a reason where some are missing: `late`, where time was up."""
        del shown.scores[:]
        shown.scores.extend(self.scores)
        no_distance, no_effect = self.no_distance or late, late or self.no_effect
        if no_distance is not None and not all(score.HasField("distance") for score in self.scores):
            shown.no_distance = no_distance
        if no_effect is not None and not all(score.HasField("effect") for score in self.scores):
            shown.no_effect = no_effect

    def to_record(self) -> list[dict[str, Any]]:
        """Returns the scores as a round's record holds them."""
        return [
            {
                "author": score.author,
                "distance": score.distance if score.HasField("distance") else None,
                "effect": score.effect if score.HasField("effect") else None,
            }
            for score in self.scores
        ]


def measure(
    scores: Scores, genesis: Genesis, round_: RunRound, store: SqliteStore, block: Block, call: Call = call_directly
) -> Inputs | None:
    """Sets the distances, computed from the held payloads, and returns these payloads. Where some are not held, or no
    distance is defined, returns None and puts the reason into `scores`. It takes long. Raises StoreCorrupted."""
    kinds = get_compared_kinds(round_.spec, round_.number)
    if not kinds:
        scores.refuse(NOTHING_COMBINED)
        return None
    try:
        inputs = read_inputs(genesis, store, round_, block, call)
        if inputs is None:
            scores.refuse(NOT_HELD)
            return None
        contributed = unpack_all(round_.spec, round_.number, *inputs)
        scores.set_distances(compute_distances(contributed, kinds))
    except (MlError, InvalidAggregate) as error:  # a quorum has accepted them, so this store is at fault
        scores.refuse(str(error))
        return None
    scores.no_distance = TOO_FEW
    return inputs


def add_scores_of_stopped(shown: pb.Round, genesis: Genesis, round_: RunRound, store: SqliteStore) -> None:
    """Adds to a round the scores in a stopped node's directory. Raises StoreCorrupted."""
    scores = Scores.from_round(shown)
    stored = store.get_block(round_.height)
    if stored is not None and measure(scores, genesis, round_, store, stored.block) is not None:
        scores.no_effect = STOPPED
    scores.show(shown)
