"""Published measures: sends the others how good this site's model is after each round, if its operator wants that, and
keeps theirs.

Of each member and round the first measures that come count, and only for the newest rounds. They are stored before they
are sent on. The author sends them to all peers, a receiver to a few more, and a peer that connects receives the newest
once it has caught up. A member can claim anything of its own model; it costs the others no more than that.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from chain.block import Digest, Id
from chain.calendar import Calendar
from chain.errors import DecodeError, InvalidSignature, StoreFull
from chain.published import PublishedMeasures, decode_published, encode_published, verify_published
from chain.store.sqlite import SqliteStore
from ml.measures.kinds import AnyMeasures
from node.clock import Clock
from node.consensus.height.current import CurrentRound
from node.consensus.record.record import RoundRecord
from node.consensus.signing.signer import Signer
from node.offload import Offload
from node.p2p.admission import Role
from node.p2p.peers import Peer, Peers
from node.p2p.refusals import Reason, get_reason
from node.p2p.transport.base import Message, MessageKind, PeerFault, Transport
from node.p2p.transport.outbox import TokenBucket

log = logging.getLogger(__name__)

NEWEST = 8  # heights whose measures are accepted, and sent to a peer that connects
AHEAD = 4  # heights above the head whose measures are accepted: this node may be behind
FANOUT = 3  # peers to which another member's measures are sent on
READS_BURST = 1024.0  # of one sender, which may send those of all members for the newest rounds
READS_PER_S = 8.0
AGAIN_S = 5.0  # after the disk was full

_Slot = tuple[int, Id]  # a height, and the author of measures of its round


class PublishedRounds:
    """Publishes and keeps measures for one node. It publishes its own with at least `publish_from` test samples; None:
    never."""

    def __init__(
        self,
        current: CurrentRound,
        signer: Signer,
        transport: Transport,
        store: SqliteStore,
        disk: Offload,
        *,
        chain_id: Digest,
        calendar: Calendar,
        peers: Peers,
        clock: Clock,
        publish_from: int | None,
    ) -> None:
        self._current = current
        self._signer = signer
        self._transport = transport
        self._store = store
        self._disk = disk
        self._chain_id = chain_id
        self._calendar = calendar
        self._peers = peers
        self._clock = clock
        self._publish_from = publish_from
        self._held: dict[_Slot, PublishedMeasures] = {}  # of the newest rounds
        self._news: dict[_Slot, None] = {}  # slots that are not stored and sent on yet, in their order
        self._reads: dict[Id, TokenBucket] = {}
        self._greeted: set[Id] = set()  # connected peers that have received the newest
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PublishedRounds: {len(self._held)} held, {len(self._news)} new>"

    def load(self) -> None:
        """Reads the measures that the store holds. Raises StoreCorrupted."""
        head = self._current.tip.height
        for height in range(max(1, head - NEWEST + 1), head + AHEAD + 1):
            self._held |= {(height, one.key): one for one in self._store.get_published(height)}

    def list_newest(self) -> list[PublishedMeasures]:
        """Returns the newest measures of each author that is still a member."""
        newest = {key: one for (_, key), one in sorted(self._held.items()) if self._is_member(key)}
        return list(newest.values())

    def _is_member(self, key: Id) -> bool:
        return self._current.tip.state.index_of(key) is not None

    # ---- measures that come in

    def on_message(self, sender: Peer, data: bytes) -> None:
        """Handles pushed measures. Raises PeerFault for a fault that the sender should have found."""
        try:
            published = decode_published(data)
            height = self._find_height(published)
            if height is None:
                sender.refusals[Reason.OTHER_HEIGHT] += 1
            elif not self._is_member(published.key):  # it may have just left: nobody's fault
                sender.refusals[Reason.STRANGER] += 1
            elif published.key == self._signer.id or (height, published.key) in self._held:
                return
            elif not self._may_read(sender.id):
                sender.refusals[Reason.RATE] += 1
            else:
                verify_published(self._chain_id, published)
                self._put(height, published)
        except (DecodeError, InvalidSignature) as error:
            raise PeerFault(f"measures: {error}", get_reason(error)) from error

    def _find_height(self, published: PublishedMeasures) -> int | None:
        """Returns the height of the measures' round if that is known here and among the newest; else None."""
        height, head = self._calendar.get_height(published.place), self._current.tip.height
        return height if height is not None and head - NEWEST < height <= head + AHEAD else None

    def _may_read(self, sender: Id) -> bool:
        now_s = self._clock.monotonic()
        return self._reads.setdefault(sender, TokenBucket(READS_PER_S, READS_BURST, now_s)).take(now_s)

    def _put(self, height: int, published: PublishedMeasures) -> None:
        self._held[height, published.key] = published
        self._news[height, published.key] = None
        self._wake.set()

    # ---- measures that are sent

    def publish(self, record: RoundRecord) -> None:
        """Publishes this node's measures of a round, if its operator wants that."""
        measures, place, slot = record.measures, record.place, (record.height, self._signer.id)
        if self._publish_from is None or measures is None or place is None or slot in self._held:
            return
        if self._is_member(self._signer.id) and self._may_tell(measures, self._publish_from):
            values = measures.summarise()
            if record.alone is not None and record.alone.verdict is not None:
                values |= record.alone.verdict.to_values()
            published = self._signer.sign_measures(place, num_samples=measures.num_samples, values=values)
            self._put(record.height, published)

    def _may_tell(self, measures: AnyMeasures, least: int) -> bool:
        if measures.num_samples < least:
            log.debug("measures of %d test samples are not published, fewer than %d", measures.num_samples, least)
        return measures.num_samples >= least

    def on_peer_up(self, peer: Id) -> None:
        """Notes that a peer has connected, which may have missed something."""
        self._greeted.discard(peer)

    def on_status(self, peer: Id, head_height: int) -> None:
        """Sends all measures of the newest rounds to a peer once it has caught up, by its status."""
        if peer in self._greeted or head_height + AHEAD < self._current.tip.height:
            return
        self._greeted.add(peer)
        for slot, published in self._held.items():
            if slot not in self._news:
                self._post(peer, published)

    def _post(self, peer: Id, published: PublishedMeasures) -> None:
        entry = self._peers.get(peer)
        is_told = entry is not None and bool(entry.role & (Role.MEMBER | Role.OBSERVER))
        if is_told and peer != published.key and self._peers.my_role is Role.MEMBER:
            self._transport.post(peer, Message(MessageKind.MEASURES, encode_published(published)))

    async def run(self) -> None:
        """Stores new measures and sends them on."""
        while True:
            self._forget_old()
            if not self._news:
                self._wake.clear()
                await self._wake.wait()
            slots = list(self._news)
            if not await self._keep(slots):
                await asyncio.sleep(AGAIN_S)
                continue
            for slot in slots:
                del self._news[slot]
                self._pass_on(self._held[slot])

    async def _keep(self, slots: list[_Slot]) -> bool:
        """Stores all measures of these slots' heights. Returns whether that worked."""
        try:
            for height in sorted({height for height, _ in slots}):
                held = [one for (at, _), one in sorted(self._held.items()) if at == height]
                await self._disk.run(self._store.put_published, height, held)
        except StoreFull as error:
            log.warning("the measures that members have published were not kept: %s", error)
            return False
        return True

    def _pass_on(self, published: PublishedMeasures) -> None:
        """Sends measures on: their author to all peers, another node to a few, each node to other ones, so that they
        also arrive where the author does not reach."""
        peers = sorted(self._transport.connected())
        if published.key != self._signer.id:
            peers = sorted(peers, key=lambda peer: self._draw(peer, published))[:FANOUT]
        for peer in peers:
            self._post(peer, published)

    def _draw(self, peer: Id, published: PublishedMeasures) -> bytes:
        return hashlib.sha256(self._signer.id + peer + published.signature).digest()

    def _forget_old(self) -> None:
        """Forgets the measures of older rounds, which are in the store."""
        since = self._current.tip.height - NEWEST
        self._held = {slot: one for slot, one in self._held.items() if slot[0] > since or slot in self._news}
        self._reads = {key: bucket for key, bucket in self._reads.items() if self._peers.get(key) is not None}
