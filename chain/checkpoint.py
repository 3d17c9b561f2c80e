"""The checkpoint of a joiner: a final block that its chain must lead to, and marks on the way there (FEDERATION §2).

A quorum of any old set of keys can sign a second history at the cost of CPU. So a joiner takes the id of a late block
from people it trusts. It adopts blocks from one mark to the next, once it has seen that they lead to that mark.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.block import Id
from chain.errors import OffTheWay

LEG_HEIGHTS = 128  # between two marks


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The height and id of a final block. `marks` are the ids of the heights LEG_HEIGHTS, twice that and so on below
    it."""

    height: int
    id: Id
    marks: tuple[Id, ...] = ()

    def get_id(self, height: int) -> Id | None:
        """Returns the id that the block of this height must have, None if the checkpoint does not name that height."""
        if height == self.height:
            return self.id
        number, rest = divmod(height, LEG_HEIGHTS)
        return self.marks[number - 1] if rest == 0 and 0 < number <= len(self.marks) else None

    def get_next(self, height: int) -> int | None:
        """Returns the lowest height above this one whose id is known, None from the checkpoint on."""
        if height >= self.height:
            return None
        return min(self.height, (height // LEG_HEIGHTS + 1) * LEG_HEIGHTS)

    def get_last(self, height: int) -> int:
        """Returns the highest height up to this one whose id is known, 0 if there is none."""
        return self.height if height >= self.height else height // LEG_HEIGHTS * LEG_HEIGHTS

    def validate(self, height: int, block_id: Id) -> None:
        """Raises OffTheWay for a block of this height that does not lead to the checkpoint."""
        expected = self.get_id(height)
        if expected is not None and expected != block_id:
            raise OffTheWay.differs(f"block {height} on the way to the checkpoint", expected, block_id)


def get_marked(height: int) -> range:
    """Returns the heights that have a mark on the way to a checkpoint at this one."""
    return range(LEG_HEIGHTS, height, LEG_HEIGHTS)
