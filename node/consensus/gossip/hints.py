"""Address hints: sends the others this node's address, keeps theirs, and dials them there.

A hint is an address that a key has signed for itself. The newest hint of each admitted key counts, unless the operator
or the configuration says otherwise. It is stored before it is sent on, and a peer that connects receives all of them. A
peer may make as many hints as it likes: one is kept, and it is sent on and dialled at most every PAUSE_S.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from chain.block import Digest, Id
from chain.errors import DecodeError, InvalidSignature
from chain.hints import AddressHint, decode_hint, encode_hint, verify_hint
from chain.signing import encode_id
from node.addresses import validate_told
from node.clock import Clock
from node.consensus.signing.signer import Signer
from node.errors import NodeError
from node.offload import Offload
from node.p2p.address_book import AddressBook
from node.p2p.admission import Role
from node.p2p.peers import Peer, Peers
from node.p2p.refusals import Reason, get_reason
from node.p2p.transport.base import Message, MessageKind, PeerFault, Transport
from node.p2p.transport.outbox import TokenBucket

log = logging.getLogger(__name__)

PAUSE_S = 60.0  # between two addresses of one key that are sent on and dialled
AHEAD_MS = 24 * 3600 * 1000  # a hint from later than this would outlast all that come after it
OWN_S = 600.0  # how often this node checks its own hint: its clock may have been corrected
MAX_HINTS = 1024  # held, and read from the file at a start
READS_BURST = 2.0 * MAX_HINTS  # of one sender, which may send all that it has to a node that has none
READS_PER_S = 1.0


class AddressHints:
    """Handles the address hints of one node. `advertise` is the address that it sends of itself; None: it sends
    none."""

    def __init__(
        self,
        book: AddressBook,
        signer: Signer,
        transport: Transport,
        *,
        chain_id: Digest,
        advertise: str | None,
        peers: Peers,
        clock: Clock,
        disk: Offload,
    ) -> None:
        self._book = book
        self._signer = signer
        self._transport = transport
        self._chain_id = chain_id
        self._advertise = advertise
        self._peers = peers
        self._clock = clock
        self._disk = disk
        self._news: set[Id] = set()  # keys whose hints are not stored and sent on yet
        self._since_s: dict[Id, float] = {}  # when that was done last, by key
        self._reads: dict[Id, TokenBucket] = {}
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"<AddressHints: {len(self._book.get_hints())} held, {len(self._news)} new>"

    # ---- hints that come in

    def on_message(self, sender: Peer, data: bytes) -> None:
        """Handles a pushed hint. Raises PeerFault for a fault that the sender should have found."""
        try:
            hint = decode_hint(data)
            if self._is_news(hint):
                if not self._may_read(sender.id):
                    sender.refusals[Reason.RATE] += 1
                    return
                self._take(hint)
        except (DecodeError, InvalidSignature) as error:
            raise PeerFault(f"hint: {error}", get_reason(error)) from error

    def accept(self, hint: AddressHint) -> bool:
        """Accepts the hint in a join request, of a key that is admitted by then. Returns whether it is good and new."""
        with suppress(InvalidSignature):
            return self._is_news(hint) and self._take(hint)
        return False

    def _is_news(self, hint: AddressHint) -> bool:
        """Says whether a hint is newer than the one that is held. No hint counts of this node itself, which knows its
        own address, or of a key that is not admitted here."""
        if hint.key == self._signer.id or self._peers.get(hint.key) is None:
            return False
        held = self._book.get_hint(hint.key)
        return held is None or held.made_ms < hint.made_ms or self._is_ahead(held)

    def _is_ahead(self, hint: AddressHint) -> bool:
        """Says whether a hint is from the future: a clock was wrong when it was made or, if it is held, when it was
        accepted."""
        return hint.made_ms > self._clock.now_ms() + AHEAD_MS

    def _may_read(self, sender: Id) -> bool:
        now_s = self._clock.monotonic()
        return self._reads.setdefault(sender, TokenBucket(READS_PER_S, READS_BURST, now_s)).take(now_s)

    def _take(self, hint: AddressHint) -> bool:
        """Checks a hint and keeps it. Returns whether it is good. Raises InvalidSignature; any other fault is its
        author's, not the sender's."""
        verify_hint(self._chain_id, hint)
        if self._is_ahead(hint):
            self._peers.refuse(hint.key, Reason.CLOCK)
            return False
        try:
            validate_told(hint.address)
        except ValueError as error:
            log.debug("hint of %s refused: %s", self._peers.get_name(hint.key), error)
            self._peers.refuse(hint.key, Reason.RULE)
            return False
        if self._book.get_hint(hint.key) is None and len(self._book.get_hints()) >= MAX_HINTS:
            self._peers.refuse(hint.key, Reason.NO_ROOM)
            return False
        self._put(hint)
        return True

    def _put(self, hint: AddressHint) -> None:
        self._book.put_hint(hint)
        self._news.add(hint.key)
        self._wake.set()

    # ---- hints that are sent

    def greet(self, peer: Id) -> None:
        """Sends this node's own hint to a peer that has connected; a member sends all others, too."""
        for hint in self._book.get_hints():
            if hint.key not in self._news and hint.key != peer and self._tells(hint.key):
                self._transport.post(peer, Message(MessageKind.HINT, encode_hint(hint)))

    def _tells(self, key: Id) -> bool:
        return key == self._signer.id or self._peers.my_role is Role.MEMBER

    async def run(self) -> None:
        """Stores new hints, sends them on and dials their addresses, at most every PAUSE_S for each key."""
        while True:
            self._tell_own()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._get_wait_s()):
                    await self._wake.wait()
            self._wake.clear()
            due = sorted(key for key in self._news if self._get_due_s(key) <= self._clock.monotonic())
            if due:
                await self._settle(due)

    def _get_due_s(self, key: Id) -> float:
        return self._since_s.get(key, float("-inf")) + PAUSE_S

    def _get_wait_s(self) -> float:
        if not self._news:
            return OWN_S
        return min(OWN_S, max(0.0, min(map(self._get_due_s, self._news)) - self._clock.monotonic()))

    def _tell_own(self) -> None:
        held = self._book.get_hint(self._signer.id)
        if self._advertise is None:
            self._book.drop_hint(self._signer.id)
        elif held is None or held.address != self._advertise or self._is_ahead(held):
            made_ms = self._clock.now_ms()
            if held is not None and not self._is_ahead(held):
                made_ms = max(made_ms, held.made_ms + 1)
            self._put(self._signer.sign_hint(made_ms=made_ms, address=self._advertise))

    async def _settle(self, due: list[Id]) -> None:
        self._forget_gone()
        for key in due:
            self._since_s[key] = self._clock.monotonic()
        kept = [hint for key in due if (hint := self._book.get_hint(key)) is not None]
        try:
            await self._disk.run(self._book.write, self._book.encode())
        except NodeError as error:  # the next one is stored along with it
            log.warning("the addresses of peers were not kept: %s", error)
            return
        for hint in kept:
            if self._book.get_hint(hint.key) == hint:  # else a newer one waits for its turn
                self._news.discard(hint.key)
            if self._tells(hint.key):
                for peer in sorted(self._transport.connected() - {hint.key}):
                    self._transport.post(peer, Message(MessageKind.HINT, encode_hint(hint)))
            await self._redial(hint.key)

    async def _redial(self, key: Id) -> None:
        """Dials the address that the book has now, since the operator or the configuration may know a better one than
        the peer."""
        if key == self._signer.id:
            return
        try:
            await self._transport.redial(key, self._book.get(key))
        except ValueError as error:  # without TLS only loopback addresses are dialled
            log.warning("%s (%s) is not dialled: %s", self._peers.get_name(key), encode_id(key)[:8], error)

    def _forget_gone(self) -> None:
        """Forgets the hints of keys that are not admitted any more."""
        for key in (hint.key for hint in self._book.get_hints()):
            if key != self._signer.id and self._peers.get(key) is None:
                self._book.drop_hint(key)
        self._news = {key for key in self._news if self._book.get_hint(key) is not None}
        self._since_s = {key: at_s for key, at_s in self._since_s.items() if self._book.get_hint(key) is not None}
        self._reads = {key: bucket for key, bucket in self._reads.items() if self._peers.get(key) is not None}
