"""A table's columns by the rules that a run has agreed on: categories as one feature for each of their values, and
replacements for empty cells.

    columns   by name, in the order of the features; with `values` a column is a category, and becomes a feature for
              each of them, 1 for the one a row has; `edges` separate the bins in which agreed statistics count a
              number's values, and `empty` are texts that stand for an empty cell in this column alone, such as 0 for
              cholesterol. Other columns of a site's table are ignored. Without `columns` all are numbers, in the order
              of the file
    missing   for an empty cell: refuse, or use the run's mean of a number, or zero. A category then has no value. With
              mean+flag each column becomes one more feature, 1 where its cell is empty
    empty     the texts that stand for an empty cell, beside those that always do; a number among them, such as -999,
              stands for it in any spelling
    unknown   for a value that is not among a category's: refuse, or other, which is one more feature of each category

The rules are the same in training, prediction and evaluation, so that no row depends on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ml.data.cells import (
    PLACEHOLDERS,
    Cells,
    has_doubtful_commas,
    hint_at,
    hint_at_like,
    is_date,
    is_empty,
    parse_numbers,
    to_text,
)
from ml.data.memory import validate_fits
from ml.errors import DataError, suggest

MISSING, UNKNOWN = ("refuse", "mean", "mean+flag", "zero"), ("refuse", "other")
FLAG, FLAG_SUFFIX = "+flag", " (empty)"  # ends `missing`, and the name of the feature that marks empty cells
MAX_VALUES = 100  # values of a category that is detected
CATEGORIES = "; categories and empty cells need input.columns and input.missing in genesis"


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: a number or, with `values`, a category."""

    name: str
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    empty: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        told: dict[str, Any] = {"name": self.name} | ({"values": list(self.values)} if self.values else {})
        told |= {"edges": list(self.edges)} if self.edges else {}
        return told | ({"empty": list(self.empty)} if self.empty else {})


@dataclass(frozen=True, slots=True)
class TableInput:
    """A run's rules for tables, part of its `input`. `mean` is the run's, of each feature; until it is measured, a
    table's own mean takes its place. Where members agree on the mean (`is_agreed`), empty cells stay not-a-number until
    it is known."""

    columns: tuple[Column, ...] | None = None
    missing: str = "refuse"
    unknown: str = "refuse"
    mean: tuple[float, ...] = ()
    empty: tuple[str, ...] = ()
    is_agreed: bool = False

    @classmethod
    def from_mapping(cls, input_: Mapping[str, Any], mean: tuple[float, ...] = ()) -> Self | None:
        """Reads a run's `input`; None where that has no rules for tables. Raises DataError."""
        if not any(input_.get(key) is not None for key in ("columns", "missing", "unknown", "empty")):
            return None
        chosen = {}
        for key, choices in (("missing", MISSING), ("unknown", UNKNOWN)):
            chosen[key] = input_.get(key) or choices[0]
            if chosen[key] not in choices:
                raise DataError(f"input.{key}: expected one of {', '.join(choices)}, got {chosen[key]!r}")
        given = input_.get("columns")
        columns = None if given is None else tuple(_read_column(i, item) for i, item in enumerate(_read_list(given)))
        if columns is not None and len({column.name for column in columns}) != len(columns):
            raise DataError("input.columns: expected each name once")
        is_agreed = input_.get("normalize") is not None
        return cls(columns, chosen["missing"], chosen["unknown"], mean, _read_empty("input", input_), is_agreed)

    def to_mapping(self) -> dict[str, Any]:
        """Returns the rules as a run's `input` has them; defaults are left out."""
        told: dict[str, Any] = {}
        if self.columns is not None:
            told["columns"] = [column.to_mapping() for column in self.columns]
        rules = {"missing": self.missing, "unknown": self.unknown}
        told |= {key: value for key, value in rules.items() if value != "refuse"}
        return told | ({"empty": list(self.empty)} if self.empty else {})

    @property
    def has_flags(self) -> bool:
        """Says whether each column has a feature that marks its empty cells."""
        return self.missing.endswith(FLAG)

    @property
    def leaves_empty(self) -> bool:
        """Says whether empty cells stay not-a-number until members have agreed on the mean."""
        return self.is_agreed and self.missing.startswith("mean")

    def get_features(self, columns: Sequence[Column]) -> list[str]:
        """Returns the names of the features of these columns."""
        names: list[str] = []
        for column in columns:
            others = ["(other)"] if self.unknown == "other" else []
            categories = [f"{column.name}={value}" for value in (*column.values, *others)]
            names += categories if column.values else [column.name]
            names += [f"{column.name}{FLAG_SUFFIX}"] if self.has_flags else []
        return names

    def get_numbers(self, num_features: int) -> NDArray[np.bool_]:
        """Returns a mask of the features that are numbers, not values of a category."""
        flag = [False] * self.has_flags
        if self.columns is None:
            return np.resize(np.array([True, *flag]), num_features)
        other = int(self.unknown == "other")
        kinds = [[not c.values] * (len(c.values) + other if c.values else 1) + flag for c in self.columns]
        return np.array([kind for own in kinds for kind in own], np.bool_)

    def choose(self, names: Sequence[str], place: object) -> list[Column]:
        """Returns the columns that become features, of a table's own `names`. Raises DataError."""
        if self.columns is None:
            return [Column(name) for name in names]
        lacking = [column.name for column in self.columns if column.name not in names]
        if len(lacking) == 1:
            raise DataError(f"{place}: expected a column {lacking[0]!r} of genesis: {suggest(lacking[0], names)}")
        if lacking:
            raise DataError(
                f"{place}: expected the {len(self.columns)} columns of genesis, and {len(lacking)} are not there: "
                f"{', '.join(map(repr, lacking))}; it has {', '.join(map(repr, names)) or 'none'}"
            )
        return list(self.columns)

    def list_passed_over(self, names: Sequence[str]) -> tuple[str, ...]:
        """Returns those of a table's own `names` that become no feature."""
        if self.columns is None:
            return ()
        chosen = {column.name for column in self.columns}
        return tuple(name for name in names if name not in chosen)

    def count_empty(self, cells: Cells) -> NDArray[np.int64]:
        """Returns how many cells of each row are empty in the columns that become features."""
        chosen = [self.clear(cells[column.name], column) for column in self.choose(list(cells), "the table")]
        empty: NDArray[np.int64] = np.array([[is_empty(cell) for cell in column] for column in chosen]).sum(0)
        return empty

    def get_empty(self, column: Column) -> tuple[str, ...]:
        """Returns the texts that stand for an empty cell of a column, beside those that always do."""
        return (*self.empty, *column.empty)

    def clear(self, cells: Sequence[Any], column: Column) -> Sequence[Any]:
        """Returns the cells of a column with None for each that the run treats as empty."""
        if not (empty := self.get_empty(column)):
            return cells
        return [None if is_empty(cell, empty) else cell for cell in cells]

    def encode(self, cells: Cells, locate: Callable[[int], str]) -> NDArray[np.float32]:
        """Returns the features of each row, [N, F, 1, 1]. Raises DataError naming the first cell that cannot be
        encoded."""
        blocks: list[NDArray[np.float64]] = []
        columns = self.choose(list(cells), "the table")
        num_rows, num_features = len(cells[columns[0].name]), len(self.get_features(columns))
        validate_fits(8 * num_rows * num_features, f"{num_rows} rows of {num_features} features")
        for column in columns:
            texts = self.clear(cells[column.name], column)
            blocks.append(
                self._encode_category(column, texts, locate)
                if column.values
                else self._encode_number(column.name, texts, locate, sum(block.shape[1] for block in blocks))
            )
            if self.has_flags:
                blocks.append(np.array([[is_empty(cell)] for cell in texts], np.float64))
        x_NF = np.concatenate(blocks, axis=1).astype(np.float32)
        return x_NF.reshape(*x_NF.shape, 1, 1)

    def _encode_category(
        self, column: Column, cells: Sequence[Any], locate: Callable[[int], str]
    ) -> NDArray[np.float64]:
        place = {to_text(value): i for i, value in enumerate(column.values)}
        place |= {value: i for i, value in enumerate(column.values)}  # an exact spelling takes precedence
        x = np.zeros((len(cells), len(column.values) + (self.unknown == "other")))
        for i, cell in enumerate(cells):
            text = to_text(cell)
            if text in place:
                x[i, place[text]] = 1.0
            elif is_empty(cell):
                self._refuse_missing(column.name, i, locate)
            elif self.unknown == "other":
                x[i, -1] = 1.0
            else:
                expected = ", ".join(column.values[:10]) + (", …" if len(column.values) > 10 else "")
                raise DataError(
                    f"{locate(i)}: column {column.name!r}: expected one of {expected}, got {text!r}"
                    f"{hint_at_like(text, column.values)}"
                )
        return x

    def _encode_number(
        self, name: str, cells: Sequence[Any], locate: Callable[[int], str], feature: int
    ) -> NDArray[np.float64]:
        values_N, is_wrong = parse_numbers(cells)
        is_bad = is_wrong | (np.isnan(values_N) if self.missing == "refuse" else False)
        if is_bad.any():
            i = int(is_bad.argmax())
            if not is_wrong[i]:
                self._refuse_missing(name, i, locate)
            raise DataError(f"{locate(i)}: {describe_wrong(name, cells[i])}")
        x = values_N.reshape(-1, 1)
        is_missing = np.isnan(x)
        if is_missing.any() and not self.leaves_empty:
            x[is_missing] = 0.0 if self.missing == "zero" else self._get_mean(feature, x)
        return x

    def _get_mean(self, feature: int, x: NDArray[np.float64]) -> float:
        if self.mean:
            return self.mean[feature if len(self.mean) > 1 else 0]
        known = x[~np.isnan(x)]
        return float(known.mean()) if len(known) else 0.0

    def _refuse_missing(self, name: str, i: int, locate: Callable[[int], str]) -> None:
        if self.missing == "refuse":
            raise DataError(
                f"{locate(i)}: column {name!r}: expected a value, got none; genesis' input.missing may be mean or zero"
            )


def detect_columns(cells: Cells, place: object) -> tuple[Column, ...]:
    """Detects each column's type by its cells: a number, or a category of the values that it has. Raises DataError for
    dates, and for text that is different in nearly every row."""
    columns = []
    for name, texts in cells.items():
        if not parse_numbers(texts)[1].any():
            columns.append(Column(name))
            continue
        known = [cell for cell in texts if not is_empty(cell)]
        if all(map(is_date, known)):
            raise DataError(
                f"{place}: column {name!r} has dates, such as {str(known[0])!r}: expected numbers or a category; take "
                "the column out, or make a number of it, as days since another date"
            )
        values = tuple(sorted(set(map(to_text, known))))
        others = [text for text in values if parse_numbers([text], PLACEHOLDERS)[1].any()]
        if not others or has_doubtful_commas(values):
            wrong = next(text for text in values if parse_numbers([text])[1].any())
            raise DataError(f"{place}: {describe_wrong(name, wrong)}")
        if len(values) > MAX_VALUES:
            raise DataError(
                f"{place}: column {name!r} has {len(values)} different texts, such as {values[0]!r}: expected numbers, "
                f"or a category of at most {MAX_VALUES} values; take the column out, or list input.columns"
            )
        columns.append(Column(name, values))
    return tuple(columns)


def describe_wrong(name: str, cell: Any) -> str:
    """Describes a cell that should have been a number, and what it may be."""
    return f"column {name!r}: expected a finite number, got {str(cell).strip()!r}{hint_at(cell)}"


def _read_list(given: Any) -> Sequence[Any]:
    if not isinstance(given, list | tuple) or not given:
        raise DataError(f"input.columns: expected a list of {{name: …, values: […]}}, got {given!r}")
    return given


def _read_column(i: int, item: Any) -> Column:
    path = f"input.columns[{i}]"
    keys = {"name", "values", "edges", "empty"}
    if not isinstance(item, Mapping) or not set(item) <= keys or not isinstance(item.get("name"), str):
        raise DataError(f"{path}: expected {{name: …}} or {{name: …, values: […]}}, got {item!r}")
    values = item.get("values") or ()
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{path}.values: expected a list of texts, got {values!r}")
    if len(set(values)) != len(values):
        raise DataError(f"{path}.values: expected each value once")
    edges = item.get("edges") or ()
    if not isinstance(edges, list | tuple) or not all(type(edge) in (int, float) for edge in edges):
        raise DataError(f"{path}.edges: expected a list of numbers, got {edges!r}")
    return Column(item["name"], tuple(values), tuple(map(float, edges)), _read_empty(path, item))


def _read_empty(path: str, section: Mapping[str, Any]) -> tuple[str, ...]:
    empty = section.get("empty") or ()
    if not isinstance(empty, list | tuple) or not all(isinstance(text, str) and text for text in empty):
        raise DataError(f"{path}.empty: expected a list of texts, got {empty!r}")
    return tuple(empty)
