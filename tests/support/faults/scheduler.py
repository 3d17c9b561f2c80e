"""A hostile world for one height, from one seed: everything that may go wrong between members does (PROTOCOL §11.1).

Messages are delayed, reordered, lost and doubled; links break one way or both, sides form and dissolve; any set of
members crashes, all at once too, also between making a vote durable and sending it, and comes back with durable state
alone. Clocks are wrong, and liars seal times that are barely valid. Liars equivocate. Then the network settles, and
status messages repair what is missing (PROTOCOL §5). After every step the invariants of PROTOCOL §8 are checked for the
member that acted; a breach raises with the seed that shows it.

The world does not depend on the rule of voting: `make_voting` is `chain.finality.Voting` or one of the naive rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from chain.block import Id, Phase, Vote
from chain.finality import Voting
from chain.waits import Waits
from support.faults.liars import make_liars
from support.faults.stage import Stage, Temper, Timeline, draw_skews_s
from support.faults.voters import MakeVoting, Member, Message, TimeRule, VotingRule
from support.federation.invariants import Checker, InvariantBroken

# Messages in a settled network take at most half a second. The patient waits suit that; with the hasty ones members
# climb through many views before they get there.
PATIENT = Waits(delta_s=1, propose_s=5, propose_step_s=1, vote_s=2, vote_step_s=1, cap_s=20, collect_s=0, status_s=2)
HASTY = Waits(
    delta_s=0.2, propose_s=1, propose_step_s=0.1, vote_s=0.1, vote_step_s=0.1, cap_s=20, collect_s=0, status_s=10
)
PATIENCE_S = 1500.0  # after healing; a view takes at most 60 s


@dataclass(frozen=True, slots=True)
class Outcome:
    block_id: Id
    view: int  # the view of the certificate
    top_view: int  # the highest view an honest member reached
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


def draw_temper(rng: Random, calm: bool | None, time_rule: TimeRule = TimeRule.HOLD) -> tuple[Temper, bool]:
    """Draws the temper of a world, and whether nothing at all goes wrong."""
    mining_s = rng.choice((0.3, 2.0, 10.0))
    harmony, fullness = rng.choice((0.0, 0.5, 1.0, 1.0)), rng.choice((0.0, 0.5, 1.0))
    is_calm = rng.random() < 0.25 if calm is None else calm
    waits = PATIENT if is_calm else rng.choice((PATIENT, HASTY))
    return Temper(waits, mining_s, harmony, fullness, time_rule), is_calm


class Network:
    """The network of a schedule: which messages arrive, how late and how often. Until `healed_s` anything goes."""

    def __init__(self, rng: Random, healed_s: float, sides: Sequence[Sequence[int]]) -> None:
        self.healed_s = healed_s
        self._rng = rng
        self._cut = {(a, b) for side in sides for other in sides if side is not other for a in side for b in other}
        self._muffled: Phase | None = None
        self._loss = rng.choice((0.0, 0.05, 0.3, 0.6))
        self._doubling = rng.choice((0.0, 0.1))
        self._lateness_s = rng.choice((0.5, 3.0, 12.0))
        if sides:  # nothing else goes wrong
            self._loss, self._lateness_s = 0.0, 0.2

    def draw_delays(self, now: float, source: int, target: int, message: object) -> tuple[float, ...]:
        """Draws the delay of each copy that arrives."""
        if now >= self.healed_s:
            return (self._rng.uniform(0.05, 0.5),)
        is_muffled = isinstance(message, Vote) and message.phase is self._muffled and self._rng.random() < 0.6
        if is_muffled or (source, target) in self._cut or self._rng.random() < self._loss:
            return ()
        copies = 2 if self._rng.random() < self._doubling else 1
        return tuple(self._rng.expovariate(1 / self._lateness_s) for _ in range(copies))

    def break_links(self, n: int) -> None:
        """Breaks links: between sides, single ones one way, or for most votes of one phase; or mends all."""
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


class World(Stage):
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
        """Sets the world up. `calm`: nothing goes wrong, or surely something, or (None) as the seed says. `sides` stay
        apart for 60 s."""
        rng = Random(f"{seed}/{n}/{f}/{quorum}")
        height = rng.randrange(1, 1000)
        temper, self._is_calm = draw_temper(rng, calm, time_rule)
        healed_s = 60.0 if sides else 0.0 if self._is_calm else rng.choice((10.0, 40.0, 100.0))
        super().__init__(
            rng,
            Timeline(),
            temper,
            height=height,
            members=make_members(n),
            quorum=quorum,
            skews_s=draw_skews_s(Random(f"clocks {seed}/{n}/{f}"), n),
        )
        self._make_voting = make_voting
        self._network = Network(rng, healed_s, sides)
        self._power_failure = 0.0 if self._is_calm else rng.choice((0.0, 0.02, 0.15))
        self._needed: list[Member] = []  # the members present once the network has settled
        liars = sorted(rng.sample(range(n), f))
        honest = [index for index in range(n) if index not in liars]
        self.checker = Checker(self.members, quorum, frozenset(honest))
        self.honest = [Member(self, i, [j for j in range(n) if j != i], honest=True) for i in honest]
        self._actors: dict[int, list[Actor]] = {member.index: [member] for member in self.honest}
        self._actors |= make_liars(self, liars)
        self._open()

    def run(self) -> Outcome:
        """Runs until every member that is up when the network has settled has finalised. Raises `InvariantBroken`."""
        self.advance(self._network.healed_s + PATIENCE_S)
        for member in self._needed:
            if member.disk.decided is None:
                raise InvariantBroken("I10", f"member {member.index} is stuck in view {member.voting.view}")
        block_id, certificate = next(iter(self.checker.decided.values()))
        return Outcome(block_id, certificate.view, self.checker.top_view, self.time.steps)

    def advance(self, until_s: float) -> None:
        """Runs everything that is due by then; stops once all needed members have finalised."""
        self.time.advance(until_s, self._is_over)

    def _is_over(self) -> bool:
        return bool(self._needed) and all(member.disk.decided for member in self._needed)

    def open_voting(self, me: Id) -> VotingRule:
        return self._make_voting(
            height=self.height, members=self.members, quorum=self.quorum, me=me, waits=self.temper.waits
        )

    def post(self, source: int, target: int, message: Message) -> None:
        for delay in self._network.draw_delays(self.time.now, source, target, message):
            self.time.schedule(delay, lambda: self._deliver(source, target, message))

    def is_power_failing(self) -> bool:
        return self.time.now < self._network.healed_s and self.rng.random() < self._power_failure

    def strike(self, victim: Member) -> None:
        self._crash(victim)
        for member in self.honest if self.rng.random() < 0.3 else ():
            self._crash(member)

    def spread(self, vote: Vote) -> None:
        for actors in self._actors.values():
            for actor in actors:
                actor.on_overheard(vote)

    def _open(self) -> None:
        for index in sorted(self._actors):
            for actor in self._actors[index]:
                if isinstance(actor, Member):
                    self.time.schedule(self.rng.uniform(0, 1), partial(self._boot, actor))
        while not self._is_calm and self.rng.random() < 0.8:
            self.time.schedule(self.rng.uniform(0, self._network.healed_s), self._disturb)
        self.time.schedule(self._network.healed_s, self._heal)

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
            self.time.schedule(self.rng.expovariate(1 / 8.0), partial(self._boot, member))

    def _heal(self) -> None:
        """Settles the network. Some members not needed for a quorum stay down."""
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
    """Runs one height under one seed. Raises `InvariantBroken` naming what broke, and the schedule that shows it."""
    quorum = compute_bft_quorum(n) if quorum is None else quorum
    try:
        return World(seed, n, f, quorum=quorum, make_voting=make_voting, calm=calm, time_rule=time_rule).run()
    except InvariantBroken as broken:
        broken.add_note(f"schedule: seed={seed} n={n} f={f} quorum={quorum} calm={calm} time_rule={time_rule}")
        raise
