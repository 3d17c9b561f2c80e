"""Signs of faults of a model, in words: that it has not learned or, if it has, what it lacks.

An accuracy alone does not show it: where 63 of 100 patients are healthy, a model that calls everyone healthy has 0.63.
Nor is a model below that useless: where 92 of 100 are ill, one that ranks them well may call fewer right, or everyone
ill. So a model has learned if it distinguishes classes better than chance, as far as the test samples can show it; a
model for which these leave it open is not reported. With labels a model has to beat their prevalence, with targets
their mean.

A model that has learned nothing gets one sign for that. If another fault explains it, that fault is reported instead,
and if its loss on held-out samples still falls, the sign says that it has not learned yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from ml.measures.classification import Measures
from ml.measures.kinds import AnyMeasures
from ml.measures.multilabel import LabelMeasures
from ml.measures.regression import TargetMeasures
from ml.measures.signs import (
    Losses,
    explain_averaging,
    explain_behind,
    explain_falling,
    explain_miscalibration,
    explain_missing,
    explain_overfitting,
    explain_too_few,
    explain_unfound,
    may_rank,
    ranks,
)

MIN_SAMPLES = 10  # fewer show nothing
MIN_STEPS = 20
WORSE = 1.1  # times the loss that the first quarter of the steps had
WORSE_BY = 0.05  # at least: a loss near zero varies by its own size
ERRORS = 2  # standard errors, as small batches vary


class Sign(StrEnum):
    """A kind of warning sign about a model; the value is its name in metrics and records."""

    ONE_CLASS = "one_class"
    MAJORITY = "majority"
    PRIOR = "prior"
    MEAN = "mean"
    WORSE = "worse"
    NOT_YET = "not_yet"
    OVERFITTING = "overfitting"
    MISSING = "missing"
    UNFOUND = "unfound"
    MISCALIBRATED = "miscalibrated"
    AVERAGING = "averaging"
    BEHIND = "behind"
    FEW = "few"


NOT_LEARNED = frozenset({Sign.ONE_CLASS, Sign.MAJORITY, Sign.PRIOR, Sign.MEAN, Sign.WORSE})
QUIET = frozenset({Sign.NOT_YET, Sign.MISSING, Sign.BEHIND, Sign.FEW})  # no alarm
_HELPS = "look at the data first (fednode data inspect), then try another lr"


def find_signs(
    measures: AnyMeasures | None,
    train: Mapping[str, float],
    before: AnyMeasures | None = None,
    losses: Sequence[Losses] = (),
    missing: Sequence[str] = (),
) -> dict[Sign, str]:
    """Returns the warning signs of a model, each with its explanation, by its answers to the test samples of a site and
    by `train`, the metrics of the local phase before. `before` are the measures of that phase's model, before the
    exchange, `losses` those of the run's rounds up to this one, and `missing` the classes of which the site has no
    training samples."""
    enough = measures if measures is not None and measures.num_samples >= MIN_SAMPLES else None
    told = {
        Sign.WORSE: _explain_worse(train),
        Sign.OVERFITTING: explain_overfitting(losses),
        Sign.AVERAGING: None if enough is None else explain_averaging(before, enough),
    }
    signs = {sign: text for sign, text in told.items() if text is not None}
    if enough is not None and (blind := _find(enough)) is not None and not _is_explained(blind[0], signs):
        falling = explain_falling(losses)
        signs |= {blind[0]: f"{blind[1]}; {_HELPS}"} if falling is None else {Sign.NOT_YET: falling}
    return signs if signs or measures is None else _find_lesser(measures, missing)


def _explain_worse(train: Mapping[str, float]) -> str | None:
    first, last = train.get("first_loss", math.nan), train.get("last_loss", math.nan)
    least = max((WORSE - 1) * first, WORSE_BY, ERRORS * train.get("loss_error", 0.0))
    if train.get("steps", 0) < MIN_STEPS or not last - first > least:
        return None
    return (
        f"the learning rate is too high: the local phase ended worse than it began, loss {first:.3g} at first and "
        f"{last:.3g} at last; a lower lr helps, or clip_norm"
    )


def _is_explained(blind: Sign, signs: Mapping[Sign, str]) -> bool:
    """Says whether one of these signs explains that the model cannot distinguish samples. A model that overfits still
    has several answers."""
    return Sign.WORSE in signs or Sign.AVERAGING in signs or (Sign.OVERFITTING in signs and blind != Sign.ONE_CLASS)


def _find_lesser(measures: AnyMeasures, missing: Sequence[str]) -> dict[Sign, str]:
    """Returns the lesser signs, for a model without worse ones."""
    has_learned = isinstance(measures, Measures) and ranks(measures)
    few = None if has_learned and measures.num_samples >= MIN_SAMPLES else explain_too_few(measures, MIN_SAMPLES)
    if few is not None:
        return {Sign.FEW: few}
    found = {
        Sign.MISSING: explain_missing(missing),
        Sign.UNFOUND: explain_unfound(measures, missing),
        Sign.MISCALIBRATED: explain_miscalibration(measures) if has_learned else None,
    }
    if has_learned and isinstance(measures, Measures) and found[Sign.UNFOUND] is None:
        found[Sign.BEHIND] = explain_behind(measures)
    return {sign: text for sign, text in found.items() if text is not None}


def _find(measures: AnyMeasures) -> tuple[Sign, str] | None:
    """Returns the sign that a model cannot distinguish samples, None if it can."""
    if isinstance(measures, LabelMeasures):
        return _find_in_labels(measures)
    return _find_in_values(measures) if isinstance(measures, TargetMeasures) else _find_in_answers(measures)


def _find_in_labels(measures: LabelMeasures) -> tuple[Sign, str] | None:
    num = measures.num_samples
    if measures.loss is None or not 0 < measures.prior <= measures.loss:
        return None
    if measures.num_alike == num and measures.num_exact < num:
        text = f"all {num} test samples are given the same labels, of which {measures.num_exact} are"
        return Sign.ONE_CLASS, text
    return Sign.PRIOR, (
        f"loss {measures.loss:.3g} on the test samples is no better than {measures.prior:.3g}, which the "
        "prevalences of the labels alone have"
    )


def _find_in_values(measures: TargetMeasures) -> tuple[Sign, str] | None:
    rows = zip(measures.by_class, measures.spread, strict=False)
    told = [
        f"{one.name} {one.rmse:.3g}, where it has {spread:.3g}"
        for one, spread in rows
        if one.r2 is not None and one.r2 <= 0
    ]
    if not told:
        return None
    return Sign.MEAN, f"the error (RMSE) is no better than saying the mean of the test samples: {'; '.join(told[:5])}"


def _find_in_answers(measures: Measures) -> tuple[Sign, str] | None:
    by_class, num = measures.by_class, measures.num_samples
    if sum(one.num_samples > 0 for one in by_class) < 2:
        return None
    common = max(by_class, key=lambda one: one.num_samples)
    given, may_have_learned = [one for one in by_class if one.num_given], ranks(measures) or may_rank(measures)
    if len(given) == 1 and not (may_have_learned and 2 * given[0].num_samples > num):  # may be the best answer
        text = f"all {num} test samples are called {given[0].name}, of which {given[0].num_samples} are"
        return Sign.ONE_CLASS, text
    if may_have_learned:
        return None
    if measures.num_correct <= common.num_samples:
        return Sign.MAJORITY, (
            f"accuracy {measures.accuracy:.3f} is no better than {common.num_samples / num:.3f}, which calling every "
            f"test sample {common.name} has"
        )
    shares = [one.num_samples / num for one in by_class if one.num_samples]
    prior = -math.fsum(share * math.log(share) for share in shares)
    if measures.loss is None or measures.loss < prior:
        return None
    return Sign.PRIOR, (
        f"loss {measures.loss:.3g} on the test samples is no better than {prior:.3g}, which the shares of the "
        "classes alone have"
    )
