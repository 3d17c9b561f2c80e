"""`fednode runs`: the trainings that the federation has agreed on, one after the other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.federation.proposals import describe_approvals
from node.cli.federation.runs_report import report
from node.cli.options import AsJson
from node.cli.output import print_facts, print_json, print_table, show_number
from node.cli.target import DataDir, NodeConfigFile, Socket, make_listing, open_ledger

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

_PHASES = {
    "running": "running",
    "done": "its rounds are made",
    "ended": "ended by a change",
    "over": "another run followed",
}


def register(app: typer.Typer) -> None:
    group = make_listing("Show what was trained, run by run.", list_all)
    group.command("show")(show)
    group.command("report")(report)
    app.add_typer(group, name="runs")


def list_all(
    socket: Socket = None, config: NodeConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List the runs.

    Examples: fednode runs list --config node.yaml, or with --data-dir data of a stopped node
    """
    with open_ledger(socket, config, data_dir) as ledger:
        runs = ledger.list_runs()
    if as_json:
        print_json({"runs": runs})
        return
    rows = [
        (
            str(run.number),
            run.method,
            run.model,
            describe_rounds(run),
            show_number(run.accuracy if run.HasField("accuracy") else None),
            run.phase,
            describe_start(run),
        )
        for run in runs
    ]
    print_table((">RUN", "METHOD", "MODEL", ">ROUNDS", ">ACCURACY", "STATE", "STARTED"), rows)


def show(
    number: Annotated[int, typer.Argument(metavar="[N]", min=0, help="Its number; 0 is the newest.")] = 0,
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: its settings, who approved, who trained in it.

    Examples: fednode runs show 2 --config node.yaml, or with --data-dir data of a stopped node
    """
    with open_ledger(socket, config, data_dir) as ledger:
        (run,) = ledger.list_runs(number)
    if as_json:
        print_json(run)
        return
    facts = [
        ("run", f"{run.number}: {describe_phase(run)}"),
        ("method", f"{run.method} on {run.model}"),
        ("settings", describe_settings(run)),
        ("rounds", describe_rounds(run)),
        ("started", describe_start(run)),
        ("newest height", str(run.last)),
    ]
    if run.note:
        facts.append(("note", run.note))
    approved = "all founders, with genesis" if not run.began else describe_approvals(run.approvals)
    facts.append(("approved by", approved))
    accuracy = show_number(run.accuracy if run.HasField("accuracy") else None)
    if run.HasField("selected"):
        facts.append(("best round", describe_selected(run.selected, is_over=run.phase != "running")))
    at = f" at height {run.measured}" if run.HasField("measured") else ""
    facts.append(("accuracy here", f"{accuracy}{at}"))
    facts.append(("trained in it", describe_authors(run)))
    print_facts(facts)


def describe_phase(run: pb.RunView) -> str:
    if run.phase == "done" and run.selected.stopped:
        return "patience has ended it"
    return _PHASES.get(run.phase, run.phase)


def describe_rounds(run: pb.RunView) -> str:
    return f"{run.made} of {run.rounds}" if run.rounds else f"{run.made}"


def describe_start(run: pb.RunView) -> str:
    return "genesis" if not run.began else f"height {run.began}, by change {run.change[:8]}"


def describe_settings(run: pb.RunView) -> str:
    """Returns the method's settings, as key and value."""
    method = json.loads(run.terms)["method"]
    return ", ".join(f"{key} {json.dumps(value)}" for key, value in sorted(method.items()) if key != "name") or "none"


def describe_authors(run: pb.RunView) -> str:
    """Returns who contributed how often: `node0 10, node1 9; of 10 rounds`."""
    if not run.authors:
        return "nobody yet"
    counts = ", ".join(f"{author.name} {author.rounds}" for author in run.authors)
    return f"{counts}; of {'the newest ' if run.counted < run.made else ''}{run.counted} rounds"


def describe_selected(selected: pb.Selected, *, is_over: bool) -> str:
    """Returns the best round by val samples, and how much patience is left."""
    if not selected.best_round:
        lacks = "no quorum of members has measured a round by val samples" + ("" if is_over else " yet")
        return f"{lacks}; the run goes on to its rounds" if selected.patience and not is_over else lacks
    text = f"{selected.best_round} by val {selected.by} {show_number(selected.score)}"
    if selected.last_round != selected.best_round:
        text += f", {show_number(selected.last_score)} in round {selected.last_round}"
    if selected.stopped:
        return f"{text}; patience has ended the run after round {selected.stopped}"
    if selected.patience and not is_over:
        left = selected.patience - selected.since
        return f"{text}; {left} more without a better one end the run" if left > 0 else text
    return text
