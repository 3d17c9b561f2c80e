"""A table's columns as genesis is to have them: by name, each a number or a category, and what replaces empty cells.

Tables that no site could train on are refused here, with the settings to add. So are columns that should be no
features, until the user has confirmed them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chain.run import encode_canonical
from ml.data import open_train
from ml.data.cells import Cells, find_marks, is_empty, parse_number, to_text
from ml.data.column_checks import find_identifiers
from ml.data.columns import ONE_VALUE
from ml.data.part import Part
from ml.data.readers.images import SUFFIXES
from ml.data.table_input import MAX_VALUES, Column, TableInput, detect_columns
from ml.errors import DataError, suggest

AUTO, ALL = "auto", "all"
DROP = "drop"
_SHOWN = 20
OF_TABLES = ("columns", "missing", "unknown", "empty", DROP)
MAX_NAMES_BYTES = 24 * 1024  # of column names that nobody has set: they have to fit into a change


def make_table(data: Mapping[str, Any], settings: Any, classes: Sequence[str] | None, task: str) -> TableInput | None:
    """Returns the columns of `data` under `settings`, all written out; None where the data are no table.

    Without `columns` all have to be numbers; `auto` makes categories of words; `all` does, too, and accepts identifiers
    and columns of one value as features. `drop` names columns to leave out. Raises DataError.
    """
    given = settings if isinstance(settings, Mapping) else {}
    asked = {key: given[key] for key in OF_TABLES if given.get(key) is not None}
    dropped, columns = _read_dropped(asked.pop(DROP, ())), asked.get("columns")
    part = open_train(data, task, classes)
    place = part.place
    if part.cells is None:
        if columns in (AUTO, ALL) or dropped:
            raise DataError(f"{place}: expected a table, as only tables have columns")
        return TableInput.from_mapping(asked)
    rules = TableInput.from_mapping({key: value for key, value in asked.items() if key != "columns"}) or TableInput()
    cells = {name: rules.clear(column, Column(name)) for name, column in part.cells().items()}
    for name in dropped:
        if name not in cells:
            raise DataError(f"--drop: {place} has no column {name!r}: {suggest(name, cells)}")
    if columns is not None and columns not in (AUTO, ALL):
        if dropped:
            raise DataError("--drop: expected none beside a list of input.columns, which names those that are taken")
        table = TableInput.from_mapping(asked)
        if table is not None and table.missing == "refuse":
            chosen = table.choose(list(cells), place)
            kept = {column.name: table.clear(cells[column.name], column) for column in chosen}
            _refuse_unreadable([], _list_empty(chosen, kept), kept, part)
        return table
    kept = {name: column for name, column in cells.items() if name not in dropped}
    if not kept:
        raise DataError(f"--drop: expected a column of {place} to be left, got none")
    if columns != ALL:
        _refuse_identifiers(kept, dropped, part)
    _refuse_marks(kept, rules, part)
    found = detect_columns(kept, place)
    words = [column for column in found if column.values and columns is None]
    _refuse_unreadable(words, _list_empty(found, kept) if rules.missing == "refuse" else [], kept, part)
    named = [column.to_mapping() for column in found]
    if columns is None and not dropped and len(encode_canonical(named)) > MAX_NAMES_BYTES:
        return TableInput.from_mapping(asked)
    return TableInput.from_mapping({**asked, "columns": named})


def _read_dropped(given: Any) -> Sequence[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise DataError(f"input.drop: expected a list of names, got {given!r}")
    return names


def _refuse_identifiers(cells: Cells, dropped: Sequence[str], part: Part) -> None:
    """Raises DataError where a column should be no feature."""
    if not (found := find_identifiers(cells) | _find_constant_by_site(cells, part)):
        return
    reasons = "; ".join(f"{name}: {reason}" for name, reason in found.items())
    names = ",".join([*dropped, *found])
    raise DataError(
        f"{part.place}: {reasons}. Nothing that holds elsewhere is learned from such columns: --drop {_quote(names)} "
        "leaves them out, --set input.columns=all takes them, and so does a list that names them"
    )


def _find_constant_by_site(cells: Cells, part: Part) -> dict[str, str]:
    """Returns the columns that have one value at each of several sites, such as the name of the hospital."""
    by_site = [find_identifiers(piece.cells()) for piece in part.pieces if piece.cells is not None]
    names = [name for name in cells if by_site and all(found.get(name) == ONE_VALUE for found in by_site)]
    return dict.fromkeys(names, f"{ONE_VALUE} at each site")


def _refuse_marks(cells: Cells, rules: TableInput, part: Part) -> None:
    """Raises DataError where a column has marks such as ? or what programs write for nothing; and for words among
    numbers that are too many for a category."""
    marks: dict[str, list[str]] = {}
    for name, column in cells.items():
        known = {text for text in map(to_text, column) if not is_empty(text)}
        texts = {text for text in known if parse_number(text) is None}
        if own := sorted({text for text in texts if not any(map(str.isalnum, text))} | {*find_marks(known)}):
            marks[name] = own
        elif texts and len(known) > MAX_VALUES and len(texts) < MAX_VALUES:
            raise DataError(f"{part.place}: {_describe_words(Column(name, tuple(sorted(texts))), column, part)}")
    if marks:
        shown = "; ".join(f"{name!r} has {', '.join(map(repr, own))}" for name, own in marks.items())
        empty = json.dumps(sorted({*rules.empty, *(text for own in marks.values() for text in own)}))
        raise DataError(f"{part.place}: {shown}. Where that means an empty cell, add --set 'input.empty={empty}'")


def _refuse_unreadable(words: Sequence[Column], empty: Sequence[str], cells: Cells, part: Part) -> None:
    """Raises DataError where columns have words or empty cells and no setting says what becomes of them."""
    told, settings = [], []
    if words:
        told += [_describe_words(column, cells[column.name], part) for column in words]
        settings.append("--set input.columns=auto, by which words are categories,")
    if empty:
        counts = [sum(map(is_empty, cells[name])) for name in empty]
        told += [f"{name!r} is empty in {count}" for name, count in zip(empty, counts, strict=True)]
        settings.append("--set input.missing=mean, or zero, by which empty cells are filled")
    if told:
        num_rows = len(cells[(words[0].name if words else empty[0])])
        shown = "; ".join(told[:_SHOWN]) + ("; …" if len(told) > _SHOWN else "")
        raise DataError(
            f"{part.place}: of {num_rows} rows {shown}. No site can train on that as it is; add "
            f"{' and '.join(settings).rstrip(',')}"
        )


def _describe_words(column: Column, cells: Sequence[Any], part: Part) -> str:
    """Describes a column with words; for one that has numbers too, with the place of the first word."""
    is_word = [parse_number(cell) is None for cell in cells]
    first = is_word.index(True)
    if sum(is_word) < len(cells) - sum(map(is_empty, cells)):
        return f"{column.name!r} has numbers and words, first at {part.locate(first)}: {to_text(cells[first])!r}"
    shown = ", ".join(map(repr, column.values[:3])) + (", …" if len(column.values) > 3 else "")
    if Path(column.values[0]).suffix.lower() in SUFFIXES:
        return f"{column.name!r} has words, {shown}: paths of images? then --set data.columns.image={column.name}"
    return f"{column.name!r} has words, {shown}"


def _list_empty(columns: Sequence[Column], cells: Cells) -> list[str]:
    return [column.name for column in columns if any(is_empty(cell) for cell in cells[column.name])]


def _quote(names: str) -> str:
    return json.dumps(names) if " " in names else names
