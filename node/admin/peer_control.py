"""The operator's control over peers: bans their connections, and changes the addresses they are dialled at. Bans are
kept in `DATA/bans.json`, so that they outlast a restart."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from chain.block import Id
from chain.errors import InvalidKey
from chain.signing import decode_id, encode_id
from node.addresses import validate_dialled
from node.clock import Clock
from node.errors import ConfigError, InvalidRequest
from node.host.private_file import read_private, write_private
from node.offload import Offload
from node.p2p.address_book import AddressBook
from node.p2p.bans import Bans
from node.p2p.peers import Peer, Peers

log = logging.getLogger(__name__)

BANS = "bans.json"
MAX_BAN_MINUTES = 366 * 24 * 60


class PeerControl:
    """Bans peers and sets their addresses for an operator. `hang_up` ends a peer's connection; `redial` dials a peer at
    another address, or stops dialling it."""

    def __init__(
        self,
        bans: Bans,
        book: AddressBook,
        peers: Peers,
        data_dir: Path,
        clock: Clock,
        disk: Offload,
        hang_up: Callable[[Id], None],
        redial: Callable[[Id, str | None], Awaitable[None]],
    ) -> None:
        self._book = book
        self._redial = redial
        self._bans = bans
        self._peers = peers
        self._path = data_dir / BANS
        self._clock = clock
        self._disk = disk
        self._hang_up = hang_up

    async def ban(self, which: str, minutes: float) -> Peer:
        """Refuses a peer's connections from now on. Raises NotFound or InvalidRequest."""
        if not 0 < minutes <= MAX_BAN_MINUTES:
            raise InvalidRequest(f"minutes: expected more than 0 and at most {MAX_BAN_MINUTES} (got {minutes:g})")
        peer = self._peers.find(which)
        self._bans.ban(peer.id, 60 * minutes)
        self._hang_up(peer.id)
        await self._save()
        log.warning("the operator banned %s (%s) for %g min", peer.name, encode_id(peer.id)[:8], minutes)
        return peer

    async def unban(self, which: str) -> Peer:
        """Lets a peer connect again, whatever the reason for its ban. Raises NotFound or InvalidRequest."""
        peer = self._peers.find(which)
        self._bans.lift(peer.id)
        await self._save()
        log.warning("the operator lifted the ban of %s (%s)", peer.name, encode_id(peer.id)[:8])
        return peer

    async def add(self, place: str) -> Peer:
        """Dials a member at `ID@host:port` from now on, whatever the configuration says. Raises NotFound or
        InvalidRequest."""
        which, at, address = place.rpartition("@")
        if not at:
            raise InvalidRequest(f"peer {place!r}: expected ID@HOST:PORT")
        peer = self._peers.find(which)
        if not peer.is_member:
            raise InvalidRequest(f"peer {place!r}: expected a member, got an observer; it has to dial this node")
        try:
            await self._redial(peer.id, validate_dialled(address))
        except ValueError as error:
            raise InvalidRequest(f"peer {place!r}: {error}") from error
        self._book.add(peer.id, address)
        await self._disk.run(self._book.write, self._book.encode())
        log.warning("the operator set the address of %s (%s) to %s", peer.name, encode_id(peer.id)[:8], address)
        return peer

    async def remove(self, which: str) -> Peer:
        """Dials a peer as configured again, or not at all. Raises NotFound or InvalidRequest."""
        peer = self._peers.find(which)
        self._book.remove(peer.id)
        await self._disk.run(self._book.write, self._book.encode())
        address = self._book.get(peer.id)
        await self._redial(peer.id, address)
        log.warning(
            "the operator set the address of %s (%s) back to %s",
            peer.name,
            encode_id(peer.id)[:8],
            address or "no address",
        )
        return peer

    async def _save(self) -> None:
        now_ms = self._clock.now_ms()
        until = {encode_id(peer): now_ms + round(1000 * left_s) for peer, left_s in self._bans.get_by_hand().items()}
        await self._disk.run(write_private, self._path, json.dumps({"until_ms": until}).encode())


def restore_bans(bans: Bans, data_dir: Path, now_ms: int) -> None:
    """Restores the bans that an operator had set before a restart. Raises ConfigError when their file cannot be
    read."""
    path = data_dir / BANS
    data = read_private(path)
    if data is None:
        return
    try:
        until = {decode_id(peer): int(until_ms) for peer, until_ms in json.loads(data)["until_ms"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, InvalidKey) as error:
        raise ConfigError(
            f"{path}: expected the bans that this node wrote ({error}); remove it to ban nobody"
        ) from error
    for peer, until_ms in until.items():
        if until_ms > now_ms:
            bans.ban(peer, (until_ms - now_ms) / 1000)
