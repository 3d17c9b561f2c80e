"""An honest site in a federation that changes: its chain and the states it derives, the votes it takes part in, the
changes it proposes, approves and mines.

It is at one height at a time and drops what belongs to any other; what it missed it gets by saying where it stands. A
site that is no member follows; one that is a member no more signs nothing, and goes on telling others what it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from chain.block import ApprovedChange, Digest, Id, Readiness, Vote
from chain.changes.change import Change, read_change
from chain.changes.members import AddMember, Convict, RemoveMember, ReplaceKey
from chain.changes.rules import SetRules
from chain.evidence import encode_evidence, make_evidence
from chain.state import State
from support.faults.dossiers import Desk, Dossier, approve, is_approved, stand_ready
from support.faults.plans import Kind, Step, flip_rule
from support.faults.voters import Decided, Disk, Member, Message
from support.federation.history import follow, is_certified

if TYPE_CHECKING:
    from support.faults.changing_world import ChangingWorld
    from support.faults.height_stage import HeightStage

SYNC_HEIGHTS = 4  # sent at once to a site that is behind
SEEN_STATUSES = 4.0  # a site counts as seen while a message of it arrived within so many waits between two statuses


@dataclass(frozen=True, slots=True)
class AtHeight:
    """A message between members about one height; `source` and `target` are indices on its stage."""

    height: int
    source: int
    target: int
    message: Message


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """The status of a site: its height, and what it holds of each change."""

    height: int
    held: frozenset[tuple[Digest, Id]]


@dataclass(frozen=True, slots=True)
class Synced:
    height: int
    decided: Decided


SiteMessage = AtHeight | SiteStatus | Synced | Dossier


class Voter(Member):
    """A site's part in the vote on one height."""

    def __init__(self, site: Site, stage: HeightStage, index: int) -> None:
        super().__init__(
            stage, index, [i for i in range(len(stage.members)) if i != index], honest=True, disk=site.disk
        )
        self.site = site

    def _decide(self, decided: Decided) -> None:
        self.disk.decided = decided
        self.up = False
        self.site.extend(decided)


class Site:
    """A site, of which the chain, the rows and blocks of its height, the changes, and its operator's answers are
    durable."""

    def __init__(self, world: ChangingWorld, address: int) -> None:
        self.address = address
        self.up = False
        self.chain: list[Decided] = []
        self.disk = Disk()
        self.desk = Desk(world.chain_id)
        self.states = [world.genesis.state]
        self._world = world
        self._opinions: dict[Digest, bool] = {}
        self._member: Voter | None = None
        self._seen_s: dict[int, float] = {}
        self._life = 0
        self._has_been_member = self.key is not None

    # ---- its progress

    @property
    def height(self) -> int:
        return len(self.chain)

    @property
    def state(self) -> State:
        return self.states[-1]

    @property
    def key(self) -> Id | None:
        """Its key in the state that judges the next height; None where it has none."""
        return self._find_key(self.state)

    @property
    def is_out(self) -> bool:
        """Says whether it was a member and no longer is."""
        return self.key is None and self._has_been_member

    @property
    def is_done(self) -> bool:
        return self.is_out or self.height >= self._world.plan.target

    def get_block_id(self, height: int) -> Id | None:
        if height == 0:
            return self._world.genesis.block0.id
        return self.chain[height - 1].block_id if height <= self.height else None

    def _find_key(self, state: State) -> Id | None:
        return next((key for key in self._world.get_keys(self.address) if state.index_of(key) is not None), None)

    def describe(self) -> str:
        view = "no vote" if self._member is None else f"view {self._member.voting.view}"
        return f"site {self.address} at height {self.height + 1} ({view}, {self.state})"

    # ---- starting and stopping

    def boot(self) -> None:
        """Boots from durable data alone: the states are derived again."""
        if self.up:
            return
        self.up = True
        self._life += 1
        self._seen_s.clear()
        self.states = self.states[:1]
        for decided in self.chain:
            self._derive(decided)
        for change_id in self.desk.opened:
            self._consider(change_id)
        self._keep_telling()
        self._go_on()

    def crash(self) -> None:
        self.up = False
        if self._member is not None:
            self._member.up = False

    # ---- receiving

    def on_message(self, source: int, message: SiteMessage) -> None:
        if not self.up:
            return
        self._seen_s[source] = self._world.time.now
        match message:
            case AtHeight(height, index, _, inner) if height == self.height + 1:
                if isinstance(inner, Decided):
                    self._sync(inner)
                elif self._member is not None:
                    self._member.on_message(index, inner)
            case SiteStatus():
                self._repair(source, message)
            case Synced(height, decided) if height == self.height + 1:
                self._sync(decided)
            case Dossier():
                self._take(message)

    def _sync(self, decided: Decided) -> None:
        """Receives a finalised block; only its certificate counts, not its sender."""
        block = self._world.blocks.get(decided.block_id)
        if self.is_out or block is None or block.height != self.height + 1:
            return
        judge = self._world.habits.choose_judge(self.states, block)
        if is_certified(judge, block, decided.certificate):
            if self._member is not None:
                self._member.up = False
            self.extend(decided)

    def _repair(self, source: int, status: SiteStatus) -> None:
        for height in range(status.height + 1, min(self.height, status.height + SYNC_HEIGHTS) + 1):
            self._send(source, Synced(height, self.chain[height - 1]))
        for dossier in self.desk.get_news(status.held):
            self._send(source, dossier)

    def _take(self, dossier: Dossier) -> None:
        if dossier.change_id in self.state.executed or not all(map(is_approved, dossier.approvals)):
            return
        if self.desk.add(dossier):
            self._consider(dossier.change_id)
            self._renew()

    # ---- the chain grows

    def extend(self, decided: Decided) -> None:
        world, height = self._world, self.height + 1
        world.on_decided(self, decided)
        self.chain.append(decided)
        self.disk = Disk()
        self._derive(decided)
        world.history.on_state(self.address, height, self.state)
        self.desk.forget(self.state, height + 1)
        world.after_block(self, decided.block_id)
        if self.is_out and not world.habits.serves_when_out:
            world.send_away(self)
        if self.up:
            self._tell()
            self._go_on()

    def _derive(self, decided: Decided) -> None:
        self.states.append(follow(self.state, self._world.blocks[decided.block_id]))
        self._has_been_member |= self.key is not None

    def _go_on(self) -> None:
        """Enters the next height, with the key and among the members of the state before it."""
        world = self._world
        self._member = None
        for step in world.take_steps(self):
            self._propose(step)
        self._renew()
        if self.height >= world.plan.target:
            return
        stage = world.get_stage(self.height + 1)
        key = self._find_key(world.habits.choose_electorate(self.states))
        if key is not None and not self.is_out:
            self._member = Voter(self, stage, stage.members.index(key))
            self._member.boot()

    # ---- changes

    def choose_change(self) -> ApprovedChange | None:
        """Chooses what this site mines now: the first complete change, or a round. It includes a join only while it
        sees the joiner."""
        complete = self.desk.find_complete(self.state, self.height + 1, self.get_block_id)
        return next((approved for _, approved in complete if self._would_include(approved)), None)

    def _would_include(self, approved: ApprovedChange) -> bool:
        kind = read_change(approved.change).kind
        if not isinstance(kind, AddMember) or not self._world.habits.looks_for_joiner:
            return True
        seen_s = self._seen_s.get(self._world.get_owner(kind.key), -1e9)
        return self._world.time.now - seen_s <= SEEN_STATUSES * self._world.temper.waits.status_s

    def _propose(self, step: Step) -> None:
        change = self._world.make_change(step, self.state, self.height)
        if change is not None:
            change_id = self.desk.open(change)
            self._opinions[change_id] = True
            self._renew()
            self._broadcast(self.desk.get_dossier(change_id))
            self._world.on_proposed(change_id, change)

    def accuse(self, first: Vote, second: Vote) -> None:
        """Proposes a conviction; evidence proves itself, so it needs no approval."""
        member = self.state.get_member(first.voter)
        own = None if self.key is None else self.state.get_member(self.key)
        if member is None or own is None or member.is_suspended or self._accuses(first.voter):
            return
        evidence = encode_evidence(make_evidence(*(self._world.sign_really(v) for v in (first, second))))
        made = self.height
        change_id = self.desk.open(Change(Convict(evidence), own.seat, made, made + 1, made + 1000))
        self._broadcast(self.desk.get_dossier(change_id))

    def _accuses(self, key: Id) -> bool:
        kinds = (held.change.kind for held in self.desk.opened.values())
        return any(isinstance(kind, Convict) and key in kind.evidence for kind in kinds)

    def _consider(self, change_id: Digest) -> None:
        """Has its operator consider the change after some time."""
        if change_id not in self._opinions and not isinstance(self.desk.opened[change_id].change.kind, Convict):
            self._later(self._world.draw_thinking_s(), partial(self._make_up_mind, change_id))

    def _make_up_mind(self, change_id: Digest) -> None:
        if change_id in self.desk.opened and change_id not in self._opinions:
            self._opinions[change_id] = self._world.draw_opinion(self.desk.opened[change_id].change)
            self._renew()

    def _renew(self) -> None:
        """Signs what is to be signed again: with the key in force now, and readiness with a new key."""
        for change_id, held in self.desk.opened.items():
            said = []
            if self._opinions.get(change_id) and self.key is not None and self.key not in held.approvals:
                approval = approve(change_id, self.key)
                held.approvals[self.key] = approval
                said.append(Dossier(change_id, held.change, (approval,)))
            new_key = held.change.kind.get_new_key()
            if new_key in self._world.get_keys(self.address) and new_key not in held.readiness:
                ready = self._stand_ready(change_id, new_key)
                held.readiness[new_key] = ready
                said.append(Dossier(change_id, held.change, (), (ready,)))
            for dossier in said:
                self._broadcast(dossier)

    def _stand_ready(self, change_id: Digest, key: Id) -> Readiness:
        world, block_id = self._world, self.get_block_id(self.height)
        assert block_id is not None
        world.on_ready(self)
        return stand_ready(world.get_signing_key(key), world.chain_id, change_id, self.height, block_id)

    # ---- messages

    def _keep_telling(self) -> None:
        self._tell()
        self._later(self._world.temper.waits.status_s, self._keep_telling)

    def _tell(self) -> None:
        self._broadcast(SiteStatus(self.height, self.desk.get_held()))

    def _broadcast(self, message: SiteMessage) -> None:
        for target in range(len(self._world.plan.fates)):
            if target != self.address:
                self._send(target, message)

    def _send(self, target: int, message: SiteMessage) -> None:
        self._world.post(self.address, target, message)

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        life = self._life

        def run() -> None:
            if self.up and self._life == life:
                what()

        self._world.time.schedule(after_s, run)


def make_kind(
    step: Step, state: State, seat: int, new_key: Id | None
) -> AddMember | RemoveMember | ReplaceKey | SetRules:
    """Makes the change that a step of a plan stands for."""
    if step.kind is Kind.QUORUM:
        return SetRules({"quorum": (state.rules.quorum, flip_rule(state.rules.quorum))})
    if step.kind in (Kind.REMOVE, Kind.LEAVE):
        return RemoveMember(seat)
    assert new_key is not None
    return AddMember(new_key, f"site{step.site}") if step.kind is Kind.JOIN else ReplaceKey(seat, new_key)
