"""The target of a learner: the state that its worker is to reach, the inputs that it needs for that, and the listener
it reports to."""

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
    """Describes the state that the worker is to reach: in the run of `state`, the state after `head`, with the last
    round applied and, if `trains`, one local phase for the next done.

    `made_height` is the height of the block that the last round made, 0 where the run has none yet. `has_contributed`:
    this node's contribution to the height after `head` is durable already. `num_iterations` is the phase's E, the same
    in each repetition; None is the method's own number. `may_start`: a worker may begin this run, since this node takes
    part in it. With `only_starts` the node is about to take part: the worker starts, and applies nothing yet. With
    `only_starts` and without `may_start`, for lack of the initial model, the worker is only warmed up.
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
        """Returns the height after the head, for which the worker trains."""
        return self.head.height + 1

    @property
    def made(self) -> Place:
        """Returns the last round of the run that was trained for, 0 where there is none yet."""
        return Place(self.run.number, self.run.get_trained(self.head.height))

    @property
    def terms(self) -> RunTerms:
        """Returns the terms that a worker of this run is built by."""
        limits = self.state.rules.limits
        return self.run.number, self.run.rounds, limits.max_weight, limits.max_abs

    def wants_as(self, other: Target) -> bool:
        """Says whether the worker has to do the same for both targets, even if for another height."""
        ours = self.terms, self.made, self.trains, self.only_starts
        theirs = other.terms, other.made, other.trains, other.only_starts
        return ours == theirs and (self.height != other.height or self.num_iterations == other.num_iterations)


@dataclass(frozen=True, slots=True)
class RoundInput:
    """Holds the worker's input from a final block: its aggregate, None where the method has none, and the blobs fetched
    from single peers."""

    aggregate: bytes | None
    exchange: Exchange = NOTHING_TAKEN


class RoundInputs(Protocol):
    """Provides the learner with inputs from final blocks."""

    async def open_run(self, state: State) -> RunTask:
        """Returns what the worker needs to begin the run in force, however long it takes to fetch its initial model."""

    async def gather(self, height: int) -> RoundInput:
        """Returns what the worker needs of the block that a round made, however long it takes to fetch it."""

    async def prepare(self, height: int, head: Block) -> Exchange:
        """Returns what the local phase for a height, on a head, reads of an earlier block."""

    async def recall(self, before: Place) -> tuple[int, bytes] | None:
        """Returns the newest aggregate of a run before this round that is held here, with its round; None where there
        is none."""


@dataclass(frozen=True, slots=True)
class SpoiledAggregate:
    """Names the newest aggregate that is not in the client's model, by the height of its block, and why."""

    height: int
    reason: str


class Listener(Protocol):
    """Receives the learner's reports."""

    async def on_trained(self, height: int, trained: Trained) -> None: ...

    def on_applied(self, height: int, metrics: Metrics) -> None: ...

    def on_measured(self, height: int, measured: Measured) -> None:
        """Receives the measures of the model after the aggregate of this height. A second call follows when training
        alone, which lagged then, has caught up."""

    def on_peer_refused(self, height: int, peer: Id, reason: str) -> None:
        """Notes that this peer's offer at this height would have harmed the client, and was refused."""

    def on_spoiled(self, height: int, reason: str) -> None:
        """Notes that the aggregate of this height is not in the client's model, or no longer."""

    async def on_training_failed(self, height: int, reason: str) -> None: ...
