"""Predictions of a running node as arrays: labels, and a probability for each class.

Dimensions: N samples, K classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ml.data.array_layout import to_samples
from ml.data.base import InputFormat, Shape
from ml.data.inference_files import (
    DEFAULT_LABEL,
    InferenceFile,
    lay_out,
    read_inference_file,
    validate_kind,
    validate_samples,
)
from ml.errors import DataError
from node.admin.json_view import to_json
from node.admin.samples import Piece, encode_batch, get_max_samples, make_batches
from node.errors import NodeError

if TYPE_CHECKING:
    from node.admin.client import AdminClient
    from node.pb import admin_pb2 as pb

__all__ = ["DEFAULT_LABEL", "Labelled", "Predictions", "ask"]

Given = ArrayLike | str | PathLike[str] | Sequence[PathLike[str]]
ARRAY = Path("samples")  # what an array is called where it cannot be read


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What a node's model says of N samples. `classes` are the K names that labels stand for.

    `labels` [N] are the classes it chose and `probabilities` [N, K] its classifier's, also where the nearest prototype
    chose the class. `expected` [N] are the labels in the files, None where a file has none. `applied_round` is the
    newest round whose aggregate the model has taken in, and `run` the run that this is of. `records` are what `fednode
    predict --json` prints of each sample.
    """

    classes: tuple[str, ...]
    labels: NDArray[np.int64] = field(repr=False)
    probabilities: NDArray[np.float64] = field(repr=False)
    expected: NDArray[np.int64] | None = field(repr=False)
    run: int
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


class Labelled(NamedTuple):
    """The column of a table's labels: `column`, as it was asked for, or else `default`, if it is there."""

    column: str | None
    default: str


class _Answer(NamedTuple):
    """What was said of the samples in one piece of a file."""

    piece: Piece
    reply: pb.PredictReply
    predictions: Sequence[pb.Prediction]

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The file's own."""
        labels = self.piece.file.labels
        return None if labels is None else labels[self.piece.start : self.piece.stop]


def ask(admin: AdminClient, given: Given, labelled: Labelled, timeout_s: float) -> Predictions:
    """The node's predictions, in as many requests as it takes. Raises NodeError for samples that cannot be read."""
    terms = {run.number: json.loads(run.terms) for run in admin.list_runs()}
    newest = terms[max(terms)]
    classes = tuple(newest["classes"])
    answers: list[_Answer] = []
    try:
        shape = InputFormat.from_mapping(newest["input"]).shape
        max_samples = get_max_samples(shape, len(classes), len(classes))
        for batch in make_batches(_read(given, shape, classes, labelled), shape, max_samples):
            answers += _share_out(batch, admin.predict(encode_batch(batch), len(classes), timeout_s))
    except DataError as error:
        raise NodeError(str(error)) from error
    for run in {answer.reply.run for answer in answers} - {max(terms)}:
        if run not in terms or tuple(terms[run]["classes"]) != classes:
            raise NodeError(
                f"the node's model is of run {run}, and run {max(terms)} has other classes; ask again later"
            )
    return _gather(answers, classes)


def _read(given: Given, shape: Shape, classes: tuple[str, ...], labelled: Labelled) -> Iterator[InferenceFile]:
    paths = _get_paths(given)
    if paths is None:
        x = to_samples(lay_out(_to_array(given), shape), str(ARRAY))
        validate_samples(x, shape)
        yield InferenceFile(ARRAY, x, tuple(range(len(x))))
        return
    for path in paths:  # before the first is asked about
        validate_kind(path)
    for path in paths:
        yield read_inference_file(path, shape, classes, labelled.column, default_label=labelled.default)


def _get_paths(given: Given) -> list[Path] | None:
    """The files that are named; None where numbers were given."""
    if isinstance(given, str | PathLike):
        return [Path(given)]
    if isinstance(given, list | tuple) and given and all(isinstance(each, str | PathLike) for each in given):
        return [Path(each) for each in given]
    return None


def _to_array(given: Any) -> NDArray[np.generic]:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise DataError(f"{ARRAY}: expected an array, or the path of a file ({error})") from error


def _share_out(batch: Sequence[Piece], reply: pb.PredictReply) -> Iterator[_Answer]:
    """The predictions of each piece's samples."""
    if (count := sum(map(len, batch))) != len(reply.predictions):
        raise NodeError(f"expected {count} predictions of the node, got {len(reply.predictions)}")
    start = 0
    for piece in batch:
        yield _Answer(piece, reply, reply.predictions[start : start + len(piece)])
        start += len(piece)


def _gather(answers: Sequence[_Answer], classes: tuple[str, ...]) -> Predictions:
    said = [prediction for answer in answers for prediction in answer.predictions]
    probabilities = np.zeros((len(said), len(classes)))
    for i, prediction in enumerate(said):
        for each in prediction.top:
            probabilities[i, each.label] = each.probability
    expected = [answer.labels for answer in answers]
    known = [labels for labels in expected if labels is not None]
    newest = max((answer.reply for answer in answers), key=lambda reply: (reply.run, reply.applied_round))
    return Predictions(
        classes=classes,
        labels=np.array([prediction.label for prediction in said], np.int64),
        probabilities=probabilities,
        expected=np.concatenate(known) if len(known) == len(expected) else None,
        run=newest.run,
        applied_round=newest.applied_round,
        records=tuple(record for answer in answers for record in _describe(answer, classes)),
    )


def _describe(answer: _Answer, classes: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    file = answer.piece.file
    for i, prediction in enumerate(answer.predictions, start=answer.piece.start):
        expected = None if file.labels is None else classes[int(file.labels[i])]
        yield {
            "file": None if file.path is ARRAY else str(file.path),
            "row": None if file.rows is None else file.rows[i],
            **to_json(prediction),
            "expected": expected,
            "correct": None if expected is None else expected == prediction.class_name,
            "applied_round": answer.reply.applied_round,
        }
