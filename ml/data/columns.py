"""Columns of a table before their cells are made into features: kind, empty cells, range, values, and values that are
hardly measurements.

    number      all cells are numbers, or empty
    category    texts, of which there are few
    text        texts that are different in nearly every row, or too many for a category
    date        days or times
    empty       no cell has anything in it

A number that stands for "not known" is a spike: 0, a row of nines or a negative one far from all others. A far outlier
is more than ten times the middle half of the values away from it, and far also by their logarithms.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml.data.cells import (
    PLACEHOLDERS,
    Cells,
    find_marks,
    has_doubtful_commas,
    is_date,
    is_decimal_comma,
    is_empty,
    parse_numbers,
    to_text,
    unify,
)
from ml.data.findings import Finding
from ml.data.table_input import MAX_VALUES, Column, TableInput

MANY_MISSING = 0.3  # of a column's cells
FEW_TEXTS, FEW_NUMBERS = 10, 30  # rows: so few may all differ by chance
ONE_VALUE = "one value"  # the doubt about a constant column
FEW_ROWS = 20  # rows: fewer have no outliers, and no text that occurs too often
_SPIKE = 0.01  # of the rows: a code occurs in more, an outlier does not
_FEW = 0.2  # of the rows: if more are impossible, the column is another quantity
_FAR, _FAR_LOGARITHM = 10.0, 5.0  # times the middle half
_CODES = (0.0, -1.0, -9.0, *(sign * (10.0**digits - 1) for sign in (1, -1) for digits in range(2, 8)))
_SHOWN = 5
CLEAR = "Leave such cells empty, or name it as `empty` of that column in input.columns"
# The possible values of quantities by their names; another value has another unit, or is none.
_POSSIBLE = (
    (re.compile(r"(^|[^a-z])age([^a-z]|$)", re.IGNORECASE), 0.0, 120.0),
    (re.compile(r"(^|[^a-z])bmi([^a-z]|$)", re.IGNORECASE), 5.0, 150.0),
    (re.compile(r"%|percent", re.IGNORECASE), 0.0, 100.0),
    (re.compile(r"(^|[^a-z])(spo2|sao2)([^a-z]|$)", re.IGNORECASE), 0.0, 100.0),
)


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """The summary of one column. `values` are those of a category, each with its number of rows, the most frequent
    first; of a date the first and the last. `empty` are texts in it that stand for an empty cell and that the run does
    not list. `odd` describes values that are hardly measurements. `range_` is that of numbers."""

    name: str
    kind: Literal["number", "category", "text", "date", "empty"]
    num_rows: int
    num_missing: int
    num_values: int  # different ones
    range_: tuple[float, float] | None = None
    mean: float | None = None
    std: float | None = None
    values: tuple[tuple[str, int], ...] = ()
    empty: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    is_whole: bool = False

    @property
    def is_constant(self) -> bool:
        return self.num_values == 1 and self.num_rows - self.num_missing > 1

    @property
    def is_identifier(self) -> bool:
        """Says whether each row has a different text or whole number."""
        is_countable = self.kind in ("text", "category") or (self.kind == "number" and self.is_whole)
        few = FEW_NUMBERS if self.kind == "number" else FEW_TEXTS
        return is_countable and self.num_rows >= few and self.num_values == self.num_rows

    @property
    def doubt(self) -> str | None:
        """The reason why the column should be no feature unless the site asks for it; None where there is none."""
        if self.kind == "empty":
            return "no value"
        if self.is_constant:
            return ONE_VALUE
        if self.is_identifier:
            return "another value in each row"
        if self.kind == "date":
            return "dates"
        if self.kind == "text":
            return f"{self.num_values} different texts"
        return None

    def to_mapping(self) -> dict[str, Any]:
        low, high = self.range_ or (None, None)
        return {
            "name": self.name,
            "type": self.kind,
            "rows": self.num_rows,
            "missing": self.num_missing,
            "different": self.num_values,
            "min": low,
            "max": high,
            "mean": self.mean,
            "std": self.std,
            "values": dict(self.values),
            "doubt": self.doubt,
        }


def summarise_columns(cells: Cells, empty: Mapping[str, Sequence[str]] | None = None) -> tuple[ColumnSummary, ...]:
    """Summarises each column; `empty` are further texts of an empty cell, by column."""
    return tuple(_summarise(name, column, (empty or {}).get(name, ())) for name, column in cells.items())


def propose_input(columns: Iterable[ColumnSummary]) -> TableInput:
    """Returns a run's `input` that suits these columns: all without a doubt. A category's values are sorted, and empty
    cells become the mean."""
    kept = [own for own in columns if own.doubt is None]
    made = tuple(
        Column(own.name, tuple(sorted(value for value, _ in own.values)) if own.kind == "category" else ())
        for own in kept
    )
    has_gaps = any(own.num_missing for own in kept)
    empty = tuple(sorted({text for own in kept for text in own.empty}))
    return TableInput(made, "mean" if has_gaps else "refuse", empty=empty)


def check_summaries(columns: Sequence[ColumnSummary]) -> Iterator[Finding]:
    """Yields the findings about columns."""
    if gaps := sort_by_missing(columns):
        shown = [f"{own.name!r} {own.num_missing} of {own.num_rows}" for own in gaps]
        share = max(own.num_missing / max(own.num_rows, 1) for own in gaps)
        yield Finding("warning" if share >= MANY_MISSING else "note", f"empty cells: {_shorten(shown)}")
    for mark, names in _group((mark, own.name) for own in columns for mark in own.empty):
        text = f"{mark!r} among the values of {_list(names)}: an empty cell? input.empty in genesis may list it"
        yield Finding("warning", text)
    for text, names in _group((text, own.name) for own in columns for text in own.odd):
        yield Finding("warning", f"{_list(names)}: {text}")
    for doubt, names in _group((own.doubt, own.name) for own in columns if own.doubt is not None):
        are = "is it a feature" if len(names) == 1 else "are they features"
        yield Finding("warning", f"{_list(names)}: {doubt}: {are}?")


def sort_by_missing(columns: Iterable[ColumnSummary]) -> list[ColumnSummary]:
    """Returns the columns with empty cells, those with most empty cells first."""
    gaps = (own for own in columns if own.num_missing)
    return sorted(gaps, key=lambda own: -own.num_missing / max(own.num_rows, 1))


def find_alike(names: Iterable[str]) -> list[tuple[str, str]]:
    """Returns the pairs of names that differ by case or blanks only."""
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        other = first.setdefault(unify(name), name)
        if other != name:
            pairs.append((other, name))
    return pairs


def _summarise(name: str, cells: Sequence[Any], empty: Sequence[str]) -> ColumnSummary:
    values_N, is_wrong = parse_numbers(cells, empty)
    if not is_wrong.any():
        return _summarise_numbers(name, values_N)
    counts = Counter(to_text(cell) for cell in cells)
    known = {text: count for text, count in counts.items() if not is_empty(text, empty)}
    marks = tuple(text for text in known if text in PLACEHOLDERS)
    if marks and len(known) > len(marks):
        without, is_wrong = parse_numbers(cells, (*empty, *marks))
        if not is_wrong.any():
            return replace(_summarise_numbers(name, without), empty=marks)
    if marks := tuple(find_marks(known)):
        return replace(_summarise(name, cells, (*empty, *marks)), empty=marks)
    own = ColumnSummary(name, "category", len(cells), len(cells) - sum(known.values()), len(known))
    if has_doubtful_commas(known):
        doubt = f"{next(filter(is_decimal_comma, known))!r}: is a comma the decimal sign, or one of thousands? data.csv"
        return replace(own, kind="text", odd=(doubt,))
    if all(is_date(cell) for cell in cells if not is_empty(cell, empty)):
        days = sorted(known)
        return replace(own, kind="date", values=((days[0], known[days[0]]), (days[-1], known[days[-1]])))
    if len(known) > MAX_VALUES or (len(known) >= FEW_ROWS and len(known) > 0.9 * own.num_rows):
        return replace(own, kind="text")
    ordered = tuple(sorted(known.items(), key=lambda pair: (-pair[1], pair[0])))
    odd = [f"{a!r} and {b!r} differ by case or blanks only" for a, b in find_alike(sorted(known))]
    num_numbers = sum(known[text] for text in known if not parse_numbers([text])[1].any())
    if num_numbers > 0.8 * sum(known.values()):
        others = [text for text, _ in ordered if parse_numbers([text])[1].any()]
        odd.append(f"numbers, but for {_shorten([repr(text) for text in others])}")
    return replace(own, values=ordered, odd=tuple(odd))


def _summarise_numbers(name: str, values_N: NDArray[np.float64]) -> ColumnSummary:
    known = np.sort(values_N[~np.isnan(values_N)])
    own = ColumnSummary(name, "empty", len(values_N), len(values_N) - len(known), 0)
    if not len(known):
        return own
    starts = np.flatnonzero(np.append(True, known[1:] != known[:-1]))
    different, counts = known[starts], np.diff(np.append(starts, len(known)))
    return replace(
        own,
        kind="number",
        num_values=len(different),
        range_=(float(known[0]), float(known[-1])),
        mean=float(known.mean()),
        std=float(known.std()),
        odd=tuple(_find_odd(name, known, different, counts)),
        is_whole=bool((different == np.rint(different)).all()),
    )


def _find_odd(
    name: str, known: NDArray[np.float64], different: NDArray[np.float64], counts: NDArray[np.int64]
) -> Iterator[str]:
    """Yields descriptions of sorted values that may be no measurements."""
    found = np.flatnonzero(np.isin(different, _CODES))
    codes = [i for i in found.tolist() if _is_code(float(different[i]), int(counts[i]), known)]
    for i in codes:
        is_often = counts[i] > 1
        times = f"{counts[i]} times {different[i]:g}" if is_often else f"{different[i]:g} once"
        yield f"{times}, far from the others: not known? {CLEAR}"
    rest = known[~np.isin(known, different[codes])]
    low, high = next(((low, high) for word, low, high in _POSSIBLE if word.search(name)), (-np.inf, np.inf))
    is_possible = (rest >= low) & (rest <= high)
    impossible, shown = rest[~is_possible], f"expected {low:g} to {high:g}"
    if 0 < len(impossible) <= _FEW * len(rest):
        are = "value that is" if len(impossible) == 1 else "values that are"
        yield f"{len(impossible)} {are} impossible, such as {impossible[-1]:g}: {shown}"
        rest = rest[is_possible]
    elif len(rest) and np.median(rest) > high:
        yield f"half of the values are above {np.median(rest):g}: another unit? {shown}"
    if len(rest) >= FEW_ROWS:
        far = rest[_is_far(rest)]
        if 0 < len(far) <= max(1, _SPIKE * len(rest)):
            outliers = "1 far outlier" if len(far) == 1 else f"{len(far)} far outliers"
            usual = rest[~np.isin(rest, far)]
            yield f"{outliers}, such as {far[-1]:g}, where the others are {usual[0]:g} to {usual[-1]:g}"


def _is_code(value: float, count: int, known: NDArray[np.float64]) -> bool:
    """Says whether a value that is usual as a code for an unknown value is far from all others."""
    others = known[known != value]
    if len(others) < FEW_ROWS // 2 or len(np.unique(others[:1000])) < 5:
        return False
    low, middle_low, middle_high, high = np.quantile(others, [0.0, 0.25, 0.75, 1.0])
    half = middle_high - middle_low
    if value < 0:
        return bool(low >= 0)
    if value == 0:
        is_often = count >= max(2, _SPIKE * len(known))
        return bool(low > half / 2 and middle_low - (1.5 if is_often else 3) * half > 0)
    return bool(value > high and value - high > half and value > middle_high + 3 * half)


def _is_far(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns a mask of the values that are far from the middle half, also by their logarithms, and apart from all
    values that are not."""
    low, high = np.quantile(values, [0.25, 0.75])
    half = high - low
    if half <= 0:
        return np.zeros(len(values), np.bool_)
    is_far = (values < low - _FAR * half) | (values > high + _FAR * half)
    if values.min() > 0:
        low, high = np.log([low, high])
        logarithms, half = np.log(values), high - low
        is_far &= (logarithms < low - _FAR_LOGARITHM * half) | (logarithms > high + _FAR_LOGARITHM * half)
    usual = values[~is_far]
    is_apart = np.maximum(usual.min() - values, values - usual.max()) > np.ptp(usual)
    return np.asarray(is_far & is_apart, np.bool_)


def _group(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    """Groups the second of each pair by the first."""
    groups: dict[str, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return groups.items()


def _list(names: Sequence[str]) -> str:
    return _shorten([repr(name) for name in names])


def _shorten(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
