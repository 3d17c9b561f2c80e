"""Catches up by certificates: whoever is ahead proves it, and no single peer is trusted (PROTOCOL §6)."""

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

BATCH = 1024  # blocks asked for at once; a reply has room for about 1 MiB of them
SLICE = 128  # of them verified and adopted together: as many are lost at most when the node dies
PAUSES_S = (0.25, 0.5, 1.0, 2.0)  # before asking a peer again that had nothing good; the last repeats
FORGIVEN_S = 60.0  # after this long without another, a peer's failures are forgotten
PARTING_S = 60.0  # between two searches for where a peer's chain parts from ours
ANSWER_S = 10.0  # a peer that takes longer has nothing good
LOOK_S = 0.5  # how often one sees whether a peer that has failed before need be waited for
FULL_BYTES = MAX_BLOCKS_REPLY_BYTES - MAX_BLOCK_BYTES - MAX_CERTIFICATE_BYTES - 1024  # with more, the next may not fit


class ChainsDiverge(Exception):
    """Two valid certificates at one height: at least 2q - n members are provably guilty. Nothing may go on."""

    def __init__(self, ours: Block, theirs: Block, certificate: Certificate) -> None:
        super().__init__(f"height {ours.height}: {ours.id.hex()} and {theirs.id.hex()} are both certified")
        self.ours = ours
        self.theirs = theirs
        self.certificate = certificate


class _Refused(Exception):
    """A peer's block of this height does not hold."""

    def __init__(self, height: int, error: ChainError) -> None:
        super().__init__(f"height {height}: {error}")
        self.height = height
        self.error = error


@dataclass(slots=True)
class _Failures:
    """How often a peer had nothing good lately, and until when it is passed over for that."""

    count: int = 0
    until_s: float = 0.0


Adopt = Callable[[Sequence[FinalBlock]], Awaitable[None]]


class Sync:
    """Follows the peers that are ahead. `adopt` appends verified blocks; it is the service's only writer.

    What a peer says of its head is only its word. Whoever has failed is asked after those who have not, however high it
    claims to be, and not waited for once somebody better is there: a liar costs one answer's time, and that once. Up to
    a `checkpoint` nothing is adopted before it is seen that it leads there. `second` looks into other histories below
    the head.
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
        self._compared: set[tuple[int, Id]] = set()  # (height, id) of other heads already looked into
        self._off_the_way: set[Id] = set()  # peers whose blocks do not lead to the checkpoint
        self._searched_s: dict[Id, float] = {}  # when it was last looked for where a peer's chain parts from ours

    def on_status(self) -> None:
        """A peer may be ahead, or elsewhere."""
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
        """What `peer` gives may bring about an error that nobody foresaw: then it had nothing good. Raises
        ChainsDiverge."""
        with self._boundary.around("sync", peer.id, passing=(ChainsDiverge,)) as crossing:
            await work
        if crossing.failure is not None:
            self._on_failed(peer)

    @property
    def is_behind(self) -> bool:
        """Whether somebody says to be ahead who has not been found to be wrong."""
        return any(self._get_failures(peer).count == 0 for peer in self._get_ahead())

    def is_beyond(self, height: int) -> bool:
        """Whether a head of this height is no longer on the way to the checkpoint: only then do votes here count."""
        return self._checkpoint is None or height >= self._checkpoint.height

    @property
    def other_history(self) -> str | None:
        """Another history that a peer has proved; None where none has."""
        return self._second.describe()

    def describe_way(self) -> str | None:
        """The reason why this node does not come to its checkpoint; None where it is there, or on its way."""
        height = self._get_tip().height
        if self._checkpoint is None or self.is_beyond(height):
            return None
        here = [peer for peer in self._peers if self._peers.is_alive(peer.id) and peer.status is not None]
        block = f"block {self._checkpoint.height} of the join file, {self._checkpoint.id.hex()}"
        if off := sorted(peer.name for peer in here if peer.id in self._off_the_way):
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
        """Of those that say they are ahead, and are not passed over now, the one that has failed least."""
        ahead = [peer for peer in self._get_ahead() if self._get_failures(peer).until_s <= self._get_time_s()]
        return min(ahead, key=lambda peer: (self._get_failures(peer).count, -_get_height(peer)), default=None)

    def _get_ahead(self) -> list[Peer]:
        needed = self._get_leg_end(self._get_tip().height)
        return [peer for peer in self._peers if _get_height(peer) >= needed]

    def _get_leg_end(self, height: int) -> int:
        """How high the next blocks above this height have to reach to be adopted."""
        end = None if self._checkpoint is None else self._checkpoint.get_next(height)
        return height + 1 if end is None else end

    def _get_pause_s(self) -> float | None:
        """Until somebody who is passed over may be asked again; None where there is nobody."""
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
        """Peers whose head has our height and another id."""
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
        """Peers whose head is another block than ours of that height, below our own."""
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

    # ---- what it gives

    async def _follow(self, peer: Peer) -> None:
        """Takes the next blocks from `peer`, as many as hold."""
        tip, claimed = self._get_tip(), _get_height(peer)
        try:
            replies = await self._request_leg(peer, tip.height)
            taken = await self._take(tip, replies)
        except PeerUnavailable as error:
            log.debug("sync from %s: %s", peer.name, error)
            self._on_failed(peer)
        except _Refused as refused:
            is_known = peer.id in self._off_the_way
            level = logging.DEBUG if is_known else logging.WARNING
            log.log(level, "sync from %s refused at height %d: %s", peer.name, refused.height, refused.error)
            self._peers.refuse(peer.id, get_reason(refused.error))
            self._on_failed(peer)
            if isinstance(refused.error, OffTheWay):
                self._off_the_way.add(peer.id)
            if refused.height == tip.height + 1 and tip.height > 0:
                await self._compare(peer, tip)
        else:
            self._off_the_way.discard(peer.id)
            if taken < min(claimed, tip.height + BATCH) and _get_size(replies) <= FULL_BYTES:
                log.debug("sync from %s: it said height %d, and gave blocks up to %d", peer.name, claimed, taken)
                self._peers.refuse(peer.id, Reason.CLAIM)
                self._on_failed(peer)

    async def _take(self, tip: Tip, replies: Sequence[tuple[bytes, bytes]]) -> int:
        """Verifies and adopts `replies`, which follow `tip`; the height of the last. Raises _Refused at the first that
        does not hold: those below it are adopted all the same.

        Others are let in between two blocks: the signatures of one are some milliseconds' work at most.
        """
        verified: list[FinalBlock] = []
        for block_bytes, certificate_bytes in replies:
            if not speaks(tip.state.protocol):  # this node goes no further, and it is nobody's fault
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
        """The blocks above `height`: as many as one answer holds, on the way to the checkpoint as far as the next mark
        at least. A peer that gives less than it could has no more."""
        asked, end = BATCH, self._get_leg_end(height)
        replies = more = await self._request(peer, height + 1, asked)
        while height + len(replies) < end and (len(more) == asked or _get_size(more) > FULL_BYTES):
            asked = end - height - len(replies)
            more = await self._request(peer, height + len(replies) + 1, asked)
            replies = [*replies, *more]
        return replies

    async def _request(self, peer: Peer, first: int, count: int) -> list[tuple[bytes, bytes]]:
        """Raises PeerUnavailable, also where `peer` has failed before and somebody who has not is ahead meanwhile."""
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
        """Asks `peer` for its block at our height. Raises ChainsDiverge if it is another one and certified too."""
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
                self._second.tell(peer, theirs)  # ours leads to the checkpoint: it is theirs that is the other
            return
        self._on_failed(peer)

    async def _look_below(self, peer: Peer) -> None:
        """Asks `peer` for the block that is its head, and another than ours of that height."""
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
        """Looks for the lowest block of `peer` that is another than ours, at `height` at most, where it has another: up
        to there members are the same, so that its certificate there counts for both, whoever certified what follows.
        That takes one answer's time at most."""
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
        """The height, the block and the certificate, by halving; None where `peer` gives less than it did before."""
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
    """Of the head that it last spoke of; -1 before it has spoken."""
    return -1 if peer.status is None else peer.status.head_height
