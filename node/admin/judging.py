"""An evaluation of a running node's model: measures of its answers to labelled samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ml.data.subgroups import split_rows
from ml.errors import DataError
from ml.measures.alone import FEDERATION
from ml.measures.collapse import MIN_SAMPLES, find_signs
from ml.measures.evaluation import evaluate
from ml.measures.kinds import Answers
from ml.measures.operating import THRESHOLD, OperatingPoint, choose_positive, find_points
from ml.measures.verdict import compare
from ml.tasks import CLASSIFICATION, REGRESSION
from node.admin.asking import Answered, Labelled, NodeAtRound, Terms, ask, get_labels, get_probabilities, get_values
from node.admin.client import AdminClient
from node.admin.json_view import to_json
from node.errors import NodeError
from node.ledger.measures_view import show_measures, show_verdict
from node.pb import admin_pb2 as pb


@dataclass(frozen=True, slots=True)
class Details:
    """The further figures that an evaluation is asked for. `threshold`, `prevalence` and `positive` ask for figures of
    the class or label `positive` at a threshold; `by` for those of groups of rows by a column, whose numbers are cut at
    `cuts`."""

    threshold: float | None = None
    prevalence: float | None = None
    positive: str | None = None
    by: str | None = None
    cuts: Sequence[float] = ()

    @property
    def has_threshold(self) -> bool:
        return (self.threshold, self.prevalence, self.positive) != (None, None, None)


NO_DETAILS = Details()


@dataclass(frozen=True, slots=True)
class Group:
    """The samples whose cell of a column is `value`, or lies in that range. Too small a group is counted, and not
    measured."""

    value: str
    num_samples: int
    measures: pb.Measures | None

    def to_record(self) -> dict[str, Any]:
        measures = None if self.measures is None else to_json(self.measures)
        return {"value": self.value, "num_samples": self.num_samples, "measures": measures}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measures of the model that stood after `applied_round`, and the signs, by name, that it has not learned.

    `points` are figures at a threshold and `groups` those of a column's values, where they were asked for. `alone` is
    the model trained on this site only, measured on the same samples; None where the node trains none. `mixed` are the
    measures of both mixed, with `weight` for the federation's; None without a second model. `temperature` calibrated
    the probabilities, if that was asked for. `answer_by` is the model that the node usually answers by. `passed_over`
    are the columns of each file that the run does not name.
    """

    applied_round: int
    measures: pb.Measures
    signs: dict[str, str]
    alone: pb.TrainedAlone | None = None
    passed_over: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    is_best: bool = False  # the model is of its run's best round
    points: Sequence[OperatingPoint] = ()
    groups: Sequence[Group] = ()
    mixed: pb.Measures | None = None
    weight: float | None = None
    temperature: float | None = None
    answer_by: str | None = None

    def to_record(self) -> dict[str, Any]:
        """Returns the object that `fednode evaluate --json` prints."""
        return {
            "applied_round": self.applied_round,
            "is_best": self.is_best,
            "measures": to_json(self.measures),
            "signs": self.signs,
            "alone": None if self.alone is None else to_json(self.alone),
            "points": [point.to_mapping() for point in self.points],
            "groups": [group.to_record() for group in self.groups],
            "mixed": None if self.mixed is None else {"weight": self.weight, "measures": to_json(self.mixed)},
            "temperature": self.temperature,
            "answer_by": self.answer_by,
        }


def read_cuts(text: str) -> tuple[float, ...]:
    """Reads where numbers are cut, as in `40,60`. Raises NodeError."""
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise NodeError(f"expected numbers, as in 40,60 (got {text!r})")
    return found


def evaluate_node(
    node: AdminClient,
    inputs: Sequence[Path],
    labelled: Labelled,
    *,
    resamples: int,
    timeout_s: float,
    round_: str = "",
    details: Details = NO_DETAILS,
    calibrated: bool = False,
) -> Evaluation:
    """Has a node answer labelled samples in files, and in directories that hold one directory for each class, and
    measures the answers. Raises NodeError, also for samples without a label."""
    terms, asked = Terms.fetch(node), ask_federation(node, round_, calibrated=calibrated)
    _choose_positive(details, terms)  # raises if the details are wrong, before anything is asked
    labelled = labelled._replace(by=details.by)
    answers = list(ask(asked, terms, inputs, len(terms.classes), labelled, timeout_s, alone=True))
    return complete(judge(answers, terms, resamples, details), asked, node)


def ask_federation(node: AdminClient, round_: str, *, calibrated: bool) -> NodeAtRound:
    """Returns the node at a round, set to answer first by the federation's model, whatever it does usually."""
    return NodeAtRound(node, round_, calibrated=calibrated, answer_by=FEDERATION)


def complete(found: Evaluation, asked: NodeAtRound, node: AdminClient) -> Evaluation:
    """Returns the evaluation with the facts that the node reported about its answers."""
    usual: str = node.get_config()["training"]["answer_by"]
    told = asked.told
    return replace(found, is_best=told.is_best, weight=told.weight, temperature=told.temperature, answer_by=usual)


def judge(answers: Sequence[Answered], terms: Terms, resamples: int, details: Details = NO_DETAILS) -> Evaluation:
    """Computes the evaluation from answers that have a probability for every class. Raises NodeError where labels are
    missing, and where the run does not fit the `details`."""
    if not answers:
        raise NodeError("expected labelled samples, got none")
    for answered in answers:
        if answered.expected is None:
            raise NodeError(f"{answered.file}: expected a label for each sample (fednode predict does without)")
    together = _gather(answers, terms)
    measures, intervals = evaluate(*together, terms.classes, resamples, kind=terms.task, scale=terms.scale)
    signs = {sign.value: text for sign, text in find_signs(measures, {}).items()}
    newest = max(answered.applied_round for answered in answers)
    passed_over = {answered.file: answered.passed_over for answered in answers if answered.passed_over}
    alone, mixed = _judge_alone(answers, together, terms, resamples), _judge_mixed(answers, terms, resamples)
    positive = _choose_positive(details, terms)
    at = THRESHOLD if details.threshold is None else details.threshold
    points = find_points(terms.task, together.y, together.said, terms.classes, positive, at, details.prevalence)
    shown = show_measures(measures, intervals)
    groups = _judge_groups(answers, together, terms, resamples, details)
    return Evaluation(newest, shown, signs, alone, passed_over, points=points, groups=groups, mixed=mixed)


def _choose_positive(details: Details, terms: Terms) -> Sequence[str]:
    """Returns the classes or labels that a threshold is about, none where it is not asked for. Raises NodeError."""
    if not details.has_threshold:
        return ()
    if terms.task == REGRESSION:
        raise NodeError("expected a run of classes or labels for a threshold; this one is a regression")
    if details.threshold is not None and not 0 <= details.threshold <= 1:
        raise NodeError(f"threshold: expected a probability, got {details.threshold:g}")
    if details.prevalence is not None and not 0 < details.prevalence < 1:
        raise NodeError(f"prevalence: expected more than 0 and less than 1, got {details.prevalence:g}")
    if details.positive is not None:
        if details.positive not in terms.classes:
            raise NodeError(f"expected one of {', '.join(terms.classes)} for a threshold, got {details.positive!r}")
        return (details.positive,)
    if not (chosen := choose_positive(terms.task, terms.classes)):
        raise NodeError(f"expected one of {', '.join(terms.classes)} to be named for a threshold, as there are many")
    return chosen


def _judge_groups(
    answers: Sequence[Answered], together: Answers, terms: Terms, resamples: int, details: Details
) -> Sequence[Group]:
    """Measures the groups of rows of all files together. Raises NodeError for a column that makes no groups."""
    if details.by is None:
        return ()
    try:
        found = split_rows([answered.by for answered in answers], details.cuts)
    except DataError as error:
        raise NodeError(f"{details.by}: {error}") from error
    return [_judge_group(name, together.at(rows), terms, resamples) for name, rows in found]


def _judge_group(name: str, answers: Answers, terms: Terms, resamples: int) -> Group:
    count = len(answers.y)
    if count < MIN_SAMPLES:
        return Group(name, count, None)
    measures, intervals = evaluate(*answers, terms.classes, resamples, kind=terms.task, scale=terms.scale)
    return Group(name, count, show_measures(measures, intervals))


def _judge_alone(
    answers: Sequence[Answered], together: Answers, terms: Terms, resamples: int
) -> pb.TrainedAlone | None:
    """Measures the model trained on this site only; without measures and verdict where it has not answered all samples.
    It may train on between two requests: the state shown is that at the last one."""
    if (last := answers[-1].trained_alone) is None:
        return None
    told = pb.TrainedAlone()
    told.CopyFrom(last)
    said = [answered._replace(prediction=answered.alone) for answered in answers if answered.alone is not None]
    if len(said) == len(answers):
        alone = _gather(said, terms)
        measures, intervals = evaluate(*alone, terms.classes, resamples, kind=terms.task, scale=terms.scale)
        told.measures.CopyFrom(show_measures(measures, intervals))
        verdict = compare(terms.task, together, alone, owed_steps=told.owed_steps)
        if verdict is None:
            told.ClearField("verdict")
        else:
            told.verdict.CopyFrom(show_verdict(verdict))
    return told


def _judge_mixed(answers: Sequence[Answered], terms: Terms, resamples: int) -> pb.Measures | None:
    """Measures both models mixed; None where they have not answered all samples."""
    said = [answered._replace(prediction=answered.mixed) for answered in answers if answered.mixed is not None]
    if len(said) < len(answers):
        return None
    measures, intervals = evaluate(*_gather(said, terms), terms.classes, resamples, kind=terms.task, scale=terms.scale)
    return show_measures(measures, intervals)


def _gather(answers: Sequence[Answered], terms: Terms) -> Answers:
    """Collects the labels of N samples and the node's answers, as `evaluate` takes them."""
    classes = terms.classes
    if terms.task == REGRESSION:
        values = get_values(answers, classes)
        return Answers(np.array([answered.expected for answered in answers], np.float64), values, values)
    said = get_probabilities(answers, classes)
    if terms.task == CLASSIFICATION:
        y = np.array([classes.index(str(answered.expected)) for answered in answers])
        return Answers(y, np.array([answered.prediction.label for answered in answers]), said)
    y = np.array([[name in (answered.expected or ()) for name in classes] for answered in answers], np.int64)
    return Answers(y, get_labels(answers, classes), said)
