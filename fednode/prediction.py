"""Predictions of a running node as arrays: labels, and a probability for each class.

Dimensions: N samples, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ml.data.array_layout import to_samples
from ml.data.inference_files import InferenceFile, lay_out, validate_samples
from ml.errors import DataError
from node.admin.asking import Answered, Labelled, Terms, ask, ask_about, get_probabilities
from node.admin.json_view import to_json
from node.errors import NodeError

if TYPE_CHECKING:
    from node.admin.client import AdminClient

Given = ArrayLike | str | PathLike[str] | Sequence[PathLike[str]]
ARRAY = Path("samples")  # what an array is called where it cannot be read


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What a node's model says of N samples. `classes` are the K names that labels stand for.

    `labels` [N] are the classes it chose and `probabilities` [N, K] its classifier's, also where the nearest prototype
    chose the class. `expected` [N] are the labels in the files, None where a sample has none. `applied_round` is the
    newest round whose aggregate the model has taken in. `records` are what `fednode predict --json` prints of each
    sample.
    """

    classes: tuple[str, ...]
    labels: NDArray[np.int64] = field(repr=False)
    probabilities: NDArray[np.float64] = field(repr=False)
    expected: NDArray[np.int64] | None = field(repr=False)
    applied_round: int
    records: tuple[dict[str, Any], ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        """The classes that were chosen, by name."""
        return tuple(self.classes[label] for label in self.labels)

    @property
    def accuracy(self) -> float | None:
        """The share of samples that are as labelled; None where there are no labels."""
        return None if self.expected is None else float(np.mean(self.labels == self.expected))


def predict(admin: AdminClient, given: Given, labelled: Labelled, timeout_s: float) -> Predictions:
    """The node's predictions, in as many requests as it takes. Raises NodeError for samples that cannot be read."""
    terms = Terms.fetch(admin)
    top = len(terms.classes)
    paths = _get_paths(given)
    if paths is not None:
        return _gather([*ask(admin, terms, paths, top, labelled, timeout_s)], terms.classes)
    try:
        file = _read_array(given, terms)
        return _gather([*ask_about(admin, terms, [file], top, timeout_s)], terms.classes)
    except DataError as error:
        raise NodeError(str(error)) from error


def _get_paths(given: Given) -> list[Path] | None:
    """The files that are named; None where numbers were given."""
    if isinstance(given, str | PathLike):
        return [Path(given)]
    if isinstance(given, list | tuple) and given and all(isinstance(each, str | PathLike) for each in given):
        return [Path(each) for each in given]
    return None


def _read_array(given: Any, terms: Terms) -> InferenceFile:
    """As a file of one array would be. Raises DataError."""
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise DataError(f"{ARRAY}: expected an array, or the path of a file ({error})") from error
    x = to_samples(lay_out(array, terms.input.shape), str(ARRAY))
    validate_samples(x, terms.input.shape)
    return InferenceFile(ARRAY, x, tuple(range(len(x))))


def _gather(answers: Sequence[Answered], classes: tuple[str, ...]) -> Predictions:
    said = [answered.prediction for answered in answers]
    if not said:
        raise NodeError("expected samples, got none")
    expected = [answered.expected for answered in answers]
    known = [classes.index(name) for name in expected if name is not None]
    return Predictions(
        classes=classes,
        labels=np.array([prediction.label for prediction in said], np.int64),
        probabilities=get_probabilities(answers, classes),
        expected=np.array(known, np.int64) if len(known) == len(expected) else None,
        applied_round=max(answered.applied_round for answered in answers),
        records=tuple(_describe(answers)),
    )


def _describe(answers: Sequence[Answered]) -> Iterator[dict[str, Any]]:
    for answered in answers:
        yield {
            "file": None if answered.file is ARRAY else str(answered.file),
            "row": answered.row,
            **to_json(answered.prediction),
            "expected": answered.expected,
            "correct": answered.is_correct,
            "applied_round": answered.applied_round,
        }
