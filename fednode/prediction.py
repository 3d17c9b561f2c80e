"""Predictions of a running node as arrays: labels, and a probability for each class.

Dimensions: N samples, K classes.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednode._samples import ARRAY, read_samples
from ml.data.column_checks import describe_passed_over
from ml.data.objects import name_object
from ml.errors import DataError
from ml.measures.alone import FEDERATION
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION
from node.admin.answer_record import make_record
from node.admin.asking import (
    Answered,
    Answering,
    Expected,
    Labelled,
    Terms,
    ask,
    ask_about,
    get_labels,
    get_probabilities,
    get_values,
)
from node.admin.judging import NO_DETAILS, Details, Evaluation, judge
from node.errors import ConfigError, NodeError

Given = object  # an object of `ml.data.objects`, an array alone, or the paths of files
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """The predictions of a node's model for N samples. `classes` are the K names that labels stand for.

    `labels` [N] are the classes it chose and `probabilities` [N, K] its classifier's, also where the nearest prototype
    chose the class. `expected` [N] are the labels in the files, None where a sample has none. `applied_round` is the
    newest round whose aggregate the model has applied. `records` are what `fednode predict --json` prints of each
    sample.

    In a run whose `task` is multilabel `labels` and `expected` are [N, K], 0 or 1 each; in a regression there are
    `values` [N, K] instead of labels and probabilities, K targets in their own units, and `expected` is as they are.

    `answer_by` says which model answered: federation, alone or mixed. A mixture weighs the federation's model by
    `weight` against the one trained alone. `temperature` is the one that calibrated the probabilities, if they are.
    """

    classes: tuple[str, ...]
    labels: NDArray[np.int64] = field(repr=False)
    probabilities: NDArray[np.float64] = field(repr=False)
    expected: NDArray[Any] | None = field(repr=False)
    applied_round: int
    records: tuple[dict[str, Any], ...] = field(repr=False)
    task: str = CLASSIFICATION
    values: NDArray[np.float64] | None = field(default=None, repr=False)
    answer_by: str = FEDERATION
    weight: float | None = None
    temperature: float | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """The names of the chosen classes; in a multilabel task, all labels that each sample was assigned."""
        if self.labels.ndim == 2:
            return tuple(tuple(self.classes[label] for label in np.flatnonzero(row)) for row in self.labels)
        return tuple(self.classes[label] for label in self.labels)

    @property
    def accuracy(self) -> float | None:
        """The share of samples that are as labelled, in all of their labels; None where there are no labels."""
        if self.expected is None or self.task == REGRESSION:
            return None
        is_right = self.labels == self.expected
        return float(np.mean(is_right if is_right.ndim == 1 else is_right.all(1)))


def predict(
    node: Answering, given: Given, labelled: Labelled, timeout_s: float, prior: float | None = None
) -> Predictions:
    """Returns the node's predictions, sent in as many requests as needed. Raises ConfigError for an object that holds
    no samples, and NodeError for files that cannot be read."""
    terms = Terms.fetch(node)
    return _gather([*_ask(node, terms, given, labelled, timeout_s, prior=prior)], terms)


def evaluate(
    node: Answering,
    given: Given,
    labelled: Labelled,
    timeout_s: float,
    resamples: int,
    details: Details = NO_DETAILS,
) -> Evaluation:
    """Measures the node's model on labelled samples. Raises as `predict` does, also for samples without a label."""
    terms = Terms.fetch(node)
    answers = [*_ask(node, terms, given, labelled._replace(by=details.by), timeout_s, alone=True)]
    if _get_paths(given) is None and any(answered.expected is None for answered in answers):
        raise ConfigError(f"{ARRAY}: expected a label for each sample, as in (x, y); predict does without")
    return judge(answers, terms, resamples, details)


def _ask(
    node: Answering, terms: Terms, given: Given, labelled: Labelled, timeout_s: float, **more: Any
) -> Iterator[Answered]:
    """Yields an answer for each sample, with a figure for every class."""
    top, paths = len(terms.classes), _get_paths(given)
    if paths is not None:
        yield from ask(node, terms, paths, top, labelled, timeout_s, **more)
        return
    with tempfile.TemporaryDirectory(prefix="fednode-samples-") as temporary:
        directory = Path(temporary)
        try:
            yield from ask_about(node, terms, read_samples(given, terms, labelled, directory), top, timeout_s, **more)
        except DataError as error:
            raise ConfigError(name_object(str(error), directory, str(ARRAY))) from error


def _get_paths(given: Given) -> list[Path] | None:
    """Returns the paths of the files that are named; None for an object."""
    if isinstance(given, str | PathLike):
        return [Path(given)]
    if isinstance(given, list | tuple) and given and all(isinstance(each, str | PathLike) for each in given):
        return [Path(each) for each in given]
    return None


def _gather(answers: Sequence[Answered], terms: Terms) -> Predictions:
    said = [answered.prediction for answered in answers]
    if not said:
        raise NodeError("expected samples, got none")
    classes = terms.classes
    for file, passed_over in {answered.file: answered.passed_over for answered in answers}.items():
        if passed_over:
            _log.warning("%s: %s", file, describe_passed_over(passed_over))
    known = [_number(answered.expected, terms) for answered in answers if answered.expected is not None]
    if terms.task == REGRESSION:
        values = get_values(answers, classes)
        labels, probabilities = np.zeros((len(said), 0), np.int64), np.zeros((len(said), 0))
    else:
        values, probabilities = None, get_probabilities(answers, classes)
        labels = np.array([prediction.label for prediction in said], np.int64)
        if terms.task == MULTILABEL:
            labels = get_labels(answers, classes)
    return Predictions(
        classes=classes,
        labels=labels,
        probabilities=probabilities,
        expected=np.array(known) if len(known) == len(answers) else None,
        applied_round=max(answered.applied_round for answered in answers),
        records=tuple(_describe(answers)),
        task=terms.task,
        values=values,
    )


def _number(expected: Expected, terms: Terms) -> Any:
    """Returns a label as a number, several labels as 0 and 1, values as they are."""
    if terms.task == REGRESSION:
        return expected
    if terms.task == MULTILABEL:
        return [int(name in expected) for name in terms.classes]
    return terms.classes.index(str(expected))


def _describe(answers: Sequence[Answered]) -> Iterator[dict[str, Any]]:
    for answered in answers:
        yield make_record(answered, None if answered.file is ARRAY else str(answered.file))
