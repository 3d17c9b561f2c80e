"""The top of a chain, as far down as the rules of the next height look, and the state that judges it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chain.block import Block, Header, Id
from chain.changes.execution import READY_HEIGHTS, compute_next_state
from chain.difficulty import LOOKBACK, compute_next_difficulty
from chain.errors import UnknownParent, WrongHeight
from chain.state import State

NUM_HEADERS = max(LOOKBACK, READY_HEIGHTS)  # that a tip holds, where there are so many


def get_first_read(head_height: int) -> int:
    """The lowest height whose block the rules for the height after the head may read."""
    return max(0, head_height + 1 - NUM_HEADERS)


@dataclass(frozen=True, slots=True)
class Tip:
    """The head and the headers up to it, the state that judges what comes next, and the one that judged the head.
    Extending gives a new tip and leaves this one alone."""

    state: State
    block: Block
    headers: tuple[Header, ...]
    judged_by: State

    @classmethod
    def at(cls, state: State, blocks: Iterable[Block], judged_by: State | None = None) -> Tip:
        """The tip of a chain that ends with `blocks`: in order, from `get_first_read` on at least. `state` is that
        after the last of them, `judged_by` that before it if it is another."""
        newest = tuple(blocks)[-NUM_HEADERS:]
        return cls(state, newest[-1], tuple(block.header for block in newest), judged_by or state)

    @property
    def height(self) -> int:
        return self.block.height

    @property
    def header(self) -> Header:
        return self.block.header

    @property
    def id(self) -> Id:
        return self.block.id

    @property
    def next_difficulty(self) -> int:
        state = self.state
        return compute_next_difficulty(
            state.rules.pow, state.q, self.height + 1, self.headers, changed_at=state.pow_since
        )

    def get_block_id(self, height: int) -> Id | None:
        """The id of a block that this tip remembers; None of another height."""
        if height == self.height:
            return self.id
        above = height + 1 - self.headers[0].height
        return self.headers[above].prev if 0 < above < len(self.headers) else None

    def extend(self, block: Block) -> Tip:
        """The tip after `block`. Raises WrongHeight, UnknownParent, or InvalidChange where nobody has validated it."""
        if block.height != self.height + 1:
            raise WrongHeight.differs("height", self.height + 1, block.height)
        if block.header.prev != self.id:
            raise UnknownParent.differs(f"parent of height {block.height}", self.id, block.header.prev)
        state = compute_next_state(self.state, block, self.header.aggregate)
        return Tip(state, block, (*self.headers, block.header)[-NUM_HEADERS:], self.state)
