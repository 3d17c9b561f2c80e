"""The snapshot of a node that `fednode top` draws: its answers as they came, and how old they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.admin.client import AdminClient
    from node.pb import admin_pb2 as pb

NUM_ROUNDS = 60  # as many as a line of small bars has room for
NUM_BLOCKS = 10
NUM_UNSETTLED = 3
SILENT_S = 4.0  # an answer takes milliseconds


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log: when, of which kind, and in words."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Answers:
    """What a node said at one moment. Rounds and blocks are newest first."""

    status: pb.NodeStatus
    members: pb.ListMembersReply
    rounds: Sequence[pb.Round]
    blocks: Sequence[pb.BlockSummary]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest answers, None before the first, and the node's last events, oldest first.

    `away` says why no answer comes now, and is None while they come. Times are of a monotonic clock.
    """

    answers: Answers | None = None
    events: tuple[Event, ...] = ()
    away: str | None = None
    read_s: float = 0.0  # when the answers came

    def get_silence_s(self, now_s: float) -> float | None:
        """For how long the node has given no answer; None where that is nothing to speak of."""
        silence_s = now_s - self.read_s
        return silence_s if self.answers is not None and silence_s > SILENT_S else None


def read_answers(node: AdminClient, before: Answers | None = None) -> Answers:
    """A node's answers. What only a new block changes is asked for again only then. Raises NodeError."""
    status = node.get_status()
    members = node.list_members()
    if before is not None and _is_same(before.status, status):
        return Answers(status, members, before.rounds, before.blocks)
    known = [] if before is None or before.status.pid != status.pid else before.rounds
    blocks = node.list_blocks(None, NUM_BLOCKS, reverse=False).blocks
    return Answers(status, members, _read_rounds(node, status.height, known), blocks)


def _read_rounds(node: AdminClient, height: int, known: Sequence[pb.Round]) -> list[pb.Round]:
    """The newest, of which those `known` are not asked for again: it would cost the node more than all else here. The
    newest of these are, since what was measured in them comes a little after their blocks."""
    above = height - known[0].height if known else NUM_ROUNDS
    asked = node.list_rounds(None, min(NUM_ROUNDS, above + NUM_UNSETTLED), reverse=False).rounds
    rounds = {each.height: each for each in (*known, *asked)}
    return [rounds[each] for each in sorted(rounds, reverse=True)[:NUM_ROUNDS]]


def _is_same(before: pb.NodeStatus, after: pb.NodeStatus) -> bool:
    """Whether neither a block nor a measurement has come since."""
    return (before.head, before.measured_round, before.applied_round, before.pid) == (
        after.head,
        after.measured_round,
        after.applied_round,
        after.pid,
    )
