"""The verdict on federating at one site: two models' answers to the same test samples, compared in one measure.

The difference is a paired one: both models are measured on the same resamples of the same samples (Efron 1979, the
percentiles 2.5 and 97.5), so that what makes samples hard for both does not blur it. Of classes the measure is the mean
AUC, or the balanced accuracy where there is no AUC; of labels the mean AUC; of targets the mean R2. Tests hold each to
what `ml.measures` computes of one model.

Legend: N samples, C classes, labels or targets, B resamples; `weights_NB` says how often a resample has a sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

import numpy as np

from ml.measures.classification import MAX_CLASSES, Floats, Ints
from ml.measures.collapse import MIN_SAMPLES
from ml.measures.intervals import NUM_RESAMPLES, Interval
from ml.measures.kinds import Answers
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION

AUC, BALANCED_ACCURACY, R2 = "auc", "balanced_accuracy", "r2"
TITLES = {AUC: "AUC", BALANCED_ACCURACY: "balanced accuracy", R2: "R2"}
ROUNDING = 2e-4  # of published numbers, which have four digits
MIN_OF_CLASS = 5  # samples of one kind, of which fewer resample to nearly the same
MAX_WORK = 4_000_000  # samples times classes times resamples, beyond which there are fewer resamples
MAX_AT_ONCE = 500_000  # samples times resamples
LEAST_RESAMPLES = 200
TRY = (
    "Try fewer local steps or a lower learning rate in a new run, or another method (fednode propose run --set "
    "method.name=NAME)."
)


class Outcome(StrEnum):
    """What the samples show; the value is its name in records."""

    TOGETHER = "together"  # the federation's model is better here
    ALONE = "alone"
    NO_DIFFERENCE = "no_difference"
    TOO_FEW = "too_few"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Both models in the `measure`, and the interval from `low` to `high` in which their difference, together less
    alone, lies with 95 % confidence; None where the samples are too few to tell. Both had done the work of `rounds`
    rounds, None where training alone lags by `owed_steps` steps of what is compared; `newest` is the round that the
    federation had come to."""

    measure: str
    together: float
    alone: float
    num_samples: int
    low: float | None
    high: float | None
    rounds: int | None = None
    newest: int | None = None
    owed_steps: int = 0

    def to_mapping(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, told: Mapping[str, Any]) -> Self:
        """Of what `to_mapping` gave. Raises TypeError for anything else."""
        return cls(**told)

    def to_values(self) -> dict[str, float]:
        """What a site publishes of it: numbers by name."""
        told = {f"alone_{self.measure}": self.alone, "gain": self.difference}
        return (
            told if self.interval is None else told | {"gain_low": self.interval.low, "gain_high": self.interval.high}
        )

    @classmethod
    def from_values(cls, values: Mapping[str, float], num_samples: int) -> Self | None:
        """Of what a site has published; None where that is no verdict, or contradicts itself."""
        measure = next((name for name in TITLES if f"alone_{name}" in values), None)
        if measure is None or "gain" not in values:
            return None
        alone, gain = values[f"alone_{measure}"], values["gain"]
        low, high = values.get("gain_low"), values.get("gain_high")
        together, least = alone + gain, -math.inf if measure == R2 else 0.0
        if not least - ROUNDING <= together <= 1 + ROUNDING:
            return None
        if low is not None and high is not None and not low - ROUNDING <= gain <= high + ROUNDING:
            return None
        return cls(measure, min(max(together, least), 1.0), alone, num_samples, low, high)

    def of_newest(self, newest: int) -> Self:
        """The same, told when the federation has come to this round."""
        return replace(self, newest=newest)

    @property
    def difference(self) -> float:
        return self.together - self.alone

    @property
    def interval(self) -> Interval | None:
        return None if self.low is None or self.high is None else Interval(self.low, self.high)

    @property
    def outcome(self) -> Outcome:
        if self.low is None or self.high is None:
            return Outcome.TOO_FEW
        if self.low > 0:
            return Outcome.TOGETHER
        return Outcome.ALONE if self.high < 0 else Outcome.NO_DIFFERENCE

    @property
    def sentence(self) -> str:
        """The verdict in words, the lag first where there is one."""
        told = self._tell()
        if (lag := self._tell_lag()) is None:
            return told
        return f"{lag}: {told[0].lower()}{told[1:]}"

    def _tell(self) -> str:
        title, samples = TITLES[self.measure], f"{self.num_samples} test samples"
        both = f"{title} {self.together:.3f} against {self.alone:.3f} alone"
        if (interval := self.interval) is None:
            return f"Too few test samples to tell whether federating helps here: {both}, on {samples}."
        both += f" ({self.difference:+.3f}, {_show_range(interval)})"
        match self.outcome:
            case Outcome.TOGETHER:
                return f"Federating helps here: {both}, on {samples}."
            case Outcome.ALONE:
                return f"Training alone is better here by {-self.difference:.3f}: {both}, on {samples}. {TRY}"
        return f"No difference that {samples} could show: {both}."

    def _tell_lag(self) -> str | None:
        if self.rounds is None:
            return f"Training alone lags by {self.owed_steps} steps" if self.owed_steps else None
        if self.newest is None or self.rounds >= self.newest:
            return None
        return f"At round {self.rounds} of {self.newest}, as far as training alone has come"


def _show_range(interval: Interval) -> str:
    """With signs, which a difference has."""
    return f"{interval.low:+.3f} to {interval.high:+.3f}"


def compare(
    kind: str,
    together: Answers,
    alone: Answers,
    *,
    rounds: int | None = None,
    owed_steps: int = 0,
    seed: int = 0,
) -> Verdict | None:
    """The verdict on two models' answers to the same samples. None where no measure is defined: R2 of targets that are
    all alike, or the AUC of labels that all samples have. Raises ValueError for answers to other samples."""
    if not np.array_equal(together.y, alone.y):
        raise ValueError("expected two models' answers to the same samples")
    num = len(together.y)
    for measure in _list_measures(kind, together):
        whole = np.ones((num, 1))
        both = _compute(measure, together, whole)[0], _compute(measure, alone, whole)[0]
        if all(map(math.isfinite, both)):
            break
    else:
        return None
    interval = _resample(measure, together, alone, seed) if _are_enough(kind, together.y) else None
    low, high = (None, None) if interval is None else interval
    here, apart = map(float, both)
    return Verdict(measure, here, apart, num, low, high, rounds, owed_steps=owed_steps)


def _list_measures(kind: str, answers: Answers) -> list[str]:
    """Those to be tried, the best first."""
    if kind == REGRESSION:
        return [R2]
    shown = answers.said.shape[1] <= MAX_CLASSES
    return [*([AUC] if shown else []), *([BALANCED_ACCURACY] if kind == CLASSIFICATION else [])]


def _are_enough(kind: str, y: Any) -> bool:
    """Whether resamples can tell: of a class with one sample all are alike, however much the next one may differ."""
    if len(y) < MIN_SAMPLES:
        return False
    if kind == REGRESSION:
        return True
    counts = np.sum(y > 0, axis=0) if kind == MULTILABEL else np.unique(y, return_counts=True)[1]
    rarer = np.minimum(counts, len(y) - counts)
    return bool(np.median(rarer[rarer > 0]) >= MIN_OF_CLASS) if rarer.any() else True


def _resample(measure: str, together: Answers, alone: Answers, seed: int) -> Interval | None:
    """None where most resamples say nothing."""
    num, width = together.said.shape
    resamples = max(LEAST_RESAMPLES, min(NUM_RESAMPLES, MAX_WORK // (num * width)))
    rng, per_chunk = np.random.default_rng(seed), max(1, MAX_AT_ONCE // num)
    differences: list[float] = []
    for start in range(0, resamples, per_chunk):
        count = min(per_chunk, resamples - start)
        drawn = rng.integers(0, num, (count, num)) + np.arange(count)[:, None] * num
        weights_NB = np.bincount(drawn.ravel(), minlength=count * num).reshape(count, num).T.astype(np.float64)
        found = _compute(measure, together, weights_NB) - _compute(measure, alone, weights_NB)
        differences += found[np.isfinite(found)].tolist()
    if len(differences) <= resamples // 2:
        return None
    return Interval(*map(float, np.percentile(differences, [2.5, 97.5])))


# ---- each measure, [B], of answers whose samples count as often as weights say; not finite where it is not defined


def _compute(measure: str, answers: Answers, weights_NB: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        if measure == AUC:
            return _compute_aucs(answers, weights_NB)
        if measure == R2:
            return _compute_r2(answers, weights_NB)
        return _compute_balanced_accuracy(answers, weights_NB)


def _compute_aucs(answers: Answers, weights_NB: Floats) -> Floats:
    """The mean over classes, or labels, that have a curve."""
    y, said_NC = answers.y, answers.said
    is_of_NC = y > 0 if y.ndim == 2 else y[:, None] == np.arange(said_NC.shape[1])
    found = [_compute_auc(is_of_NC[:, c], said_NC[:, c], weights_NB) for c in range(said_NC.shape[1])]
    return _mean_of_known(np.stack(found))


def _compute_auc(is_of_N: Any, scores_N: Floats, weights_NB: Floats) -> Floats:
    """Mann and Whitney (1947): how often a sample of the class is scored above another one, and half of the ties."""
    order = np.argsort(scores_N, kind="stable")
    sorted_N = scores_N[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_N[1:] != sorted_N[:-1]]))
    of_NB = weights_NB[order] * is_of_N[order, None]
    of_KB = np.add.reduceat(of_NB, starts, axis=0)
    others_KB = np.add.reduceat(weights_NB[order] - of_NB, starts, axis=0)
    below_KB = np.cumsum(others_KB, axis=0) - others_KB / 2
    area: Floats = (of_KB * below_KB).sum(0) / (of_KB.sum(0) * others_KB.sum(0))
    return area


def _compute_balanced_accuracy(answers: Answers, weights_NB: Floats) -> Floats:
    """The mean over the classes that a resample has."""
    y_N: Ints = answers.y
    order = np.argsort(y_N, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(y_N[order]) != 0]))
    right_N = (answers.labels == y_N)[order, None]
    weights_NB = weights_NB[order]
    right_CB = np.add.reduceat(weights_NB * right_N, starts, axis=0)
    return _mean_of_known(right_CB / np.add.reduceat(weights_NB, starts, axis=0))


def _compute_r2(answers: Answers, weights_NB: Floats) -> Floats:
    """The mean over targets that are not all alike."""
    y_NT = answers.y - answers.y.mean(0)
    total_B = weights_NB.sum(0)
    squared_TB = np.square(answers.said - answers.y).T @ weights_NB / total_B
    spread_TB = np.square(y_NT).T @ weights_NB / total_B - np.square(y_NT.T @ weights_NB / total_B)
    spread_TB[spread_TB <= 1e-24 * np.square(answers.y).max(0)[:, None]] = math.nan  # rounding is no spread
    return _mean_of_known(1 - squared_TB / spread_TB)


def _mean_of_known(values_CB: Floats) -> Floats:
    known_CB = np.isfinite(values_CB)
    mean_B: Floats = np.where(known_CB, values_CB, 0.0).sum(0) / known_CB.sum(0)
    return mean_B
