"""`fednode metrics`: a node's measurements, round by round, for a plot or a table of one's own."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.options import MAX_HEIGHT, AsJson
from node.cli.output import print_json, print_table
from node.cli.target import DataDir, NodeConfigFile, Socket, open_ledger
from node.errors import InvalidRequest
from node.ledger.series import COUNTS, DEFAULT_SERIES, choose_measure, choose_series, flatten, flatten_members

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

_Row = dict[str, Any]
_PLACE = ("run", "round", "time")  # of a row


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
    max_points: Annotated[
        int | None,
        typer.Option(
            "--max-points",
            metavar="N",
            min=4,
            help="At most so many rounds: lows and highs remain, and first and last.",
        ),
    ] = None,
    members: Annotated[
        bool,
        typer.Option(
            "--members", help="One measure (accuracy, or that in --series) that members publish, side by side."
        ),
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values with a header.")] = False,
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print what a node measured, round by round. The oldest round comes first.

    accuracy and local_accuracy (before the exchange), loss (mean over the local steps), beta_s (seconds of mining),
    contributors, votes, payload_bytes, bytes_sent, seconds.PHASE, train.NAME, apply.NAME, and what the answers to the
    test samples are worth: measures.NAME, and measures.NAME.CLASS of one class. Rounds that the node only
    caught up with have no measurements and are left out; an empty cell is what was not measured in a round. With
    --max-points a long chain is cut into equal spans, and of each the first and the last round remain, and those where
    a series is lowest or highest.

    With --members there is a column for each member that publishes its measures (training.publish_metrics): its own
    word. These are accuracy, balanced_accuracy, macro_f1, weighted_f1, auc, average_precision, brier, calibration_error
    and loss, and where a member also trains alone gain: by how much federating is better there.

    Examples: fednode metrics --series accuracy,loss --csv --config node.yaml > run.csv, or with --data-dir data
    """
    if as_csv and as_json:
        raise typer.BadParameter("expected --csv or --json")
    if members:
        if max_points is not None:
            raise typer.BadParameter("expected --members or --max-points")
        rounds = _read(socket, config, data_dir, first, last)
        _show_members(rounds, choose_measure(series), as_csv=as_csv, as_json=as_json)
        return
    names: Sequence[str]
    if max_points is None:
        rows = [flatten(one) for one in _read(socket, config, data_dir, first, last) if one.measured]
        try:
            names = choose_series(series if series is None or series == "all" else series.split(","), rows)
        except InvalidRequest as error:
            raise typer.BadParameter(f"--{error}") from error
    else:
        names, rows = _query(socket, config, data_dir, series, first, last, max_points)
    if as_json:
        shown = [{name: row.get(name) for name in (*_PLACE, *names)} for row in rows]
        print_json({"series": list(names), "rounds": shown})
    elif as_csv:
        _write_csv(names, [(row, row) for row in rows])
    else:
        _print_table(names, [(row, row) for row in rows])


def _read(
    socket: str | None, config: Path | None, data_dir: Path | None, first: int, last: int | None
) -> Iterator[pb.Round]:
    with open_ledger(socket, config, data_dir) as node:
        for record in node.iterate_rounds(first, reverse=True):
            if last is not None and record.height > last:
                return
            yield record


def _show_members(rounds: Iterator[pb.Round], measure: str, *, as_csv: bool, as_json: bool) -> None:
    """Prints a column for each member that has published a measure, and a row for each round that has any."""
    rows = [row for row in (flatten_members(one, measure) for one in rounds) if row["members"]]
    names = sorted({name for row in rows for name in row["members"]})
    if as_json:
        shown = [{name: row[name] for name in (*_PLACE, "members")} for row in rows]
        print_json({"measure": measure, "members": names, "rounds": shown})
    elif as_csv:
        _write_csv(names, [(row, row["members"]) for row in rows])
    elif rows:
        _print_table(names, [(row, row["members"]) for row in rows])
    else:
        print("No member has published measures of these rounds (training.publish_metrics).")


def _query(
    socket: Any, config: Any, data_dir: Any, series: str | None, first: int, last: int | None, max_points: int
) -> tuple[Sequence[str], list[_Row]]:
    """Returns the series, and the rounds that remain; the node that holds them chooses these."""
    from node.pb import admin_pb2 as pb

    names: Sequence[str] = () if series is None or series == "all" else series.split(",")
    with open_ledger(socket, config, data_dir) as node:
        if series == "all":
            names = node.query_metrics(pb.QueryMetricsRequest(first=first, last=last)).known
        request = pb.QueryMetricsRequest(series=names, first=first, last=last, max_points=max_points)
        found = node.query_metrics(request)
    return found.series, [
        {"run": point.run, "round": point.round, "time": point.time}
        | {name: int(value) if name in COUNTS else value for name, value in point.values.items()}
        for point in found.rounds
    ]


def _write_csv(names: Sequence[str], rows: Iterable[tuple[_Row, _Row]]) -> None:
    """Writes run, number and time of each round, and its values by name."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow((*_PLACE, *names))
    writer.writerows((*(row[name] for name in _PLACE), *(values.get(name) for name in names)) for row, values in rows)


def _print_table(names: Sequence[str], rows: Sequence[tuple[_Row, _Row]]) -> None:
    """Prints the number of each round, its run where there are several, and its values by name."""
    place = ("run", "round") if len({row["run"] for row, _ in rows}) > 1 else ("round",)
    headings = (*(f">{name.upper()}" for name in place), *(f">{name.upper()}" for name in names))
    shown = [
        (*(str(row[name]) for name in place), *(_show(values.get(name)) for name in names)) for row, values in rows
    ]
    print_table(headings, shown)


def _show(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
