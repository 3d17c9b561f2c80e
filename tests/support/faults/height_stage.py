"""One height of a federation that changes: its members by the state before it, its liars, and what they show around."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from chain.block import ZERO, Certificate, Id, Phase, Vote
from chain.changes.base import Place
from chain.changes.execution import validate_approved
from chain.errors import ChainError
from chain.finality import Voting
from support.faults.dossiers import is_approved
from support.faults.liars import Liar, Plot, make_liars
from support.faults.plans import Fate
from support.faults.sites import AtHeight, Synced, Voter
from support.faults.stage import Stage
from support.faults.voters import Decided, Member, Message, VotingRule
from support.federation.history import PlainBlock
from support.federation.invariants import Checker, sign

if TYPE_CHECKING:
    from support.faults.changing_world import ChangingWorld
    from support.faults.scheduler import Actor


class HeightStage(Stage):
    """One height: its members in the state before it, and the stolen keys that were once in force."""

    def __init__(self, world: ChangingWorld, height: int) -> None:
        self._world = world
        self.parent = world.history.blocks[height - 1]
        self.state = world.history.states[height - 1]
        self._electorate = world.habits.choose_electorate(world.history.states[:height])
        members = self._electorate.member_ids
        stolen = world.get_stolen()
        self._voters = (*members, *(key for key in stolen if key not in members))
        self._addresses = [world.get_owner(key) for key in self._voters]
        super().__init__(
            world.rng,
            world.time,
            world.temper,
            height=height,
            members=members,
            quorum=self._electorate.q,
            skews_s=[world.skews_s[address] for address in self._addresses],
        )
        fates = [world.get_fate(address) for address in self._addresses]
        lying = [i for i, key in enumerate(members) if fates[i] is Fate.LYING or key in stolen]
        honest = frozenset(range(len(members))).difference(lying)
        self.checker = Checker(members, self.quorum, honest)
        self._valid: dict[Id, bool] = {}
        self._heard: dict[tuple[int, Id], dict[int, bytes]] = {}
        self._is_over = False
        self._actors: dict[int, list[Actor]] = make_liars(self, lying)
        for ghost in range(len(members), len(self._voters)):
            self._actors[ghost] = [Liar(self, ghost, Plot.draw(self.rng, len(members)))]
        for actors in self._actors.values():
            for actor in actors:
                if isinstance(actor, Member):
                    self.time.schedule(self.rng.uniform(0, 1), partial(self._boot, actor))

    def get_voter(self, index: int) -> Id:
        return self._voters[index]

    def get_coordinator(self, view: int) -> int:
        active = self._electorate.active_ids
        return self.members.index(active[(self.height + view) % len(active)])

    def open_voting(self, me: Id) -> VotingRule:
        return Voting(
            height=self.height,
            members=self.members,
            quorum=self.quorum,
            me=me,
            waits=self.temper.waits,
            coordinators=self._electorate.active_ids,
        )

    def make_block(self, miner: int, time_s: float | None = None) -> Id:
        block_id = super().make_block(miner, time_s)
        change = self._world.choose_change(self, self._addresses[miner])
        block = PlainBlock(block_id, self.height, self.parent.id, self.get_voter(miner), change)
        self._world.blocks[block_id] = block
        return block_id

    def _get_opinion(self, index: int, block_id: Id) -> tuple[bool, bool]:
        """Returns the opinion on a block: a change needs no authors to be acceptable."""
        if self._world.blocks[block_id].change is not None:
            return True, True
        return super()._get_opinion(index, block_id)

    def is_valid(self, block_id: Id) -> bool:
        if block_id not in self._valid:
            self._valid[block_id] = self._validate(self._world.blocks[block_id])
        return self._valid[block_id]

    def _validate(self, block: PlainBlock) -> bool:
        """Validates a block by the rules of the chain: the miner is active, and a change has all consent that it
        needs."""
        if (block.height, block.parent) != (self.height, self.parent.id) or not self.state.is_active(block.miner):
            return False
        if block.change is None:
            return True
        place, get_block_id = Place(self.height, ZERO), self._world.history.get_block_id
        try:
            validate_approved(self.state, block.change, place, get_block_id, is_approved)
        except ChainError:
            return False
        return True

    # ---- between those who vote

    def post(self, source: int, target: int, message: Message) -> None:
        if not self._is_over:
            envelope = AtHeight(self.height, source, target, message)
            self._world.post(self._addresses[source], self._addresses[target], envelope)

    def deliver(self, envelope: AtHeight) -> None:
        if isinstance(envelope.message, bytes) and not self.is_valid(envelope.message):
            return
        site = self._world.sites.get(self._addresses[envelope.target])
        if site is not None:
            site.on_message(self._addresses[envelope.source], envelope)
        for actor in self._actors.get(envelope.target, ()):
            actor.on_message(envelope.source, envelope.message)

    def spread(self, vote: Vote) -> None:
        for actors in self._actors.values():
            for actor in actors:
                actor.on_overheard(vote)
        if vote.phase is Phase.PRECOMMIT and self._actors and vote.block_id in self._world.blocks:
            self._forge(vote)

    def _forge(self, vote: Vote) -> None:
        """Sends an incomplete certificate, with all votes that the liars can add, as if it were complete."""
        heard = self._heard.setdefault((vote.view, vote.block_id), {})
        heard[self.members.index(vote.voter)] = vote.signature
        for index in self._actors:
            if index < len(self.members):
                heard[index] = sign(vote.phase, self.height, vote.view, vote.block_id, self.members[index]).signature
        if self.rng.random() < 0.3:
            forged = Decided(vote.block_id, Certificate(vote.view, tuple(sorted(heard.items()))))
            target = self.rng.choice([*self._world.sites])
            self._world.post(self._addresses[min(self._actors)], target, Synced(self.height, forged))

    def on_evidence(self, index: int, first: Vote, second: Vote) -> None:
        super().on_evidence(index, first, second)
        self._world.on_evidence(self._addresses[index], first, second)

    # ---- power

    def is_power_failing(self) -> bool:
        return self._world.is_power_failing()

    def strike(self, victim: Member) -> None:
        if isinstance(victim, Voter):
            self._world.strike(victim.site)
        elif victim.up:
            victim.up = False
            self.time.schedule(self.rng.expovariate(1 / 8.0), partial(self._boot, victim))

    def _boot(self, member: Member) -> None:
        if not member.up and not self._is_over:
            member.boot()

    def close(self) -> None:
        """Closes the height, once all honest sites have left it."""
        self._is_over = True
        for actors in self._actors.values():
            for actor in actors:
                if isinstance(actor, Member):
                    actor.up = False
