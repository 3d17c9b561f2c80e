"""The overlay: who of many members keeps connections with whom (PROTOCOL §7).

Each ring is an order of all members that the chain id draws, so everybody computes the same; on each a member has the
next one on either side as its neighbours. Above a few dozen members that is all the connections there are: what is new
goes from neighbour to neighbour. A neighbour that is silent is passed over, by both of those beside it alike, for the
next one along the ring; it is dialled all the same, so that it takes its place again once it is heard of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

from chain.block import Digest, Id

MESH_MAX = 64  # members, up to which each is connected with all others
NUM_RINGS = 8  # of connections, over which statuses go
NUM_EAGER = 4  # of these, over which what is new is passed on at once: the others repair
NUM_EAGER_OF_MANY = 6  # the same, of more than MANY members: so none is more than four steps away
MANY = 128
MAX_PASSED = 16  # silent members passed over on one side of one ring


class Overlay:
    """The rings as one member stands in them."""

    def __init__(self, chain_id: Digest, members: Sequence[Id], me: Id) -> None:
        self._me = me
        self._num_eager = NUM_EAGER if len(members) <= MANY else NUM_EAGER_OF_MANY
        self._rings = tuple(_draw_ring(chain_id, members, number, me) for number in range(NUM_RINGS))

    @property
    def num_places(self) -> int:
        """The number of neighbours while nobody is silent and none is met twice."""
        return 2 * len(self._rings)

    def choose(self, is_silent: Callable[[Id], bool]) -> tuple[list[Id], list[Id]]:
        """The neighbours to keep connections with, and those of them to pass on to what is new."""
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
    """All others in the order of one ring, from the one after `me` around to the one before it."""
    ring = sorted(members, key=lambda member: hashlib.sha256(chain_id + bytes([number]) + member).digest())
    place = ring.index(me)
    return (*ring[place + 1 :], *ring[:place])


def _walk(side: Sequence[Id], is_silent: Callable[[Id], bool]) -> Iterator[Id]:
    """Along one side of a ring up to the first who is not silent."""
    for member in side[: MAX_PASSED + 1]:
        yield member
        if not is_silent(member):
            return
