"""Stall detector: notices that a round stands still though its members are in sight, and what it waits for. Stall
watch: reports that, and that no quorum is in sight, and when it is over. A node never waits or trains on alone without
saying so (DESIGN §1).

A local phase may take any time: while those that train suffice for a quorum of contributions, all is well. Otherwise a
round moves whenever a contribution, a payload or a candidate comes, and voting ends within a few views. The time for
which a round usually rests after its last move is measured; far more than that is a stall. Mining is a lottery with
exponentially distributed times, so far more than usual has to be very much more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from statistics import median

from chain.block import Id, Phase
from chain.state import State
from node.clock import Clock
from node.consensus.height.actions import RoundPhase
from node.consensus.height.machine import RoundMachine
from node.events import Events
from node.p2p.peers import Peers

log = logging.getLogger(__name__)

FAR = 10.0  # more than so many times the usual rest is a stall
UNLUCKY = 25.0  # more than so many times the mean of mining is a stall: once in 10^10 blocks
LAST_BLOCKS = 16  # blocks whose times give what is usual
ENOUGH_BLOCKS = 8  # blocks that were awaited, to know the mean of mining
USUAL_VIEWS = 6  # of one height, at most, also if messages get lost and members are away
GRACE_STATUSES = 4.0  # statuses after a start, until peers had time to send theirs


@dataclass(frozen=True, slots=True)
class StallInput:
    """Says where a node stands: its head, the state that judges the next block, and the round on top, None before the
    first.

    `is_starting` says that its worker is not ready yet. `collect_s` is for how long this round waits for payloads,
    `received_bytes` how much of blobs has come so far, and `mine_s` how long mining is expected to take, None if that
    is not known.
    """

    height: int
    state: State
    machine: RoundMachine | None
    is_starting: bool
    collect_s: float
    received_bytes: int
    mine_s: float | None


class StallDetector:
    """Detects stalls of one node. It has to be called several times a second, or at least once a status."""

    def __init__(self, me: Id, peers: Peers, clock: Clock, get_work: Callable[[], StallInput]) -> None:
        self._me = me
        self._peers = peers
        self._clock = clock
        self._get_work = get_work
        self._height = -1
        self._block_s: float | None = None  # when the newest block came, None before the first
        self._began_s = clock.monotonic()
        self._mark: Hashable = None
        self._moved_s = self._began_s
        self._intervals_s: deque[float] = deque(maxlen=LAST_BLOCKS)
        self._rests_s: deque[float] = deque(maxlen=LAST_BLOCKS)

    def describe(self) -> str | None:
        """Says what the node waits for, far longer than usual; None while all is well."""
        now_s, work = self._clock.monotonic(), self._get_work()
        if work.height != self._height:
            self._on_block(work.height, now_s)
        machine = work.machine
        if machine is None or machine.is_idle:
            self._moved_s = now_s
            return None
        mark = self._get_mark(work, machine)
        if (
            mark != self._mark
            or work.is_starting
            or self._is_at_work(work.state, machine)
            or self._peers.describe_stall()
        ):
            self._mark, self._moved_s = mark, now_s
        if now_s - self._moved_s <= self._get_patience_s(work, machine):
            return None
        since_s = self._began_s if self._block_s is None else self._block_s
        usually = f", usually {_show(median(self._intervals_s))}" if self._intervals_s else ""
        return (
            f"height {machine.height}: no block for {_show(now_s - since_s)}{usually}; "
            f"phase {machine.phase.value}, waiting for {self._describe_wait(work.state, machine)}"
        )

    def _on_block(self, height: int, now_s: float) -> None:
        if self._height >= 0:  # a block that this node has waited for
            since_s = self._began_s if self._block_s is None else self._block_s
            self._intervals_s.append((now_s - since_s) / (height - self._height))
            self._block_s = now_s
            self._rests_s.append(now_s - self._moved_s)
        self._height = height

    def _get_mark(self, work: StallInput, machine: RoundMachine) -> Hashable:
        """Returns a value that changes whenever the round moves. Votes alone are no move, as votes that do not agree
        never end. Nor are bytes, once there are enough payloads."""
        num_bytes = work.received_bytes if len(machine.verified) < work.state.q else 0
        return work.height, len(machine.contributions), len(machine.verified), len(machine.candidates), num_bytes

    def _get_patience_s(self, work: StallInput, machine: RoundMachine) -> float:
        waits = work.state.rules.waits
        views_s = sum(waits.compute_propose_s(view) + 2 * waits.compute_vote_s(view) for view in range(USUAL_VIEWS))
        slow_s = work.collect_s + views_s
        if len(machine.verified) >= work.state.q and not machine.candidates:  # somebody is mining
            if work.mine_s is None or len(self._rests_s) < ENOUGH_BLOCKS:
                return inf
            return slow_s + UNLUCKY * work.mine_s
        return slow_s + FAR * median(self._rests_s) if self._rests_s else FAR * slow_s

    def _is_at_work(self, state: State, machine: RoundMachine) -> bool:
        """Says whether members are training for missing contributions, which would then make a quorum with those that
        are here."""
        here = set(machine.contributions)
        if len(here) >= state.q:
            return False
        coming = {
            peer.id for peer in self._peers if peer.is_member and self._is_training(state, peer.id, machine.height)
        }
        if machine.phase is RoundPhase.TRAIN:
            coming.add(self._me)
        return len(here | coming) >= state.q

    def _is_training(self, state: State, peer: Id, height: int) -> bool:
        """Says whether a peer trains for a height, by its own status. One that is behind trains once it has caught
        up."""
        entry, index = self._peers.get(peer), state.index_of(peer)
        if index is not None and not self._peers.is_connected(peer):
            relays = [relay.status for relay in self._peers.get_relays(peer) if relay.status is not None]
            is_held = any(told.height == height and told.contributions >> index & 1 for told in relays)
            return self._peers.get_word(peer, height) is True and not is_held
        if entry is None or entry.status is None or index is None or not self._peers.is_alive(peer):
            return False
        status = entry.status
        has_contributed = status.height == height and status.contributions >> index & 1
        return status.contributes and status.height <= height and not has_contributed

    def _describe_wait(self, state: State, machine: RoundMachine) -> str:
        members, quorum = state.members, state.q
        ahead = [peer for peer in self._peers if peer.status is not None and peer.status.head_height >= machine.height]
        if ahead:
            return f"the blocks of {', '.join(sorted(peer.name for peer in ahead))}"
        if len(machine.contributions) < quorum:
            return f"contributions of {self._name(state, set(state.active_ids) - set(machine.contributions))}"
        if len(machine.verified) < quorum:
            return f"payloads of {self._name(state, set(machine.contributions) - set(machine.verified))}"
        if not machine.candidates:
            return "proof of work"
        for phase in (Phase.PREVOTE, Phase.PRECOMMIT):
            held = machine.voting.vote_bitmap(machine.view, phase)
            missing = {member.key for index, member in enumerate(members) if not held >> index & 1}
            if len(members) - len(missing) < quorum:
                return f"{phase.name.lower()}s of {self._name(state, missing)} in view {machine.view}"
        return f"votes that agree, in view {machine.view}"

    def _name(self, state: State, keys: set[Id]) -> str:
        named = (
            f"{member.name} (paused)" if self._abstains(member.key) else member.name
            for member in state.members
            if member.key in keys
        )
        return ", ".join(sorted(named))

    def _abstains(self, member: Id) -> bool:
        peer, machine = self._peers.get(member), self._get_work().machine
        if member == self._me:
            return machine is not None and machine.abstains
        if not self._peers.is_connected(member):
            return machine is not None and self._peers.get_word(member, machine.height) is False
        return peer is not None and peer.status is not None and peer.status.abstains


def _show(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class StallWatch:
    """Reports stalls of one node. `reason` says why nothing can be finalised, or why nothing is finalised in spite of a
    quorum, and is None while all is well. `explain_no_checkpoint` says why a node that has joined does not get to the
    chain of its join file."""

    def __init__(
        self,
        peers: Peers,
        quiet: StallDetector,
        clock: Clock,
        events: Events,
        get_status_s: Callable[[], float],
        explain_no_checkpoint: Callable[[], str | None],
    ) -> None:
        self.reason: str | None = None
        self._peers = peers
        self.detector = quiet
        self._clock = clock
        self._events = events
        self._get_status_s = get_status_s
        self._explain_no_checkpoint = explain_no_checkpoint

    async def run(self) -> None:
        quiet_until_s = self._clock.monotonic() + GRACE_STATUSES * self._get_status_s()
        while True:
            await self._peers.until_sight_may_change(self._get_status_s() / 2)
            slowness = self.detector.describe()
            reasons = self._peers.describe_stall(), self._explain_no_checkpoint()
            reason = "; ".join(filter(None, reasons)) or slowness
            if reason is None or self._clock.monotonic() >= quiet_until_s:
                self._update(reason)

    def _update(self, reason: str | None) -> None:
        before, self.reason = self.reason, reason
        if (reason is None) == (before is None):
            return
        self._events.publish("stall", stalled=reason is not None, reason=reason)
        if reason is None:
            log.info("no longer stalled")
        else:
            log.warning("stalled: %s", reason)
