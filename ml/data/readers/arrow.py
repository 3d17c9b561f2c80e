"""Columns of Arrow tables as samples and labels, for Parquet files and Hugging Face directories alike.

A sample is either the image in one column, `struct<bytes, path>` as Hugging Face stores it or plain binary, or all
numbers of a row but those that were the index of a pandas data frame. Hugging Face stores the names of classes in the
schema's metadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Samples
from ml.data.cells import INDEX_NAMES, ReadCells, parse_numbers, tidy
from ml.data.findings import Finding
from ml.data.labels import BOOLEANS, IS_REGRESSION, to_text
from ml.data.memory import validate_fits
from ml.data.outputs import find_columns, split_names, stack_outputs
from ml.data.part import Locate, Part, RawLabels, RawTable
from ml.data.readers.images import ImageRules
from ml.data.source import DataSource, missing_label, require_extra
from ml.data.table_input import CATEGORIES, describe_wrong
from ml.errors import DataError
from ml.tasks import CLASSIFICATION, MULTILABEL

_IMAGES = ("image", "img")
_LABELS = ("label", "labels")
_CELL_BYTES = 64  # bytes of a cell as an object of Python
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A table's columns by name, each read on demand; `features` is Hugging Face's description of them."""

    place: str
    types: Mapping[str, Any]  # pyarrow.DataType
    features: Mapping[str, Any]
    index: frozenset[str]  # columns of pandas' row numbers, which depend on the order of rows and not on a sample
    read: Callable[[str], Any]  # pyarrow.ChunkedArray
    locate: Locate  # of a row

    @classmethod
    def of_schema(cls, place: str, schema: Any, file: object, read: Callable[[str], Any], locate: Locate) -> Columns:
        """Returns the columns of a `pyarrow.Schema` in a file; `read` reads one by its name in the file."""
        fields = get_fields(schema, str(file))
        return cls(
            place,
            {name: field.type for name, field in fields.items()},
            read_features(schema.metadata, str(file)),
            read_index(schema.metadata, fields),
            lambda name: read(fields[name].name),
            locate,
        )

    def find_label(self, wanted: str | None) -> str:
        """Returns the column of labels: `data.columns.label`, or "label", or the only one with named classes."""
        if wanted is not None:
            return self._get(wanted, "label")
        named = [str(name) for name, feature in self.features.items() if _get_type(feature) == "ClassLabel"]
        candidates: list[str] = [*_LABELS, *(named if len(named) == 1 else ())]
        for candidate in candidates:
            if candidate in self.types:
                return candidate
        raise DataError(missing_label(self.place, self.types))

    def find_image(self, wanted: str | None) -> str | None:
        """Returns the column of images: `data.columns.image`, or "image", or the only one of their type; None without
        images."""
        if wanted is not None:
            return self._get(wanted, "image")
        images = [name for name, type_ in self.types.items() if _is_image(type_)]
        return next((name for name in _IMAGES if name in images), images[0] if len(images) == 1 else None)

    def find_classes(self, source: DataSource) -> tuple[str, ...] | None:
        """Returns the names of the classes, where the metadata have them; None for other tasks."""
        return self.get_classes(self.find_label(source.label)) if source.task == CLASSIFICATION else None

    def get_classes(self, label: str) -> tuple[str, ...] | None:
        """Returns the names of the labels' classes in the metadata, None where there are none."""
        feature = self.features.get(label)
        names = feature.get("names") if isinstance(feature, Mapping) and _get_type(feature) == "ClassLabel" else None
        if names is None:
            return None
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise DataError(f"{self.place}: column {label!r}: expected the names of its classes in the metadata")
        return tuple(names)

    def make_part(self, source: DataSource) -> Part:
        """Returns the table's samples as a part, with labels read and the rest not."""
        image = self.find_image(source.image)
        labels: RawLabels
        outputs: tuple[str, ...] = ()
        if source.task == CLASSIFICATION:
            taken = [self.find_label(source.label)]
            labels = self._read_labels(taken[0])
        else:
            taken = find_columns(source, self.types, self.place)
            labels, outputs = self._read_outputs(taken, source)
        if not len(labels):
            raise DataError(f"{self.place}: expected rows, got none")
        if image is not None:
            others = [name for name in self.types if name not in taken and name != image]
            images = self._make_images(image, labels, source.images)
            return replace(images, outputs=outputs, beside=lambda: self.get_cells(others))
        features = [name for name in self.types if name not in taken and name not in self.index]
        if not features:
            raise DataError(f"{self.place}: expected a column besides the labels, got none")
        shape = (len(features), 1, 1)
        names = tuple(features)
        return Part(
            self.place,
            labels,
            shape,
            lambda _: self._read_features(names),
            self.locate,
            features=names,
            outputs=outputs,
            cells=lambda: self.get_cells(names),
            notes=self.notes,
        )

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings about columns that were left out."""
        names = ", ".join(name or "without a name" for name in self.types if name in self.index)
        text = f"{self.place}: the column {names} has the row numbers of a data frame, left out"
        return (Finding("note", text),) if names else ()

    def get_cells(self, names: Iterable[str]) -> ReadCells:
        """Returns these columns unchanged, each read on demand."""
        return ReadCells(tuple(names), self._read_cells)

    def _read_cells(self, name: str) -> list[Any]:
        place = self._get_place(name)
        with translated(place):  # also an impossible time
            column = self.read(name)
            validate_fits(_CELL_BYTES * len(column), place)
            return list(column.to_pylist())

    def open_table(self, source: DataSource) -> RawTable | None:
        """Returns all columns but the index; None where there are images."""
        if self.find_image(source.image) is not None:
            return None
        names = [name for name in self.types if name not in self.index]
        labels: tuple[str, ...] = ()
        with suppress(DataError):  # the column may not be chosen yet
            is_one = source.task == CLASSIFICATION
            found = [self.find_label(source.label)] if is_one else find_columns(source, self.types, self.place)
            labels = tuple(found)
        return RawTable(self.place, self.get_cells(names), self.locate, labels, self.notes)

    def _get(self, name: str, key: str) -> str:
        if name not in self.types:
            raise DataError(f"data.columns.{key}: {self.place} has no column {name!r}: {', '.join(self.types)}")
        return name

    def _make_images(self, image: str, labels: RawLabels, rules: ImageRules) -> Part:
        import pyarrow as pa

        if not _is_image(self.types[image]):
            raise DataError(f"{self.place}: column {image!r}: expected images, got {self.types[image]}")
        require_extra("PIL", "pillow")
        is_struct = pa.types.is_struct(self.types[image])

        def locate(i: int) -> str:
            return f"{self.locate(i)}: column {image!r}"

        def get_encoded(column: Any, i: int) -> bytes:
            with translated(locate(i)):
                value = column[i]
                encoded = value["bytes"].as_py() if is_struct and value.is_valid else value.as_py()
            if encoded is None:
                path = value["path"] if is_struct and value.is_valid and "path" in value else None
                raise DataError(f"{locate(i)}: expected the bytes of an image, got none (path {path})")
            return bytes(encoded)

        return Part.of_images(
            self.place, labels, lambda: partial(get_encoded, self._read_plain(image)[0]), locate, rules
        )

    def _read_labels(self, name: str) -> NDArray[np.int64] | NDArray[np.str_]:
        import pyarrow as pa

        column, type_ = self._read_plain(name)
        self._refuse_nulls(name, column)
        if _is_text(type_):
            with translated(self._get_place(name)):
                texts = [tidy(text) for text in column.to_pylist()]
            if "" in texts:
                raise DataError(f"{self.locate(texts.index(''))}: column {name!r}: expected a label, got nothing")
            return to_text(texts, f"{self.place}: column {name!r}")
        if pa.types.is_boolean(type_):
            return np.where(np.asarray(column.to_numpy(), np.bool_), BOOLEANS[1], BOOLEANS[0])
        if pa.types.is_integer(type_):
            validate_fits(8 * len(column), f"{self.place}: column {name!r}")
            with translated(self._get_place(name)):
                return np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)
        hint = IS_REGRESSION if pa.types.is_floating(type_) else ""
        raise DataError(f"{self.place}: column {name!r}: expected whole numbers or text as labels, got {type_}{hint}")

    def _read_outputs(self, taken: Sequence[str], source: DataSource) -> tuple[RawLabels, tuple[str, ...]]:
        """Reads the labels or targets of each row, and their names."""
        columns = {name: self._read_plain(name)[0] for name in taken}
        for name, column in columns.items():
            self._refuse_nulls(name, column)
        if source.task == MULTILABEL and len(taken) == 1 and not _is_number(self.types[taken[0]]):
            return split_names([str(text) for text in self._read_cells(taken[0])], source.outputs, self.locate)
        for name in taken:
            if not _is_number(self.types[name]):
                raise DataError(f"{self.place}: column {name!r}: expected numbers, got {self.types[name]}")
        made = {name: np.asarray(column.to_pylist(), np.float64) for name, column in columns.items()}
        return stack_outputs(made, source.task, self.locate)

    def _read_features(self, names: Sequence[str]) -> Samples:
        import pyarrow as pa

        columns: list[NDArray[np.float32]] = []
        for name in names:
            column, type_ = self._read_plain(name)
            if not columns:
                validate_fits(4 * len(column) * len(names), f"{self.place}: {len(column)} rows of {len(names)} numbers")
            self._refuse_nulls(name, column)
            if not (_is_number(type_) or _is_text(type_)):
                raise DataError(f"{self.place}: column {name!r}: expected numbers or images, got {type_}")
            if _is_text(type_):
                columns.append(self._read_numbers(name))
                continue
            with translated(self._get_place(name)):
                values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy())
            with np.errstate(over="ignore"):
                column_N = values.astype(np.float32)
            if not np.isfinite(column_N).all():
                i = int(np.argmin(np.isfinite(column_N)))
                raise DataError(f"{self.locate(i)}: column {name!r}: expected a finite number, got {values[i]}")
            columns.append(column_N)
        return np.stack(columns, axis=1).reshape(-1, len(names), 1, 1)

    def _read_plain(self, name: str) -> tuple[Any, Any]:
        """Returns a column and its type, without dictionary encoding."""
        import pyarrow as pa

        type_ = self.types[name]
        with translated(self._get_place(name)):
            column = self.read(name)
            if pa.types.is_dictionary(type_):
                return column.cast(type_.value_type), type_.value_type
            return column, type_

    def _get_place(self, name: str) -> str:
        return f"{self.place}: column {name!r}"

    def _read_numbers(self, name: str) -> NDArray[np.float32]:
        """Reads a column of text as numbers. Raises DataError for the first cell that is none."""
        cells = self._read_cells(name)
        values_N, is_wrong = parse_numbers(cells)
        is_bad = is_wrong | np.isnan(values_N)
        if is_bad.any():
            i = int(is_bad.argmax())
            raise DataError(f"{self.locate(i)}: {describe_wrong(name, cells[i])}{CATEGORIES}")
        return values_N.astype(np.float32)

    def _refuse_nulls(self, name: str, column: Any) -> None:
        if column.null_count:
            i = column.is_null().to_pylist().index(True)
            raise DataError(f"{self.locate(i)}: column {name!r}: expected a value, got null")


@contextmanager
def translated(place: object, what: str = "cannot be read") -> Iterator[None]:
    """Translates pyarrow's errors about broken bytes into DataError. Their type depends on where pyarrow meets them."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, pa.ArrowException) as error:
        raise DataError(f"{place}: {what}: {error}") from error


def get_fields(schema: Any, place: str) -> dict[str, Any]:
    """Returns a schema's fields by the names of columns, in Unicode's composed form and without blanks around them.
    Raises DataError."""
    made: dict[str, Any] = {}
    try:
        for field in schema:
            name = tidy(field.name)
            if name in made:
                raise DataError(f"{place}: column {name!r} is there twice")
            made[name] = field
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: expected the names of columns in UTF-8: {error}") from error
    return made


def read_features(metadata: Mapping[bytes, bytes] | None, place: str) -> dict[str, Any]:
    """Returns the description of the columns that Hugging Face's `datasets` stores in a schema's metadata. Raises
    DataError."""
    text = (metadata or {}).get(b"huggingface")
    if text is None:
        return {}
    try:
        features = json.loads(text)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{place}: the schema's 'huggingface' metadata is broken: {error}") from error
    return {tidy(name): feature for name, feature in features.items()} if isinstance(features, dict) else {}


def read_index(metadata: Mapping[bytes, bytes] | None, names: Iterable[str]) -> frozenset[str]:
    """Returns the columns that were a data frame's index: those in pandas' metadata, and those with names that pandas
    makes."""
    known = list(names)
    index = {name for name in known if _UNNAMED_INDEX.fullmatch(name)}
    index.update(name for name in known[:1] if name in INDEX_NAMES and len(known) > 1)
    try:
        columns = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, KeyError, TypeError, RecursionError):
        columns = []
    if isinstance(columns, list):
        index.update(tidy(name) for name in columns if isinstance(name, str))
    return frozenset(index)


def _get_type(feature: object) -> object:
    return feature.get("_type") if isinstance(feature, Mapping) else None


def _is_image(type_: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(type_):
        return bool(type_.get_field_index("bytes") >= 0 and pa.types.is_binary(type_.field("bytes").type))
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def _is_number(type_: Any) -> bool:
    import pyarrow as pa

    is_binary = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)
    return bool(is_binary or pa.types.is_decimal(type_) or pa.types.is_null(type_))


def _is_text(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))
