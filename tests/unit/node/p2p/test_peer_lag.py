"""The lag of a node's chain behind the others': as many members as may lie cannot make a node believe in it."""

from __future__ import annotations

from chain.block import ZERO
from node.clock import SystemClock
from node.p2p.peers import Peers
from node.p2p.status import Status
from support.data.chains import make_genesis, make_keys


def describe(height: int, *claims: int) -> str | None:
    """With a peer for each claim, and one more that has not been heard of."""
    keys = make_keys(2 + len(claims))
    genesis = make_genesis(keys)
    peers = Peers(genesis.state, keys[0].id, SystemClock())
    for key, claim in zip(keys[1:], claims, strict=False):
        peers.on_seen(key.id)
        peer = peers.get(key.id)
        assert peer is not None
        peer.status = Status(genesis.chain_id, claim, ZERO)
    return peers.describe_lag(height)


def test_a_node_is_behind_when_more_say_so_than_may_lie() -> None:
    assert describe(5, 12, 9) == "catching up: at height 5 of 9"  # 4 members, of whom one may lie
    assert describe(5, 1000, 5) is None
    assert describe(5, 1000) == "catching up: at height 5 of 1000"  # of 3 none may


def test_the_next_block_is_no_lag_nor_is_a_peer_that_has_gone() -> None:
    assert describe(5, 6, 6) is None
    assert describe(5, 7, 7) == "catching up: at height 5 of 7"
    assert describe(5) is None
