"""Predictions of a running node as arrays: labels, and a probability for each class.

Dimensions: N samples, K classes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ml.data.array_layout import to_samples
from ml.data.column_checks import describe_passed_over
from ml.data.inference_files import InferenceFile, lay_out, read_frame, validate_samples
from ml.errors import DataError
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION
from node.admin.answer_record import make_record
from node.admin.asking import (
    Answered,
    Expected,
    Labelled,
    Terms,
    ask,
    ask_about,
    get_labels,
    get_probabilities,
    get_values,
)
from node.admin.judging import judge
from node.errors import NodeError

if TYPE_CHECKING:
    from node.admin.client import AdminClient

Given = ArrayLike | str | PathLike[str] | Sequence[PathLike[str]]
_log = logging.getLogger(__name__)
ARRAY = Path("samples")  # what an array is called where it cannot be read


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What a node's model says of N samples. `classes` are the K names that labels stand for.

    `labels` [N] are the classes it chose and `probabilities` [N, K] its classifier's, also where the nearest prototype
    chose the class. `expected` [N] are the labels in the files, None where a sample has none. `applied_round` is the
    newest round whose aggregate the model has taken in. `records` are what `fednode predict --json` prints of each
    sample.

    In a run whose `task` is multilabel `labels` and `expected` are [N, K], 0 or 1 each; in a regression there are
    `values` [N, K] instead of labels and probabilities, K targets in their own units, and `expected` is as they are.
    """

    classes: tuple[str, ...]
    labels: NDArray[np.int64] = field(repr=False)
    probabilities: NDArray[np.float64] = field(repr=False)
    expected: NDArray[Any] | None = field(repr=False)
    applied_round: int
    records: tuple[dict[str, Any], ...] = field(repr=False)
    task: str = CLASSIFICATION
    values: NDArray[np.float64] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """The classes that were chosen, by name; of a multilabel task all labels that were given to a sample."""
        if self.labels.ndim == 2:
            return tuple(tuple(self.classes[label] for label in np.flatnonzero(row)) for row in self.labels)
        return tuple(self.classes[label] for label in self.labels)

    @property
    def accuracy(self) -> float | None:
        """The share of samples that are as labelled, with all of their labels; None where there are no labels."""
        if self.expected is None or self.task == REGRESSION:
            return None
        is_right = self.labels == self.expected
        return float(np.mean(is_right if is_right.ndim == 1 else is_right.all(1)))


def predict(
    admin: AdminClient, given: Given, labelled: Labelled, timeout_s: float, prior: float | None = None
) -> Predictions:
    """The node's predictions, in as many requests as it takes. Raises NodeError for samples that cannot be read."""
    terms = Terms.fetch(admin)
    top = len(terms.classes)
    paths = _get_paths(given)
    if paths is not None:
        return _gather([*ask(admin, terms, paths, top, labelled, timeout_s, prior=prior)], terms)
    try:
        file = _read_frame(given, terms, labelled) if hasattr(given, "columns") else _read_array(given, terms)
        return _gather([*ask_about(admin, terms, [file], top, timeout_s, prior=prior)], terms)
    except DataError as error:
        raise NodeError(str(error)) from error


def evaluate(admin: AdminClient, given: Any, labelled: Labelled, resamples: int, timeout_s: float) -> dict[str, Any]:
    """What the node's model is worth on the rows of a data frame, as `fednode evaluate --json` has it. Raises
    NodeError."""
    terms = Terms.fetch(admin)
    try:
        file = _read_frame(given, terms, labelled)
        answers = [*ask_about(admin, terms, [file], len(terms.classes), timeout_s, alone=True)]
    except DataError as error:
        raise NodeError(str(error)) from error
    return judge(answers, terms, resamples).to_record()


def _get_paths(given: Given) -> list[Path] | None:
    """The files that are named; None where numbers were given."""
    if isinstance(given, str | PathLike):
        return [Path(given)]
    if isinstance(given, list | tuple) and given and all(isinstance(each, str | PathLike) for each in given):
        return [Path(each) for each in given]
    return None


def _read_frame(given: Any, terms: Terms, labelled: Labelled) -> InferenceFile:
    """As a table in a file would be, its columns matched by name. Raises DataError."""
    shape = terms.input.shape
    if shape[1:] != (1, 1):
        raise DataError(f"{ARRAY}: expected images {list(shape)} (channels, height, width), got a data frame")
    return read_frame(
        given,
        ARRAY,
        shape,
        terms.classes,
        labelled.column,
        default_label=labelled.default,
        task=terms.task,
        table=terms.input.table,
        meaning=terms.labels,
    )


def _read_array(given: Any, terms: Terms) -> InferenceFile:
    """As a file of one array would be. Raises DataError."""
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise DataError(f"{ARRAY}: expected an array, or the path of a file ({error})") from error
    x = to_samples(lay_out(array, terms.input.shape), str(ARRAY))
    validate_samples(x, terms.input.shape, takes_empty=terms.input.takes_empty)
    return InferenceFile(ARRAY, x, tuple(range(len(x))))


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
    """A label as a number, labels as 0 and 1, values as they are."""
    if terms.task == REGRESSION:
        return expected
    if terms.task == MULTILABEL:
        return [int(name in expected) for name in terms.classes]
    return terms.classes.index(str(expected))


def _describe(answers: Sequence[Answered]) -> Iterator[dict[str, Any]]:
    for answered in answers:
        yield make_record(answered, None if answered.file is ARRAY else str(answered.file))
