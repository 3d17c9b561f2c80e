"""An honest member of a simulated world: a voting core with the driver, the disk and the repair a node gives it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from chain.block import ZERO, Certificate, Id, Phase, Vote
from chain.finality import Action, Cast, Equivocation, FetchBlock, Finalise, StartTimer, Timer
from chain.waits import Waits
from node.consensus.height.candidates import LOOK_S
from support.federation.invariants import sign

if TYPE_CHECKING:
    from support.faults.stage import Stage


class TimeRule(Enum):
    """The rule for a block whose time is too far ahead of a member's clock."""

    HOLD = "looked at again until its time has come"  # PROTOCOL §3
    REFUSE = "refused for good"


class VotingRule(Protocol):
    """The voting core as the world needs it: `chain.finality.Voting`, or a naive rule."""

    view: int
    lock: tuple[int, Id] | None
    certified: tuple[Id, Certificate] | None
    finalised: Id | None

    def start(self) -> list[Action]: ...
    def resume(self, own_votes: Sequence[Vote], justification: Sequence[Vote]) -> list[Action]: ...
    def on_candidate(self, block_id: Id, *, acceptable: bool, complete: bool) -> list[Action]: ...
    def on_vote(self, vote: Vote) -> list[Action]: ...
    def on_timer(self, timer: Timer) -> list[Action]: ...
    def get_votes(self) -> tuple[Vote, ...]: ...
    def get_bitmaps(self) -> tuple[tuple[int, Phase, int], ...]: ...


class MakeVoting(Protocol):
    def __call__(
        self, *, height: int, members: tuple[Id, ...], quorum: int, me: Id | None, waits: Waits
    ) -> VotingRule: ...


@dataclass(frozen=True, slots=True)
class Status:
    decided: bool
    blocks: frozenset[Id]
    bitmaps: dict[tuple[int, Phase], int]


@dataclass(frozen=True, slots=True)
class Wanted:
    block_id: Id


@dataclass(frozen=True, slots=True)
class Decided:
    """A finalised block with its certificate, as sync brings it."""

    block_id: Id
    certificate: Certificate


Message = Vote | Id | Status | Wanted | Decided  # an Id stands for a block, which nobody decodes here


@dataclass
class Disk:
    """The data that a member has left after a crash."""

    rows: dict[tuple[int, Phase], Vote] = field(default_factory=dict)
    justification: tuple[Vote, ...] = ()
    blocks: set[Id] = field(default_factory=set)
    mined: bool = False
    decided: Decided | None = None


class Member:
    """Drives one voting core as a node would: durable before sent, repair by status, everything else forgotten."""

    def __init__(
        self, stage: Stage, index: int, audience: Iterable[int], *, honest: bool, disk: Disk | None = None
    ) -> None:
        self.index = index
        self.disk = Disk() if disk is None else disk
        self.up = False
        self.voting: VotingRule
        self.blocks: set[Id] = set()
        self._stage = stage
        self._audience = tuple(audience)
        self._honest = honest
        self._id = stage.members[index]
        self._life = 0
        self._has_acceptable = False

    def boot(self) -> None:
        stage, disk = self._stage, self.disk
        self.up = True
        self._life += 1
        self._has_acceptable = False
        self.blocks = set()
        self.voting = stage.open_voting(self._id)
        self._tell_status()
        if disk.decided is not None:
            self.blocks.add(disk.decided.block_id)
            return
        rows = tuple(disk.rows.values())
        self._perform(self.voting.resume(rows, disk.justification) if rows else self.voting.start())
        for block_id in sorted(disk.blocks):
            self._broadcast(block_id)
            self._learn(block_id)
        for vote in rows:
            self._broadcast(vote)
        self._later(stage.rng.expovariate(1 / stage.temper.mining_s), self._mine)

    def on_overheard(self, vote: Vote) -> None:
        pass

    def on_message(self, source: int, message: Message) -> None:
        if not self.up:
            return
        if isinstance(message, Status):
            self._repair(source, message)
        elif isinstance(message, Wanted):
            if message.block_id in self.blocks:
                self._send(source, message.block_id)
        elif self.disk.decided is None:
            if isinstance(message, Vote):
                self._perform(self.voting.on_vote(message))
            elif isinstance(message, Decided):
                self._decide(message)
            else:
                self._learn(message)

    def _learn(self, block_id: Id) -> None:
        if block_id in self.blocks:
            return
        self.blocks.add(block_id)
        self._judge(block_id)

    def _judge(self, block_id: Id) -> None:
        """Puts a block to the vote, if its time has come; a certificate overrides every clock."""
        stage = self._stage
        if self.disk.decided is not None:
            return
        if stage.is_early(self.index, block_id):
            self._follow_certificate()
            if stage.temper.time_rule is TimeRule.HOLD:
                self._later(LOOK_S, partial(self._judge, block_id))
            return
        acceptable, complete = stage.get_standing(self.index, block_id)
        self._has_acceptable |= acceptable
        self._perform(self.voting.on_candidate(block_id, acceptable=acceptable, complete=complete))

    def _follow_certificate(self) -> None:
        certified = self.voting.certified
        if certified is not None and certified[0] in self.blocks and self.disk.decided is None:
            self._decide(Decided(*certified))

    def _mine(self) -> None:
        if not (self._has_acceptable or self.disk.mined or self.disk.decided):
            block_id = self._stage.make_block(self.index)
            self.disk.mined = True
            self.disk.blocks.add(block_id)
            self._broadcast(block_id)
            self._learn(block_id)

    def _perform(self, actions: list[Action]) -> None:
        todo = deque(actions)
        while todo and self.up:
            match todo.popleft():
                case Cast() as cast:
                    todo.extend(self._cast(cast))
                case StartTimer(timer, after_s):
                    self._later(after_s, partial(self._on_timer, timer))
                case Finalise(block_id, certificate):
                    self._decide(Decided(block_id, certificate))
                case FetchBlock(block_id):
                    self._broadcast(Wanted(block_id))
                case Equivocation(first, second) if self._honest:
                    self._stage.on_evidence(self.index, first, second)
        if self.up:
            self._follow_certificate()
        if self._honest and self.up:
            self._be_checked()

    def _be_checked(self) -> None:
        checker = self._stage.checker
        checker.on_lock(self.index, self.voting.view, self.voting.lock)
        if self._stage.time.steps % 16 == 0:
            checker.on_held(self.index, self.voting.get_votes())

    def _on_timer(self, timer: Timer) -> None:
        self._perform(self.voting.on_timer(timer))

    def _cast(self, cast: Cast) -> list[Action]:
        """Takes the four steps of `chain.finality.Cast`; the power may fail after each."""
        stage, disk = self._stage, self.disk
        if cast.phase is Phase.PRECOMMIT and cast.block_id != ZERO:
            disk.blocks.add(cast.block_id)
            disk.justification = cast.justification
        vote = sign(cast.phase, stage.height, cast.view, cast.block_id, self._id)
        if self._honest:
            stage.checker.on_signed(self.index, vote)
        vote = disk.rows.setdefault((cast.view, cast.phase), vote)
        if stage.is_power_failing():
            stage.strike(self)
            return []
        if self._honest:
            stage.spread(vote)
        if cast.phase is Phase.PREVOTE:
            for prevote in cast.justification:
                self._broadcast(prevote)
        self._broadcast(vote)
        if stage.is_power_failing():
            stage.strike(self)
            return []
        return self.voting.on_vote(vote)

    def _decide(self, decided: Decided) -> None:
        if self._honest:
            self._stage.checker.on_decided(self.index, decided.block_id, decided.certificate)
        self.disk.decided = decided
        self.disk.blocks.add(decided.block_id)
        self.blocks.add(decided.block_id)

    def _tell_status(self) -> None:
        bitmaps = {(view, phase): bitmap for view, phase, bitmap in self.voting.get_bitmaps()}
        self._broadcast(Status(self.disk.decided is not None, frozenset(self.blocks), bitmaps))
        self._later(self._stage.temper.waits.status_s, self._tell_status)

    def _repair(self, source: int, status: Status) -> None:
        if status.decided:
            return
        if self.disk.decided is not None:
            self._send(source, self.disk.decided)
            return
        for block_id in sorted(self.blocks - status.blocks):
            self._send(source, block_id)
        for vote in self.voting.get_votes():
            bitmap = status.bitmaps.get((vote.view, vote.phase), 0)
            if not bitmap >> self._stage.members.index(vote.voter) & 1:
                self._send(source, vote)

    def _send(self, target: int, message: Message) -> None:
        if target in self._audience:
            self._stage.post(self.index, target, message)

    def _broadcast(self, message: Message) -> None:
        for target in self._audience:
            self._stage.post(self.index, target, message)

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        life = self._life

        def run() -> None:
            if self.up and self._life == life:
                what()

        self._stage.time.schedule(after_s, run)
