"""The settings that a member needs besides schemas and rules to judge a method whose code it does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ml.aggregation import RuleSettings
from ml.aggregation.outer import OuterSettings


@dataclass(frozen=True, slots=True)
class Judging:
    """`weights`: "1" where every contribution is signed as 1, "samples" where a weight says something. The settings of
    rules are as in `RuleSettings`. `draw` is how many others a member takes on-demand kinds of, None where there are
    none. `outer` is the optimiser that the common model goes on by, None where it is what the rule gives."""

    weights: str
    weight_cap: int | None = None
    clip: float | None = None
    momentum: float = 0.0
    draw: int | None = None
    outer: OuterSettings | None = None

    def to_mapping(self) -> dict[str, Any]:
        """As a schema has it: what is not set is left out."""
        values: dict[str, Any] = {"weights": self.weights, "weight_cap": self.weight_cap, "clip": self.clip}
        values |= {"draw": self.draw, "momentum": self.momentum or None}
        values["outer"] = None if self.outer is None else self.outer.to_mapping()
        return {key: value for key, value in values.items() if value is not None}

    def make_settings(self, max_liars: int) -> RuleSettings:
        return RuleSettings(max_liars, self.weight_cap, self.clip, self.momentum)
