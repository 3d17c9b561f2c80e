"""The plan of what is to change in a federation while a schedule runs, and what becomes of those who take part.

A site is known by its address: founders first, then those that may join or replace. A plan is drawn so that I16 can be
required: whichever part of it is executed, in any order, the honest sites that stay make a quorum. Where nobody lies or
falls silent, this is required of the founders alone: from there on the rules of consent must ensure it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations
from random import Random

from chain.rules import compute_quorum


class Fate(Enum):
    LIVE = "honest, comes back after each crash"
    DEAD = "never there"
    FADING = "honest, silent for ever soon after it has said that it is ready"
    LYING = "says anything"


class Kind(Enum):
    JOIN = "join"
    REMOVE = "remove"
    LEAVE = "leave"
    ROTATE = "rotate"
    REPLACE = "replace"  # a lost key, by the key of another site
    QUORUM = "quorum"  # the other quorum rule


@dataclass(frozen=True, slots=True)
class Step:
    """A change that `proposer` proposes when it has `at` blocks. `site` is the subject of it, `new` takes its place."""

    kind: Kind
    proposer: int
    at: int
    site: int = -1
    new: int = -1


@dataclass(frozen=True, slots=True)
class Roster:
    """The sites whose keys are in force, and the quorum rule."""

    sites: frozenset[int]
    rule: str

    @property
    def q(self) -> int:
        return compute_quorum(self.rule, len(self.sites))

    def follow(self, steps: Iterable[Step]) -> Roster:
        sites, rule = set(self.sites), self.rule
        for step in steps:
            if step.kind is Kind.JOIN:
                sites.add(step.site)
            elif step.kind in (Kind.REMOVE, Kind.LEAVE):
                sites.discard(step.site)
            elif step.kind is Kind.REPLACE and step.site in sites:
                sites = sites - {step.site} | {step.new}
            elif step.kind is Kind.QUORUM:
                rule = flip_rule(rule)
        return Roster(frozenset(sites), rule)


def flip_rule(rule: str) -> str:
    return "bft" if rule == "majority" else "majority"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. `target` is the height at which the schedule ends; `fates` are by address."""

    num_founders: int
    rule: str
    fates: tuple[Fate, ...]
    steps: tuple[Step, ...]
    target: int
    ghosts: frozenset[int] = field(default=frozenset())  # sites whose keys are stolen once they are not in force

    @property
    def founders(self) -> Roster:
        return Roster(frozenset(range(self.num_founders)), self.rule)

    @property
    def is_guarded(self) -> bool:
        """Says whether the rules of consent alone keep a quorum of honest sites: those that consent stay up."""
        return not {Fate.LYING, Fate.FADING} & set(self.fates)

    def get_sites(self, *fates: Fate) -> list[int]:
        return [address for address, fate in enumerate(self.fates) if fate in fates]

    def is_viable(self, roster: Roster, open_steps: Sequence[Step], away: Collection[int] = ()) -> bool:
        """Says whether a quorum stays, and not too many lie, whichever of these steps is executed next."""
        return all(self._is_sound(roster.follow(steps), away) for steps in self._get_courses(open_steps))

    def _get_courses(self, steps: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
        if self.is_guarded:
            yield ()
            return
        possible = [step for step in steps if self._may_be_executed(step)]
        for size in range(len(possible) + 1):
            yield from combinations(possible, size)

    def _may_be_executed(self, step: Step) -> bool:
        """Says whether a step can be executed: not where the new key is never ready."""
        newcomer = {Kind.JOIN: step.site, Kind.REPLACE: step.new}.get(step.kind)
        return newcomer is None or self.fates[newcomer] is not Fate.DEAD

    def _is_sound(self, roster: Roster, away: Collection[int]) -> bool:
        live = sum(self.fates[site] is Fate.LIVE and site not in away for site in roster.sites)
        lying = sum(self.fates[site] is Fate.LYING for site in roster.sites)
        return bool(roster.sites) and live >= roster.q and lying <= self._count_bearable(roster)

    @staticmethod
    def _count_bearable(roster: Roster) -> int:
        return (len(roster.sites) - 1) // 3 if roster.rule == "bft" else 0

    @classmethod
    def draw(cls, rng: Random, n: int, f: int) -> Plan:
        rule = "majority" if f == 0 and rng.random() < 0.3 else "bft"
        fates = [Fate.LIVE] * n
        spare = n - compute_quorum(rule, n) - f
        num_dead = rng.randrange(spare + 1) if rng.random() < 0.5 else 0
        outcasts = rng.sample(range(n), f + num_dead)
        for address in outcasts:
            fates[address] = Fate.LYING if address in outcasts[:f] else Fate.DEAD
        target = rng.randrange(3, 9)
        plan = cls(n, rule, tuple(fates), (), target)
        for _ in range(rng.randrange(1, 5)):
            longer = plan._draw_longer(rng)
            if longer.is_viable(longer.founders, longer.steps):
                plan = longer
        return replace(plan, ghosts=frozenset(a for a in range(len(plan.fates)) if rng.random() < 0.5))

    def _draw_longer(self, rng: Random) -> Plan:
        kind = rng.choice((*[Kind.JOIN] * 3, Kind.REMOVE, Kind.REMOVE, *Kind))
        proposer = rng.choice([site for site in self.get_sites(Fate.LIVE) if site < self.num_founders])
        site = rng.randrange(self.num_founders)
        step = Step(kind, proposer, rng.randrange(self.target - 1), site)
        if kind is Kind.LEAVE:
            return self._append(replace(step, site=proposer))
        if kind is Kind.ROTATE:
            about = rng.choice([proposer, *self.get_sites(Fate.LYING)])
            return self._append(replace(step, proposer=about, site=about))
        if kind is Kind.JOIN:
            return self._append(replace(step, site=len(self.fates)), self._draw_fate(rng))
        if kind is Kind.REPLACE:
            return self._append(replace(step, new=len(self.fates)), self._draw_fate(rng))
        return self._append(step)

    @staticmethod
    def _draw_fate(rng: Random) -> Fate:
        return rng.choice((*[Fate.LIVE] * 5, Fate.DEAD, Fate.FADING, Fate.LYING))

    def _append(self, step: Step, *newcomers: Fate) -> Plan:
        return replace(self, fates=(*self.fates, *newcomers), steps=(*self.steps, step))
