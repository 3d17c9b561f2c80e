"""Signs of what is wrong with a model that has learned something, each in words and with what helps.

They go by the mean AUC, or the balanced accuracy, and by the errors that these have on so few samples, not by accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ml.measures.classification import Measures, compute_mean
from ml.measures.intervals import Z, compute_auc_error
from ml.measures.kinds import AnyMeasures
from ml.measures.multilabel import LabelMeasures
from ml.measures.regression import TargetMeasures

MIN_OF_CLASS = 10  # samples: where three in ten are found, of so many none is found 3 times in 100
FOUND_WELL = 0.5  # the mean recall of the classes that are found
MIN_CALIBRATION_ERROR = 0.1
MIN_DROP, ERRORS = 0.02, 3  # of a measure, and of its standard errors
GOOD_AUC = 0.75  # which is worth having
MIN_ROUNDS = 3  # since the best one, all of them worse
FALL = 0.99  # times the loss before, below which it falls
RISE, RISE_BY = 1.1, 0.05  # so many times the best loss, and so much higher at least
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of one round: of its training, and of the model that it left, on the val and on the test samples."""

    round: int
    train: float
    val: float | None
    test: float | None

    @classmethod
    def of(cls, number: int, train: Mapping[str, Any], applied: Mapping[str, Any]) -> Self | None:
        """Those among the metrics of a local phase and of taking a round in; None where nothing was trained."""
        loss = _get_finite(train, "loss")
        if loss is None:
            return None
        return cls(number, loss, _get_finite(applied, "val_loss"), _get_finite(applied, "loss"))


def explain_overfitting(losses: Sequence[Losses]) -> str | None:
    """Of the rounds of a run, oldest first: the training loss falls, and the one on val samples rises; on test samples
    where the site has no val."""
    known, kind = _pick_held_out(losses)
    if len(known) <= MIN_ROUNDS:
        return None
    (best, lowest), since = min(known, key=lambda pair: pair[1]), known[-MIN_ROUNDS:]
    limit = max(RISE * lowest, lowest + RISE_BY)
    trained = math.fsum(one.train for one, _ in since) / MIN_ROUNDS
    if trained >= best.train or any(one.round <= best.round or held_out <= limit for one, held_out in since):
        return None
    newest, now = known[-1]
    more = "" if kind == "val" else ", or a run that selects its best round"
    return (
        f"it overfits: since round {best.round}, the best, the training loss fell from {best.train:.3g} to "
        f"{newest.train:.3g}, and the loss on {kind} samples rose from {lowest:.3g} to {now:.3g}; fewer local steps or "
        f"weight decay help{more}"
    )


def explain_falling(losses: Sequence[Losses]) -> str | None:
    """Says of the rounds of a run, oldest first, that the loss on val or test samples is below what it was three rounds
    before, or in the first of them."""
    known, kind = _pick_held_out(losses)
    if len(known) < 2:
        return None
    (then, was), (now, held_out) = known[max(0, len(known) - 1 - MIN_ROUNDS)], known[-1]
    if held_out >= FALL * was:
        return None
    return (
        f"it has not learned yet, but learns: the loss on {kind} samples fell from {was:.3g} in round {then.round} to "
        f"{held_out:.3g} in round {now.round}; more rounds help, or a higher lr"
    )


def _pick_held_out(losses: Sequence[Losses]) -> tuple[list[tuple[Losses, float]], str]:
    """The rounds whose loss on val samples is known, or on test samples where the site has no val, with that loss; and
    which it is."""
    has_val = all(one.val is not None for one in losses)
    known = [(one, held_out) for one in losses if (held_out := one.val if has_val else one.test) is not None]
    return known, "val" if has_val else "test"


def explain_missing(missing: Sequence[str]) -> str | None:
    """Classes of which the site has no training samples."""
    if not missing:
        return None
    return (
        f"classes are missing here: no training samples of {_list_some(missing)}; what the model says of them it has "
        "from the others, and a method that gives everyone's answer helps (mpfedcl with prior=0)"
    )


def explain_unfound(measures: AnyMeasures, missing: Sequence[str] = ()) -> str | None:
    """Classes, or labels, of which there are enough samples, and none is found, where most others are found, and well:
    a young model finds few of them. Not such as are `missing` in training."""
    if isinstance(measures, TargetMeasures):
        return None
    met = [one for one in measures.by_class if one.num_samples and one.name not in missing]
    unfound = [one for one in met if one.num_samples >= MIN_OF_CLASS and not one.num_correct]
    found = [one.sensitivity for one in met if one.num_correct]
    if not unfound or 2 * len(found) < len(met) or (compute_mean(found) or 0.0) < FOUND_WELL:
        return None
    told = _list_some([f"none of {one.num_samples} of {one.name}" for one in unfound])
    return f"a class is never found: {told}; class weights (class_weights), or more samples of it, help"


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"


def explain_miscalibration(measures: AnyMeasures) -> str | None:
    """Probabilities that are higher than answers are right, by more than chance explains. Those of a young model are
    lower."""
    if not isinstance(measures, Measures) or measures.calibration_chance is None or measures.too_sure is None:
        return None
    error, chance = measures.calibration_error, measures.calibration_chance
    if error < MIN_CALIBRATION_ERROR or error <= chance or measures.too_sure < error / 2:
        return None
    return (
        f"it is too sure of its answers: their probabilities are off by {error:.3f}, where chance explains "
        f"{chance:.3f} on {measures.num_samples} test samples, though it ranks these well; predict "
        "--calibrated mends that where there are val samples, and fewer local steps or weight decay help"
    )


def explain_averaging(before: AnyMeasures | None, after: AnyMeasures) -> str | None:
    """Says that what came of the exchange is worse on the same samples than what was trained before it, by more than
    the measures of both err."""
    if before is None or before.num_samples != after.num_samples:
        return None
    for name, title, compute_error in (
        ("auc", "AUC", _compute_auc_error),
        ("balanced_accuracy", "balanced accuracy", _compute_recall_error),
    ):
        was, now = (one.summarise().get(name) for one in (before, after))
        error = compute_error(before)
        if was is None or now is None or error is None:
            continue
        if was - now <= max(MIN_DROP, ERRORS * error):
            return None
        return (
            f"averaging costs this site: {title} {was:.3f} before the exchange, {now:.3f} after it; a method with a "
            "part of each site's own helps, or fewer local steps"
        )
    return None


def explain_behind(measures: Measures) -> str | None:
    """Fewer are right than who calls all samples the commonest class has, of a model that ranks them well."""
    common = max(measures.by_class, key=lambda one: one.num_samples)
    if measures.num_correct > common.num_samples:
        return None
    return (
        f"accuracy {measures.accuracy:.3f} is no better than {common.num_samples / measures.num_samples:.3f}, which "
        f"calling every test sample {common.name} has, though the model ranks them well: AUC and balanced accuracy "
        "tell more here"
    )


def ranks(measures: Measures) -> bool:
    """Whether the mean AUC of the classes is above 0.5 by more than the standard error that chance has."""
    found = [(auc, error) for auc, error in _list_chances(measures) if auc is not None]
    if not found:
        return False
    aucs, errors = zip(*found, strict=True)
    return math.fsum(aucs) - math.fsum(errors) > 0.5 * len(found)


def may_rank(measures: Measures) -> bool:
    """Whether the mean AUC of the classes may be a good model's, by what chance adds and takes 19 times in 20."""
    if not (found := _list_chances(measures)):
        return False
    auc, width = _compute_spread(found)
    return auc + width > GOOD_AUC


def _compute_spread(found: Sequence[tuple[float | None, float]]) -> tuple[float, float]:
    """The mean AUC, and half of the interval in which it lies with 95 % confidence. Two classes err alike, and of more
    all but one by themselves, or nearly."""
    auc, error = compute_mean([auc for auc, _ in found]), math.fsum(error for _, error in found) / len(found)
    return 0.5 if auc is None else auc, Z * error / math.sqrt(max(1, len(found) - 1))


def explain_too_few(measures: AnyMeasures, least: int) -> str | None:
    """Fewer than `least` test samples, or so few of the classes that a good model may look like a coin."""
    helps = "more test samples help (data.held_out)"
    if measures.num_samples < least:
        return f"{measures.num_samples} test samples are too few to tell, fewer than {least}; {helps}"
    if not isinstance(measures, Measures) or not measures.by_class:
        return None
    if not (found := _list_chances(measures)):
        return f"all {measures.num_samples} test samples are of one class, which tells nothing; {helps}"
    if not may_rank(measures):
        return None
    auc, width = _compute_spread(found)
    return f"too few test samples of a class to tell: AUC {auc:.2f}, give or take {width:.2f}; {helps}"


def _list_chances(measures: Measures) -> list[tuple[float | None, float]]:
    """Of each class that has samples, and others, its AUC, and the error that one by chance has."""
    counts = [(one, measures.num_samples - one.num_samples) for one in measures.by_class]
    return [
        (one.auc, compute_auc_error(0.5, one.num_samples, others))
        for one, others in counts
        if one.num_samples and others
    ]


def _compute_auc_error(measures: AnyMeasures) -> float | None:
    """That of the mean over classes, as if all erred alike."""
    if not isinstance(measures, Measures | LabelMeasures):
        return None
    return compute_mean(
        [
            compute_auc_error(one.auc, one.num_samples, measures.num_samples - one.num_samples)
            for one in measures.by_class
            if one.auc is not None
        ]
    )


def _compute_recall_error(measures: AnyMeasures) -> float | None:
    """That of the mean recall; each as if one more sample were found and one more were not."""
    if not isinstance(measures, Measures):
        return None
    met = [one for one in measures.by_class if one.num_samples]
    if not met:
        return None
    shares = [((one.num_correct + 1) / (one.num_samples + 2), one.num_samples) for one in met]
    return math.sqrt(math.fsum(share * (1 - share) / num for share, num in shares)) / len(met)


def _get_finite(metrics: Mapping[str, Any], name: str) -> float | None:
    value = metrics.get(name)
    return float(value) if value is not None and math.isfinite(value) else None
