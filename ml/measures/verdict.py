"""The verdict on federating at one site: two models' answers to the same test samples, compared in one measure.

The difference is paired: both models are measured on the same resamples of the same samples (Efron 1979, the
percentiles 2.5 and 97.5), so that samples which are hard for both do not widen the interval. For classes the measure is
the mean AUC, or the balanced accuracy where there is no AUC; for labels the mean AUC; for targets the mean R2. Tests
compare each with what `ml.measures` computes for one model.

Legend: N samples, C classes, labels or targets, B resamples; `weights_NB` is how often each sample is in each resample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

import numpy as np

from ml.measures.classification import MAX_CLASSES, Floats
from ml.measures.collapse import MIN_SAMPLES
from ml.measures.intervals import NUM_RESAMPLES, Interval
from ml.measures.kinds import Answers
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION

AUC, BALANCED_ACCURACY, R2 = "auc", "balanced_accuracy", "r2"
TITLES = {AUC: "AUC", BALANCED_ACCURACY: "balanced accuracy", R2: "R2"}
ROUNDING = 2e-4  # rounding error of published numbers, which have four digits
MIN_OF_CLASS = 5  # samples of one kind: resamples of fewer are nearly all alike
MAX_WORK = 2_000_000  # samples times resamples; for more samples there are fewer resamples
MAX_AT_ONCE = 500_000  # samples times resamples
LEAST_RESAMPLES = 200
TRY = (
    "Try answers of both models mixed (training.answer_by: mixed), fewer local steps or a lower learning rate in a new "
    "run, or another method (fednode propose run --set method.name=NAME)."
)


class Outcome(StrEnum):
    """The result of a comparison; the value is its name in records."""

    TOGETHER = "together"  # the federation's model is better here
    ALONE = "alone"
    NO_DIFFERENCE = "no_difference"
    TOO_FEW = "too_few"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of the federation's model (`together`) with the model trained alone, in one `measure`. `low` to
    `high` is the interval in which their difference, together less alone, lies with 95 % confidence; None where the
    samples are too few. Both had done the work of `rounds` rounds; `rounds` is None where training alone lags by
    `owed_steps` steps. `newest` is the federation's newest round."""

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
        """Returns a mapping that JSON can encode."""
        return asdict(self)

    def to_values(self) -> dict[str, float]:
        """Returns the numbers that a site publishes of it, by name."""
        told = {f"alone_{self.measure}": self.alone, "gain": self.difference}
        if self.interval is not None:
            told |= {"gain_low": self.interval.low, "gain_high": self.interval.high}
        return told

    @classmethod
    def from_values(cls, values: Mapping[str, float], num_samples: int) -> Self | None:
        """Reads the numbers that a site has published; None where they are no verdict, or contradict each other."""
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
        """Returns the same verdict with this as the federation's newest round."""
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
        both += f" ({_show(self.difference)}, {_show(interval.low)} to {_show(interval.high)})"
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


def _show(difference: float) -> str:
    """Formats a difference with its sign, without a sign where it rounds to zero."""
    shown = f"{difference:+.3f}"
    return shown[1:] if float(shown) == 0 else shown


Judge = Callable[[Floats], Floats]  # computes a measure, [B], with samples weighted by weights_NB


def compare(
    kind: str,
    together: Answers,
    alone: Answers,
    *,
    rounds: int | None = None,
    owed_steps: int = 0,
    seed: int = 0,
) -> Verdict | None:
    """Compares two models by their answers to the same samples. Returns None where no measure is defined: R2 of targets
    that are all alike, or the AUC of labels that all samples have. Raises ValueError for answers to different
    samples."""
    if not np.array_equal(together.y, alone.y):
        raise ValueError("expected two models' answers to the same samples")
    num = len(together.y)
    whole = np.ones((num, 1))
    for measure in _list_measures(kind, together):
        judges = JUDGES[measure](together), JUDGES[measure](alone)
        here, apart = (float(judge(whole)[0]) for judge in judges)
        if math.isfinite(here) and math.isfinite(apart):
            break
    else:
        return None
    interval = _resample(*judges, num, seed) if _are_enough(kind, together.y) else None
    low, high = (None, None) if interval is None else interval
    return Verdict(measure, here, apart, num, low, high, rounds, owed_steps=owed_steps)


def _list_measures(kind: str, answers: Answers) -> list[str]:
    """Returns the measures to try, the best first."""
    if kind == REGRESSION:
        return [R2]
    shown = answers.said.shape[1] <= MAX_CLASSES
    return [*([AUC] if shown else []), *([BALANCED_ACCURACY] if kind == CLASSIFICATION else [])]


def _are_enough(kind: str, y: Any) -> bool:
    """Says whether resamples suffice for a verdict. If a class has one sample, its resamples are all alike, however
    much another sample may differ."""
    if len(y) < MIN_SAMPLES:
        return False
    if kind == REGRESSION:
        return True
    counts = np.sum(y > 0, axis=0) if kind == MULTILABEL else np.unique(y, return_counts=True)[1]
    rarer = np.minimum(counts, len(y) - counts)
    return bool(np.median(rarer[rarer > 0]) >= MIN_OF_CLASS) if rarer.any() else True


def _resample(together: Judge, alone: Judge, num: int, seed: int) -> Interval | None:
    """Returns the interval of the difference over resamples; None where it is undefined in most of them."""
    resamples = max(LEAST_RESAMPLES, min(NUM_RESAMPLES, MAX_WORK // num))
    rng, per_chunk = np.random.default_rng(seed), max(1, MAX_AT_ONCE // num)
    differences: list[float] = []
    for start in range(0, resamples, per_chunk):
        count = min(per_chunk, resamples - start)
        drawn = rng.integers(0, num, (count, num)) + np.arange(count)[:, None] * num
        weights_NB = np.bincount(drawn.ravel(), minlength=count * num).reshape(count, num).T.astype(np.float64)
        found = together(weights_NB) - alone(weights_NB)
        differences += found[np.isfinite(found)].tolist()
    if len(differences) <= resamples // 2:
        return None
    return Interval(*map(float, np.percentile(differences, [2.5, 97.5])))


# ---- the measures: each sample's part, and how parts add up


def _judge_by_auc(answers: Answers) -> Judge:
    """Returns a judge by the mean AUC over classes, or labels, that have a curve. By placements (DeLong et al. 1988) an
    area is a mean over samples, so that a resample needs only sums: to the first order, where samples are few."""
    y, said_NC = answers.y, answers.said
    is_of_NC = y > 0 if y.ndim == 2 else y[:, None] == np.arange(said_NC.shape[1])
    placed_NC = np.stack([_place(is_of, said) for is_of, said in zip(is_of_NC.T, said_NC.T, strict=True)], axis=1)
    of_CN, placed_CN = is_of_NC.T.astype(np.float64), placed_NC.T
    with np.errstate(invalid="ignore"):
        areas_C1 = ((of_CN * placed_CN).sum(1) / of_CN.sum(1))[:, None]

    def judge(weights_NB: Floats) -> Floats:
        counts_CB = _weigh(of_CN, weights_NB)
        with np.errstate(divide="ignore", invalid="ignore"):
            of_CB = _weigh(of_CN * placed_CN, weights_NB) / counts_CB
            others_CB = _weigh((1 - of_CN) * placed_CN, weights_NB) / (weights_NB.sum(0) - counts_CB)
            return _mean_of_known(of_CB + others_CB - areas_C1)

    return judge


def _place(is_of_N: Any, scores_N: Floats) -> Floats:
    """Returns the share of the other kind's samples that each sample is on the right side of, ties counting half.
    Returns NaN where all samples are of one kind."""
    placed_N = np.full(len(scores_N), math.nan)
    if is_of_N.all() or not is_of_N.any():
        return placed_N
    for kind, sign in ((is_of_N, 1), (~is_of_N, -1)):
        others, mine = np.sort(sign * scores_N[~kind]), sign * scores_N[kind]
        placed_N[kind] = (np.searchsorted(others, mine) + np.searchsorted(others, mine, "right")) / (2 * len(others))
    return placed_N


def _judge_by_balanced_accuracy(answers: Answers) -> Judge:
    """Returns a judge by the mean recall over the classes that a resample has."""
    order = np.argsort(answers.y, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(answers.y[order]) != 0]))
    is_right_N1 = (answers.labels == answers.y)[order, None]

    def judge(weights_NB: Floats) -> Floats:
        weights_NB = weights_NB[order]
        right_CB = np.add.reduceat(weights_NB * is_right_N1, starts, axis=0)
        with np.errstate(invalid="ignore"):
            return _mean_of_known(right_CB / np.add.reduceat(weights_NB, starts, axis=0))

    return judge


def _judge_by_r2(answers: Answers) -> Judge:
    """Returns a judge by the mean R2 over targets that are not all alike."""
    from_mean_TN = (answers.y - answers.y.mean(0)).T
    squared_TN = np.square(answers.said - answers.y).T
    rounding_T1 = 1e-24 * np.square(answers.y).max(0)[:, None]  # rounding errors are no spread

    def judge(weights_NB: Floats) -> Floats:
        total_B = weights_NB.sum(0)
        means_TB = _weigh(from_mean_TN, weights_NB) / total_B
        spread_TB = _weigh(np.square(from_mean_TN), weights_NB) / total_B - np.square(means_TB)
        spread_TB[spread_TB <= rounding_T1] = math.nan
        return _mean_of_known(1 - _weigh(squared_TN, weights_NB) / total_B / spread_TB)

    return judge


JUDGES = {AUC: _judge_by_auc, BALANCED_ACCURACY: _judge_by_balanced_accuracy, R2: _judge_by_r2}


def _weigh(parts_CN: Floats, weights_NB: Floats) -> Floats:
    """Returns weighted sums over samples. Does not use BLAS, whose threads spin where a machine has other work for its
    cores."""
    sums_CB: Floats = np.einsum("cn,nb->cb", parts_CN, weights_NB)
    return sums_CB


def _mean_of_known(values_CB: Floats) -> Floats:
    """Returns the mean of the finite values, NaN where there is none."""
    known_CB = np.isfinite(values_CB)
    counts_B = known_CB.sum(0)
    mean_B: Floats = np.where(known_CB, values_CB, 0.0).sum(0) / np.where(counts_B, counts_B, math.nan)
    return mean_B
