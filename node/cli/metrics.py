"""`fednode metrics`: what a node measured, round by round, for a plot or a table of one's own."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.options import MAX_HEIGHT, AsJson
from node.cli.target import DataDir, NodeConfigFile, Socket

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

DEFAULT_SERIES = ("accuracy", "local_accuracy", "loss", "seconds.wall", "bytes_sent")

_Row = dict[str, Any]


def register(app: typer.Typer) -> None:
    app.command("metrics")(show)


def show(
    series: Annotated[
        str | None,
        typer.Option("--series", metavar="A,B,…", help=f"What to show, or all. By default {','.join(DEFAULT_SERIES)}."),
    ] = None,
    first: Annotated[int, typer.Option("--from", metavar="R", min=1, max=MAX_HEIGHT, help="Begin at this round.")] = 1,
    last: Annotated[
        int | None, typer.Option("--to", metavar="R", min=1, max=MAX_HEIGHT, help="End with this round.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values with a header.")] = False,
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print what a node measured in each round it lived through, oldest first.

    accuracy and local_accuracy (before the exchange), loss (mean over the local steps), beta_s (seconds of mining),
    contributors, votes, payload_bytes, bytes_sent, seconds.PHASE, train.NAME and apply.NAME. Rounds that the node only
    caught up with have no measurements and are left out; an empty cell is what was not measured in a round.

    Examples: fednode metrics --series accuracy,loss --csv --config node.yaml > run.csv, or with --data-dir data
    """
    from node.cli.output import print_json

    if as_csv and as_json:
        raise typer.BadParameter("expected --csv or --json")
    rows = list(_read(socket, config, data_dir, first, last))
    names = _choose(series, rows)
    if as_json:
        shown = [{name: row.get(name) for name in ("round", "time", *names)} for row in rows]
        print_json({"series": list(names), "rounds": shown})
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("round", "time", *names))
        writer.writerows([row.get(name) for name in ("round", "time", *names)] for row in rows)
    else:
        _print_table(names, rows)


def _read(
    socket: str | None, config: Path | None, data_dir: Path | None, first: int, last: int | None
) -> Iterator[_Row]:
    from node.cli.target import open_ledger

    following: int | None = first
    with open_ledger(socket, config, data_dir) as node:
        while following is not None and (last is None or following <= last):
            page = node.list_rounds(following, 0, reverse=True)
            for record in page.rounds:
                if record.measured and (last is None or record.round <= last):
                    yield flatten(record)
            following = page.next if page.HasField("next") else None


def flatten(record: pb.Round) -> _Row:
    """One round as a row of named numbers; what it has not is not there."""
    row: _Row = {"round": record.round, "time": record.time}
    for name in ("accuracy", "local_accuracy", "beta_s"):
        if record.HasField(name):
            row[name] = getattr(record, name)
    if "loss" in record.train:
        row["loss"] = record.train["loss"]
    row |= {"contributors": len(record.contributors), "votes": record.votes, "payload_bytes": record.payload_bytes}
    row["bytes_sent"] = sum(record.bytes_sent.values())
    for group in ("seconds", "train", "apply"):
        row |= {f"{group}.{name}": value for name, value in sorted(getattr(record, group).items())}
    return row


def _choose(asked: str | None, rows: Sequence[_Row]) -> tuple[str, ...]:
    known = dict.fromkeys(name for row in rows for name in row if name not in ("round", "time"))
    if asked is None:
        return DEFAULT_SERIES
    if asked == "all":
        return tuple(known)
    names = tuple(asked.split(","))
    unknown = [name for name in names if name not in known]
    if unknown and rows:
        raise typer.BadParameter(f"--series: no round has {unknown[0]!r}; there are {', '.join(known)}")
    return names


def _print_table(names: Sequence[str], rows: Sequence[_Row]) -> None:
    from node.cli.output import print_table

    headings = (">ROUND", *(f">{name.upper()}" for name in names))
    print_table(headings, [(str(row["round"]), *(_show(row.get(name)) for name in names)) for row in rows])


def _show(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
