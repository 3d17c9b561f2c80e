"""Training alone, as reports describe it: its progress, and the quality of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray

from ml.measures.kinds import AnyMeasures, read_measures
from ml.measures.verdict import Verdict

FEDERATION, ALONE, MIXED = "federation", "alone", "mixed"  # the common model's answers, the site's own, or both


class Answered(NamedTuple):
    """A client's `own` answer about samples. `ask_beside` returns, by name, the answers of the model trained alone and
    of both models mixed, where a model is trained alone."""

    own: Mapping[str, NDArray[Any]]
    ask_beside: Callable[[], Mapping[str, Mapping[str, NDArray[Any]]]]


@dataclass(frozen=True, slots=True)
class TrainedAlone:
    """The state and quality of a model that a site trains without the others, for comparison: it has done the work of
    so many whole `rounds`, still has `owed_steps` to do, and has taken `seconds` of CPU. `measures` are those of its
    answers to the test samples at that point, and `verdict` compares them with the federation's after as much work, for
    the newest comparable round. `failure` is the reason why its training ended, if it did. `mixed` are the measures of
    both models' answers mixed, by `weight` of the federation's, after the newest round of both."""

    rounds: int
    owed_steps: int
    seconds: float
    measures: AnyMeasures | None = None
    failure: str | None = None
    verdict: Verdict | None = None
    mixed: AnyMeasures | None = None
    weight: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Returns a mapping that JSON can encode."""
        return asdict(self)

    def with_classes(self, classes: tuple[str, ...]) -> Self:
        """Returns the same, with the names of these classes in its measures."""
        measures = None if self.measures is None else replace(self.measures, classes=classes)
        mixed = None if self.mixed is None else replace(self.mixed, classes=classes)
        return replace(self, measures=measures, mixed=mixed)

    @classmethod
    def from_mapping(cls, told: Mapping[str, Any]) -> Self:
        """Reads the mapping of `to_mapping`. Raises TypeError for anything else."""
        both = {name: None if told.get(name) is None else read_measures(told[name]) for name in ("measures", "mixed")}
        verdict = None if told.get("verdict") is None else Verdict(**told["verdict"])
        return cls(**{**told, **both, "verdict": verdict})
