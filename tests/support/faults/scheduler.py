"""A hostile world for one height, from one seed: everything that may go wrong between members does (PROTOCOL §11.1).

Messages are delayed, reordered, lost and doubled; links break one way or both, sides form and dissolve; any set of
members crashes, all at once too, also between making a vote durable and sending it, and comes back with durable state
alone. Clocks are wrong, and liars seal times at the very edge of what is valid yet. Liars equivocate. Then the network
settles, and what is repaired is repaired by status (PROTOCOL §5). After every step the invariants of PROTOCOL §8 are
checked for whoever moved; a breach raises with the seed that shows it.

Nothing here knows how votes are decided: `make_voting` is `chain.finality.Voting` or one of the naive rules.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Protocol

from chain.block import Id, Phase, Vote
from chain.finality import Voting
from chain.waits import Waits
from support.faults.liars import make_liars
from support.faults.voters import EARLY_S, FUTURE_S, MakeVoting, Member, Message, TimeRule
from support.federation.invariants import Checker, InvariantBroken

# Messages in a settled network take at most half a second. The patient waits suit that; with the hasty ones members
# climb through many views before they get there.
PATIENT = Waits(delta_s=1, propose_s=5, propose_step_s=1, vote_s=2, vote_step_s=1, cap_s=20, collect_s=0, status_s=2)
HASTY = Waits(
    delta_s=0.2, propose_s=1, propose_step_s=0.1, vote_s=0.1, vote_step_s=0.1, cap_s=20, collect_s=0, status_s=10
)
PATIENCE_S = 1500.0  # after healing; a view is at most 60 s long

WRONG_S = (0.0, 0.0, 0.5, 5.0, 60.0)  # by how much clocks may be off, in one world or another


@dataclass(frozen=True, slots=True)
class Outcome:
    block_id: Id
    view: int  # of the certificate
    top_view: int  # the highest an honest member came to
    steps: int


class Actor(Protocol):
    def on_message(self, source: int, message: Message) -> None: ...
    def on_overheard(self, vote: Vote) -> None: ...


def compute_bft_quorum(n: int) -> int:
    return 2 * n // 3 + 1


def compute_majority_quorum(n: int) -> int:
    return n // 2 + 1


def make_members(n: int) -> tuple[Id, ...]:
    return tuple(bytes([i + 1]) * 32 for i in range(n))


def draw_skews_s(rng: Random, n: int) -> list[float]:
    """The seconds that each member's clock is ahead. By draws of their own, so that they shift no schedule."""
    off_s = rng.choice(WRONG_S)
    return [rng.uniform(-off_s, off_s) if rng.random() < 0.5 else 0.0 for _ in range(n)]


class Network:
    """The network of a schedule: who hears whom, how late and how often. Until `healed_s` anything goes."""

    def __init__(self, rng: Random, healed_s: float, sides: Sequence[Sequence[int]]) -> None:
        self.healed_s = healed_s
        self._rng = rng
        self._cut = {(a, b) for side in sides for other in sides if side is not other for a in side for b in other}
        self._muffled: Phase | None = None
        self._loss = rng.choice((0.0, 0.05, 0.3, 0.6))
        self._doubling = rng.choice((0.0, 0.1))
        self._lateness_s = rng.choice((0.5, 3.0, 12.0))
        if sides:  # nothing else is wrong
            self._loss, self._lateness_s = 0.0, 0.2

    def draw_delays(self, now: float, source: int, target: int, message: Message) -> tuple[float, ...]:
        """One delay per copy that arrives."""
        if now >= self.healed_s:
            return (self._rng.uniform(0.05, 0.5),)
        is_muffled = isinstance(message, Vote) and message.phase is self._muffled and self._rng.random() < 0.6
        if is_muffled or (source, target) in self._cut or self._rng.random() < self._loss:
            return ()
        copies = 2 if self._rng.random() < self._doubling else 1
        return tuple(self._rng.expovariate(1 / self._lateness_s) for _ in range(copies))

    def break_links(self, n: int) -> None:
        """Sides, or single links one way, or most votes of one phase, or all whole again."""
        kind = self._rng.randrange(4)
        pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
        self._cut, self._muffled = set(), None
        if kind == 0:
            side = [self._rng.randrange(2 if n < 5 else 3) for _ in range(n)]
            self._cut = {(a, b) for a, b in pairs if side[a] != side[b]}
        elif kind == 1:
            self._cut = {pair for pair in pairs if self._rng.random() < 0.3}
        elif kind == 2:
            self._muffled = self._rng.choice((Phase.PREVOTE, Phase.PRECOMMIT))


class World:
    """One height of one federation under one seed."""

    def __init__(
        self,
        seed: int,
        n: int,
        f: int,
        *,
        quorum: int,
        make_voting: MakeVoting = Voting,
        calm: bool | None = None,
        sides: Sequence[Sequence[int]] = (),
        time_rule: TimeRule = TimeRule.HOLD,
    ) -> None:
        """`calm`: nothing goes wrong, or surely something, or (None) as the seed says. `sides` stay apart for 60 s."""
        self.rng = rng = Random(f"{seed}/{n}/{f}/{quorum}")
        self.now = 0.0
        self.steps = 0
        self.height = rng.randrange(1, 1000)
        self.members = make_members(n)
        self.quorum = quorum
        self.make_voting = make_voting
        self.mining_s = rng.choice((0.3, 2.0, 10.0))
        self.time_rule = time_rule
        self.all_blocks: list[Id] = []
        self._times: dict[Id, float] = {}
        self._harmony = rng.choice((0.0, 0.5, 1.0, 1.0))  # how often members agree that a candidate is acceptable
        self._fullness = rng.choice((0.0, 0.5, 1.0))
        self._is_calm = rng.random() < 0.25 if calm is None else calm
        self.waits = PATIENT if self._is_calm else rng.choice((PATIENT, HASTY))
        healed_s = 60.0 if sides else 0.0 if self._is_calm else rng.choice((10.0, 40.0, 100.0))
        self._network = Network(rng, healed_s, sides)
        self._skews_s = draw_skews_s(Random(f"clocks {seed}/{n}/{f}"), n)
        self._power_failure = 0.0 if self._is_calm else rng.choice((0.0, 0.02, 0.15))
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._shared_sets: dict[tuple[int, Id], tuple[bool, bool]] = {}
        self._needed: list[Member] = []  # once the network has settled: those who are there
        liars = sorted(rng.sample(range(n), f))
        honest = [index for index in range(n) if index not in liars]
        self.checker = Checker(self.members, quorum, frozenset(honest))
        self.honest = [Member(self, i, [j for j in range(n) if j != i], honest=True) for i in honest]
        self._actors: dict[int, list[Actor]] = {member.index: [member] for member in self.honest}
        self._actors |= make_liars(self, liars)
        self._open()

    def run(self) -> Outcome:
        """Until every member that is up when the network has settled has finalised; raises `InvariantBroken`."""
        self.advance(self._network.healed_s + PATIENCE_S)
        for member in self._needed:
            if member.disk.decided is None:
                raise InvariantBroken("I10", f"member {member.index} is stuck in view {member.voting.view}")
        block_id, certificate = next(iter(self.checker.decided.values()))
        return Outcome(block_id, certificate.view, self.checker.top_view, self.steps)

    def advance(self, until_s: float) -> None:
        """Let everything happen that is due by then; once all who are needed have finalised, nothing is."""
        while self._queue and self._queue[0][0] <= until_s:
            self.now, _, happen = heapq.heappop(self._queue)
            self.steps += 1
            happen()
            if self._needed and all(member.disk.decided for member in self._needed):
                break

    def schedule(self, after_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + after_s, next(self._order), happen))

    def post(self, source: int, target: int, message: Message) -> None:
        for delay in self._network.draw_delays(self.now, source, target, message):
            self.schedule(delay, lambda: self._deliver(source, target, message))

    def make_block(self, miner: int, time_s: float | None = None) -> Id:
        """A valid block of this height, sealed at its miner's time unless told another. Its miner finds it acceptable
        and full; the others may not."""
        block_id = self.rng.randbytes(32)
        self.all_blocks.append(block_id)
        self._times[block_id] = self.get_time_s(miner) if time_s is None else time_s
        self._shared_sets[miner, block_id] = (True, True)
        return block_id

    def get_time_s(self, index: int) -> float:
        """The time that a member judges by: its own clock, or the lower median of all where that is later."""
        return self.now + max(self._skews_s[index], sorted(self._skews_s)[(len(self._skews_s) - 1) // 2])

    def is_early(self, index: int, block_id: Id) -> bool:
        """Whether the block's time is too far ahead of the member's for it to be valid yet."""
        return self._times[block_id] > self.get_time_s(index) + EARLY_S

    def get_standing(self, index: int, block_id: Id) -> tuple[bool, bool]:
        """Whether it is acceptable to the member in view 0, by its time and by the authors, and whether it is full."""
        key = (index, block_id)
        if key not in self._shared_sets:
            self._shared_sets[key] = (self.rng.random() < self._harmony, self.rng.random() < self._fullness)
        agreeable, full = self._shared_sets[key]
        return agreeable and self._times[block_id] <= self.get_time_s(index) + FUTURE_S, full

    def is_power_failing(self) -> bool:
        return self.now < self._network.healed_s and self.rng.random() < self._power_failure

    def strike(self, victim: Member) -> None:
        """The power fails for this one, sometimes for all."""
        self._crash(victim)
        for member in self.honest if self.rng.random() < 0.3 else ():
            self._crash(member)

    def spread(self, vote: Vote) -> None:
        """Lets liars know what an honest member has sent."""
        for actors in self._actors.values():
            for actor in actors:
                actor.on_overheard(vote)

    def _open(self) -> None:
        for index in sorted(self._actors):
            for actor in self._actors[index]:
                if isinstance(actor, Member):
                    self.schedule(self.rng.uniform(0, 1), partial(self._boot, actor))
        while not self._is_calm and self.rng.random() < 0.8:
            self.schedule(self.rng.uniform(0, self._network.healed_s), self._disturb)
        self.schedule(self._network.healed_s, self._heal)

    def _disturb(self) -> None:
        if self.rng.random() < 0.3:
            share = self.rng.choice((0.3, 1.0))
            for member in self.honest:
                if self.rng.random() < share:
                    self._crash(member)
        else:
            self._network.break_links(len(self.members))

    def _boot(self, member: Member) -> None:
        is_away = bool(self._needed) and member in self.honest and member not in self._needed
        if not member.up and not is_away:
            member.boot()

    def _crash(self, member: Member) -> None:
        if member.up:
            member.up = False
            self.schedule(self.rng.expovariate(1 / 8.0), partial(self._boot, member))

    def _heal(self) -> None:
        """The network settles. Of those not needed for a quorum some stay away."""
        most = 0 if self._is_calm else max(0, len(self.honest) - self.quorum)
        self._needed = self.rng.sample(self.honest, len(self.honest) - self.rng.randrange(most + 1))
        for member in self.honest:
            if member in self._needed:
                self._boot(member)
            else:
                member.up = False

    def _deliver(self, source: int, target: int, message: Message) -> None:
        for actor in self._actors[target]:
            actor.on_message(source, message)


def run_schedule(
    seed: int,
    n: int,
    f: int,
    *,
    quorum: int | None = None,
    make_voting: MakeVoting = Voting,
    calm: bool | None = None,
    time_rule: TimeRule = TimeRule.HOLD,
) -> Outcome:
    """One height under one seed; raises `InvariantBroken` naming what broke, and the schedule that shows it."""
    quorum = compute_bft_quorum(n) if quorum is None else quorum
    try:
        return World(seed, n, f, quorum=quorum, make_voting=make_voting, calm=calm, time_rule=time_rule).run()
    except InvariantBroken as broken:
        broken.add_note(f"schedule: seed={seed} n={n} f={f} quorum={quorum} calm={calm} time_rule={time_rule}")
        raise
