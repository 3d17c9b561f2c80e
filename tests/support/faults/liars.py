"""Members that lie: the seed decides what they send to whom. They collude, and learn everything at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from chain.block import ZERO, Id, Phase, Vote
from support.faults.stage import EARLY_S
from support.faults.voters import Member, Message
from support.federation.invariants import sign

if TYPE_CHECKING:
    from support.faults.scheduler import Actor
    from support.faults.stage import Stage


@dataclass(frozen=True, slots=True)
class Plot:
    """The plan that the liars of a world share."""

    friends: frozenset[int]  # these are to finalise, the others are not
    flatters: bool
    noise: float
    stalls: bool = False  # nobody is to finalise: some are to lock on a block that is too early for others

    @classmethod
    def draw(cls, rng: Random, n: int) -> Plot:
        share = rng.choice((0.5, 1.0))
        friends = frozenset(i for i in range(n) if rng.random() < share)
        return cls(friends, rng.random() < 0.8, rng.choice((0.0, 0.1, 0.5)))


class Liar:
    """Signs anything, sends different objects to different members, and learns at once what every honest member has
    signed."""

    def __init__(self, stage: Stage, index: int, plot: Plot) -> None:
        self._stage = stage
        self._index = index
        self._plot = plot
        self._rng = stage.rng
        self._audience = [i for i in range(len(stage.members)) if i != index]
        self._proposed: set[int] = set()
        self._own: list[Id] = []
        for _ in range(stage.rng.randrange(3)):
            stage.time.schedule(stage.rng.expovariate(1 / stage.temper.mining_s), self._mine)

    def _mine(self) -> None:
        stage, rng = self._stage, self._rng
        block_id = stage.make_block(self._index, self._choose_time_s())
        self._own.append(block_id)
        for target in self._audience:
            if self._plot.stalls or rng.random() < 0.6:
                stage.post(self._index, target, block_id)

    def _choose_time_s(self) -> float:
        """Chooses an honest time, or one that is barely valid for some member when the block arrives."""
        stage, rng = self._stage, self._rng
        edge_s = stage.get_time_s(rng.choice(self._audience)) + EARLY_S
        if self._plot.stalls:
            return edge_s + rng.uniform(0.05, 0.5)
        return rng.choice((stage.get_time_s(self._index), edge_s + rng.uniform(-0.5, 1.0), edge_s + 1000.0))

    def on_message(self, source: int, message: Message) -> None:
        pass

    def on_overheard(self, vote: Vote) -> None:
        if self._plot.stalls:
            self._stall(vote.view)
            return
        if self._plot.flatters:
            self._flatter(vote)
        for view in (vote.view, vote.view + 1):
            if view not in self._proposed and self._stage.get_coordinator(view) == self._index:
                self._proposed.add(view)
                self._propose(view)
        for target in self._audience:
            if self._rng.random() < self._plot.noise:
                self._babble(target, vote)

    def _flatter(self, vote: Vote) -> None:
        """Sends each voter a vote that agrees with its own, and completes a quorum only for chosen members."""
        author = self._stage.members.index(vote.voter)
        self._vote(author, Phase.PREVOTE, vote.view, vote.block_id)
        self._vote(author, Phase.PRECOMMIT, vote.view, vote.block_id if author in self._plot.friends else ZERO)

    def _stall(self, view: int) -> None:
        """Proposes a block and prevotes it in every view but the first, but never precommits it."""
        if view in self._proposed:
            return
        self._proposed.add(view)
        for target in self._audience:
            if view and self._own:
                self._vote(target, Phase.PREVOTE, view, self._own[0])
            self._vote(target, Phase.PRECOMMIT, view, ZERO)

    def _propose(self, view: int) -> None:
        """Proposes one block to all, or another to each."""
        choices = self._rng.choices((ZERO, self._rng.randbytes(32), *self._stage.all_blocks * 4), k=2)
        for target in self._audience:
            self._vote(target, Phase.PREVOTE, view, choices[target in self._plot.friends])

    def _babble(self, target: int, vote: Vote) -> None:
        rng = self._rng
        phase = rng.choice((Phase.PREVOTE, Phase.PRECOMMIT))
        view = rng.choice(
            (*[vote.view] * 4, vote.view + 1, vote.view + 2, max(0, vote.view - 1), vote.view + 12, 2**31)
        )
        self._vote(target, phase, view, rng.choice((ZERO, vote.block_id, rng.randbytes(32), *self._stage.all_blocks)))

    def _vote(self, target: int, phase: Phase, view: int, block_id: Id) -> None:
        vote = sign(phase, self._stage.height, view, block_id, self._stage.get_voter(self._index))
        self._stage.post(self._index, target, vote)


class Silent:
    """A liar that sends nothing at all."""

    def on_message(self, source: int, message: Message) -> None:
        pass

    def on_overheard(self, vote: Vote) -> None:
        pass


def make_liars(stage: Stage, indices: Sequence[int]) -> dict[int, list[Actor]]:
    """Makes liars of one kind, with an occasional exception."""
    rng = stage.rng
    plot = Plot.draw(rng, len(stage.members))
    fashion = rng.choice((Silent, Member, Liar, Liar, Liar))
    if indices and rng.random() < 0.3:
        plot, fashion = replace(plot, stalls=True), Liar
    actors: dict[int, list[Actor]] = {}
    for index in indices:
        kind = rng.choice((Silent, Member, Liar)) if rng.random() < 0.1 else fashion
        if kind is Liar:
            actors[index] = [Liar(stage, index, plot)]
        elif kind is Silent:
            actors[index] = [Silent()]
        else:
            actors[index] = [*_make_twins(stage, index)]
    return actors


def _make_twins(stage: Stage, index: int) -> tuple[Member, Member]:
    """Makes two honest members with one key, each connected with other members (Bano et al. 2020, "Twins")."""
    others = [i for i in range(len(stage.members)) if i != index]
    stage.rng.shuffle(others)
    cut = stage.rng.randrange(len(others) + 1)
    first, second = others[:cut], others[cut:]
    return Member(stage, index, first, honest=False), Member(stage, index, second, honest=False)
