"""What an operator may have a running node do: whose connections it refuses. Kept in `DATA/bans.json`, so that a
restart does not let anybody back in."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from chain.block import Id
from chain.errors import InvalidKey
from chain.signing import decode_id, encode_id
from node.bans import Bans
from node.clock import Clock
from node.errors import ConfigError
from node.ledger import InvalidRequest
from node.offload import Offload
from node.peers import Peer, Peers
from node.private_file import read_private, write_private

log = logging.getLogger(__name__)

BANS = "bans.json"
MAX_BAN_MINUTES = 366 * 24 * 60


class Operator:
    """Carries out what an operator asks for. `hang_up` ends a peer's connection that is there."""

    def __init__(
        self, bans: Bans, peers: Peers, data_dir: Path, clock: Clock, disk: Offload, hang_up: Callable[[Id], None]
    ) -> None:
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
        log.warning("%s (%s) is refused for %g min, by the operator", peer.name, encode_id(peer.id)[:8], minutes)
        return peer

    async def unban(self, which: str) -> Peer:
        """Lets a peer connect again, whatever it was refused for. Raises NotFound or InvalidRequest."""
        peer = self._peers.find(which)
        self._bans.lift(peer.id)
        await self._save()
        log.warning("%s (%s) is let in again, by the operator", peer.name, encode_id(peer.id)[:8])
        return peer

    async def _save(self) -> None:
        now_ms = self._clock.now_ms()
        until = {encode_id(peer): now_ms + round(1000 * left_s) for peer, left_s in self._bans.get_by_hand().items()}
        await self._disk.run(write_private, self._path, json.dumps({"until_ms": until}).encode())


def restore_bans(bans: Bans, data_dir: Path, now_ms: int) -> None:
    """Goes on refusing whom an operator had refused before a restart. Raises ConfigError when that cannot be read."""
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
