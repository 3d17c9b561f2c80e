"""Hyper-parameters: the settings of local training that every method has, each a field with its kind and its range."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ml.aggregation import Box
from ml.errors import SpecError, suggest
from ml.specs.privacy import CLIP, DELTA, DpSettings, check_privacy, get_dp_settings
from ml.specs.schedule import SCHEDULES, LrSchedule
from ml.specs.sections import flatten, get_key, nest

MAX_COUNT = 1 << 31


def number(default: float | None, interval: str) -> Any:
    """Makes a finite real setting in an interval such as "[0, 1)"; None is only ever a default."""
    return field(default=default, metadata={"type": float, "interval": interval})


def count(default: int | None) -> Any:
    """Makes a whole setting of at least 1."""
    return field(default=default, metadata={"type": int})


def up_to(most: int) -> Any:
    """Makes a whole setting from 0 to `most`, 0 by default."""
    return field(default=None, metadata={"type": int, "span": (0, most)})


def flag(default: bool) -> Any:
    """Makes a setting that is on or off."""
    return field(default=default, metadata={"type": bool})


def switch() -> Any:
    """Makes a setting that is on or off, off by default."""
    return field(default=None, metadata={"type": bool})


def option(*words: str) -> Any:
    """Makes a setting that is one of a few words, by default the first."""
    return field(default=None, metadata={"type": str, "choices": words})


def choice(default: str, *others: str) -> Any:
    """Makes a setting that is one of a few words."""
    return field(default=default, metadata={"type": str, "choices": (default, *others)})


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Settings of local optimisation, which every method with local training has (ALGORITHMS §1.5).

    Momentum starts at zero in each local phase; `decay` of the learning rate acts once per round, with `decay_unit:
    step` after each mini-batch step; local work is either iterations (mini-batch steps) or epochs, never both, and
    `drop_last` leaves an epoch's partial batch out. With `budget_s` a member trains as many iterations (or epochs) as
    fit into so many seconds a round beside the mining, by its own measurements; what is set here is then for its first
    round. The defaults are DFPL's.

    Settings without a value leave training as the papers have it: `optimizer` (whose memory begins empty in each phase,
    too), `clip_norm` of all gradients together, `loss` with `focal_gamma` or `huber_delta`, `label_smoothing`,
    `class_weights` by how often a client's own samples have a class, or all members' samples, if they have agreed on
    that (`agreed`), `sampling` that draws all its classes alike, and the learning rate's `schedule` over the rounds,
    with `warmup_rounds`, `lr_min`, `step_rounds` and `step_factor` (`ml.specs.schedule`). `ml.specs.task_rules` says
    which of them a task can have.

    With `dp_noise` each member hides every one of its samples (`ml.training.private`). The noise in its steps is in
    units of `dp_clip`, the greatest length of a sample's gradient. `dp_prototype_noise` is the noise in prototypes, in
    units of `dp_prototype_clip`, that of an embedding. `dp_statistics_noise` is the noise in the sums that members
    agree on, if they do (`ml.data.hidden_statistics`). `dp_delta` is the chance that epsilon leaves out
    (`ml.accountant`).
    """

    lr: float = number(0.1, "(0, 1e38]")
    momentum: float = number(0.0, "[0, 1)")
    weight_decay: float = number(0.0, "[0, inf)")
    decay: float = number(1.0, "(0, 1]")
    decay_unit: str = choice("round", "step")
    batch_size: int = count(32)
    drop_last: bool = flag(False)
    local_iterations: int | None = count(20)
    local_epochs: int | None = count(None)
    budget_s: float | None = number(None, "(0, 604800]")
    optimizer: str | None = option("sgd", "adam", "adamw")
    clip_norm: float | None = number(None, "(0, inf)")
    loss: str | None = option("cross_entropy", "focal", "binary_cross_entropy", "mse", "huber")
    focal_gamma: float | None = number(None, "(0, inf)")
    huber_delta: float | None = number(None, "(0, inf)")
    label_smoothing: float | None = number(None, "[0, 1)")
    class_weights: str | None = option("none", "own", "agreed")
    sampling: str | None = option("uniform", "balanced")
    schedule: str | None = option(*SCHEDULES)
    warmup_rounds: int | None = count(None)
    lr_min: float | None = number(None, "(0, inf)")
    step_rounds: int | None = count(None)
    step_factor: float | None = number(None, "(0, 1)")
    dp_noise: float | None = number(None, "(0, inf)")
    dp_clip: float | None = number(None, "(0, inf)")
    dp_prototype_noise: float | None = number(None, "(0, inf)")
    dp_prototype_clip: float | None = number(None, "(0, inf)")
    dp_statistics_noise: float | None = number(None, "(0, inf)")
    dp_delta: float | None = number(None, "(0, 1)")

    def __post_init__(self) -> None:
        if (self.local_iterations is None) == (self.local_epochs is None):
            got = "neither" if self.local_epochs is None else "both"
            raise SpecError("method.local_epochs", f"expected either local_iterations or local_epochs, got {got}")
        if self.decay_unit == "step" and self.budget_s is not None:
            raise SpecError("method.decay_unit", "expected round with budget_s, which varies the steps; got 'step'")
        if self.optimizer in ("adam", "adamw") and self.momentum:
            raise SpecError("method.momentum", f"expected 0 with {self.optimizer}, got {self.momentum:g}")
        if self.focal_gamma is not None and self.loss != "focal":
            raise SpecError("method.focal_gamma", "expected none without loss: focal")
        if self.huber_delta is not None and self.loss != "huber":
            raise SpecError("method.huber_delta", "expected none without loss: huber")
        self.lr_schedule.check(self.lr, self.decay)
        check_privacy(self)

    @property
    def is_private(self) -> bool:
        """Says whether members hide each of their samples."""
        return self.dp_noise is not None

    def without_privacy(self) -> Self:
        """Returns the same settings without those that hide samples."""
        plain: dict[str, Any] = {one.name: None for one in dataclasses.fields(self) if one.name.startswith("dp_")}
        return dataclasses.replace(self, **plain)

    @property
    def update_noise(self) -> float | None:
        """The noise that hides a whole client in what it sends, in units of the greatest length of an update; None if
        there is none."""
        return None

    @property
    def update_clip(self) -> float:
        """The greatest length of an update that has noise."""
        return CLIP

    @property
    def is_counted(self) -> bool:
        """Says whether a node adds up what phases release about samples or about the client."""
        return self.is_private or self.update_noise is not None

    @property
    def is_masked(self) -> bool:
        """Says whether members compute the mean from a sum that hides its parts (`ml.specs.masked`)."""
        return False

    @property
    def box(self) -> Box | None:
        """Returns the box to which the mean of masked sums is clipped, None if it is not clipped."""
        return None

    @property
    def delta(self) -> float:
        """The chance that epsilon leaves out."""
        return DELTA if self.dp_delta is None else self.dp_delta

    @property
    def dp(self) -> DpSettings:
        """The settings that hide samples, with defaults written out. Raises ValueError if there are none."""
        return get_dp_settings(self)

    @property
    def counts_epochs(self) -> bool:
        """Says whether local work is counted in epochs, not in mini-batch steps."""
        return self.local_iterations is None

    @property
    def local_work(self) -> int:
        """E, the number of iterations or epochs of a local phase."""
        return self.local_iterations or self.local_epochs or 0

    @property
    def lr_schedule(self) -> LrSchedule:
        return LrSchedule(self.schedule, self.warmup_rounds, self.lr_min, self.step_rounds, self.step_factor)

    def compute_lr(self, height: int, num_steps: int = 0, rounds: int = 0) -> float:
        """Computes the learning rate at the beginning of round `height`, from 1 on, of `rounds`: that of the schedule
        times decay^(height - 1), or if decay acts after each of the round's `num_steps`, decay^((height - 1) *
        num_steps)."""
        lr = self.lr_schedule.compute_lr(self.lr, height, rounds)
        return float(lr * self.decay ** ((height - 1) * (num_steps if self.decay_unit == "step" else 1)))

    @property
    def decay_by_step(self) -> float:
        """The factor of the learning rate after a mini-batch step."""
        return self.decay if self.decay_unit == "step" else 1.0

    @classmethod
    def keys(cls) -> dict[str, dataclasses.Field[Any]]:
        """Returns the settings by the key they have in genesis (`ml.specs.sections`)."""
        return {get_key(f.name, f.metadata): f for f in dataclasses.fields(cls)}

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any]) -> Self:
        """Reads genesis' `method`, except for `name`. Raises SpecError for an unknown key or a value out of range."""
        keys = cls.keys()
        values: dict[str, Any] = {}
        for key, value in flatten(method).items():
            if key in ("name", "plugin"):
                continue
            if key not in keys:
                raise SpecError(f"method.{key}", f"unknown key: {suggest(key, keys)}")
            values[keys[key].name] = read_value(f"method.{key}", keys[key].metadata, value)
        if "local_iterations" in values:  # setting one replaces the other's default
            values.setdefault("local_epochs", None)
        elif "local_epochs" in values:
            values["local_iterations"] = None
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Returns every setting by its key, defaults written out, so that genesis does not depend on this version's
        defaults."""
        values = {key: getattr(self, f.name) for key, f in self.keys().items()}
        return nest({key: value for key, value in values.items() if value is not None})


def read_value(path: str, rule: Mapping[str, Any], value: Any) -> Any:
    """Reads `value` as a setting of this kind, from the metadata of its field. Raises SpecError at `path`."""
    if rule["type"] is str:
        if value not in rule["choices"]:
            one_of = "one of " if len(rule["choices"]) > 1 else ""
            raise SpecError(path, f"expected {one_of}{', '.join(rule['choices'])}, got {value!r}")
        return value
    if rule["type"] is bool:
        if not isinstance(value, bool):
            raise SpecError(path, f"expected true or false, got {value!r}")
        return value
    if rule["type"] is int:
        low, high = rule.get("span", (1, MAX_COUNT - 1))
        if type(value) is not int or not low <= value <= high:
            raise SpecError(path, f"expected a whole number from {low} to {high}, got {value!r}")
        return value
    interval: str = rule["interval"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_in(value, interval):
        raise SpecError(path, f"expected a number in {interval}, got {value!r}")
    return float(value)


def _is_in(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    return above and below and value <= sys.float_info.max
