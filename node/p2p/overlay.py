"""The overlay: who of many members keeps connections with whom (PROTOCOL §7).

Each ring is an order of all members, drawn from the chain id, so every member computes the same. On each ring a
member's neighbours are the next member on either side. Above a few dozen members these are all the connections there
are: new objects go from neighbour to neighbour. Both neighbours of a silent member pass it over for the next one along
the ring. They still dial it, so that it takes its place again once it sends something.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

from chain.block import Digest, Id

MESH_MAX = 64  # members, up to which each is connected with all others
NUM_RINGS = 8  # rings of connections, over which statuses go
NUM_EAGER = 4  # of these, over which new objects are sent at once: the others repair
NUM_EAGER_OF_MANY = 6  # for more than MANY members: so none is more than four steps away
MANY = 128
MAX_PASSED = 16  # silent members passed over on one side of one ring


class Overlay:
    """Holds the rings as one member sees them."""

    def __init__(self, chain_id: Digest, members: Sequence[Id], me: Id) -> None:
        self._me = me
        self._num_eager = NUM_EAGER if len(members) <= MANY else NUM_EAGER_OF_MANY
        self._rings = tuple(_draw_ring(chain_id, members, number, me) for number in range(NUM_RINGS))

    @property
    def num_places(self) -> int:
        """Returns the number of neighbours while no member is silent and none is a neighbour twice."""
        return 2 * len(self._rings)

    def choose(self, is_silent: Callable[[Id], bool]) -> tuple[list[Id], list[Id]]:
        """Returns the neighbours with which to keep connections, and those of them to which new objects are sent at
        once."""
        linked: dict[Id, None] = {}
        eager: dict[Id, None] = {}
        for number, ring in enumerate(self._rings):
            for side in (ring, ring[::-1]):
                passed = list(_walk(side, is_silent))
                linked.update(dict.fromkeys(passed))
                if number < self._num_eager:
                    eager.update(dict.fromkeys(passed))
        return list(linked), list(eager)

    def __repr__(self) -> str:
        return f"<Overlay of {len(self._rings[0]) + 1} members on {len(self._rings)} rings>"


def _draw_ring(chain_id: Digest, members: Sequence[Id], number: int, me: Id) -> tuple[Id, ...]:
    """Returns all other members in the order of one ring, from the one after `me` around to the one before it."""
    ring = sorted(members, key=lambda member: hashlib.sha256(chain_id + bytes([number]) + member).digest())
    place = ring.index(me)
    return (*ring[place + 1 :], *ring[:place])


def _walk(side: Sequence[Id], is_silent: Callable[[Id], bool]) -> Iterator[Id]:
    """Yields the members along one side of a ring, up to the first who is not silent."""
    for member in side[: MAX_PASSED + 1]:
        yield member
        if not is_silent(member):
            return
