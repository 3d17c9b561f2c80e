"""A hostile world for several heights of one federation whose members change on the way, from one seed (FEDERATION §5).

The faults are those of `support.faults.scheduler`, and more: joiners fall silent, keys that are no longer in force are
stolen and lie, liars show invalid certificates, and the power fails for all at the height of a change. Each site
derives its own states and judges each height by the one before it. Checked are the invariants of each height and those
of `support.federation.history`; I16 says that no site is stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random

from chain import codec
from chain.block import ZERO, ApprovedChange, Digest, Id, Vote
from chain.changes.base import Place
from chain.changes.change import Change, read_change
from chain.changes.execution import execute_change
from chain.errors import InvalidChange
from chain.genesis import Genesis
from chain.signing import SigningKey
from chain.state import State
from support.data.chains import make_digest, make_genesis
from support.faults.dossiers import Desk, Dossier, approve, stand_ready
from support.faults.height_stage import HeightStage
from support.faults.plans import Fate, Kind, Plan, Roster, Step
from support.faults.scheduler import PATIENCE_S, Network, draw_temper
from support.faults.sites import AtHeight, Site, SiteMessage, make_kind
from support.faults.stage import Timeline, draw_skews_s
from support.faults.voters import Decided
from support.federation.history import History, PlainBlock
from support.federation.invariants import InvariantBroken


@lru_cache(maxsize=256)
def make_key(address: int, generation: int) -> SigningKey:
    return SigningKey.from_private_bytes(make_digest(f"site {address}, key {generation}"))


@lru_cache(maxsize=32)
def make_founding(n: int, rule: str) -> Genesis:
    return make_genesis(sorted((make_key(i, 0) for i in range(n)), key=lambda key: key.id), quorum=rule)


@dataclass(frozen=True)
class Habits:
    """The habits of honest sites. Others than the defaults are here to be caught."""

    looks_for_joiner: bool = True  # honest miners include a join only while they see the joiner
    serves_when_out: bool = True  # a removed member goes on sending what it has

    def choose_electorate(self, states: Sequence[State]) -> State:
        """Returns the state whose members vote at the next height."""
        return states[-1]

    def choose_judge(self, states: Sequence[State], block: PlainBlock) -> State:
        """Returns the state that checks a certificate that comes from elsewhere."""
        return self.choose_electorate(states)


@dataclass(frozen=True, slots=True)
class Outcome:
    head: Id
    state: Digest
    executed: tuple[str, ...]  # the kinds of changes, in order
    steps: int


class ChangingWorld:
    """Several heights of one federation under one seed."""

    def __init__(
        self,
        seed: int,
        n: int,
        f: int,
        *,
        plan: Plan | None = None,
        calm: bool | None = None,
        habits: Habits | None = None,
        leaves_out: Sequence[str] = (),
    ) -> None:
        self.rng = rng = Random(f"changes {seed}/{n}/{f}")
        self.plan = Plan.draw(rng, n, f) if plan is None else plan
        self.habits = Habits() if habits is None else habits
        self.time = Timeline()
        self.temper, self._is_calm = draw_temper(rng, calm)
        self._healed_s = 0.0 if self._is_calm else rng.choice((10.0, 40.0, 100.0))
        self._network = Network(rng, self._healed_s, ())
        self._power_failure = 0.0 if self._is_calm else rng.choice((0.0, 0.02, 0.1))
        self._blackout = 0.0 if self._is_calm else rng.choice((0.0, 0.3, 1.0))
        self._agreement = rng.choice((0.8, 1.0, 1.0))
        self._thinking_s = rng.choice((0.5, 3.0, 10.0))
        self._accusing = rng.choice((0.0, 1.0))
        num_sites = len(self.plan.fates)
        self.skews_s = draw_skews_s(Random(f"clocks of changes {seed}/{n}/{f}"), num_sites)
        self.genesis = make_founding(self.plan.num_founders, self.plan.rule)
        self.chain_id = self.genesis.chain_id
        self.history = History(self.genesis, leaves_out)
        self.blocks: dict[Id, PlainBlock] = {}
        self._keys = {address: [make_key(address, 0)] for address in range(num_sites)}
        self._owners = {keys[0].id: address for address, keys in self._keys.items()}
        self._signing = {key.id: key for keys in self._keys.values() for key in keys}
        self._steps = list(self.plan.steps)
        self._stages: dict[int, HeightStage] = {}
        self._rumours = Desk(self.chain_id)  # every approval that was ever sent: liars know them
        self._away: set[int] = set()
        self._needed: list[Site] = []
        self.sites = {a: Site(self, a) for a in self.plan.get_sites(Fate.LIVE, Fate.FADING)}
        self._open()

    def run(self, patience_s: float | None = None) -> Outcome:
        """Runs until every site that is up when the network has settled is at the target, or out of the federation."""
        patience_s = PATIENCE_S * self.plan.target if patience_s is None else patience_s
        self.time.advance(self._healed_s + patience_s, self._is_over)
        stuck = [site.describe() for site in self._needed if not site.is_done]
        if stuck:
            raise InvariantBroken("I16", "; ".join(stuck))
        return self._describe()

    def _is_over(self) -> bool:
        return bool(self._needed) and all(site.is_done for site in self._needed)

    def _describe(self) -> Outcome:
        history = self.history
        changes = [block.change for block in history.blocks if block.change is not None]
        kinds = tuple(read_change(change.change).kind.name for change in changes)
        return Outcome(history.blocks[-1].id, history.states[-1].digest, kinds, self.time.steps)

    # ---- who is who

    def get_fate(self, address: int) -> Fate:
        return self.plan.fates[address]

    def get_keys(self, address: int) -> list[Id]:
        return [key.id for key in self._keys[address]]

    def get_owner(self, key: Id) -> int:
        return self._owners[key]

    def get_signing_key(self, key: Id) -> SigningKey:
        return self._signing[key]

    def get_stolen(self) -> list[Id]:
        """Returns the keys that are stolen: once in force, and now no more."""
        retired = [old.key for old in self.history.states[-1].retired]
        return [key for key in retired if self._owners[key] in self.plan.ghosts]

    def _add_key(self, address: int) -> Id:
        key = make_key(address, len(self._keys[address]))
        self._keys[address].append(key)
        self._owners[key.id] = address
        self._signing[key.id] = key
        return key.id

    def sign_really(self, vote: Vote) -> Vote:
        """Signs a liar's vote with its real key, as evidence needs it."""
        return codec.sign_vote(
            self._signing[vote.voter],
            self.chain_id,
            phase=vote.phase,
            height=vote.height,
            view=vote.view,
            block_id=vote.block_id,
        )

    # ---- what sites request

    def get_stage(self, height: int) -> HeightStage:
        if height not in self._stages:
            self._stages[height] = HeightStage(self, height)
            for step in [s for s in self._steps if self.get_fate(s.proposer) is Fate.LYING and s.at < height]:
                self._steps.remove(step)
                self._rotate_liar(step, height)
        return self._stages[height]

    def take_steps(self, site: Site) -> list[Step]:
        """Returns the steps that this site is to propose now."""
        due = [s for s in self._steps if s.proposer == site.address and s.at <= site.height and site.key is not None]
        self._steps = [step for step in self._steps if step not in due]
        return due

    def make_change(self, step: Step, state: State, height: int) -> Change | None:
        """Makes the change of a step, checked as its proposer would; None where it is not possible."""
        seats = {self._owners[member.key]: member.seat for member in state.members}
        if step.kind is not Kind.JOIN and step.kind is not Kind.QUORUM and step.site not in seats:
            return None
        new = {Kind.JOIN: step.site, Kind.REPLACE: step.new}.get(step.kind)
        new_key = self._keys[new][0].id if new is not None else None
        if step.kind is Kind.ROTATE:
            new_key = self._add_key(step.site)
        first = height + self.rng.choice((1, 1, 1, 2))
        expires = height + self.rng.choice((3, 1000, 1000))
        kind = make_kind(step, state, seats.get(step.site, -1), new_key)
        change = Change(kind, seats[step.proposer], height, first, expires)
        try:
            execute_change(state, change, Place(first, ZERO))
        except InvalidChange:
            return None
        return change

    def on_proposed(self, change_id: Digest, change: Change) -> None:
        """Has the liars answer a change."""
        for member in self.history.states[-1].members:
            if self.get_fate(self._owners[member.key]) is Fate.LYING and self.rng.random() < 0.7:
                self._tell_all(Dossier(change_id, change, (approve(change_id, member.key),)), member.key)
        new_key = change.kind.get_new_key()
        if new_key is not None and self.get_fate(self._owners[new_key]) is Fate.LYING:
            self.time.schedule(self.rng.uniform(0, 10), partial(self._claim_ready, change_id, change, new_key))

    def _claim_ready(self, change_id: Digest, change: Change, key: Id) -> None:
        height, block = self.history.height, self.history.blocks[-1]
        ready = stand_ready(self._signing[key], self.chain_id, change_id, height, block.id)
        self._tell_all(Dossier(change_id, change, (), (ready,)), key)

    def _rotate_liar(self, step: Step, height: int) -> None:
        state = self.history.states[height - 1]
        if step.kind is not Kind.ROTATE:
            return
        old = [key for key in self.get_keys(step.site) if state.index_of(key) is not None]
        change = self.make_change(step, state, height - 1)
        if change is not None:
            change_id = change.compute_id(self.chain_id)
            self._tell_all(Dossier(change_id, change, (approve(change_id, old[0]),)), old[0])
            self.on_proposed(change_id, change)

    def _tell_all(self, dossier: Dossier, key: Id) -> None:
        for target in self.sites:
            self.post(self._owners[key], target, dossier)

    def on_ready(self, site: Site) -> None:
        if self.get_fate(site.address) is Fate.FADING:
            self.time.schedule(self.rng.uniform(0, 10), partial(self.send_away, site))

    def send_away(self, site: Site) -> None:
        """Takes a site down for good."""
        self._away.add(site.address)
        site.crash()

    def choose_change(self, stage: HeightStage, address: int) -> ApprovedChange | None:
        """Chooses the change that a miner puts into its block; a liar may choose any."""
        if address in self.sites:
            return self.sites[address].choose_change()
        complete = self._rumours.find_complete(stage.state, stage.height, self.history.get_block_id)
        return self.rng.choice(complete)[1] if complete and self.rng.random() < 0.7 else None

    def draw_thinking_s(self) -> float:
        return self.rng.expovariate(1 / self._thinking_s)

    def draw_opinion(self, change: Change) -> bool:
        """Draws whether an operator approves."""
        return self.rng.random() < self._agreement

    # ---- what sites send

    def post(self, source: int, target: int, message: SiteMessage) -> None:
        if isinstance(message, Dossier):
            self._rumours.add(message)
        carried = message.message if isinstance(message, AtHeight) else message
        for delay in self._network.draw_delays(self.time.now, source, target, carried):
            self.time.schedule(delay, partial(self._deliver, source, target, message))

    def _deliver(self, source: int, target: int, message: SiteMessage) -> None:
        if isinstance(message, AtHeight):
            self._stages[message.height].deliver(message)
        elif target in self.sites:
            self.sites[target].on_message(source, message)

    def on_decided(self, site: Site, decided: Decided) -> None:
        """Checks a block that a site has finalised."""
        block = self.blocks[decided.block_id]
        self.history.on_decided(site.address, block, decided.certificate)
        stage = self.get_stage(block.height)
        index = stage.members.index(site.key) if site.key in stage.members else len(stage.members) + site.address
        stage.checker.on_decided(index, decided.block_id, decided.certificate)

    def after_block(self, site: Site, block_id: Id) -> None:
        """Draws whether the power fails for all at the height of a change; closes a height that all have left."""
        is_change = self.blocks[block_id].change is not None
        if is_change and self.time.now < self._healed_s and self.rng.random() < self._blackout:
            for other in self.sites.values():
                self._crash(other)
        staying = [s.height for s in self.sites.values() if s.address not in self._away and not s.is_out]
        for height in [height for height in self._stages if height <= min(staying, default=0)]:
            self._stages[height].close()

    def on_evidence(self, address: int, first: Vote, second: Vote) -> None:
        if address in self.sites and self.rng.random() < self._accusing:
            self.sites[address].accuse(first, second)

    # ---- what goes wrong

    def is_power_failing(self) -> bool:
        return self.time.now < self._healed_s and self.rng.random() < self._power_failure

    def strike(self, victim: Site) -> None:
        self._crash(victim)
        for site in self.sites.values() if self.rng.random() < 0.3 else ():
            self._crash(site)

    def _open(self) -> None:
        for site in self.sites.values():
            self.time.schedule(self.rng.uniform(0, 1), partial(self._boot, site))
        while not self._is_calm and self.rng.random() < 0.8:
            self.time.schedule(self.rng.uniform(0, self._healed_s), self._disturb)
        self.time.schedule(self._healed_s, self._heal)

    def _disturb(self) -> None:
        if self.rng.random() < 0.3:
            share = self.rng.choice((0.3, 1.0))
            for site in self.sites.values():
                if self.rng.random() < share:
                    self._crash(site)
        else:
            self._network.break_links(len(self.plan.fates))

    def _boot(self, site: Site) -> None:
        if site.address not in self._away:
            site.boot()

    def _crash(self, site: Site) -> None:
        if site.up:
            site.crash()
            self.time.schedule(self.rng.expovariate(1 / 8.0), partial(self._boot, site))

    def _heal(self) -> None:
        """Settles the network. Some sites that nothing depends on stay down: they have approved nothing that is
        open."""
        live = [site for site in self.sites.values() if self.get_fate(site.address) is Fate.LIVE]
        if not self._is_calm:
            for site in self.rng.sample(live, self.rng.randrange(len(live) + 1)):
                if not self._is_bound(site, live) and self._are_enough({*self._away, site.address}, live):
                    self.send_away(site)
        self._needed = [site for site in live if site.address not in self._away]
        for site in self._needed:
            self._boot(site)

    def _is_bound(self, site: Site, live: Sequence[Site]) -> bool:
        executed = self.history.states[min(other.height for other in live)].executed
        keys = set(self.get_keys(site.address))
        unfinished = (said for change_id, said in self._rumours.opened.items() if change_id not in executed)
        return any(keys & (said.approvals.keys() | said.readiness.keys()) for said in unfinished)

    def _are_enough(self, away: set[int], live: Sequence[Site]) -> bool:
        lowest = min(site.height for site in live)
        for state in set(self.history.states[lowest:]):
            roster = Roster(frozenset(self._owners[key] for key in state.member_ids), state.rules.quorum)
            if not self.plan.is_viable(roster, self.plan.steps, away):
                return False
        return True


def run_schedule(
    seed: int,
    n: int,
    f: int,
    *,
    plan: Plan | None = None,
    calm: bool | None = None,
    habits: Habits | None = None,
    leaves_out: Sequence[str] = (),
    patience_s: float | None = None,
) -> Outcome:
    """Runs several heights under one seed. Raises `InvariantBroken` naming what broke, and the schedule that shows
    it."""
    world = ChangingWorld(seed, n, f, plan=plan, calm=calm, habits=habits, leaves_out=leaves_out)
    try:
        return world.run(patience_s)
    except InvariantBroken as broken:
        broken.add_note(f"schedule: seed={seed} n={n} f={f} calm={calm} plan={world.plan}")
        raise
