"""Training alone, as it is told of: how far it is, and what its model is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ml.measures.kinds import AnyMeasures, read_measures
from ml.measures.verdict import Verdict

FEDERATION, ALONE, MIXED = "federation", "alone", "mixed"  # whose answers: the common model's, its own, or of both


@dataclass(frozen=True, slots=True)
class TrainedAlone:
    """What a site's model is worth without the others: after the work of so many whole `rounds`, with `owed_steps`
    still to do, which took `seconds` of CPU. `measures` are those of its answers to the test samples then, and
    `verdict` compares them with the federation's after as much work, the newest that could be; `failure` says why it
    goes on no more."""

    rounds: int
    owed_steps: int
    seconds: float
    measures: AnyMeasures | None = None
    failure: str | None = None
    verdict: Verdict | None = None

    def to_mapping(self) -> dict[str, Any]:
        """JSON-able."""
        measures = None if self.measures is None else self.measures.to_mapping()
        return {
            "rounds": self.rounds,
            "owed_steps": self.owed_steps,
            "seconds": self.seconds,
            "measures": measures,
            "failure": self.failure,
            "verdict": None if self.verdict is None else self.verdict.to_mapping(),
        }

    @classmethod
    def from_mapping(cls, told: Mapping[str, Any]) -> Self:
        """Of what `to_mapping` gave. Raises TypeError for anything else."""
        measures = None if told["measures"] is None else read_measures(told["measures"])
        verdict = None if told.get("verdict") is None else Verdict.from_mapping(told["verdict"])
        return cls(**{**told, "measures": measures, "verdict": verdict})
