"""A table of text as it was read: columns under a header, the line of each row, and notes about what was left out or
assumed.

Python's `csv` parses, and each column is kept as bytes. Reading 200,000 rows of 32 columns (41 MB) into features took
2.4 s and 80 MiB; pyarrow.csv took 0.6 s and 204 MiB. pyarrow.csv has neither line numbers nor comments, reads `"a"b` as
`ab`, and did not return in a process with little memory.
"""

from __future__ import annotations

import csv
import gzip
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ml.data.cells import EMPTY, INDEX_NAMES, PLACEHOLDERS, TextColumn, parse_number, tidy
from ml.data.findings import Finding
from ml.data.memory import validate_fits
from ml.data.part import Locate
from ml.data.readers.csv_dialect import (
    TextLines,
    find_separator,
    find_undecodable,
    list_encodings,
    translate_decimals,
)
from ml.data.source import DataSource
from ml.errors import DataError

MEASURED_ROWS = 256  # rows at the beginning, then twice as many: their memory predicts that of the rest
_CHUNK_CELLS = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of text under a header, and the line of the file for each row. `notes` say what was left out or
    assumed."""

    path: Path
    header: list[str]
    columns: list[TextColumn]
    lines: array[int]
    notes: tuple[Finding, ...] = ()

    @classmethod
    def read(cls, path: Path, max_rows: int | None = None, *, source: DataSource | None = None) -> Table:
        """Reads the table as `source` describes its text. Raises DataError, also where there are more than
        `max_rows`."""
        source = source or DataSource()
        try:
            encodings = list_encodings(path, source.csv.encoding)
            for encoding in encodings[:-1]:
                with suppress(UnicodeDecodeError):
                    return _Reading(path, encoding, source, max_rows, is_guess=encoding != encodings[0]).read()
            return _Reading(path, encodings[-1], source, max_rows, is_guess=len(encodings) > 1).read()
        except UnicodeDecodeError as error:
            line = find_undecodable(path, encodings[-1])
            raise DataError(f"{path}: line {line}: expected text in {encodings[-1]}: {error.reason}") from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: not a readable gzip file: {error}") from error

    def find(self, name: str | None, default: str, key: str) -> int | None:
        """Returns the column of this name; None if it is the default and there is none."""
        if (name or default) in self.header:
            return self.header.index(name or default)
        if name is not None:
            raise DataError(f"data.columns.{key}: {self.path} has no column {name!r}: {', '.join(self.header)}")
        return None

    @property
    def locate(self) -> Locate:
        """The function that locates rows, which may be kept longer than the table."""
        place, lines = str(self.path), self.lines
        return lambda i: f"{place}: line {lines[i]}"


_Record = tuple[int, list[str]]  # the line of the file that it ends at, and its cells


class _Reading:
    """One attempt to read a file in one encoding."""

    def __init__(self, path: Path, encoding: str, source: DataSource, max_rows: int | None, *, is_guess: bool) -> None:
        self._path, self._encoding, self._source, self._max_rows = path, encoding, source, max_rows
        self._notes: list[Finding] = []
        self._line = 0  # of the last record
        self._num_comments = 0
        if is_guess:
            self._note(f"not in UTF-8, and read as {encoding}; data.csv.encoding says what it is in", "warning")

    def read(self) -> Table:
        """Returns the table. Raises DataError, UnicodeDecodeError, and the errors of a broken gzip."""
        with TextLines(self._path, self._encoding) as head:
            separator = self._source.csv.separator or find_separator(head)
        with TextLines(self._path, self._encoding) as text:
            try:
                records = self._list_records(csv.reader(text, delimiter=separator, strict=True))
                header, first = self._read_header(records)
                columns, lines = self._read_rows(chain(first, records), header, text)
            except csv.Error as error:
                raise DataError(f"{self._path}: line {self._line + 1}: {error}") from error
        if not lines:
            raise DataError(f"{self._path}: expected rows after the header, got none")
        if self._num_comments:
            are = "line that begins with # is" if self._num_comments == 1 else "lines that begin with # are"
            self._note(f"{self._num_comments} {are} passed over")
        columns, note = translate_decimals(columns, self._source.csv)
        if note is not None:
            self._note(note)
        kept = self._choose_columns(header, columns)
        return Table(self._path, [header[c] for c in kept], [columns[c] for c in kept], lines, tuple(self._notes))

    def _note(self, text: str, level: Literal["note", "warning"] = "note") -> None:
        self._notes.append(Finding(level, f"{self._path.name}: {text}"))

    def _list_records(self, reader: Any) -> Iterator[_Record]:
        for row in reader:
            self._line = reader.line_num
            if row and (len(row) > 1 or row[0].strip()):
                yield self._line, row

    def _read_header(self, records: Iterator[_Record]) -> tuple[list[str], list[_Record]]:
        """Returns the names of the columns, and the rows that were read to find them. Lines before the names that begin
        with # are comments; the last of them is the header if it has as many cells as the line after it."""
        led: list[_Record] = []
        for record in records:
            led.append(record)
            if not record[1][0].startswith("#"):
                break
        if not led:
            raise DataError(f"{self._path}: line 1: expected a header")
        (line, row), names = led[-1], self._source.names
        if names is not None:
            if len(names) != len(row):
                raise DataError(
                    f"data.columns.names: expected {len(row)} names, as line {line} of {self._path} has cells, "
                    f"got {len(names)}"
                )
            self._num_comments = len(led) - 1
            header = self._tidy_header(names, line)
            return header, led[-1:] if [tidy(name) for name in row] != header else []  # it may still have one
        has_mark = len(led) > 1 and len(led[-2][1]) == len(row)
        line, header = led[-2] if has_mark else led[-1]
        self._num_comments = len(led) - 1 - has_mark
        header = [header[0].lstrip("#"), *header[1:]]
        _refuse_numbers([tidy(name) for name in header], f"{self._path}: line {line}")
        return self._tidy_header(header, line), led[-1:] if has_mark else []

    def _tidy_header(self, names: Sequence[str], line: int) -> list[str]:
        header = [tidy(name) for name in names]
        seen: set[str] = set()
        for name in header:
            if name and name in seen:
                raise DataError(f"{self._path}: line {line}: column {name!r} is there twice")
            seen.add(name)
        return header

    def _read_rows(
        self, records: Iterator[_Record], header: Sequence[str], text: TextLines
    ) -> tuple[list[TextColumn], array[int]]:
        width, lines = len(header), array("q")
        chunk_rows = min(max(_CHUNK_CELLS // width, 16), 1 << 13)
        chunks: list[list[Any]] = [[] for _ in header]
        rows: list[list[str]] = []
        for line, row in records:
            if len(row) != width:
                if row[0].startswith("#"):
                    self._num_comments += 1
                    continue
                raise DataError(f"{self._path}: line {line}: expected {width} columns, got {len(row)}")
            rows.append(row)
            lines.append(line)
            if self._max_rows is not None and len(lines) > self._max_rows:
                raise DataError(f"{self._path}: expected at most {self._max_rows} rows, got more")
            if len(rows) == chunk_rows:
                _pack(rows, chunks)
            if self._max_rows is None and len(lines) >= MEASURED_ROWS and len(lines).bit_count() == 1:
                validate_fits(_estimate(rows, chunks, text.share), str(self._path))
        _pack(rows, chunks)
        return [TextColumn(tuple(own), chunk_rows) for own in chunks], lines

    def _choose_columns(self, header: Sequence[str], columns: Sequence[TextColumn]) -> list[int]:
        """Returns the columns that have names, without a data frame's index. Raises DataError for cells without a
        name."""
        kept = []
        for c, (name, column) in enumerate(zip(header, columns, strict=True)):
            if c == 0 and name in INDEX_NAMES and len(header) > 1 and self._source.names is None:
                self._note("the first column has no name of its own: the row numbers of a data frame, left out")
            elif name:
                kept.append(c)
            elif not set(column) <= set(EMPTY):
                raise DataError(
                    f"{self._path}: column {c + 1} has no name, and cells such as {next(filter(None, column))!r}"
                )
        return kept


def _pack(rows: list[list[str]], chunks: Sequence[list[Any]]) -> None:
    """Moves rows into the chunks of their columns."""
    if rows:
        for own, cells in zip(chunks, zip(*rows, strict=True), strict=True):
            own.append(TextColumn.pack([cell.strip() for cell in cells]))
        rows.clear()


def _estimate(rows: Sequence[Sequence[str]], chunks: Sequence[Sequence[Any]], share: float) -> int:
    """Estimates the memory for the rest of a file of which this share has been read."""
    packed = sum(TextColumn(tuple(own), 1).num_bytes for own in chunks)
    unpacked = sum(sys.getsizeof(row) + sum(sys.getsizeof(cell) for cell in row if len(cell) > 1) for row in rows)
    return int((packed + unpacked) * (1 - share) / max(share, 1e-9))


def _refuse_numbers(header: Sequence[str], place: str) -> None:
    """Raises DataError for a first line that has cells, not names: fractions, or only numbers that are not
    consecutive."""
    is_fraction = any("." in name and parse_number(name) is not None for name in header)
    counts = [list(map(str, range(first, first + len(header)))) for first in (0, 1)]
    is_row = all(parse_number(name, PLACEHOLDERS) is not None for name in header) and any(header)
    if is_fraction or (is_row and list(header) not in counts):
        shown = ", ".join(header[:5]) + (", …" if len(header) > 5 else "")
        raise DataError(
            f"{place}: expected the names of columns, got {shown}: is the header missing? data.columns.names: "
            "[age, sex, …] gives them"
        )
