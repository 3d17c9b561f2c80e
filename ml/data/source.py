"""The source of a site's samples: `data` of a configuration, read and checked."""

from __future__ import annotations

import importlib
from codecs import lookup
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ml.data.readers.images import AS_THEY_ARE, ImageRules
from ml.data.split import CONTENT, Rule, Sides
from ml.errors import DataError, suggest
from ml.tasks import CLASSIFICATION

ALL = "all"  # the one split of a source that has none
HELD_OUT = "held out"  # the split of test samples that were taken from the training ones
PARENT = "parent"  # in `data.group`: the folder above an image
SHARE = 0.2  # share of the samples that is held out, where a source has no test samples
AUGMENTS = ("none", "flip", "crop", "flip_crop")
_KEYS = (
    "format",
    "path",
    "train_split",
    "test_split",
    "columns",
    "domains",
    "classes",
    "images",
    "cache_gb",
    "transform",
    "partition",
    "plugins",
    "csv",
    "group",
    "id",
    "split",
    "test",
    "held_out",
    "val",
    "split_seed",
)
_COLUMNS = ("image", "label", "names")


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """The signs of a table of text, `data.csv`. A sign that is None is detected; only the sign between thousands is
    not: if it is None, there is none."""

    separator: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None

    @classmethod
    def from_mapping(cls, given: Any) -> CsvFormat:
        """Reads `{separator: ";", decimal: ","}`. Raises DataError."""
        if not isinstance(given or {}, Mapping):
            raise DataError(f"data.csv: expected {{separator: SIGN, decimal: SIGN, encoding: NAME}}, got {given!r}")
        keys = [field.name for field in fields(cls)]
        for key in given or {}:
            if key not in keys:
                raise DataError(f"data.csv.{key}: unknown key: {suggest(key, keys)}")
        own = cls(**{key: _get_text(given or {}, "data.csv", key) for key in keys})
        if own.separator is not None and (len(own.separator) != 1 or own.separator in '"\r\n'):
            raise DataError(f"data.csv.separator: expected one sign, got {own.separator!r}")
        if own.decimal not in (None, ".", ","):
            raise DataError(f"data.csv.decimal: expected . or ,, got {own.decimal!r}")
        if own.thousands is not None and (len(own.thousands) != 1 or own.thousands == (own.decimal or ".")):
            raise DataError(f"data.csv.thousands: expected one sign besides the decimal one, got {own.thousands!r}")
        with suppress(LookupError):
            lookup(own.encoding or "utf-8")
            return own
        raise DataError(f"data.csv.encoding: unknown encoding {own.encoding!r}")


@dataclass(frozen=True, slots=True)
class DataSource:
    """The section `data` of a configuration. Without `test_split` it is the split called test, or else a fifth of each
    class held out.

    `domains` are the domains to use of format domains, in this order; None means all, by name. `classes` are the
    classes whose samples are used, in this order; None means all. `labels` are the columns of a table with the labels:
    one, or for other tasks several. `outputs` are the names of the run's labels or targets, if they are known, where
    its task has such. `plugins` are those that a format which is not built in may belong to. `images` says how image
    files are read. `val` is the share of the training samples that is held out to compare rounds by, where the data
    themselves hold out none; None where it is not set. `split_seed` is that of a rehearsal in which each domain is a
    site with a split of its own.
    """

    format: str = "digits"
    path: Path | None = None
    train_split: str = "train"
    test_split: str | None = None
    image: str | None = None  # a column of a table
    labels: tuple[str, ...] | None = None
    domains: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    plugins: tuple[str, ...] = ()
    task: str = CLASSIFICATION
    outputs: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None  # names of all columns of a table of text without a header
    csv: CsvFormat = CsvFormat()
    group: tuple[str, ...] | None = None
    id: str | None = None
    split: str | None = None
    test: Path | None = None
    held_out: float = SHARE
    val: float | None = None
    split_seed: int | None = None
    sides: Sides | None = None
    images: ImageRules = AS_THEY_ARE

    @classmethod
    def for_files(cls, data: Mapping[str, Any]) -> DataSource:
        """Returns the source by which to read other files that are written like those of `data`. Raises DataError."""
        columns = {"names": (data.get("columns") or {}).get("names")}
        return cls.from_mapping({"csv": data.get("csv"), "columns": columns, "images": data.get("images")})

    @classmethod
    def from_mapping(
        cls, data: Mapping[str, Any], task: str = CLASSIFICATION, outputs: Sequence[str] | None = None
    ) -> DataSource:
        """Reads `{format: csv, path: a.csv, columns: {label: diagnosis}}`. Unknown keys are errors, except `partition`,
        `transform` and `cache_gb`, which are read elsewhere. Raises DataError."""
        for key in data:
            if key not in _KEYS:
                raise DataError(f"data.{key}: unknown key: {suggest(key, _KEYS)}")
        columns = data.get("columns") or {}
        if not isinstance(columns, Mapping):
            raise DataError(f"data.columns: expected {{image: NAME, label: NAME}}, got {columns!r}")
        for key in columns:
            if key not in _COLUMNS:
                raise DataError(f"data.columns.{key}: unknown key: {suggest(key, _COLUMNS)}")
        path = _get_text(data, "data", "path")
        train_split = _get_text(data, "data", "train_split") or "train"
        test_split = _get_text(data, "data", "test_split")
        if train_split == test_split:
            raise DataError(f"data.test_split: expected another split than data.train_split, got {test_split!r}")
        format_ = _get_text(data, "data", "format") or "digits"
        domains = _get_names(data, "domains")
        if domains is not None and format_ != "domains":
            raise DataError(f"data.domains: data.format {format_} has no domains, got {', '.join(domains)}")
        group, id_, split = (
            _get_columns(data, "group", "data"),
            _get_text(data, "data", "id"),
            _get_text(data, "data", "split"),
        )
        test = _get_text(data, "data", "test")
        given = [key for key, value in (("split", split), ("test", test), ("test_split", test_split)) if value]
        if len(given) > 1:
            raise DataError(f"data.{given[1]}: expected none with data.{given[0]}, which says what tests already")
        if test is not None and format_ == "domains":
            raise DataError("data.test: expected none with data.format domains, each of which has its own test samples")
        if group is not None and id_ is not None:
            raise DataError("data.id: expected none with data.group, by which samples are known already")
        kept = _get_names(data, "classes")
        if kept is not None and task != CLASSIFICATION:
            raise DataError(f"data.classes: expected none for task {task}, got {', '.join(kept)}")
        return cls(
            format=format_,
            path=None if path is None else Path(path),
            train_split=train_split,
            test_split=test_split,
            image=_get_text(columns, "data.columns", "image"),
            labels=_get_columns(columns, "label"),
            domains=domains,
            classes=kept,
            plugins=_get_names(data, "plugins") or (),
            task=task,
            outputs=() if task == CLASSIFICATION else tuple(outputs or ()),
            names=_get_names(columns, "names", "data.columns"),
            csv=CsvFormat.from_mapping(data.get("csv")),
            group=group,
            id=id_,
            split=split,
            test=None if test is None else Path(test),
            held_out=SHARE if (share := _get_share(data, "held_out")) is None else share,
            val=_get_share(data, "val", takes_none=True),
            split_seed=_get_split_seed(data, format_),
            images=ImageRules.from_mapping(data.get("images")),
        )

    @property
    def aside(self) -> tuple[str, ...]:
        """The columns of a table that identify or split its rows and are no features."""
        return tuple(name for name in dict.fromkeys((*(self.group or ()), self.id, self.split)) if name is not None)

    @property
    def rule(self) -> Rule:
        """The rule that identifies samples: by a group, by an id, or by their content."""
        if self.group is not None:
            return ("group", *self.group)
        return CONTENT if self.id is None else ("id", self.id)

    def by_rule(self, rule: Rule) -> DataSource:
        """Returns the same source, with samples identified by another rule."""
        group, id_ = (rule[1:] if rule[0] == kind else None for kind in ("group", "id"))
        return replace(self, group=group, id=None if id_ is None else id_[0])

    @property
    def has_own_rule(self) -> bool:
        """Says whether the source sets how its samples are to be split."""
        return self.rule != CONTENT or self.held_out != SHARE

    @property
    def label(self) -> str | None:
        """The column of the classes. Raises DataError where several are named."""
        if self.labels is not None and len(self.labels) > 1:
            raise DataError(
                f"data.columns.label: expected one column of classes, got {', '.join(self.labels)}: several are for "
                "task: multilabel or regression"
            )
        return None if self.labels is None else self.labels[0]

    def get_path(self) -> Path:
        """Returns `data.path`, which must exist. Raises DataError."""
        if self.path is None:
            raise DataError(f"data.path: expected a path, which data.format {self.format} needs")
        if not self.path.exists():
            raise DataError(f"{self.path}: no such file or directory")
        return self.path

    def refuse_columns(self) -> None:
        """Raises DataError if columns are named for a format that has none."""
        named = None if self.labels is None else ", ".join(self.labels)
        names = None if self.names is None else ", ".join(self.names)
        for key, column in (("image", self.image), ("label", named), ("names", names)):
            if column is not None:
                raise DataError(f"data.columns.{key}: data.format {self.format} has no columns, got {column!r}")


def get_augment(data: Mapping[str, Any]) -> str:
    """Returns `data.transform.augment`, the change that training makes to a batch. Raises DataError."""
    transform = data.get("transform") or {}
    if not isinstance(transform, Mapping):
        raise DataError(f"data.transform: expected {{augment: NAME, own: NAME}}, got {transform!r}")
    for key in transform:
        if key not in ("augment", "own"):
            raise DataError(f"data.transform.{key}: unknown key: {suggest(key, ('augment', 'own'))}")
    if not isinstance(transform.get("own") or "", str):
        raise DataError(f"data.transform.own: expected the name of a plugin's transform, got {transform['own']!r}")
    kind = transform.get("augment", "none")
    if kind not in AUGMENTS:
        raise DataError(f"data.transform.augment: expected one of {', '.join(AUGMENTS)}, got {kind!r}")
    return str(kind)


def missing_label(place: object, columns: Iterable[str]) -> str:
    """Returns the message about a table that has no column with a usual name for labels."""
    return (
        f"{place}: expected a column 'label', or the name of another in data.columns.label: one of {', '.join(columns)}"
    )


def _get_text(mapping: Mapping[str, Any], section: str, key: str) -> str | None:
    value = mapping.get(key)
    if isinstance(value, Path):
        return str(value)
    if value is not None and not (isinstance(value, str) and value):
        raise DataError(f"{section}.{key}: expected text, got {value!r}")
    return value


def _get_columns(mapping: Mapping[str, Any], key: str, section: str = "data.columns") -> tuple[str, ...] | None:
    """Returns the columns under a key, which has one name or a list of names."""
    value = mapping.get(key)
    if value is None or isinstance(value, str):
        name = _get_text(mapping, section, key)
        return None if name is None else (name,)
    return _get_names(mapping, key, section)


def _get_share(data: Mapping[str, Any], key: str, *, takes_none: bool = False) -> float | None:
    """Returns a share of the samples, which may be 0 if `takes_none`."""
    value = data.get(key)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (0 < value < 1 or (takes_none and not value))
    ):
        raise DataError(f"data.{key}: expected a share between 0 and 1, got {value!r}")
    return float(value)


def _get_split_seed(data: Mapping[str, Any], format_: str) -> int | None:
    """Returns `data.split_seed`."""
    value = data.get("split_seed")
    if value is None:
        return None
    if type(value) is not int:
        raise DataError(f"data.split_seed: expected a whole number, got {value!r}")
    if format_ != "domains":
        raise DataError(f"data.split_seed: data.format {format_} has no domains, got {value}")
    return value


def _get_names(data: Mapping[str, Any], key: str, section: str = "data") -> tuple[str, ...] | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) and name for name in value):
        raise DataError(f"{section}.{key}: expected a list of names, as text, got {value!r}")
    if len(set(value)) != len(value):
        twice = next(name for name in value if value.count(name) > 1)
        raise DataError(f"{section}.{key}: expected different names, got {twice!r} twice")
    return tuple(value)


def require_extra(module: str, distribution: str) -> None:
    """Imports `module`, or raises DataError with the line that installs it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"expected {distribution} to be installed: pip install 'fednode[data]'") from error
