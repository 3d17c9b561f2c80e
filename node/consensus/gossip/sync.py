"""Catches up by certificates: a peer that is ahead proves it, and no single peer is trusted (PROTOCOL §6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from chain import codec, validation
from chain.block import Block, Certificate, Id
from chain.checkpoint import Checkpoint
from chain.codec import MAX_BLOCK_BYTES, MAX_CERTIFICATE_BYTES
from chain.errors import ChainError, InvalidCertificate, OffTheWay
from chain.protocol import speaks
from chain.tip import Tip
from node.boundary import Boundary
from node.consensus.gossip.second_histories import SecondHistories
from node.consensus.height.final_block import FinalBlock
from node.p2p.peers import Peer, Peers
from node.p2p.refusals import Reason, get_reason
from node.p2p.transport.base import MAX_BLOCKS_REPLY_BYTES, PeerUnavailable, Transport

log = logging.getLogger(__name__)

BATCH = 1024  # blocks requested at once; a reply has room for about 1 MiB of them
SLICE = 128  # blocks verified and adopted together; at most so many are lost when the node dies
PAUSES_S = (0.25, 0.5, 1.0, 2.0)  # before a peer that had nothing good is asked again; the last repeats
FORGIVEN_S = 60.0  # a peer's failures are forgotten after so long without another
PARTING_S = 60.0  # between two searches for the block where a peer's chain parts from ours
ANSWER_S = 10.0  # a peer that takes longer counts as failed
LOOK_S = 0.5  # how often to check for a better peer while waiting for one that has failed before
FULL_BYTES = MAX_BLOCKS_REPLY_BYTES - MAX_BLOCK_BYTES - MAX_CERTIFICATE_BYTES - 1024  # with more, the next may not fit


class ChainsDiverge(Exception):
    """Two blocks of one height have valid certificates: at least 2q - n members are provably guilty. The node stops."""

    def __init__(self, ours: Block, theirs: Block, certificate: Certificate) -> None:
        super().__init__(f"height {ours.height}: {ours.id.hex()} and {theirs.id.hex()} are both certified")
        self.ours = ours
        self.theirs = theirs
        self.certificate = certificate


class _Refused(Exception):
    """A peer's block of this height is not valid."""

    def __init__(self, height: int, error: ChainError) -> None:
        super().__init__(f"height {height}: {error}")
        self.height = height
        self.error = error


@dataclass(slots=True)
class _Failures:
    """Counts how often a peer had nothing good lately, and holds the time until which it is not asked."""

    count: int = 0
    until_s: float = 0.0


Adopt = Callable[[Sequence[FinalBlock]], Awaitable[None]]


class Sync:
    """Follows the peers that are ahead. `adopt` appends verified blocks; it is the service's only writer.

    A peer's claim about its head is not trusted. A peer that has failed is asked after those that have not, however
    high its claim, and not waited for once a better one is there: a liar costs the time of one answer, once. Up to a
    `checkpoint` no block is adopted before it is known to lead there. `second` checks other histories below the head.
    """

    def __init__(
        self,
        transport: Transport,
        peers: Peers,
        get_tip: Callable[[], Tip],
        adopt: Adopt,
        second: SecondHistories,
        boundary: Boundary,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._transport = transport
        self._peers = peers
        self._get_tip = get_tip
        self._adopt = adopt
        self._boundary = boundary
        self._checkpoint = checkpoint
        self._second = second
        self._wake = asyncio.Event()
        self._failures: dict[Id, _Failures] = {}
        self._compared: set[tuple[int, Id]] = set()  # (height, id) of other heads that were checked
        self._off_checkpoint: set[Id] = set()  # peers whose blocks do not lead to the checkpoint
        self._searched_s: dict[Id, float] = {}  # when the parting of a peer's chain from ours was last searched

    def on_status(self) -> None:
        """Notes that a peer may be ahead, or on another chain."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._get_pause_s()):
                    await self._wake.wait()
            self._wake.clear()
            while (peer := self._choose()) is not None:
                await self._try(peer, self._follow(peer))
            for peer in self._get_elsewhere():
                await self._try(peer, self._compare(peer, self._get_tip()))
            for peer in self._get_below():
                await self._try(peer, self._look_below(peer))

    async def _try(self, peer: Peer, work: Coroutine[None, None, None]) -> None:
        """Runs `work` on blocks of `peer`. An unforeseen error counts as a failure of the peer. Raises
        ChainsDiverge."""
        with self._boundary.around("sync", peer.id, passing=(ChainsDiverge,)) as crossing:
            await work
        if crossing.failure is not None:
            self._on_failed(peer)

    @property
    def is_behind(self) -> bool:
        """Says whether a peer claims to be ahead that has not failed."""
        return any(self._get_failures(peer).count == 0 for peer in self._get_ahead())

    def is_beyond(self, height: int) -> bool:
        """Says whether a head of this height has reached the checkpoint: only then do votes count here."""
        return self._checkpoint is None or height >= self._checkpoint.height

    @property
    def other_history(self) -> str | None:
        """Describes another history that a peer has proved; None if none has."""
        return self._second.describe()

    def explain_no_checkpoint(self) -> str | None:
        """Says why this node does not get to its checkpoint; None if it is there, or on its way."""
        height = self._get_tip().height
        if self._checkpoint is None or self.is_beyond(height):
            return None
        here = [peer for peer in self._peers if self._peers.is_alive(peer.id) and peer.status is not None]
        block = f"block {self._checkpoint.height} of the join file, {self._checkpoint.id.hex()}"
        if off := sorted(peer.name for peer in here if peer.id in self._off_checkpoint):
            found = f"the chain of {', '.join(off)} does not lead to {block}: one of the two is another history"
        elif (highest := max(map(_get_height, here), default=None)) is not None and highest < self._get_leg_end(height):
            found = f"nobody in sight has a chain that leads to {block}: the highest head in sight is {highest}"
        else:
            return None
        return (
            f"{found}. Have a member look the block up who did not give you the file: "
            f"fednode chain show {self._checkpoint.height}"
        )

    # ---- whom to ask

    def _choose(self) -> Peer | None:
        """Returns the peer with the fewest failures among those that claim to be ahead and may be asked now."""
        ahead = [peer for peer in self._get_ahead() if self._get_failures(peer).until_s <= self._get_time_s()]
        return min(ahead, key=lambda peer: (self._get_failures(peer).count, -_get_height(peer)), default=None)

    def _get_ahead(self) -> list[Peer]:
        needed = self._get_leg_end(self._get_tip().height)
        return [peer for peer in self._peers if _get_height(peer) >= needed]

    def _get_leg_end(self, height: int) -> int:
        """Returns the height up to which the next blocks above this height have to reach to be adopted."""
        end = None if self._checkpoint is None else self._checkpoint.get_next(height)
        return height + 1 if end is None else end

    def _get_pause_s(self) -> float | None:
        """Returns the seconds until one of the peers that are ahead may be asked again; None if there is none."""
        now_s = self._get_time_s()
        waits = [self._get_failures(peer).until_s - now_s for peer in self._get_ahead()]
        return max(0.0, min(waits)) if waits else None

    def _get_failures(self, peer: Peer) -> _Failures:
        failures = self._failures.setdefault(peer.id, _Failures())
        if failures.count and self._get_time_s() > failures.until_s + FORGIVEN_S:
            failures.count = 0
        return failures

    def _on_failed(self, peer: Peer) -> None:
        failures = self._get_failures(peer)
        failures.until_s = self._get_time_s() + PAUSES_S[min(failures.count, len(PAUSES_S) - 1)]
        failures.count += 1

    @staticmethod
    def _get_time_s() -> float:
        return asyncio.get_running_loop().time()

    def _get_elsewhere(self) -> list[Peer]:
        """Returns the peers whose head has our height and another id."""
        head = self._get_tip()
        self._compared = {(height, block_id) for height, block_id in self._compared if height >= head.height}
        return [
            peer
            for peer in self._peers
            if peer.status is not None
            and (peer.status.head_height, peer.status.head_id) not in self._compared
            and peer.status.head_height == head.height
            and peer.status.head_id != head.id
            and self._get_failures(peer).until_s <= self._get_time_s()
        ]

    def _get_below(self) -> list[Peer]:
        """Returns the peers whose head is below ours and differs from our block of that height."""
        tip = self._get_tip()
        if not self.is_beyond(tip.height):
            return []
        return [
            peer
            for peer in self._peers
            if peer.status is not None
            and self._second.is_news(tip, peer.status.head_height, peer.status.head_id)
            and self._get_failures(peer).until_s <= self._get_time_s()
        ]

    # ---- what it sends

    async def _follow(self, peer: Peer) -> None:
        """Fetches the next blocks from `peer`, and adopts those that are valid."""
        tip, claimed = self._get_tip(), _get_height(peer)
        try:
            replies = await self._request_leg(peer, tip.height)
            taken = await self._take(tip, replies)
        except PeerUnavailable as error:
            log.debug("sync from %s: %s", peer.name, error)
            self._on_failed(peer)
        except _Refused as refused:
            is_known = peer.id in self._off_checkpoint
            level = logging.DEBUG if is_known else logging.WARNING
            log.log(level, "sync from %s refused at height %d: %s", peer.name, refused.height, refused.error)
            self._peers.refuse(peer.id, get_reason(refused.error))
            self._on_failed(peer)
            if isinstance(refused.error, OffTheWay):
                self._off_checkpoint.add(peer.id)
            if refused.height == tip.height + 1 and tip.height > 0:
                await self._compare(peer, tip)
        else:
            self._off_checkpoint.discard(peer.id)
            if taken < min(claimed, tip.height + BATCH) and _get_size(replies) <= FULL_BYTES:
                log.debug("sync from %s: it said height %d, and gave blocks up to %d", peer.name, claimed, taken)
                self._peers.refuse(peer.id, Reason.CLAIM)
                self._on_failed(peer)

    async def _take(self, tip: Tip, replies: Sequence[tuple[bytes, bytes]]) -> int:
        """Verifies and adopts `replies`, which follow `tip`. Returns the height of the last. Raises _Refused at the
        first that is not valid; those below it are adopted all the same.

        Other tasks may run between two blocks: checking the signatures of one takes some milliseconds at most.
        """
        verified: list[FinalBlock] = []
        for block_bytes, certificate_bytes in replies:
            if not speaks(tip.state.protocol):  # this release cannot go on, which is nobody's fault
                break
            try:
                final = self._verify(tip, block_bytes, certificate_bytes)
            except ChainError as error:
                if verified and self.is_beyond(tip.height):
                    await self._adopt(verified)
                raise _Refused(tip.height + 1, error) from error
            tip = tip.extend(final.block)
            verified.append(final)
            if self._is_marked(tip.height) or (len(verified) >= SLICE and self.is_beyond(tip.height)):
                await self._adopt(verified)
                verified = []
            await asyncio.sleep(0)
        if verified and self.is_beyond(tip.height):
            await self._adopt(verified)
        return tip.height

    def _is_marked(self, height: int) -> bool:
        return self._checkpoint is not None and self._checkpoint.get_id(height) is not None

    async def _request_leg(self, peer: Peer, height: int) -> list[tuple[bytes, bytes]]:
        """Returns the blocks above `height`: as many as one reply holds, and on the way to the checkpoint at least up
        to the next mark. A peer that sends less than it could has no more."""
        asked, end = BATCH, self._get_leg_end(height)
        replies = more = await self._request(peer, height + 1, asked)
        while height + len(replies) < end and (len(more) == asked or _get_size(more) > FULL_BYTES):
            asked = end - height - len(replies)
            more = await self._request(peer, height + len(replies) + 1, asked)
            replies = [*replies, *more]
        return replies

    async def _request(self, peer: Peer, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """Requests blocks. Raises PeerUnavailable, also if `peer` has failed before and one without failures is ahead
        by now."""
        asking = asyncio.create_task(self._transport.request_blocks(peer.id, first, count))
        until_s = self._get_time_s() + ANSWER_S
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=min(LOOK_S, max(0.0, until_s - self._get_time_s())))
                if asking.done():
                    break
                if self._get_time_s() >= until_s:
                    self._peers.refuse(peer.id, Reason.SLOW)
                    raise PeerUnavailable(f"no blocks within {ANSWER_S:g} s")
                better = self._choose()
                if better is not None and self._get_failures(better).count < self._get_failures(peer).count:
                    raise PeerUnavailable(f"{better.name} is ahead too")
            return asking.result()
        finally:
            asking.cancel()

    def _verify(self, tip: Tip, block_bytes: bytes, certificate_bytes: bytes) -> FinalBlock:
        block = codec.decode_block(tip.state.chain_id, block_bytes)
        certificate = codec.decode_certificate(certificate_bytes)
        validation.validate_candidate(tip, block)
        if self._checkpoint is not None:
            self._checkpoint.validate(block.height, block.id)
        validation.validate_certificate(tip.state, block.id, block.height, certificate)
        return FinalBlock(block, certificate)

    async def _compare(self, peer: Peer, tip: Tip) -> None:
        """Requests from `peer` its block at our height. Raises ChainsDiverge if it is another one and certified too."""
        ours = tip.block
        try:
            replies = await self._request(peer, ours.height, 1)
        except PeerUnavailable:
            self._on_failed(peer)
            return
        for block_bytes, certificate_bytes in replies[:1]:
            try:
                theirs = codec.decode_block(tip.state.chain_id, block_bytes)
                certificate = codec.decode_certificate(certificate_bytes)
                validation.validate_certificate(tip.judged_by, theirs.id, ours.height, certificate)
            except ChainError as error:
                log.warning("%s shows no certificate for its height %d: %s", peer.name, ours.height, error)
                self._peers.refuse(peer.id, get_reason(error))
                if isinstance(error, InvalidCertificate):
                    await self._look_for_parting(peer, ours.height)
                break
            self._compared.add((ours.height, theirs.id))
            if theirs.height == ours.height and theirs.id != ours.id:
                if self.is_beyond(ours.height):
                    raise ChainsDiverge(ours, theirs, certificate)
                self._second.tell(peer, theirs)  # ours leads to the checkpoint: theirs is the other history
            return
        self._on_failed(peer)

    async def _look_below(self, peer: Peer) -> None:
        """Requests from `peer` its head, which differs from our block of that height."""
        if peer.status is None:
            return
        height = peer.status.head_height
        try:
            replies = await self._request(peer, height, 1)
            for block_bytes, certificate_bytes in replies[:1]:
                await self._second.look(peer, height, block_bytes, certificate_bytes)
                return
        except PeerUnavailable as error:
            log.debug("block %d from %s: %s", height, peer.name, error)
        except ChainError as error:
            log.warning("%s shows no certificate for its height %d: %s", peer.name, height, error)
            self._peers.refuse(peer.id, get_reason(error))
            if isinstance(error, InvalidCertificate):
                await self._look_for_parting(peer, height)
        self._on_failed(peer)

    async def _look_for_parting(self, peer: Peer, height: int) -> None:
        """Searches for the lowest block of `peer`, at `height` at most, that differs from ours. Up to there the members
        are the same, so its certificate there counts for both chains, whoever certified what follows. The search takes
        the time of one answer at most."""
        now_s = self._get_time_s()
        if now_s < self._searched_s.get(peer.id, -inf) + PARTING_S:
            return
        self._searched_s[peer.id] = now_s
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self._find_parting(peer, height)
            if found is not None:
                height, block_bytes, certificate_bytes = found
                if not self._second.is_told(codec.decode_block(self._get_tip().state.chain_id, block_bytes)):
                    await self._second.look(peer, height, block_bytes, certificate_bytes)
                self._searched_s[peer.id] = inf
        except (PeerUnavailable, TimeoutError) as error:
            log.debug("where the chain of %s parts from ours: %s", peer.name, error)
        except ChainError as error:
            log.warning("%s shows no certificate where its chain parts from ours: %s", peer.name, error)

    async def _find_parting(self, peer: Peer, height: int) -> tuple[int, bytes, bytes] | None:
        """Returns the height, the block and the certificate, found by halving; None if `peer` sends less than it did
        before."""
        chain_id, common, other = self._get_tip().state.chain_id, 0, height
        replies = await self._request(peer, other, 1)
        while replies and other - common > 1:
            middle = (common + other) // 2
            asked = await self._request(peer, middle, 1)
            if asked and await self._second.has(codec.decode_block(chain_id, asked[0][0])):
                common = middle
            else:
                other, replies = middle, asked
        return None if not replies else (other, *replies[0])


def _get_size(replies: Sequence[tuple[bytes, bytes]]) -> int:
    return sum(len(block) + len(certificate) for block, certificate in replies)


def _get_height(peer: Peer) -> int:
    """Returns the height of the head in the peer's last status; -1 before the first."""
    return -1 if peer.status is None else peer.status.head_height
