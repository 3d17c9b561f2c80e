"""The top of a chain, as far down as the rules of the next height look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chain.block import Block, Header, Id
from chain.difficulty import LOOKBACK, compute_next_difficulty
from chain.errors import UnknownParent, WrongHeight
from chain.genesis import Genesis


@dataclass(frozen=True, slots=True)
class Tip:
    """The head and the headers under it that retargeting needs. Extending gives a new tip and leaves this one alone."""

    genesis: Genesis
    block: Block
    headers: tuple[Header, ...]

    @classmethod
    def at(cls, genesis: Genesis, blocks: Iterable[Block]) -> Tip:
        """The tip of a chain that ends with `blocks`: in order, from `chain.difficulty.get_first_read` on at least."""
        newest = tuple(blocks)[-LOOKBACK:]
        return cls(genesis, newest[-1], tuple(block.header for block in newest))

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
        return compute_next_difficulty(self.genesis.pow, self.genesis.q, self.height + 1, self.headers)

    def extend(self, block: Block) -> Tip:
        """The tip after `block`. Raises WrongHeight or UnknownParent."""
        if block.height != self.height + 1:
            raise WrongHeight.differs("height", self.height + 1, block.height)
        if block.header.prev != self.id:
            raise UnknownParent.differs(f"parent of height {block.height}", self.id, block.header.prev)
        return Tip(self.genesis, block, (*self.headers, block.header)[-LOOKBACK:])
