"""A run: one training of one model by one method over a number of rounds, as all members have agreed on it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from chain.agreed_input import AGREED, INHERITED
from chain.block import Digest
from chain.errors import GenesisError
from chain.layout import MAX_HEIGHT, MAX_U32
from chain.run_input import check_deviations, has_later_terms, has_own_empty, read_input
from chain.schema import Section, check_choice, check_range, check_unique, copy_tree, quote, read_digest, read_number
from chain.select import AUC, FIRST_SELECTING, LOSS, Select

MAX_SCHEMA_BYTES = 64 * 1024
FIRST_FILLING = 4  # the first protocol under which sites agree on what fills empty cells, and a class has labels
CLASSIFICATION, REGRESSION = "classification", "regression"
TASKS = (CLASSIFICATION, "multilabel", REGRESSION)


@dataclass(frozen=True, slots=True)
class Run:
    """A run in force or over; `number` counts from 1. Valid once built: raises GenesisError naming the field.

    Round r makes the block at `first_height` + r - 1. Each change block during a run moves `first_height` by one. The
    exception is a change block at the height of masked inputs: it replaces that round, and members publish new keys.
    `rounds` is the number of rounds planned, 0 for no end; with masked sums each makes two blocks (`num_heights`).
    `schema` says which arrays its contributions and its aggregate hold. `initial_model` is the digest of the aggregate
    that it begins from. `is_ended`: a change has ended it. `classes` name the model's outputs, which by `task` are
    classes, labels or targets; `target` has the mean and the deviation of each target; `labels` lists the values in the
    data that mean each class, where these differ from its name. `select` says how its best round is chosen. One more
    height then follows the last round, for the measures of that round, and with `evaluate` another, at which every
    member measures the best round's model. `stopped` is the round after which patience has ended it, 0 for none.
    """

    number: int
    first_height: int
    method: Mapping[str, Any]
    model: Mapping[str, Any]
    classes: tuple[str, ...]
    input: Mapping[str, Any]
    rounds: int
    initial_model: Digest
    schema: Mapping[str, Any]
    is_ended: bool = False
    task: str = CLASSIFICATION
    target: Mapping[str, Any] | None = None
    labels: Mapping[str, Sequence[str]] | None = None
    select: Select | None = None
    stopped: int = 0

    def __post_init__(self) -> None:
        check_range("number", self.number, 1, MAX_U32)
        check_range("first_height", self.first_height, 1, MAX_HEIGHT)
        for path in ("method", "model"):
            value = getattr(self, path)
            if not isinstance(value.get("name"), str) or not value["name"]:
                raise GenesisError(f"{path}.name", f"expected a name, got {quote(value.get('name'))}")
        check_unique("classes", self.classes)
        check_choice("task", self.task, TASKS)
        if len(self.initial_model) != 32:
            raise GenesisError("initial_model", f"expected 32 bytes, got {len(self.initial_model)}")
        if self.number == 1 and self.input.get("normalize") == INHERITED:
            raise GenesisError("input.normalize", f"expected {AGREED} in the first run, got {INHERITED}")
        check_range("rounds", self.rounds, 0, MAX_HEIGHT)
        check_range("stopped", self.stopped, 0, MAX_HEIGHT)
        self._check_select()
        size = len(encode_canonical(self.schema))
        check_range("size of the schema", size, 2, MAX_SCHEMA_BYTES, path="schema")

    def _check_select(self) -> None:
        """Raises GenesisError if the run may not select: measures are not hidden, and they reveal something about
        samples."""
        if self.select is None:
            if self.stopped:
                raise GenesisError("stopped", f"expected 0 without select, got {self.stopped}")
            return
        if self.is_masked:
            raise GenesisError(
                "select", "expected none with aggregation masked_sum, as measures are not hidden in a sum"
            )
        hidden = sorted(
            key
            for key, value in self.method.items()
            if key.startswith("dp_") and key.endswith("noise") and value is not None
        )
        if hidden:
            raise GenesisError("select", f"expected none with {hidden[0]}, as measures have no noise")
        if self.select.by == AUC and self.task == REGRESSION:
            raise GenesisError("select.by", f"expected {LOSS} for task {quote(self.task)}, got {AUC}")

    @property
    def first_protocol(self) -> int:
        """The first protocol that allows a run with these terms."""
        if self.select is not None or "correlations" in self.input or has_own_empty(self.input):
            return FIRST_SELECTING
        return FIRST_FILLING if self.labels is not None or has_later_terms(self.input) else 1

    @property
    def is_masked(self) -> bool:
        """True if members mask what they send, so that only the sum of all is seen. Each sum needs honest members."""
        return self.method.get("aggregation") == "masked_sum"

    @property
    def last_round(self) -> int:
        """The last round of the run as things stand, 0 for no end."""
        return self.stopped or self.rounds

    @property
    def num_heights(self) -> int:
        """The number of blocks that the run makes, 0 for no end."""
        return self.count_heights(self.last_round)

    def count_heights(self, rounds: int) -> int:
        """Returns how many blocks so many rounds make. Masked sums take two blocks a round and one before the first for
        keys. A run that selects takes one more after the last round for measures, and another if it evaluates."""
        if not rounds:
            return 0
        if self.is_masked:
            return 2 * rounds + 1
        return rounds if self.select is None else rounds + 1 + self.select.evaluate

    def count_rounds(self, heights: int) -> int:
        """Returns how many rounds have begun in the first `heights` blocks of the run."""
        return heights // 2 if self.is_masked else heights

    def is_of_inputs(self, height: int) -> bool:
        """Says whether the block at `height` holds masked inputs, which members mask with the keys in the block
        before."""
        return self.is_masked and self.get_round(height) % 2 == 0

    def get_round(self, height: int) -> int:
        """Returns the round that makes the block at `height`, which this run must judge; with masked sums, the number
        of the block within the run."""
        return height - self.first_height + 1

    def is_closing(self, height: int) -> bool:
        """Says whether the block at `height` follows the last round: it holds that round's measures, or the
        evaluation."""
        return self.select is not None and 0 < self.last_round < self.get_round(height) <= self.num_heights

    def is_evaluating(self, height: int) -> bool:
        """Says whether the block at `height` holds what every site measured of the best round's model."""
        return self.is_closing(height) and self.get_round(height) == self.last_round + 2

    def get_trained(self, height: int) -> int:
        """Returns the last round of this run up to the block at `height` that members trained for."""
        number = self.get_round(height)
        return min(number, self.last_round) if self.select is not None and self.last_round else number

    def has_round(self, height: int) -> bool:
        """Says whether the block at `height` may be a round of this run, or one of the blocks that close it."""
        return not self.is_ended and (self.last_round == 0 or self.get_round(height) <= self.num_heights)

    def to_mapping(self) -> dict[str, Any]:
        """Returns what is hashed: JSON-able, every value written out."""
        stopped = {"stopped": self.stopped} if self.stopped else {}
        where = {"number": self.number, "first_height": self.first_height, "is_ended": self.is_ended}
        return where | stopped | self.to_terms()

    def to_terms(self) -> dict[str, Any]:
        """Returns the terms that members agree on when they start the run, without its place on the chain. Terms that
        are rarely set are omitted where they are not set."""
        terms = {
            "method": copy_tree("method", self.method),
            "model": copy_tree("model", self.model),
            "classes": list(self.classes),
            "input": copy_tree("input", self.input),
            "rounds": self.rounds,
            "initial_model": self.initial_model.hex(),
            "schema": copy_tree("schema", self.schema),
        }
        if self.task != CLASSIFICATION:
            terms["task"] = self.task
        if self.target is not None:
            terms["target"] = copy_tree("target", self.target)
        if self.select is not None:
            terms["select"] = self.select.to_mapping()
        if self.labels is not None:
            terms["labels"] = {name: list(self.labels[name]) for name in self.classes}
        return terms

    @classmethod
    def from_mapping(cls, obj: object) -> Self:
        """Returns the run that `to_mapping` has written. Raises GenesisError."""
        top = Section("run", obj, (*TERMS, "number", "first_height", "is_ended", "stopped"))
        return cls.from_terms(
            top,
            number=top.integer("number"),
            first_height=top.integer("first_height"),
            is_ended=top.flag("is_ended"),
            stopped=top.integer("stopped", 0),
        )

    @classmethod
    def from_terms(
        cls, top: Section, *, number: int, first_height: int, is_ended: bool = False, stopped: int = 0
    ) -> Self:
        """Returns a run with the terms that members agree on, as genesis or a change states them. Raises
        GenesisError."""
        task = top.text("task", CLASSIFICATION)
        classes, labels = _read_classes(top, task)
        return cls(
            number=number,
            first_height=first_height,
            method=top.tree("method"),
            model=top.tree("model"),
            classes=classes,
            input=read_input(top),
            rounds=top.integer("rounds"),
            initial_model=read_digest(top.path("initial_model"), top.text("initial_model")),
            schema=top.tree("schema", {}),
            is_ended=is_ended,
            task=task,
            target=_read_target(top, task, len(classes)),
            labels=labels,
            select=Select.read(top),
            stopped=stopped,
        )


TERMS = (
    "method",
    "model",
    "classes",
    "input",
    "rounds",
    "initial_model",
    "schema",
    "task",
    "target",
    "labels",
    "select",
)
OPTIONAL_TERMS = ("task", "target", "labels", "select")  # written only where they are set


def stops(before: Run, after: Run) -> bool:
    """Says whether patience, and no change, made `after` out of `before`."""
    same = before.number == after.number and before.first_height == after.first_height
    return same and after.stopped > 0 and before.stopped == 0


def encode_canonical(value: object) -> bytes:
    """Returns ASCII JSON with sorted keys, no spaces and finite numbers: one encoding per value (PROTOCOL §1)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _read_classes(top: Section, task: str) -> tuple[tuple[str, ...], dict[str, list[str]] | None]:
    """Returns the names of the classes, and the labels of each: `{no: [0], yes: [1, 2]}`. The file has the labels under
    `classes`, or under `labels` beside a list of names."""
    given = top.value("classes")
    labels = given if isinstance(given, Mapping) else top.value("labels", None)
    if labels is None:
        return top.texts("classes"), None
    path = top.path("classes" if labels is given else "labels")
    if labels is given and top.value("labels", None) is not None:
        raise GenesisError(top.path("labels"), "expected none beside classes that have their labels")
    if not isinstance(labels, Mapping) or not all(isinstance(name, str) for name in labels):
        raise GenesisError(path, f"expected a list of labels by class, got {quote(labels)}")
    if task != CLASSIFICATION:
        raise GenesisError(path, f"expected none for task {quote(task)}")
    classes = tuple(labels) if labels is given else top.texts("classes")
    if set(classes) != set(labels):
        raise GenesisError(path, f"expected the labels of {', '.join(classes)}, got those of {', '.join(labels)}")
    read = {name: _read_labels(f"{path}.{name}", labels[name]) for name in classes}
    check_unique(path, [label for own in read.values() for label in own])
    return classes, read


def _read_labels(path: str, given: object) -> list[str]:
    """Returns the labels that mean one class, as text."""
    if not isinstance(given, list | tuple) or not given:
        raise GenesisError(path, f"expected a list of labels, got {quote(given)}")
    labels = []
    for i, label in enumerate(given):
        text = str(label) if isinstance(label, int) and not isinstance(label, bool) else label
        if not isinstance(text, str) or not text or not text.isprintable():
            raise GenesisError(f"{path}[{i}]", f"expected text or a whole number, got {quote(label)}")
        labels.append(text)
    return labels


def _read_target(top: Section, task: str, num_targets: int) -> dict[str, Any] | None:
    """Returns the mean and the deviation of each target of a regression, None if targets are not normalised."""
    if top.value("target", None) is None:
        return None
    section = top.section("target", ("mean", "std"))
    if task != REGRESSION:
        raise GenesisError(top.path("target"), f"expected none for task {quote(task)}, which has no targets")
    target: dict[str, list[float]] = {}
    for key in ("mean", "std"):
        values, path = section.items(key), section.path(key)
        if len(values) != num_targets:
            raise GenesisError(path, f"expected {num_targets}, one for each target, got {len(values)}")
        target[key] = [read_number(f"{path}[{i}]", value) for i, value in enumerate(values)]
    check_deviations(section.path("std"), target["std"])
    return target
