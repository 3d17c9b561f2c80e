"""The terms by which a run selects its best round, and ends when none is better any more (`select` of genesis).

    select: {by: loss | auc, patience: N, min_delta: x, evaluate: true | false}

After a round each member that has val samples measures the model of that round, and signs the measure in its
contribution to the next (`chain.selection`). With `evaluate` every member measures the best round's model on its test
samples at one more height, once the run has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from chain.errors import GenesisError
from chain.layout import MAX_HEIGHT
from chain.schema import Section, check_choice, check_range, read_number

FIRST_SELECTING = 5  # the first protocol under which contributions measure
ONE = 1_000_000  # the number that 1.0 is written as
LOSS, AUC = "loss", "auc"
MOST = {LOSS: 1000 * ONE, AUC: ONE}  # the greatest number that each measure is written as


@dataclass(frozen=True, slots=True)
class Select:
    """The settings of a run that selects its best round. Raises GenesisError naming the field.

    `by` is the measure that rounds are compared by. The run ends after `patience` measured rounds without a better one;
    0 turns that off. A round is better if its measure is better by more than `min_delta`. With `evaluate` every site
    measures the best round's model when the run has ended.
    """

    by: str = LOSS
    patience: int = 0
    min_delta: float = 0.0
    evaluate: bool = False

    def __post_init__(self) -> None:
        check_choice("select.by", self.by, tuple(MOST))
        check_range("select.patience", self.patience, 0, MAX_HEIGHT)
        if not 0 <= self.min_delta <= 1:
            raise GenesisError("select.min_delta", f"expected 0 to 1, got {self.min_delta:g}")

    @property
    def most(self) -> int:
        """The greatest number that a measure is written as."""
        return MOST[self.by]

    @property
    def least_gain(self) -> int:
        """The value of `min_delta` in the units in which measures are written."""
        return round(self.min_delta * ONE)

    def to_mapping(self) -> dict[str, Any]:
        evaluate = {"evaluate": True} if self.evaluate else {}
        return {"by": self.by, "patience": self.patience, "min_delta": self.min_delta, **evaluate}

    @classmethod
    def read(cls, top: Section) -> Self | None:
        """Returns the settings, None if `select` is not set. Raises GenesisError."""
        if top.value("select", None) is None:
            return None
        section = top.section("select", ("by", "patience", "min_delta", "evaluate"))
        least = read_number(section.path("min_delta"), section.value("min_delta", 0.0))
        return cls(section.text("by", LOSS), section.integer("patience", 0), least, section.flag("evaluate", False))
