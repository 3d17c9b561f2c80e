"""The schedule of the learning rate over the rounds of a run. The rate follows from the number of the round, and of all
planned rounds.

With r the round, from 1 on, R the number of rounds, w those of the warm-up and p = (r - w - 1) / (R - w):

    warm-up    lr * r / (w + 1)                                      for r <= w; then
    constant   lr
    cosine     lr_min + (lr - lr_min) * (1 + cos(pi * p)) / 2        (Loshchilov and Hutter 2017, Eq. (5))
    linear     lr_min + (lr - lr_min) * (1 - p)
    step       lr * step_factor^floor((r - w - 1) / step_rounds)

So the last round still trains. A run that continues another restarts its schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ml.errors import SpecError

SCHEDULES = ("constant", "cosine", "linear", "step")
STEP_FACTOR = 0.1  # the default of `step_factor`
_FALLING = ("cosine", "linear")  # these need to know where the run ends


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """Holds the settings of a method's schedule, None if they are not set."""

    kind: str | None = None
    warmup_rounds: int | None = None
    lr_min: float | None = None
    step_rounds: int | None = None
    step_factor: float | None = None

    def check(self, lr: float, decay: float) -> None:
        """Raises SpecError if a setting has no effect here, or contradicts another."""
        if self.kind is not None and decay != 1:
            raise SpecError("method.decay", f"expected 1 with schedule: {self.kind}, got {decay:g}")
        if self.lr_min is not None and self.kind not in _FALLING:
            raise SpecError("method.lr_min", "expected none without schedule: cosine or linear")
        if self.lr_min is not None and self.lr_min >= lr:
            raise SpecError("method.lr_min", f"expected a number below lr, {lr:g}, got {self.lr_min:g}")
        if (self.step_rounds is None) == (self.kind == "step"):
            expected = "a number of rounds with" if self.kind == "step" else "none without"
            raise SpecError("method.step_rounds", f"expected {expected} schedule: step")
        if self.step_factor is not None and self.kind != "step":
            raise SpecError("method.step_factor", "expected none without schedule: step")

    def check_rounds(self, rounds: int) -> None:
        """Raises SpecError if a run of so many rounds, 0 for no end, is too short or has no end for this schedule."""
        if self.kind in _FALLING and rounds < 1:
            raise SpecError("rounds", f"schedule: {self.kind} expects a number of rounds to fall over, got {rounds}")
        if self.warmup_rounds is not None and 0 < rounds <= self.warmup_rounds:
            raise SpecError("method.warmup_rounds", f"expected fewer than all {rounds} rounds")

    def compute_lr(self, lr: float, round_number: int, rounds: int) -> float:
        """Computes the learning rate of a round, from 1 on, of so many, 0 for no end."""
        warmup = self.warmup_rounds or 0
        if round_number <= warmup:
            return lr * round_number / (warmup + 1)
        done = round_number - warmup - 1
        if self.kind == "step" and self.step_rounds is not None:
            factor = STEP_FACTOR if self.step_factor is None else self.step_factor
            return lr * factor ** (done // self.step_rounds)
        if self.kind not in _FALLING or rounds <= warmup:
            return lr
        lowest, part = self.lr_min or 0.0, min(done / (rounds - warmup), 1.0)
        left = (1 + math.cos(math.pi * part)) / 2 if self.kind == "cosine" else 1 - part
        return lowest + (lr - lowest) * left
