"""Other histories below this node's head: blocks with a certificate of their own, at heights that are final here.

Two certificates at the head prove that too many of the members in force lie, and the node halts. Below the head a
second certificate may be made with old keys, long out of force: whoever holds a quorum of those can sign anything. So
the node logs an error and goes on (FEDERATION §2).
"""

from __future__ import annotations

import logging

from chain import codec, validation
from chain.block import Block, Id
from chain.errors import InvalidCertificate, WrongHeight
from chain.store.sqlite import SqliteStore
from chain.tip import Tip
from node.events import Events
from node.offload import Offload
from node.p2p.peers import Peer

log = logging.getLogger(__name__)

MAX_SEEN = 1024  # blocks of other histories that are remembered


class SecondHistories:
    """Keeps the other histories that one node has seen. `disk` is the store's thread."""

    def __init__(self, store: SqliteStore, disk: Offload, events: Events) -> None:
        self._store = store
        self._disk = disk
        self._events = events
        self._seen: dict[tuple[int, Id], None] = {}
        self.num_found = 0
        self._newest: str | None = None

    def __repr__(self) -> str:
        return f"<SecondHistories: {self.num_found} found>"

    def describe(self) -> str | None:
        """Describes the newest other history, and how to find out which of the two is the members'; None if none was
        found."""
        return self._newest

    def is_news(self, tip: Tip, height: int, block_id: Id) -> bool:
        """Says whether a peer's head at this height differs from our block, as far down as the tip remembers, and was
        not looked into yet."""
        if not 0 < height < tip.height or (height, block_id) in self._seen:
            return False
        ours = tip.get_block_id(height)
        return ours is not None and ours != block_id

    def is_told(self, block: Block) -> bool:
        """Says whether a block was reported before."""
        return (block.height, block.id) in self._seen

    async def has(self, block: Block) -> bool:
        """Says whether a block is one of ours."""
        stored = await self._disk.run(self._store.get_block, block.height)
        return stored is not None and stored.block.id == block.id

    async def look(self, peer: Peer, height: int, block: bytes, certificate: bytes) -> None:
        """Checks the block that a peer sent for this height, and reports it. Raises ChainError if it proves nothing."""
        judged_by = await self._disk.run(self._store.get_state, height - 1)
        theirs = codec.decode_block(judged_by.chain_id, block)
        if theirs.height != height:
            raise WrongHeight.differs("height of the block", height, theirs.height)
        if (height, theirs.id) in self._seen or await self.has(theirs):
            raise InvalidCertificate("it shows a block that is known, and not the one that its status names")
        validation.validate_certificate(judged_by, theirs.id, height, codec.decode_certificate(certificate))
        self.tell(peer, theirs)

    def tell(self, peer: Peer, theirs: Block) -> None:
        """Reports that a peer has proved another history, with this block."""
        self._seen[theirs.height, theirs.id] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        self.num_found += 1
        found = (
            f"{peer.name} has another block at height {theirs.height}, {theirs.id.hex()}, with a certificate: a quorum "
            "of the keys of that time has signed two histories; this node goes on with its own"
        )
        self._newest = f"{found}. Have members that you know look theirs up: fednode chain show {theirs.height}"
        log.error("%s", found)
        self._events.publish("divergence", height=theirs.height, peer=peer.id.hex(), block=theirs.id.hex())
