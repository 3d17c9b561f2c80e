"""The columns of a table in `fednode data inspect`, before any genesis says what becomes of them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from node.cli.output import print_facts, print_json, print_table
from node.errors import NodeError

if TYPE_CHECKING:
    from ml.data.columns import ColumnSummary
    from ml.data.findings import Finding
    from ml.data.table_input import TableInput

SHOWN_COLUMNS = 40
_PLAIN = re.compile(r"[^\W\d_][\w +-]*\w|[^\W\d_]")  # text that needs no quotes in YAML, within brackets
_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # words that YAML would read as another type
_SHOWN_LETTERS = 48


@dataclass(frozen=True, slots=True)
class RawColumns:
    """A table's columns, the labels among them, if they are known, the run's `input` that would suit the others, and
    findings. Columns in `aside` say which group or split a row belongs to, and are no features."""

    columns: Sequence[ColumnSummary]
    labels: tuple[str, ...]
    proposed: TableInput
    findings: Sequence[Finding]
    aside: tuple[str, ...] = ()

    @property
    def features(self) -> list[ColumnSummary]:
        return [own for own in self.columns if own.name not in (*self.labels, *self.aside)]

    @property
    def table(self) -> TableInput | None:
        """The form that columns are converted to in order to look at the samples; None where all can be read as they
        are."""
        is_plain = all(own.kind == "number" and not own.num_missing for own in self.features)
        return None if is_plain or not self.proposed.columns else self.proposed

    def add_findings(self, found: Sequence[Finding], columns: Sequence[ColumnSummary]) -> list[Finding]:
        """Returns all findings; those about these columns replace those about the columns that were read."""
        from ml.data.columns import check_summaries

        of_columns = list(check_summaries(self.features))
        known = (*self.findings, *of_columns, *check_summaries(columns))
        return [*self.findings, *of_columns, *(one for one in found if one not in known)]

    def show_alone(self, asked: Mapping[str, Any], *, as_json: bool) -> None:
        """Prints the columns of a table whose labels nobody has named yet."""
        findings = self.add_findings((), ())
        if as_json:
            print_json(
                {
                    **asked,
                    "kind": "table",
                    "classes": None,
                    "columns": [own.to_mapping() for own in self.columns],
                    "proposed_input": self.proposed.to_mapping(),
                    "findings": [{"level": finding.level, "text": finding.text} for finding in findings],
                }
            )
            return
        rows = self.columns[0].num_rows if self.columns else 0
        print_facts([("data", f"{asked['format']} {asked.get('path')}"), ("rows", f"{rows:,}")])
        print()
        print_columns(self.columns, ())
        print_proposed(self)
        for finding in findings:
            print(f"{finding.level}: {finding.text}")
        print("which column has the labels? --label COLUMN, or a column called label")
        print("once that is named, the settings for genesis new stand here, too")


def describe_raw(asked: Mapping[str, Any], task: str) -> RawColumns | None:
    """Returns the columns of a table as they are in the file; None for data that are no table. Raises NodeError."""
    from ml.data import open_raw_table
    from ml.data.columns import propose_input, summarise_columns
    from ml.data.source import DataSource
    from ml.errors import DataError

    try:
        raw = open_raw_table(asked, task)
        if raw is None:
            return None
        columns, aside = summarise_columns(raw.cells), DataSource.from_mapping(asked, task).aside
    except DataError as error:
        raise NodeError(str(error)) from error
    proposed = propose_input(own for own in columns if own.name not in (*raw.labels, *aside))
    return RawColumns(columns, raw.labels, proposed, raw.notes, aside)


def print_columns(columns: Sequence[ColumnSummary], labels: Collection[str]) -> None:
    """Prints a line for each column."""
    rows = []
    for own in columns[:SHOWN_COLUMNS]:
        low, high = own.range_ or (None, None)
        kind = f"{own.kind}, label" if own.name in labels else own.kind
        numbers = ("" if value is None else f"{value:.4g}" for value in (low, high, own.mean, own.std))
        rows.append((own.name, kind, _show_share(own), *numbers, _show_values(own)))
    print_table(("COLUMN", "TYPE", ">MISSING", ">MIN", ">MAX", ">MEAN", ">DEVIATION", "VALUES"), rows)
    if len(columns) > SHOWN_COLUMNS:
        print(f"and {len(columns) - SHOWN_COLUMNS} more; --json has them all")
    print()


def print_proposed(raw: RawColumns) -> None:
    """Prints the settings of `genesis new` that would suit the table, and the columns that they leave out."""
    left_out = [f"{own.name} ({own.doubt})" for own in raw.features if own.doubt is not None]
    if left_out:
        print(f"hardly features: {', '.join(left_out[:SHOWN_COLUMNS])}")
    asked = raw.proposed.to_mapping()
    if not raw.labels:  # one of the columns holds the labels, and is no feature
        print()
        return
    if not raw.proposed.columns or len(raw.proposed.columns) > SHOWN_COLUMNS:
        return
    print("for genesis new, once you have looked at each column:")
    for key, value in asked.items():
        print(f"  --set {shlex.quote(f'input.{key}={_write(value)}')}")
    print()


def _write(value: Any) -> str:
    """Returns a setting as somebody would type it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_write(own)}' for key, own in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_write, value))}]"
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _show_share(own: ColumnSummary) -> str:
    share = own.num_missing / max(own.num_rows, 1)
    return f"{own.num_missing} ({'<1%' if share < 0.005 else f'{share:.0%}'})" if own.num_missing else "0"


def _show_values(own: ColumnSummary) -> str:
    if own.kind == "date":
        return f"{own.values[0][0]} to {own.values[-1][0]}"
    if own.kind == "text":
        return f"{own.num_values} different"
    if own.kind != "category":
        return ""
    text = ", ".join(f"{value} {count}" for value, count in own.values)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[: _SHOWN_LETTERS - 1]}…"
