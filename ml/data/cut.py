"""The cut of a source without test samples of its own: by the sides of a site, by a column of its data or, where one
data set rehearses a federation, as in the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ml.data.base import AnyLabels, Labels, Samples
from ml.data.cells import hint_at_like, is_empty, to_text
from ml.data.findings import Finding
from ml.data.keys import hash_rows, read_groups, read_keys, read_sides
from ml.data.labels import choose_held_out
from ml.data.part import Part, choose_columns
from ml.data.source import DataSource
from ml.data.split import CONTENT, MIN_VAL, TOO_FEW, Rule, Side, Sides, are_enough
from ml.data.table_input import TableInput
from ml.errors import DataError

_NO_VAL_SINCE = Finding(
    "warning",
    "no val: this site has split its samples without, which stays until you ask for another split: fednode data "
    "resplit; it does not count where rounds are compared",
)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The rows that train, those that test, and the findings about them. `is_val` marks the training rows that are held
    out to compare rounds by, None where there are none."""

    train: Labels
    test: Labels
    notes: tuple[Finding, ...] = field(default=())
    is_val: NDArray[np.bool_] | None = None


def cut(part: Part, source: DataSource, y: AnyLabels, classes: Sequence[str], x: Samples | None = None) -> Cut:
    """Returns the rows of a part by their side; `x` are its samples, where they were read. Raises DataError."""
    side_N = read_sides(part, source)
    notes: list[Finding] = []
    if side_N is not None:
        notes += _describe_given(part, source, side_N)
        is_given = side_N == Side.VAL.value
        if is_given.any():
            return _cut_given(side_N, notes, is_used=source.val != 0 and are_enough(y[is_given]))
    elif source.sides is not None and source.sides.seed is not None:
        side_N, notes = place(part, source, source.sides, y, x)
        notes += _describe_few(side_N, y, classes)
        return _cut_placed(side_N, [*notes, *_explain_no_val(source, side_N)])
    elif source.has_own_rule:
        if source.sides is not None:
            raise DataError(
                f"data.{'held_out' if source.rule == CONTENT else source.rule[0]}: this site has trained by the split "
                "of an earlier release, which stays until you ask for another: fednode data resplit"
            )
        side_N, notes = place(part, source, Sides(), y, x)
        return _cut_placed(side_N, [*notes, *_explain_no_val(source, side_N)])
    else:
        side_N = np.where(choose_held_out(y), Side.TEST.value, Side.TRAIN.value)
    train = np.flatnonzero(side_N == Side.TRAIN.value)
    if not _wants_val(source):
        return Cut(train, np.flatnonzero(side_N == Side.TEST.value), tuple(notes))
    is_val, told = hold_out_val(part.select(train), source, y[train], None if x is None else x[train])
    return Cut(train, np.flatnonzero(side_N == Side.TEST.value), (*notes, *told), is_val)


def hold_out_val(
    part: Part, source: DataSource, y: AnyLabels, x: Samples | None = None
) -> tuple[NDArray[np.bool_] | None, list[Finding]]:
    """Chooses val samples in a part of training samples only. Returns a mask, None where no sample is val, and the
    findings about it. Raises DataError."""
    sides = source.sides
    if not _wants_val(source):
        return None, []
    if sides is not None and sides.seed is None:
        return None, [_NO_VAL_SINCE]
    side_N, notes = place(part, source, sides or Sides(), y, x, held_out=0.0)
    is_val = side_N == Side.VAL.value
    return is_val if is_val.any() else None, [*notes, *_explain_no_val(source, side_N)]


def _wants_val(source: DataSource) -> bool:
    return bool(source.val) or (source.sides is not None and source.sides.has_val)


def place(
    part: Part,
    source: DataSource,
    sides: Sides,
    y: AnyLabels,
    x: Samples | None = None,
    *,
    held_out: float | None = None,
) -> tuple[NDArray[np.str_], list[Finding]]:
    """Returns the side of each sample by a site's own split, and the findings about it; by default `source.held_out` of
    the samples test. Raises DataError, also where the split was made by another rule."""
    if sides.rule not in (None, source.rule):
        raise DataError(
            f"data: this site has split its samples by {_show_rule(sides.rule)}, and is to go by "
            f"{_show_rule(source.rule)}: fednode data resplit does, and says which of the new test rows were trained on"
        )
    keys = read_keys(part, source, x)
    notes = []
    if source.rule == CONTENT and part.cells is not None:
        notes = _follow_columns(part, sides, keys.keys)
    sides.rule = source.rule
    share = source.held_out if held_out is None else held_out
    return sides.place(keys.keys, keys.contents, y, share, source.val), notes


def _cut_placed(side_N: NDArray[np.str_], notes: Sequence[Finding]) -> Cut:
    """Cuts rows by their sides; val rows are among those that train, and marked."""
    train = np.flatnonzero(side_N != Side.TEST.value)
    is_val = side_N[train] == Side.VAL.value
    test = np.flatnonzero(side_N == Side.TEST.value)
    return Cut(train, test, tuple(notes), is_val if is_val.any() else None)


def _cut_given(side_N: NDArray[np.str_], notes: Sequence[Finding], *, is_used: bool) -> Cut:
    """Cuts rows by a column that says which rows are val. Without `is_used`, val rows neither train nor test."""
    num_val = int((side_N == Side.VAL.value).sum())
    if is_used:
        return _cut_placed(side_N, notes)
    text = f"{num_val} samples are val: neither trained on nor tested"
    train, test = (np.flatnonzero(side_N == side.value) for side in (Side.TRAIN, Side.TEST))
    return Cut(train, test, (*notes, Finding("note", text)))


def _explain_no_val(source: DataSource, side_N: NDArray[np.str_]) -> list[Finding]:
    """Returns the finding for a source that asks for val samples and has none."""
    if not source.val or (side_N == Side.VAL.value).any():
        return []
    if source.sides is not None and not source.sides.is_first and not source.sides.has_val:
        return [_NO_VAL_SINCE]
    num_train = int((side_N != Side.TEST.value).sum())
    text = (
        f"no val: {source.val:.3g} of {num_train} training samples are fewer than {MIN_VAL}, or of one class: this "
        "site trains on all, and does not count where rounds are compared"
    )
    return [Finding("note", text)]


def _follow_columns(part: Part, sides: Sides, keys: Sequence[bytes]) -> list[Finding]:
    """Keeps the sides of rows that are now identified by other columns than before, as far as those columns still
    exist."""
    cells = part.cells() if part.cells is not None else {}
    before, sides.columns = sides.columns, tuple(sorted(cells))
    if before in (None, sides.columns):
        return []
    whole = cells if part.whole is None else part.whole()
    gone = [name for name in before or () if name not in whole]
    num = 0 if gone else sides.carry_over(hash_rows(choose_columns(whole, before or ())), keys)
    if num:
        return []
    why = f", without the column {gone[0]!r}" if gone else ""
    text = f"none of {len(keys)} rows is known from before{why}: some that were trained on may be held out"
    return [Finding("warning", f"{text}; data.id names rows")]


def find_trained_on(
    part: Part, source: DataSource, before: Sides, y: AnyLabels, x: Samples | None = None
) -> NDArray[np.bool_]:
    """Returns a mask of the samples that a site has trained on by the split `before`. Raises DataError where the data
    no longer have the columns that identified them then."""
    if before.seed is None:
        return ~choose_held_out(y)
    rule = before.rule or CONTENT
    whole = part.cells if part.whole is None else part.whole
    if rule == CONTENT and before.columns is not None and whole is not None:
        cells = {**whole(), **({} if part.beside is None else part.beside())}
        if any(name not in cells for name in before.columns):
            raise DataError(f"{part.place}: expected the columns {', '.join(before.columns)}, by which rows are known")
        keys: Sequence[bytes] = hash_rows(choose_columns(cells, before.columns))
    else:
        keys = read_keys(part, source.by_rule(rule), x).keys
    return np.array([side is Side.TRAIN for side in before.get_sides(keys)], np.bool_)


def _show_rule(rule: Rule) -> str:
    return "their content" if rule == CONTENT else f"{rule[0]} {', '.join(rule[1:])}"


def find_groups_on_both_sides(train: Part, test: Part, source: DataSource) -> list[Finding]:
    """Returns the warning about groups that are in both the training and the test samples, where a source has test
    samples of its own. Raises DataError."""
    if source.group is None or source.format == "domains":  # domains were checked one by one
        return []
    shared = set(read_groups(train, source) or ()) & set(read_groups(test, source) or ())
    return [] if not shared else [Finding("warning", _describe_shared(len(shared)))]


def leave_out_unknown(part: Part, table: TableInput) -> Part:
    """Returns the rows in which every category has a value that the run knows, with a note about the others; all rows
    where none would be left."""
    cells = None if part.cells is None else part.cells()
    if cells is None or table.columns is None or table.unknown != "refuse":
        return part
    unknown: dict[int, str] = {}
    for column in table.columns:
        if not column.values or column.name not in cells:
            continue
        known = {*column.values, *map(to_text, column.values)}
        for i, cell in enumerate(cells[column.name]):
            if (text := to_text(cell)) not in known and not is_empty(cell, table.get_empty(column)):
                like = hint_at_like(text, column.values)
                unknown.setdefault(i, f"column {column.name!r}: {text!r} is none of {_shorten(column.values)}{like}")
    num_rows = len(part.labels)
    if not unknown or len(unknown) == num_rows:
        return part
    first = min(unknown)
    text = (
        f"{len(unknown)} of {num_rows} rows are left out, as a run with input.unknown: other would not: "
        f"{part.locate(first)}: {unknown[first]}"
    )
    rows = np.array([i for i in range(num_rows) if i not in unknown], np.int64)
    return replace(part.select(rows), notes=(*part.notes, Finding("warning", text)))


def _describe_given(part: Part, source: DataSource, side_N: NDArray[np.str_]) -> list[Finding]:
    notes = []
    for side in (Side.TRAIN, Side.TEST):
        if not (side_N == side.value).any():
            raise DataError(
                f"data.split: {part.place}: expected rows of {side.value} in column {source.split!r}, got none"
            )
    groups = read_groups(part, source)
    if groups is not None:
        sides: dict[bytes, set[str]] = {}
        for group, side in zip(groups, side_N.tolist(), strict=True):
            sides.setdefault(group, set()).add(side)
        if shared := sum(len(own) > 1 for own in sides.values()):
            notes.append(Finding("warning", _describe_shared(shared)))
    return notes


def _describe_shared(num: int) -> str:
    return f"{num} {'group is' if num == 1 else 'groups are'} on both sides of the split that the data give"


def _describe_few(side_N: NDArray[np.str_], y: AnyLabels, classes: Sequence[str]) -> list[Finding]:
    """Returns the warning about classes that are trained on and of which hardly any sample is held out."""
    if y.ndim != 1:
        return []
    few = []
    for c, name in enumerate(classes):
        of_class = side_N[y == c]
        held, total = int((of_class == Side.TEST.value).sum()), len(of_class)
        if 0 < held < TOO_FEW:  # none at all has a finding of its own
            few.append(f"{name} {held} of {total}")
    return [] if not few else [Finding("warning", f"too few are held out to measure a class by: {_shorten(few)}")]


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
