"""The screen of `fednode status --watch`: a node's facts, its newest rounds and its members, drawn again and again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from node.cli.federation.members import describe_state
from node.cli.model.measures import get_scores
from node.cli.node.status import describe
from node.cli.output import format_facts, format_table, show_bytes, show_number, show_seconds
from node.cli.target import open_place
from node.errors import NodeUnreachable

if TYPE_CHECKING:
    from node.admin.address import AdminAddress
    from node.admin.client import AdminClient
    from node.pb import admin_pb2 as pb

NUM_ROUNDS = 8
RETRY_S = 1.0
HEED_S = 0.1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PHASES = ("train", "exchange", "mine", "vote", "apply")


@dataclass(frozen=True, slots=True)
class Answers:
    """The node's answers at one moment, rounds newest first. `away` is why it does not answer now."""

    status: pb.NodeStatus
    members: pb.ListMembersReply
    rounds: Sequence[pb.Round]
    away: str | None = None


def watch(place: AdminAddress, interval_s: float, console: Console) -> None:
    """Draws until a signal ends it, by SystemExit. Raises NodeUnreachable where no node answers at the start."""
    with _heeding_signals() as sleep:
        following = _follow(place, interval_s, sleep)
        first = next(following)
        with Live(draw(first), console=console, screen=True, auto_refresh=False) as live:
            for answers in following:
                live.update(draw(answers), refresh=True)


def _follow(place: AdminAddress, interval_s: float, sleep: Callable[[float], None]) -> Iterator[Answers]:
    """Yields answers every `interval_s`, without end; where none arrive, the last ones, and why. Raises NodeUnreachable
    where none arrive at first."""
    answers: Answers | None = None
    while True:
        try:
            with open_place(place) as node:
                while True:
                    answers = read(node, answers)
                    yield answers
                    sleep(interval_s)
        except NodeUnreachable as error:
            if answers is None:
                raise
            answers = replace(answers, away=str(error))
            yield answers
            sleep(RETRY_S)


def read(node: AdminClient, before: Answers | None = None) -> Answers:
    """Reads a node's answers. It requests rounds, the costliest of them, only where they may differ from `before`."""
    status, members = node.get_status(), node.list_members()
    if before is not None and _mark(before.status) == _mark(status):
        return Answers(status, members, before.rounds)
    return Answers(status, members, node.list_rounds(None, NUM_ROUNDS, reverse=False).rounds)


def _mark(status: pb.NodeStatus) -> tuple[object, ...]:
    return status.pid, status.head, status.measured_round, status.applied_round


def draw(answers: Answers) -> Text:
    """Returns the whole screen; a terminal shows as many of its lines as fit."""
    facts = describe(answers.status)
    if answers.away is not None:
        facts.insert(0, ("AWAY", f"{answers.away}. It is asked again every second; below is what it said."))
    lines = [*format_facts(facts), "", *_draw_rounds(answers.rounds), "", *_draw_members(answers.members)]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _draw_rounds(rounds: Sequence[pb.Round]) -> list[str]:
    rows = [
        (
            str(one.round),
            f"{len(one.contributors)}/{one.num_members}",
            ", ".join(one.absent_names) or "-",
            *(f"{one.seconds[phase]:.3f}" if phase in one.seconds else "-" for phase in PHASES),
            show_bytes(sum(one.bytes_sent.values())) if one.measured else "-",
            *map(show_number, get_scores(one)[1:]),
        )
        for one in rounds
    ]
    seconds = (f">{phase.upper()}" for phase in PHASES)
    return format_table((">ROUND", ">CONTRIB", "LEFT OUT", *seconds, ">SENT", ">BEFORE", ">AFTER"), rows)


def _draw_members(reply: pb.ListMembersReply) -> list[str]:
    rows = [
        (
            one.name,
            describe_state(one),
            str(one.height) if one.HasField("height") else "-",
            f"{show_seconds(one.silent_s)} ago" if one.HasField("silent_s") else "-",
            f"{one.clock_ahead_s:+.3f} s" if one.HasField("clock_ahead_s") else "-",
            one.version or "-",
            one.address or "-",
        )
        for one in reply.members
    ]
    return format_table(("MEMBER", "STATE", ">HEIGHT", "HEARD OF", ">CLOCK", "RELEASE", "ADDRESS"), rows)


@contextmanager
def _heeding_signals() -> Iterator[Callable[[float], None]]:
    """Yields a function that sleeps, and raises SystemExit once a signal has arrived: only there, and never in the
    middle of drawing, so that the terminal is left as it was."""
    came: list[int] = []

    def sleep(seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not came and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, HEED_S))
        if came:
            raise SystemExit(128 + came[0])

    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in SIGNALS}
    try:
        yield sleep
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
