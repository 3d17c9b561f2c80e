"""The top of a chain, as far down as the rules of the next height look, and the state that judges it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chain.block import Block, Body, Contribution, Header, Id
from chain.changes.base import Place
from chain.changes.execution import READY_HEIGHTS, compute_next_state, compute_state_after
from chain.difficulty import LOOKBACK, compute_next_difficulty
from chain.errors import UnknownParent, WrongHeight
from chain.selection import Selection
from chain.state import State

NUM_HEADERS = max(LOOKBACK, READY_HEIGHTS)  # the most headers that a tip holds


def get_first_read(head_height: int) -> int:
    """Returns the lowest height whose block the rules for the height after the head may read."""
    return max(0, head_height + 1 - NUM_HEADERS)


@dataclass(frozen=True, slots=True)
class Tip:
    """The head and the headers up to it, the state that judges the next height, the state that judged the head, and the
    selection of the run. `extend` returns a new tip and leaves this one as it is."""

    state: State
    block: Block
    headers: tuple[Header, ...]
    judged_by: State
    selection: Selection = field(default_factory=Selection)

    @classmethod
    def at(
        cls,
        state: State,
        blocks: Iterable[Block],
        judged_by: State | None = None,
        selection: Selection | None = None,
    ) -> Tip:
        """Returns the tip of a chain that ends with `blocks`, which are in order and begin at `get_first_read` or
        below. `state` is the state after the last of them, `judged_by` the state before it if that is another, and
        `selection` that of the run in force, if it selects."""
        newest = tuple(blocks)[-NUM_HEADERS:]
        headers = tuple(block.header for block in newest)
        return cls(state, newest[-1], headers, judged_by or state, selection or Selection())

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
        """Returns the id of the block at a height, None if this tip does not reach down to it."""
        if height == self.height:
            return self.id
        above = height + 1 - self.headers[0].height
        return self.headers[above].prev if 0 < above < len(self.headers) else None

    def compute_state(self, body: Body) -> State:
        """Returns the state after a block with this body. Raises InvalidChange."""
        place = Place(self.height + 1, self.header.aggregate)
        return compute_state_after(self.state, body, place, is_last=self.is_last(body))

    def is_last(self, body: Body) -> bool:
        """Says whether patience ends the run with a block with this body."""
        if self.state.run.select is None or body.change is not None:
            return False
        return self._select(body.contributions).stops(self.selection, self.state.run, self.height + 1)

    def _select(self, contributions: Sequence[Contribution]) -> Selection:
        return self.selection.after(self.state, contributions, self.height + 1)

    def extend(self, block: Block) -> Tip:
        """Returns the tip after `block`. Raises WrongHeight, UnknownParent, or InvalidChange if the block was not
        validated."""
        if block.height != self.height + 1:
            raise WrongHeight.differs("height", self.height + 1, block.height)
        if block.header.prev != self.id:
            raise UnknownParent.differs(f"parent of height {block.height}", self.id, block.header.prev)
        state = compute_next_state(self.state, block, self.header.aggregate)
        selection = self.selection if block.change is not None else self._select(block.contributions)
        return Tip(state, block, (*self.headers, block.header)[-NUM_HEADERS:], self.state, selection)
