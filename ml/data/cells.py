"""Cells of tables, and the numbers, texts and dates that they stand for, the same for every file format.

    number   in decimal digits, below float32's largest; true and false are 1 and 0
    empty    no cell, or one of the texts of `EMPTY`, or of those that a run names besides
    text     composed (NFC), without blanks around it; a whole number as such: 1.0 is 1, and True is true
    date     a day, a time or both, in digits or with the month's name

`TextColumn` holds a column of a file of text as bytes, in a few bytes a cell.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

EMPTY = ("", "NA", "N/A", "NaN", "nan", "null", "None")
INDEX_NAMES = ("", "Unnamed: 0")  # of the first column: a data frame's row numbers, as pandas and R write them
_MARKS = ("n/a", "na", "NULL", "NAN", "#N/A")
PLACEHOLDERS = ("?", ".", "-", "--", "*", *_MARKS, "none", "missing", "unknown")

Cells = Mapping[str, Sequence[Any]]  # of a table, by column: text, or numbers and None

_LARGEST = float(np.finfo(np.float32).max)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"(-?[1-9]\d*|0)\.0+", re.ASCII)
_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?", re.ASCII)
_BOOLEANS = {"true": 1.0, "false": 0.0}
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?"
_DAY = (
    r"\d{4}(?P<a>[-/.])\d{1,2}(?P=a)\d{1,2}|\d{1,2}(?P<b>[-/.])\d{1,2}(?P=b)(\d{4}|\d{2})"
    r"|\d{1,2}[- .]{1,2}[A-Za-z]{3,9}[- ,.]{1,2}\d{2,4}"
)
_DATE = re.compile(rf"({_DAY})([T ]\s*{_CLOCK}\s*(Z|UTC|[+-]\d{{2}}:?\d{{2}})?)?|{_CLOCK}", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn(Sequence[str]):
    """A column of text in chunks of `chunk_rows` cells, each an array of UTF-8 of a fixed width, or a list where that
    is smaller. No cell ends with a zero byte."""

    chunks: tuple[NDArray[np.bytes_] | list[str], ...]
    chunk_rows: int

    @staticmethod
    def pack(texts: Sequence[str]) -> NDArray[np.bytes_] | list[str]:
        """Returns these cells as a chunk."""
        width, total = max(map(len, texts), default=0), sum(map(len, texts))
        if 4 * width * len(texts) > 4 * total + 64 * len(texts):
            return list(texts)
        try:
            return np.array(texts, np.bytes_)
        except UnicodeEncodeError:
            return np.array([text.encode("utf-8", "surrogatepass") for text in texts], np.bytes_)

    @property
    def num_bytes(self) -> int:
        """The memory of all cells, without Python's overhead for each cell in a list."""
        return sum(sum(map(len, own)) if isinstance(own, list) else own.nbytes for own in self.chunks)

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(map(_unpack, self.chunks))

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return list(self)[at]
        at = at if at >= 0 else at + len(self)
        if not 0 <= at < len(self):
            raise IndexError(at)
        cell = self.chunks[at // self.chunk_rows][at % self.chunk_rows]
        return cell if isinstance(cell, str) else bytes(cell).decode("utf-8", "surrogatepass")

    def map(self, change: Callable[[str], str]) -> TextColumn:
        """Returns the column with each different text changed."""
        return TextColumn(
            tuple(self.pack([change(text) for text in _unpack(own)]) for own in self.chunks), self.chunk_rows
        )

    def has(self, sign: str) -> bool:
        """Says whether some cell contains this sign."""
        return any(
            any(sign in text for text in own) if isinstance(own, list) else sign.encode() in own.tobytes()
            for own in self.chunks
        )


class ReadCells(Mapping[str, Sequence[Any]]):
    """A table's columns by name, each read on demand."""

    def __init__(self, names: tuple[str, ...], read: Callable[[str], Sequence[Any]]) -> None:
        self._names, self._read = dict.fromkeys(names), read

    def __getitem__(self, name: str) -> Sequence[Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _unpack(chunk: NDArray[np.bytes_] | list[str]) -> list[str]:
    return chunk if isinstance(chunk, list) else [cell.decode("utf-8", "surrogatepass") for cell in chunk.tolist()]


def parse_number(cell: Any, empty: Sequence[str] = ()) -> float | None:
    """Returns a finite number, NaN for an empty cell, None for anything else. `empty` are further texts that stand for
    an empty cell."""
    if cell is None:
        return math.nan
    if isinstance(cell, str):
        return _parse_text(cell.strip(), empty)
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    if math.isnan(value) or value in _read_codes(empty):
        return math.nan
    return value if abs(value) <= _LARGEST else None


def _parse_text(text: str, empty: Sequence[str]) -> float | None:
    if text in EMPTY or text in empty:
        return math.nan
    if _NUMBER.fullmatch(text):
        value = float(text)
        if value in _read_codes(empty):
            return math.nan
        return value if abs(value) <= _LARGEST else None
    return _BOOLEANS.get(text.lower())


def _read_codes(empty: Sequence[str]) -> list[float]:
    """Returns the numbers among the texts that stand for an empty cell."""
    return [float(text) for text in empty if _NUMBER.fullmatch(text)]


def parse_numbers(cells: Sequence[Any], empty: Sequence[str] = ()) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Parses each cell as `parse_number` does, and returns the numbers and a mask of the cells that are neither a
    number nor empty."""
    if isinstance(cells, TextColumn):
        parts = [_parse_chunk(own, empty) for own in cells.chunks]
        if not parts:
            return np.empty(0), np.zeros(0, np.bool_)
        return np.concatenate([values for values, _ in parts]), np.concatenate([wrong for _, wrong in parts])
    if set(map(type, cells)) <= {int, float, bool, type(None)}:
        try:
            values = np.array(cells, np.float64)
            values[np.isin(values, _read_codes(empty))] = np.nan
            return values, np.abs(values) > _LARGEST
        except OverflowError:
            pass
    return _parse_each(cells, empty)


def _parse_chunk(
    chunk: NDArray[np.bytes_] | list[str], empty: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if isinstance(chunk, list):
        return _parse_each(chunk, empty)
    is_empty = np.isin(chunk, np.array([text.encode() for text in (*EMPTY, *empty)], np.bytes_))
    values = np.full(len(chunk), np.nan)
    if b"_" not in chunk.tobytes():  # Python takes it in numbers
        try:
            values[~is_empty] = chunk[~is_empty].astype(np.float64)
        except ValueError:
            pass
        else:
            is_empty |= np.isin(values, _read_codes(empty))
            values[is_empty] = np.nan
            return values, ~is_empty & ~(np.abs(values) <= _LARGEST)  # inf, and other spellings of nan
    texts, inverse = np.unique(chunk, return_inverse=True)
    values, wrong = _parse_each(_unpack(texts), empty)
    return values[inverse], wrong[inverse]


def _parse_each(cells: Iterable[Any], empty: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    parsed = [parse_number(cell, empty) for cell in cells]
    wrong = np.array([value is None for value in parsed], np.bool_)
    return np.array([math.nan if value is None else value for value in parsed], np.float64), wrong


def to_label(cell: Any) -> str:
    """Returns a cell as the name of a class; an empty text for an empty cell."""
    return "" if cell is None or (isinstance(cell, float) and math.isnan(cell)) else tidy(str(cell))


def to_text(cell: Any) -> str:
    """Returns a cell as the text by which values of categories are compared; an empty text for an empty cell."""
    text = to_label(cell)
    if text.lower() in _BOOLEANS:
        return text.lower()
    return text[: text.index(".")] if _WHOLE.fullmatch(text) else text


def tidy(text: str) -> str:
    """Returns the text in Unicode's composed form (NFC), without blanks around it."""
    return text.strip() if text.isascii() else unicodedata.normalize("NFC", text).strip()


def is_empty(cell: Any, empty: Sequence[str] = ()) -> bool:
    """Says whether a cell is empty."""
    text = to_text(cell)
    if text in EMPTY or text in empty:
        return True
    number = parse_number(cell, empty) if empty else None
    return number is not None and math.isnan(number)


def is_date(cell: Any) -> bool:
    """Says whether a cell is a day, a time or a length of time."""
    if isinstance(cell, str):
        return _DATE.fullmatch(cell.strip()) is not None
    return isinstance(cell, date | time | timedelta)


def find_marks(texts: Iterable[str]) -> list[str]:
    """Returns those different texts of a column that are hardly values where others have letters or digits: `?` and
    other signs, and texts that programs write for an empty cell."""
    known = list(texts)
    marks = [text for text in known if text in _MARKS or not any(map(str.isalnum, text))]
    return marks if len(marks) < len(known) else []


def unify(text: str) -> str:
    """Returns the form that is the same for texts which differ by case or blanks only."""
    return "".join(text.split()).casefold()


def hint_at_like(text: str, known: Iterable[str]) -> str:
    """Returns words about the known text that differs from this one by case or blanks only; an empty text where none
    does."""
    like = next((name for name in known if unify(name) == unify(text)), None)
    return "" if like is None else f"; {like!r} differs by case or blanks only"


def is_decimal_comma(text: str) -> bool:
    """Says whether the text is a number if the comma is its decimal sign."""
    return _COMMA.fullmatch(text) is not None


def has_doubtful_commas(texts: Iterable[str]) -> bool:
    """Says whether all texts are numbers in which a comma may be a decimal sign or stand between thousands."""
    known = list(texts)
    return any(map(is_decimal_comma, known)) and all(
        is_decimal_comma(text) or _NUMBER.fullmatch(text.replace(",", "")) for text in known
    )


def hint_at(cell: Any) -> str:
    """Returns words about what a cell that is no number may be; an empty text where there is no guess."""
    text = str(cell).strip()
    if text in PLACEHOLDERS:
        return f"; an empty cell? input.empty in genesis may list {text!r}"
    if is_decimal_comma(text):
        return "; a decimal comma? data.csv.decimal or data.csv.thousands says what a comma is"
    if is_date(cell):
        return "; a date is no number: take the column out, or make days since another date of it"
    return ""
