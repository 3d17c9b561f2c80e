"""Training alone, as it is told of: how far it is, and what its model is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray

from ml.measures.kinds import AnyMeasures, read_measures
from ml.measures.verdict import Verdict

FEDERATION, ALONE, MIXED = "federation", "alone", "mixed"  # whose answers: the common model's, its own, or of both


class Answered(NamedTuple):
    """A client's `own` answer about samples, and what gives, by name, that of the model trained alone and that of both
    mixed, where there is such training."""

    own: Mapping[str, NDArray[Any]]
    ask_beside: Callable[[], Mapping[str, Mapping[str, NDArray[Any]]]]


@dataclass(frozen=True, slots=True)
class TrainedAlone:
    """What a site's model is worth without the others: after the work of so many whole `rounds`, with `owed_steps`
    still to do, which took `seconds` of CPU. `measures` are those of its answers to the test samples then, and
    `verdict` compares them with the federation's after as much work, the newest that could be; `failure` says why it
    goes on no more. `mixed` are those of both models' answers mixed, as both last stood after a round, by `weight` of
    the federation's."""

    rounds: int
    owed_steps: int
    seconds: float
    measures: AnyMeasures | None = None
    failure: str | None = None
    verdict: Verdict | None = None
    mixed: AnyMeasures | None = None
    weight: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def with_classes(self, classes: tuple[str, ...]) -> Self:
        """The same, with its measures by the names of these classes."""
        measures = None if self.measures is None else replace(self.measures, classes=classes)
        mixed = None if self.mixed is None else replace(self.mixed, classes=classes)
        return replace(self, measures=measures, mixed=mixed)

    @classmethod
    def from_mapping(cls, told: Mapping[str, Any]) -> Self:
        """Of what `to_mapping` gave. Raises TypeError for anything else."""
        both = {name: None if told.get(name) is None else read_measures(told[name]) for name in ("measures", "mixed")}
        verdict = None if told.get("verdict") is None else Verdict(**told["verdict"])
        return cls(**{**told, **both, "verdict": verdict})
