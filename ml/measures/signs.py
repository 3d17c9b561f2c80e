"""Signs of faults of a model that has learned something, each in words and with a remedy.

They compare the mean AUC, or the balanced accuracy, and its error on so few samples, not accuracy.
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

MIN_OF_CLASS = 10  # samples: if three in ten are found, none of so many is found 3 times in 100
FOUND_WELL = 0.5  # the mean recall of the classes that are found
MIN_CALIBRATION_ERROR = 0.1
MIN_DROP, ERRORS = 0.02, 3  # of a measure, and in standard errors
GOOD_AUC = 0.75  # a useful model
MIN_ROUNDS = 3  # rounds since the best one, all of them worse
FALL = 0.99  # times the loss before: below it, the loss falls
RISE, RISE_BY = 1.1, 0.05  # factor of the best loss, and least increase
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of one round: of its training, and of the model after it, on the val and on the test samples."""

    round: int
    train: float
    val: float | None
    test: float | None

    @classmethod
    def of(cls, number: int, train: Mapping[str, Any], applied: Mapping[str, Any]) -> Self | None:
        """Returns the losses among the metrics of a local phase and of applying a round; None where nothing was
        trained."""
        loss = _get_finite(train, "loss")
        if loss is None:
            return None
        return cls(number, loss, _get_finite(applied, "val_loss"), _get_finite(applied, "loss"))


def explain_overfitting(losses: Sequence[Losses]) -> str | None:
    """Explains that the training loss falls and the loss on val samples rises, over the rounds of a run, oldest first;
    None where it does not. Uses test samples where the site has no val samples."""
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
    """Explains that the loss on val or test samples is below that of three rounds before, or of the first round if
    there were fewer, over the rounds of a run, oldest first; None where it is not."""
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
    """Returns the rounds whose loss on val samples is known, or on test samples where the site has no val samples, each
    with that loss; and which of the two it is."""
    has_val = all(one.val is not None for one in losses)
    known = [(one, held_out) for one in losses if (held_out := one.val if has_val else one.test) is not None]
    return known, "val" if has_val else "test"


def explain_missing(missing: Sequence[str]) -> str | None:
    """Names the classes of which the site has no training samples; None where there are none."""
    if not missing:
        return None
    return (
        f"classes are missing here: no training samples of {_list_some(missing)}; what the model says of them it has "
        "from the others, and a method that gives everyone's answer helps (mpfedcl with prior=0)"
    )


def explain_unfound(measures: AnyMeasures, missing: Sequence[str] = ()) -> str | None:
    """Names classes or labels with enough samples, none of which is found, where most others are found well; None where
    there are none. A young model, which finds few classes, is not reported, nor are classes that are `missing` in
    training."""
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
    """Explains that the model's probabilities are higher than its accuracy, by more than chance explains; None where
    they are not. Those of a young model are lower."""
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
    """Explains that the model after the exchange is worse on the same samples than the one trained before it, by more
    than the errors of both measures; None where it is not."""
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
    """Explains that a model which ranks samples well is right no more often than calling all samples the commonest
    class; None where it is right more often."""
    common = max(measures.by_class, key=lambda one: one.num_samples)
    if measures.num_correct > common.num_samples:
        return None
    return (
        f"accuracy {measures.accuracy:.3f} is no better than {common.num_samples / measures.num_samples:.3f}, which "
        f"calling every test sample {common.name} has, though the model ranks them well: AUC and balanced accuracy "
        "tell more here"
    )


def ranks(measures: Measures) -> bool:
    """Says whether the mean AUC of the classes is above 0.5 by more than the standard error of chance."""
    found = [(auc, error) for auc, error in _list_chances(measures) if auc is not None]
    if not found:
        return False
    aucs, errors = zip(*found, strict=True)
    return math.fsum(aucs) - math.fsum(errors) > 0.5 * len(found)


def may_rank(measures: Measures) -> bool:
    """Says whether the mean AUC of the classes may be a good model's, within the 95 % that chance can add or take."""
    if not (found := _list_chances(measures)):
        return False
    auc, width = _compute_spread(found)
    return auc + width > GOOD_AUC


def _compute_spread(found: Sequence[tuple[float | None, float]]) -> tuple[float, float]:
    """Returns the mean AUC, and half the width of its 95 % interval. The errors of two classes are taken as the same;
    those of more classes as independent for all but one."""
    auc, error = compute_mean([auc for auc, _ in found]), math.fsum(error for _, error in found) / len(found)
    return 0.5 if auc is None else auc, Z * error / math.sqrt(max(1, len(found) - 1))


def explain_too_few(measures: AnyMeasures, least: int) -> str | None:
    """Explains that there are fewer than `least` test samples, or so few of the classes that a good model may look like
    chance; None where there are enough."""
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
    """Returns, for each class that has samples and others, its AUC and the standard error of an AUC by chance."""
    counts = [(one, measures.num_samples - one.num_samples) for one in measures.by_class]
    return [
        (one.auc, compute_auc_error(0.5, one.num_samples, others))
        for one, others in counts
        if one.num_samples and others
    ]


def _compute_auc_error(measures: AnyMeasures) -> float | None:
    """Returns the standard error of the mean AUC over classes, as if the errors of all classes were the same."""
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
    """Returns the standard error of the mean recall, each class counted with one more found and one more missed
    sample."""
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
