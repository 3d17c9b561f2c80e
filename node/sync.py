"""Catches up by certificates: whoever is ahead proves it, and no single peer is trusted (PROTOCOL §6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from chain import codec, validation
from chain.block import Block, Certificate, Id
from chain.errors import ChainError
from chain.genesis import Genesis
from chain.tip import Tip
from node.peers import Peer, Peers
from node.refusals import get_reason
from node.transport.base import PeerUnavailable, Transport

log = logging.getLogger(__name__)

BATCH = 64  # blocks asked for at once
PAUSE_S = 0.25  # before asking again when a peer had nothing good
ANSWER_S = 10.0  # a peer that takes longer has nothing good


class ChainsDiverge(Exception):
    """Two valid certificates at one height: at least 2q - n members are provably guilty. Nothing may go on."""

    def __init__(self, ours: Block, theirs: Block, certificate: Certificate) -> None:
        super().__init__(f"height {ours.height}: {ours.id.hex()} and {theirs.id.hex()} are both certified")
        self.ours = ours
        self.theirs = theirs
        self.certificate = certificate


@dataclass(frozen=True, slots=True)
class FinalBlock:
    """A block and the certificate that makes it final, both verified."""

    block: Block
    certificate: Certificate


Adopt = Callable[[Sequence[FinalBlock]], Awaitable[None]]


class Sync:
    """Follows the peers that are ahead. `adopt` appends verified blocks; it is the service's only writer."""

    def __init__(
        self, genesis: Genesis, transport: Transport, peers: Peers, get_tip: Callable[[], Tip], adopt: Adopt
    ) -> None:
        self._genesis = genesis
        self._transport = transport
        self._peers = peers
        self._get_tip = get_tip
        self._adopt = adopt
        self._wake = asyncio.Event()
        self._compared: set[tuple[int, Id]] = set()  # (height, id) of other heads already looked into

    def on_status(self) -> None:
        """A peer may be ahead, or elsewhere."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for peer in self._get_ahead():
                if await self._follow(peer.id):
                    self._wake.set()  # there may be more: no need to be told again
                else:
                    await asyncio.sleep(PAUSE_S)
            for peer in self._get_elsewhere():
                await self._compare(peer.id, self._get_tip().block)

    def _get_ahead(self) -> list[Peer]:
        height = self._get_tip().height
        ahead = [peer for peer in self._peers if peer.status is not None and peer.status.head_height > height]
        return sorted(ahead, key=lambda peer: -(peer.status.head_height if peer.status else 0))

    def _get_elsewhere(self) -> list[Peer]:
        """Peers whose head has our height and another id."""
        head = self._get_tip()
        return [
            peer
            for peer in self._peers
            if peer.status is not None
            and (peer.status.head_height, peer.status.head_id) not in self._compared
            and peer.status.head_height == head.height
            and peer.status.head_id != head.id
        ]

    async def _follow(self, peer: Id) -> bool:
        """Takes the next blocks from `peer`. False when it had none that hold."""
        tip = self._get_tip()
        try:
            replies = await self._request(peer, tip.height + 1, BATCH)
        except PeerUnavailable as error:
            log.debug("sync from %s: %s", peer.hex()[:8], error)
            return False
        verified: list[FinalBlock] = []
        try:
            for block_bytes, certificate_bytes in replies:
                final = self._verify(tip, block_bytes, certificate_bytes)
                tip = tip.extend(final.block)
                verified.append(final)
        except ChainError as error:
            log.warning("sync from %s refused at height %d: %s", peer.hex()[:8], tip.height + 1, error)
            self._peers.refuse(peer, get_reason(error))
            if not verified and tip.height > 0:
                await self._compare(peer, tip.block)
        if verified:
            await self._adopt(verified)
        return bool(verified)

    async def _request(self, peer: Id, first: int, count: int) -> list[tuple[bytes, bytes]]:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._transport.request_blocks(peer, first, count)
        except TimeoutError as error:
            raise PeerUnavailable(f"no blocks within {ANSWER_S:g} s") from error

    def _verify(self, tip: Tip, block_bytes: bytes, certificate_bytes: bytes) -> FinalBlock:
        block = codec.decode_block(self._genesis.chain_id, block_bytes)
        certificate = codec.decode_certificate(certificate_bytes)
        validation.validate_candidate(
            self._genesis, block, parent=tip.header, parent_id=tip.id, difficulty=tip.next_difficulty
        )
        validation.validate_certificate(self._genesis, block.id, block.height, certificate)
        return FinalBlock(block, certificate)

    async def _compare(self, peer: Id, ours: Block) -> None:
        """Asks `peer` for its block at our height. Raises ChainsDiverge if it is another one and certified too."""
        try:
            replies = await self._request(peer, ours.height, 1)
        except PeerUnavailable:
            return
        for block_bytes, certificate_bytes in replies[:1]:
            try:
                theirs = codec.decode_block(self._genesis.chain_id, block_bytes)
                certificate = codec.decode_certificate(certificate_bytes)
                validation.validate_certificate(self._genesis, theirs.id, ours.height, certificate)
            except ChainError as error:
                log.warning("%s shows no certificate for its height %d: %s", peer.hex()[:8], ours.height, error)
                self._peers.refuse(peer, get_reason(error))
                return
            self._compared.add((ours.height, theirs.id))
            if theirs.height == ours.height and theirs.id != ours.id:
                raise ChainsDiverge(ours, theirs, certificate)
