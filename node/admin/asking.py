"""Questions to a running node about samples in files: sends as many requests as are needed, and yields an answer for
each sample.

The node answers by the run in force, whose input and classes may differ from those in genesis.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ml.data import Meaning
from ml.data.base import InputFormat
from ml.data.inference_files import (
    DEFAULT_LABEL,
    Columns,
    InferenceFile,
    list_labelled_files,
    read_inference_file,
    validate_kind,
)
from ml.data.source import DataSource
from ml.errors import DataError
from ml.measures.alone import FEDERATION
from ml.tasks import CLASSIFICATION, REGRESSION, TargetScale
from node.admin.client import AdminClient
from node.admin.samples import Batch, count_models, encode_batch, get_max_samples, get_top, make_batches
from node.errors import NodeError
from node.pb import admin_pb2 as pb

Expected = str | tuple[str, ...] | tuple[float, ...]


class Answering(Protocol):
    """Anything that answers as a node's admin service does: a client of a node, or a model in this process."""

    def list_runs(self, number: int) -> Sequence[pb.RunView]: ...

    def predict(
        self, samples: bytes, top: int, wait_s: float, *, alone: bool = False, prior: float | None = None
    ) -> pb.PredictReply: ...


class Told(NamedTuple):
    """The facts about a node's answers: whether the model is of the best round of its run; `answer_by`, the model that
    answered (federation, alone or mixed); the `weight` of the federation's model where both are mixed; and the
    `temperature` where probabilities are calibrated."""

    is_best: bool = False
    answer_by: str = FEDERATION
    weight: float | None = None
    temperature: float | None = None

    @classmethod
    def of(cls, reply: pb.PredictReply) -> Self:
        weight = reply.weight if reply.HasField("weight") else None
        temperature = reply.temperature if reply.HasField("temperature") else None
        return cls(reply.is_best, reply.answer_by or FEDERATION, weight, temperature)


class NodeAtRound:
    """A node that answers with its model of one round: newest, best or a number, by default the one that the node
    chooses. Probabilities may be `calibrated`; `answer_by` names another model. `told` is about its last answer."""

    def __init__(self, node: AdminClient, round_: str = "", *, calibrated: bool = False, answer_by: str = "") -> None:
        self._node = node
        self._ask = partial(node.predict, round_=round_, calibrated=calibrated, answer_by=answer_by)
        self.told = Told()

    def list_runs(self, number: int) -> Sequence[pb.RunView]:
        return self._node.list_runs(number)

    def predict(
        self, samples: bytes, top: int, wait_s: float, *, alone: bool = False, prior: float | None = None
    ) -> pb.PredictReply:
        reply = self._ask(samples, top, wait_s, alone=alone, prior=prior)
        self.told = Told.of(reply)
        return reply


class Labelled(NamedTuple):
    """The columns of a table that hold the labels: `column`, as asked for, or else `default`, if it is there. `source`
    says how the site's own files are read, and `by` is the column that groups rows, if any."""

    column: Columns | None = None
    default: Columns = DEFAULT_LABEL
    source: DataSource = DataSource()
    by: str | None = None

    @classmethod
    def fetch(cls, node: AdminClient, column: Columns | None) -> Self:
        """Reads the label columns from the node's own configuration, as `for_files`. Raises DataError."""
        return cls.for_files(node.get_config()["data"], column)

    @classmethod
    def for_files(cls, data: Mapping[str, Any], column: Columns | None = None) -> Self:
        """Takes the label columns from `data` of a configuration, unless a `column` is asked for. Files are read as the
        node reads its own. Raises DataError."""
        source = DataSource.for_files(data)
        named = (data.get("columns") or {}).get("label") if column is None else None
        default = tuple(named) if isinstance(named, list) else named
        return cls(column, default or DEFAULT_LABEL, source)


class Answered(NamedTuple):
    """The answer about one sample: the one in `row` of `file`. `expected` is what the file says of it, if it does: its
    class, its labels or the values of its targets, by the task.

    `passed_over` are columns of a table that the run does not name, `filled` is how many of a row's cells were empty,
    of how many, and `by` is its cell of the column that groups rows. Where they were asked for and exist, `alone` is
    the answer of the model trained on this site only, `mixed` that of both models, and `trained_alone` says how far
    that training is.
    """

    file: Path
    row: int | None
    expected: Expected | None
    prediction: pb.Prediction
    applied_round: int
    alone: pb.Prediction | None = None
    trained_alone: pb.TrainedAlone | None = None
    passed_over: tuple[str, ...] = ()
    filled: tuple[int, int] = (0, 0)
    mixed: pb.Prediction | None = None
    by: Any = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns the doubts about the answer: empty cells, and values outside of what the node trained on."""
        empty, columns = self.filled
        filled = (f"{empty} of {columns} filled",) if empty else ()
        return (*filled, *self.prediction.notes)

    @property
    def is_correct(self) -> bool | None:
        """Returns whether the answer is the expected one; None for a sample without a label, and for a regression,
        where nothing is right or wrong."""
        if self.expected is None or self.prediction.values:
            return None
        if isinstance(self.expected, str):
            return self.expected == self.prediction.class_name
        return self.expected == tuple(label.class_name for label in self.prediction.labels)


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of the run in force, which samples have to fit."""

    input: InputFormat
    classes: tuple[str, ...]
    task: str = CLASSIFICATION
    scale: TargetScale = field(default_factory=TargetScale)
    labels: Meaning | None = None

    @classmethod
    def fetch(cls, node: Answering) -> Self:
        (run,) = node.list_runs(0)
        return cls.read(json.loads(run.terms))

    @classmethod
    def read(cls, terms: Mapping[str, Any]) -> Self:
        """Reads the terms of a run, as `RunView` of admin.proto has them."""
        task, scale = terms.get("task", CLASSIFICATION), TargetScale.from_mapping(terms.get("target"))
        classes, labels = tuple(terms["classes"]), terms.get("labels")
        meaning = None if labels is None else {name: tuple(labels[name]) for name in classes}
        return cls(InputFormat.from_mapping(terms["input"]), classes, task, scale, meaning)


def ask(
    node: Answering,
    terms: Terms,
    inputs: Sequence[Path],
    top: int,
    labelled: Labelled,
    timeout_s: float,
    *,
    alone: bool = False,
    prior: float | None = None,
) -> Iterator[Answered]:
    """Yields an answer for each sample in files, and in directories that hold one directory for each class. Raises
    NodeError for files that cannot be read, before it sends anything if that shows without reading them."""
    try:
        found = [
            (path, name) for given in inputs for path, name in list_labelled_files(given, terms.classes, terms.task)
        ]
        for path, _ in found:
            validate_kind(path)
        files = (_read(path, name, terms, labelled) for path, name in found)
        yield from ask_about(node, terms, files, top, timeout_s, alone=alone, prior=prior)
    except DataError as error:
        raise NodeError(str(error)) from error


def ask_about(
    node: Answering,
    terms: Terms,
    files: Iterable[InferenceFile],
    top: int,
    timeout_s: float,
    *,
    alone: bool = False,
    prior: float | None = None,
) -> Iterator[Answered]:
    """Yields an answer for each sample in files that have been read."""
    ranked = get_top(top, len(terms.classes))
    max_samples = get_max_samples(terms.input.shape, len(terms.classes), ranked, count_models(alone))
    for batch in make_batches(files, terms.input.shape, max_samples):
        reply = node.predict(encode_batch(batch), ranked, timeout_s, alone=alone, prior=prior)
        yield from match_answers(terms, batch, reply)


def _read(path: Path, class_name: str | None, terms: Terms, labelled: Labelled) -> InferenceFile:
    return read_inference_file(
        path,
        terms.input.shape,
        terms.classes,
        labelled.column,
        default_label=labelled.default,
        source=labelled.source,
        by=labelled.by,
        class_name=class_name,
        task=terms.task,
        table=terms.input.table,
        meaning=terms.labels,
    )


def match_answers(terms: Terms, batch: Batch, reply: pb.PredictReply) -> Iterator[Answered]:
    """Pairs each prediction with its sample in the batch. Raises NodeError for fewer or more predictions than
    samples."""
    samples = [(piece.file, i) for piece in batch for i in range(piece.start, piece.stop)]
    if len(samples) != len(reply.predictions):
        raise NodeError(f"expected {len(samples)} predictions of the node, got {len(reply.predictions)}")
    for told_beside, what in ((reply.alone, "the model trained alone"), (reply.mixed, "both models mixed")):
        if len(told_beside) not in (0, len(samples)):
            raise NodeError(f"expected {len(samples)} predictions of {what}, got {len(told_beside)}")
    told = reply.trained_alone if reply.HasField("trained_alone") else None
    nothing = [None] * len(samples)
    answers = zip(samples, reply.predictions, reply.alone or nothing, reply.mixed or nothing, strict=True)
    for (file, i), prediction, alone, mixed in answers:
        row = None if file.rows is None else file.rows[i]
        expected = None if file.labels is None else _name(terms, file.labels[i])
        filled = (0, 0) if file.num_empty is None else (int(file.num_empty[i]), file.num_columns)
        by = None if file.by is None else file.by[i]
        said = prediction, reply.applied_round, alone, told
        yield Answered(file.path, row, expected, *said, file.passed_over, filled, mixed, by)


def _name(terms: Terms, label: Any) -> Expected:
    """Returns a label, several labels, or values, as the file has them."""
    if terms.task == CLASSIFICATION:
        return terms.classes[int(label)]
    if terms.task == REGRESSION:
        return tuple(label.tolist())
    return tuple(name for name, is_there in zip(terms.classes, label, strict=True) if is_there)


def get_labels(answers: Sequence[Answered], classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Returns the labels answered for N samples of a multilabel task, 0 or 1, [N, L]."""
    labels = np.zeros((len(answers), len(classes)), np.int64)
    for row, answered in zip(labels, answers, strict=True):
        row[[each.label for each in answered.prediction.labels]] = 1
    return labels


def get_values(answers: Sequence[Answered], classes: tuple[str, ...]) -> NDArray[np.float64]:
    """Returns the values answered for N samples of a regression, [N, T]. Raises NodeError where the node's run has
    other targets by now."""
    for answered in answers:
        if (named := tuple(each.target for each in answered.prediction.values)) != classes:
            raise NodeError(f"expected the targets {', '.join(classes)}, got {', '.join(named) or 'none'}")
    return np.array([[each.value for each in answered.prediction.values] for answered in answers], np.float64)


def get_probabilities(answers: Sequence[Answered], classes: tuple[str, ...]) -> NDArray[np.float64]:
    """Returns the probabilities of all C classes answered for N samples, [N, C]. Raises NodeError where the node's run
    has other classes by now."""
    probabilities = np.zeros((len(answers), len(classes)))
    for row, answered in zip(probabilities, answers, strict=True):
        for each in answered.prediction.top:
            if classes[each.label : each.label + 1] != (each.class_name,):
                raise NodeError(f"the node's model is of a run that has other classes than {', '.join(classes)}")
            row[each.label] = each.probability
    return probabilities
