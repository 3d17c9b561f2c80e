"""The dialect of a table of text: encoding, separator and decimal sign, as `data.csv` sets them or as the file shows.

encoding    UTF-8, or UTF-16 by its mark or its zeros; otherwise Windows' (cp1252) or Latin-1
separator   , ; tab or |: the one that makes as many cells in the first lines as in the header, and then the most
decimal     a comma where columns are numbers with it alone, none of the table's numbers have a point, and the comma
            cannot be one of thousands
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from ml.data.cells import TextColumn, is_decimal_comma, parse_numbers
from ml.data.source import CsvFormat
from ml.errors import DataError

ENDINGS = (".csv", ".tsv", ".tab", ".csv.gz", ".tsv.gz", ".tab.gz")  # endings of the names of tables of text
EXCEL = "this is an Excel file: save the sheet as CSV (UTF-8)"
SEPARATORS = ("\t", ";", "|", ",")  # in order of preference: a comma may stand within numbers
MAX_LINE = 1 << 22  # letters
_HEAD_LINES, _HEAD_LETTERS, _HEAD_BYTES = 100, 1 << 20, 1 << 12
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+", re.ASCII)
_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?", re.ASCII)
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_OTHERS = (
    (b"\xd0\xcf\x11\xe0", EXCEL),
    (b"PAR1", "this is a Parquet file: data.format parquet"),
    (b"%PDF", "this is a PDF file, expected a table of text"),
    (b"\x89HDF", "this is an HDF5 file, expected a table of text"),
    (b"SQLite format 3", "this is a SQLite data base: export the table as CSV"),
)


class TextLines:
    """The lines of a file of text, plain or gzipped, with their ends. `share` says how much of the file has been
    read."""

    def __init__(self, path: Path, encoding: str) -> None:
        self._path = path
        self._num_bytes = max(1, path.stat().st_size)
        self._raw = path.open("rb")
        unpacked = gzip.GzipFile(fileobj=self._raw) if _is_gzip(path) else self._raw
        self._text = io.TextIOWrapper(unpacked, encoding, newline="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._text.close()
        self._raw.close()

    def __iter__(self) -> Iterator[str]:
        """Yields the lines. Raises DataError for a line that is too long, or no text."""
        for number, line in enumerate(iter(lambda: self._text.readline(MAX_LINE), ""), 1):
            if len(line) == MAX_LINE:
                raise DataError(f"{self._path}: line {number}: expected at most {MAX_LINE} letters in a line, got more")
            if "\0" in line:
                raise DataError(f"{self._path}: line {number}: expected text, got a byte of zero")
            yield line

    @property
    def share(self) -> float:
        return self._raw.tell() / self._num_bytes


def list_encodings(path: Path, asked: str | None) -> list[str]:
    """Returns the encodings to try, in order; all but the first are guesses. Raises DataError for a file that is no
    text."""
    head = _read_head(path)
    for mark, text in _OTHERS:
        if head.startswith(mark):
            raise DataError(f"{path}: {text}")
    if head.startswith(_ZIP):
        is_excel = b"xl/" in head or b"[Content_Types]" in head or path.suffix.lower() in (".xlsx", ".xlsm")
        raise DataError(f"{path}: {EXCEL if is_excel else 'this is a zip archive: unpack it'}")
    if asked is not None:
        return ["utf-8-sig" if asked.lower() in ("utf-8", "utf8") else asked]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ["utf-16"]
    zeros = (head[::2].count(0), head[1::2].count(0))
    if max(zeros) > len(head) // 4 and min(zeros) * 8 < max(zeros):  # nearly all letters of the first 256
        return ["utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"]
    return ["utf-8-sig", "cp1252", "latin-1"]


def _read_head(path: Path) -> bytes:
    with path.open("rb") as raw:
        head = raw.read(_HEAD_BYTES)
    if not head.startswith(_GZIP):
        return head
    with gzip.open(path, "rb") as file:
        return file.read(_HEAD_BYTES)


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as raw:
        return raw.read(len(_GZIP)) == _GZIP


def find_separator(lines: TextLines) -> str:
    """Returns the sign between the cells of the first lines; a comma where each has only one cell."""
    head, num_letters = list[str](), 0
    for line in islice(lines, _HEAD_LINES):
        num_letters += len(line)
        if line.strip() and not line.startswith("#"):
            head.append(line)
        if num_letters > _HEAD_LETTERS:
            break
    best, found = (0.0, 1), ","
    for separator in SEPARATORS:
        widths: list[int] = []
        with suppress(csv.Error):  # a quote that does not end: reading the file says where
            widths += (len(row) for row in csv.reader(head, delimiter=separator) if row)
        if not widths or widths[0] < 2:
            continue
        own = (sum(width == widths[0] for width in widths) / len(widths), widths[0])
        if own > best:
            best, found = own, separator
    return found


def translate_decimals(columns: Sequence[TextColumn], asked: CsvFormat) -> tuple[list[TextColumn], str | None]:
    """Returns the columns with a point in all decimal numbers, and a note where commas were detected as decimal
    signs."""
    if asked.decimal == "," or asked.thousands is not None:
        return [_translate(column, asked) for column in columns], None
    if asked.decimal is not None:
        return list(columns), None
    found = [c for c, column in enumerate(columns) if column.has(",") and _has_commas_alone(column)]
    is_plain = any(not _THOUSANDS.fullmatch(text) and "," in text for c in found for text in columns[c])
    if not is_plain or any(_has_points(column) for c, column in enumerate(columns) if c not in found):
        return list(columns), None
    signs = CsvFormat(decimal=",")
    made = [_translate(column, signs) if c in found else column for c, column in enumerate(columns)]
    return made, "a comma is taken for the decimal sign; data.csv.decimal says what it is"


def _translate(column: TextColumn, asked: CsvFormat) -> TextColumn:
    sign, thousands = re.escape(asked.decimal or "."), re.escape(asked.thousands or "")
    whole = rf"(\d+|[1-9]\d{{0,2}}({thousands}\d{{3}})+)" if thousands else r"\d+"
    number = re.compile(rf"[+-]?({whole}({sign}\d*)?|{sign}\d+)([eE][+-]?\d+)?", re.ASCII)

    def change(text: str) -> str:
        if not number.fullmatch(text):
            return text
        return text.replace(asked.thousands or "\0", "").replace(asked.decimal or ".", ".")

    return column.map(change) if any(map(column.has, (asked.decimal or ".", asked.thousands or "\0"))) else column


def _has_commas_alone(column: TextColumn) -> bool:
    """Says whether all cells are whole numbers, numbers with a decimal comma, or empty."""
    return all(is_decimal_comma(text) or _THOUSANDS.fullmatch(text) or _is_whole(text) for text in set(column))


def _is_whole(text: str) -> bool:
    return not parse_numbers([text])[1].any() and "." not in text


def _has_points(column: TextColumn) -> bool:
    """Says whether the column has numbers only, some of them with a decimal point."""
    return column.has(".") and not parse_numbers(column)[1].any() and any(map(_POINT.fullmatch, column))


def find_undecodable(path: Path, encoding: str) -> int | None:
    """Returns the first line that is no text in this encoding, in which each line end is one byte."""
    with gzip.open(path, "rb") if _is_gzip(path) else path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError:
                return number
    return None
