"""`fednode status`: one screen about one node."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.federation.runs import describe_selected
from node.cli.model.measures import describe_briefly, describe_privacy, describe_verdict, list_alone
from node.cli.options import AsJson
from node.cli.output import print_facts, print_json, show_bytes, show_id, show_number, show_seconds, show_time
from node.cli.target import NodeConfigFile, Socket, find_socket, open_place

if TYPE_CHECKING:
    from node.admin.address import AdminAddress
    from node.admin.client import AdminClient
    from node.pb import admin_pb2 as pb

MAX_TRANSFERS = 12  # on a screen
MAX_NOT_AWAITED = 6
MAX_LINES = 100  # for what an operator should know first

_Facts = list[tuple[str, str]]


def register(app: typer.Typer) -> None:
    app.command("status")(show)


def show(
    socket: Socket = None,
    config: NodeConfigFile = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it, until Ctrl-C.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="How often, with --watch.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show where a node stands: height, round, accuracy, peers.

    With --watch a terminal shows it anew every second, with the newest rounds and the members below; a node that goes
    away is asked again until it is back. Elsewhere --watch prints a line each time.

    Examples: fednode status --config node.yaml --watch, or fednode status --socket run/node.sock --json
    """
    place = find_socket(socket, config)
    try:
        if watch and not as_json and sys.stdout.isatty():
            _watch(place, interval_s)
        with open_place(place) as node:
            if not watch and not as_json:
                print_facts(describe(node.get_status()))
                return
            for status in _follow(node, interval_s):
                if as_json:
                    print_json(status)
                else:
                    print(describe_in_a_line(status), flush=True)
                if not watch:
                    return
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _watch(place: AdminAddress, interval_s: float) -> None:
    """Draws on a screen, or prints lines where the terminal has none."""
    from rich.console import Console

    from node.cli.node.status_watch import watch

    console = Console(highlight=False)
    if not console.is_dumb_terminal:
        watch(place, interval_s, console)


def _follow(node: AdminClient, interval_s: float) -> Iterator[pb.NodeStatus]:
    while True:
        yield node.get_status()
        time.sleep(interval_s)


def describe(status: pb.NodeStatus) -> _Facts:
    worker = status.unready_reason or "not ready"
    if status.HasField("device"):
        samples = (
            f"{status.num_train} train / {status.num_test} test{f' / {status.num_val} val' * bool(status.num_val)}"
        )
        worker = f"{status.device} {status.precision}, {samples}, {status.parameters:,} parameters"
    score, accuracy = "accuracy", "not measured yet"
    if status.HasField("accuracy"):
        before = show_number(status.local_accuracy if status.HasField("local_accuracy") else None)
        accuracy = f"{show_number(status.accuracy)} after round {status.measured_round}, {before} before its exchange"
    elif "r2" in status.measures.summary:
        score, accuracy = "R2", f"{show_number(status.measures.summary['r2'])} after round {status.measured_round}"
    peers = f"{status.peers_connected} connected; {status.members_in_sight} of {status.members} members in sight"
    facts: list[tuple[str, str | None]] = [
        ("node", f"{status.name}  {show_id(status.id)}"),
        ("chain", f"{status.chain_name} ({show_id(status.chain_id)}), {status.method}"),
        ("head", f"height {status.height}  {show_id(status.head)}  {_describe_head_time(status)}"),
        ("round", _describe_round(status)),
        *describe_verdict(status.alone),
        ("changes", describe_changes(status) if status.open_changes else None),
        (score, accuracy),
        ("budget", _describe_budget(status) if status.HasField("budget_s") else None),
        ("measures", describe_briefly(status.measures) if status.HasField("measures") else None),
        (
            "best round",
            describe_selected(status.selected, is_over=status.done) if status.HasField("selected") else None,
        ),
        ("own best", _describe_own_best(status.own_best) if status.HasField("own_best") else None),
        *(list_alone(status.alone) if status.HasField("alone") else ()),
        ("privacy", describe_privacy(status.privacy) if status.HasField("privacy") else None),
        ("pace", _describe_pace(status)),
        ("statistics", status.statistics if status.HasField("statistics") else None),
        ("worker", worker),
        ("peers", f"{peers}, {status.quorum} needed"),
        *_list_some("not awaited", [f"{one.name}: {one.reason}" for one in status.not_awaited], MAX_NOT_AWAITED),
        *_list_some("transfers", [describe_transfer(transfer) for transfer in status.transfers], MAX_TRANSFERS),
        ("sent", f"{show_bytes(status.bytes_sent)}, received {show_bytes(status.bytes_received)}"),
        ("mining", f"difficulty {status.difficulty:,}, {status.hashes:,} hashes tried here"),
        ("disk", f"{show_bytes(status.database_bytes)} of chain, {show_bytes(status.disk_free_bytes)} free"),
        ("up", f"{show_seconds(status.uptime_s)}, process {status.pid}, fednode {status.version}"),
    ]
    return list_troubles(status) + [(name, text) for name, text in facts if text]


def list_troubles(status: pb.NodeStatus) -> _Facts:
    """Lists what an operator should know first, in capital letters; the worst at the top."""
    told: list[tuple[str, str | None]] = [
        ("STALLED", status.stall_reason if status.stalled else None),
        ("OTHER HISTORY", status.other_history if status.HasField("other_history") else None),
        ("NOT TRAINED", status.training_trouble if status.HasField("training_trouble") else None),
        ("DATA CHANGED", status.data_change if status.HasField("data_change") else None),
        *_list_some("NOT LEARNING", status.not_learning),
        *_list_some("MODEL", status.model_signs),
        ("SPOILED", _describe_spoiled(status) if status.HasField("spoiled_round") else None),
        ("PAUSED", _describe_pause(status) if status.paused else None),
        (
            "NOT APPROVED",
            f"it votes and does not train: {status.not_approved}" if status.HasField("not_approved") else None,
        ),
        ("SILENT", status.silence if status.HasField("silence") else None),
        ("UPGRADE", status.upgrade if status.HasField("upgrade") else None),
        *_list_some("CLOCK", status.clocks_wrong),
        ("ENDS", f"after round {status.stops_after}" if status.HasField("stops_after") else None),
    ]
    return [(name, text) for name, text in told if text is not None]


def _list_some(name: str, lines: Sequence[str], most: int = MAX_LINES) -> _Facts:
    shown = [*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else [])]
    return [(name if i == 0 else "", line) for i, line in enumerate(shown)]


def _describe_own_best(own: pb.OwnBest) -> str:
    return f"{own.round} by val {own.by} {show_number(own.score)}"


def describe_transfer(transfer: pb.Transfer) -> str:
    blob = f"blob {show_id(transfer.digest)}"
    if transfer.HasField("kind"):
        blob = f"{transfer.kind.replace('_', ' ')} of {transfer.author_name}"
    way = f"{'from' if transfer.incoming else 'to'} {transfer.peer_name}"
    rate = (transfer.bytes - transfer.resumed) / transfer.seconds if transfer.seconds > 0 else 0.0
    done = f"{show_bytes(transfer.bytes)} of {show_bytes(transfer.total_bytes)}"
    return f"{blob} {way}, {done}, {show_bytes(rate)} a second"


def _describe_head_time(status: pb.NodeStatus) -> str:
    """Returns when the head was made, and how long ago by this node's clock, unless that is behind its miner's."""
    shown = f"{show_time(status.head_time)} UTC"
    if not status.time or not status.head_time:
        return shown
    age_s = (datetime.fromisoformat(status.time) - datetime.fromisoformat(status.head_time)).total_seconds()
    return f"{shown}, {show_seconds(age_s)} ago" if age_s >= 0 else shown


def _describe_pace(status: pb.NodeStatus) -> str:
    unit = "epoch" if status.counts_epochs else "iteration"
    parts = ["nothing to train now"]
    if status.local_iterations:
        parts = [f"{status.local_iterations} local {unit}{'s' if status.local_iterations != 1 else ''} a round"]
    if status.HasField("alpha_s"):
        parts.append(f"{show_seconds(status.alpha_s)} each (alpha)")
    if status.HasField("beta_s"):
        parts.append(f"{show_seconds(status.beta_s)} of mining (beta)")
    return ", ".join(parts)


def _describe_budget(status: pb.NodeStatus) -> str:
    parts = [f"{status.budget_s:g} s a round"]
    if status.HasField("train_s"):
        spent = [f"{show_seconds(status.train_s)} of training"]
        if status.HasField("mine_s"):
            spent.append(f"{show_seconds(status.mine_s)} of mining")
        parts.append(f"{' and '.join(spent)} in round {status.measured_round}")
    return ", ".join(parts)


def _describe_phase(status: pb.NodeStatus) -> str:
    steps = f" {status.train_step}/{status.train_steps} steps" if status.HasField("train_step") else ""
    return f"{status.phase}{steps}"


def _describe_pause(status: pb.NodeStatus) -> str:
    since = f"from round {status.round + 1} on, " if status.contributes else ""
    return f"{since}it contributes nothing and goes on voting; fednode resume ends that"


def _describe_spoiled(status: pb.NodeStatus) -> str:
    why = status.spoiled_reason
    return f"the aggregate of round {status.spoiled_round}, so this node goes on from its own model: {why}"


def describe_changes(status: pb.NodeStatus) -> str:
    here = f", {status.unapproved_changes} of them not approved here" if status.unapproved_changes else ""
    wait = "1 change waits" if status.open_changes == 1 else f"{status.open_changes} changes wait"
    return f"{wait} for approval{here}: fednode proposals"


def describe_end(status: pb.NodeStatus) -> str:
    """Returns why the run has no further round."""
    return "patience has ended the run" if status.selected.stopped else "the set rounds are done"


def _describe_round(status: pb.NodeStatus) -> str:
    of = f" of {status.rounds}" if status.rounds else ""
    of += f" in run {status.run}" if status.run > 1 else ""
    if status.done:
        return f"{status.round}{of}: {describe_end(status)}"
    held = f"{status.contributions} of {status.members} contributions"
    phase = _describe_phase(status)
    return f"{status.round}{of}: {phase}, view {status.view}, {held}, {status.candidates} candidates"


def describe_score(status: pb.NodeStatus) -> str:
    if not status.HasField("accuracy") and "r2" in status.measures.summary:
        return f"R2 {show_number(status.measures.summary['r2'])}"
    return f"accuracy {show_number(status.accuracy if status.HasField('accuracy') else None)}"


def describe_in_a_line(status: pb.NodeStatus) -> str:
    parts = [
        show_time(status.time),
        status.name,
        f"height {status.height} {show_id(status.head)}",
        f"{f'run {status.run} ' if status.run > 1 else ''}round {status.round} {_describe_phase(status)}",
        describe_score(status),
        f"peers {status.peers_connected}",
    ]
    if status.paused:
        parts.append("PAUSED")
    if status.HasField("not_approved"):
        parts.append("NOT APPROVED")
    if status.HasField("spoiled_round"):
        parts.append(f"SPOILED by round {status.spoiled_round}")
    if status.HasField("training_trouble"):
        parts.append(f"NOT TRAINED {status.training_trouble}")
    if status.stalled:
        parts.append(f"STALLED {status.stall_reason}")
    return "  ".join(parts)
