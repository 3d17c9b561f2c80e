"""The target of a learner: the state that its worker is to come to, what it is given for that, whom it reports to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chain.block import Block, Id
from chain.calendar import Place
from chain.run import Run
from chain.state import State
from node.training.exchange import Exchange
from node.training.trainer import NOTHING_TAKEN, Measured, Metrics, RunTask, Trained

RunTerms = tuple[int, int, int, float]


@dataclass(frozen=True, slots=True)
class Target:
    """The state that the worker should come to: in the run of `state`, which is that after `head`, the last round
    applied and, if `trains`, one local phase for the next done.

    `made_height` is that of the block which the last round made, 0 where the run has none yet. `has_contributed`: this
    node's contribution to the height after `head` is durable already. `num_iterations` is the phase's E, the same
    however often it is repeated; None is the method's own number. `may_start`: a worker may begin this run, since this
    node has a part in it, or is about to have one: then it `only_starts`, and takes nothing in yet. What `only_starts`
    and may not start, for want of the initial model, is warmed up.
    """

    head: Block
    state: State
    made_height: int
    trains: bool
    has_contributed: bool = False
    num_iterations: int | None = None
    may_start: bool = True
    only_starts: bool = False

    @property
    def run(self) -> Run:
        return self.state.run

    @property
    def height(self) -> int:
        """The height after the head, which training is for."""
        return self.head.height + 1

    @property
    def made(self) -> Place:
        """The last round of the run that was trained for, 0 where there is none yet."""
        return Place(self.run.number, self.run.get_trained(self.head.height))

    @property
    def terms(self) -> RunTerms:
        """What a worker of this run is built by."""
        limits = self.state.rules.limits
        return self.run.number, self.run.rounds, limits.max_weight, limits.max_abs

    def wants_as(self, other: Target) -> bool:
        """Whether it wants the same of the worker, be it for another height."""
        ours = self.terms, self.made, self.trains, self.only_starts
        theirs = other.terms, other.made, other.trains, other.only_starts
        return ours == theirs and (self.height != other.height or self.num_iterations == other.num_iterations)


@dataclass(frozen=True, slots=True)
class RoundInput:
    """The input of the worker from a final block: its aggregate, None where the method has none, and what was taken of
    single peers."""

    aggregate: bytes | None
    exchange: Exchange = NOTHING_TAKEN


class RoundInputs(Protocol):
    """The learner's source of what final blocks give."""

    async def open_run(self, state: State) -> RunTask:
        """What the worker needs to begin the run in force, however long it takes to get its initial model."""

    async def gather(self, height: int) -> RoundInput:
        """What the worker needs of the block that a round made, however long it takes to get it."""

    async def prepare(self, height: int, head: Block) -> Exchange:
        """What the local phase for a height, on a head, reads of an earlier block."""

    async def recall(self, before: Place) -> tuple[int, bytes] | None:
        """The newest aggregate of a run before this round that is held here, with the round it is of."""


@dataclass(frozen=True, slots=True)
class SpoiledAggregate:
    """The newest aggregate that is not in the client's model, by the height that it was made at, and why."""

    height: int
    reason: str


class Listener(Protocol):
    """Whom the learner reports to."""

    async def on_trained(self, height: int, trained: Trained) -> None: ...

    def on_applied(self, height: int, metrics: Metrics) -> None: ...

    def on_measured(self, height: int, measured: Measured) -> None:
        """Hears what the model was worth when it had taken in the aggregate of this height; and once more when training
        alone has caught up, which lagged then."""

    def on_peer_refused(self, height: int, peer: Id, reason: str) -> None:
        """Hears that this peer's offer at this height would have harmed the client, and was not taken."""

    def on_spoiled(self, height: int, reason: str) -> None:
        """The aggregate of this height is not in the client's model, or not any more."""

    async def on_training_failed(self, height: int, reason: str) -> None: ...
