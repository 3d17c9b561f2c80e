"""The target of a worker: which state it should come to, and what of it two targets may share."""

from __future__ import annotations

from dataclasses import dataclass

from chain.block import Block
from chain.calendar import Place
from chain.run import Run
from chain.state import State

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
