"""Signs of what is wrong with a model, in words: that it has not learned, and of one that has, what it lacks.

An accuracy alone does not show it: where 63 of 100 patients are healthy, a model that calls everyone healthy has 0.63.
Nor is a model below that useless: where 92 of 100 are ill, one that ranks them well may call fewer right. So who tells
classes apart better than by chance, as far as the test samples can show it, has learned. Of labels it is their
prevalence that a model must beat, of targets the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np

from ml.measures.classification import Measures
from ml.measures.kinds import AnyMeasures
from ml.measures.multilabel import LabelMeasures
from ml.measures.regression import TargetMeasures
from ml.measures.signs import (
    Losses,
    explain_averaging,
    explain_behind,
    explain_miscalibration,
    explain_overfitting,
    explain_too_few,
    explain_unfound,
    ranks,
)

MIN_SAMPLES = 10  # of fewer there is no telling
MIN_STEPS = 20
WORSE = 1.1  # times the loss that the first quarter of the steps had
WORSE_BY = 0.05  # at least: a loss near zero goes up and down by as much as it is


class Sign(StrEnum):
    """A kind of sign; the value is its name in metrics and records."""

    ONE_CLASS = "one_class"
    MAJORITY = "majority"
    PRIOR = "prior"
    MEAN = "mean"
    WORSE = "worse"
    OVERFITTING = "overfitting"
    UNFOUND = "unfound"
    MISCALIBRATED = "miscalibrated"
    AVERAGING = "averaging"
    BEHIND = "behind"
    FEW = "few"


NOT_LEARNED = frozenset({Sign.ONE_CLASS, Sign.MAJORITY, Sign.PRIOR, Sign.MEAN, Sign.WORSE})
QUIET = frozenset({Sign.BEHIND, Sign.FEW})  # no alarm
_BLIND = frozenset({Sign.MAJORITY, Sign.PRIOR})  # which overfitting explains


def find_signs(
    measures: AnyMeasures | None,
    train: Mapping[str, float],
    before: AnyMeasures | None = None,
    losses: Sequence[Losses] = (),
) -> dict[Sign, str]:
    """What speaks against a model by its answers to the test samples of a site, and by `train`, the metrics of the
    local phase before. `before` are the measures of that phase's model, before the exchange, and `losses` those of the
    run's rounds until this one."""
    overfitting = explain_overfitting(losses)
    signs = {sign: text for sign, text in _find(measures).items() if overfitting is None or sign not in _BLIND}
    first, last = train.get("first_loss", math.nan), train.get("last_loss", math.nan)
    if train.get("steps", 0) >= MIN_STEPS and last > max(WORSE * first, first + WORSE_BY):
        signs[Sign.WORSE] = f"the local phase ended worse than it began: loss {first:.3g} at first, {last:.3g} at last"
    if overfitting is not None:
        signs[Sign.OVERFITTING] = overfitting
    if measures is not None and measures.num_samples >= MIN_SAMPLES:
        averaging = explain_averaging(before, measures)
        signs |= {} if averaging is None else {Sign.AVERAGING: averaging}
    return signs if signs or measures is None else _find_lesser(measures)


def _find_lesser(measures: AnyMeasures) -> dict[Sign, str]:
    """What is told of a model that shows nothing worse."""
    has_learned = isinstance(measures, Measures) and ranks(measures)
    few = None if has_learned and measures.num_samples >= MIN_SAMPLES else explain_too_few(measures, MIN_SAMPLES)
    if few is not None:
        return {Sign.FEW: few}
    found = {
        Sign.UNFOUND: explain_unfound(measures),
        Sign.MISCALIBRATED: explain_miscalibration(measures) if has_learned else None,
        Sign.BEHIND: explain_behind(measures) if has_learned and isinstance(measures, Measures) else None,
    }
    return {sign: text for sign, text in found.items() if text is not None}


def _find(measures: AnyMeasures | None) -> dict[Sign, str]:
    if measures is None or measures.num_samples < MIN_SAMPLES:
        return {}
    if isinstance(measures, LabelMeasures):
        return _find_in_labels(measures)
    return _find_in_values(measures) if isinstance(measures, TargetMeasures) else _find_in_answers(measures)


def _find_in_labels(measures: LabelMeasures) -> dict[Sign, str]:
    signs, num = {}, measures.num_samples
    if measures.num_alike == num and measures.num_exact < num:
        signs[Sign.ONE_CLASS] = f"all {num} test samples are given the same labels, of which {measures.num_exact} are"
    if measures.loss is not None and 0 < measures.prior <= measures.loss:
        signs[Sign.PRIOR] = (
            f"loss {measures.loss:.3g} on the test samples is no better than {measures.prior:.3g}, which the "
            "prevalences of the labels alone have"
        )
    return signs


def _find_in_values(measures: TargetMeasures) -> dict[Sign, str]:
    rows = zip(measures.by_class, measures.spread, strict=False)
    told = [
        f"{one.name} {one.rmse:.3g}, where it has {spread:.3g}"
        for one, spread in rows
        if one.r2 is not None and one.r2 <= 0
    ]
    if not told:
        return {}
    return {Sign.MEAN: f"the error (RMSE) is no better than saying the mean of the test samples: {'; '.join(told[:5])}"}


def _find_in_answers(measures: Measures) -> dict[Sign, str]:
    by_class = measures.by_class
    if not by_class:
        return {}
    actual, given = (np.array(counts) for counts in zip(*((c.num_samples, c.num_given) for c in by_class), strict=True))
    if np.count_nonzero(actual) < 2:
        return {}
    signs = {}
    common, num = int(actual.argmax()), measures.num_samples
    if np.count_nonzero(given) == 1:
        only = int(given.argmax())
        signs[Sign.ONE_CLASS] = f"all {num} test samples are called {by_class[only].name}, of which {actual[only]} are"
    if ranks(measures):
        return signs
    if not signs and measures.num_correct <= actual[common]:
        signs[Sign.MAJORITY] = (
            f"accuracy {measures.accuracy:.3f} is no better than {actual[common] / num:.3f}, which calling every test "
            f"sample {by_class[common].name} has"
        )
    shares = actual[actual > 0] / num
    prior = -math.fsum(shares * np.log(shares))
    if measures.loss is not None and measures.loss >= prior:
        signs[Sign.PRIOR] = (
            f"loss {measures.loss:.3g} on the test samples is no better than {prior:.3g}, which the shares of the "
            f"classes alone have"
        )
    return signs
