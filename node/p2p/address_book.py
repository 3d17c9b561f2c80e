"""The address book: where this node dials its peers. An operator's address comes first, then a configured one
(`network.peers`, then genesis), then the one that a peer has sent itself.

The addresses of the operator and of the peers are kept in `DATA/addresses.json`, so that a restart does not dial an
address that a peer has left.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from chain.block import Id
from chain.errors import ChainError, InvalidKey
from chain.hints import AddressHint, decode_hint, encode_hint
from chain.signing import decode_id, encode_id
from node.addresses import validate_dialled, validate_told
from node.errors import ConfigError
from node.host.private_file import read_private, write_private

ADDRESSES = "addresses.json"


class AddressBook:
    """Maps node ids to `host:port`. `added` holds the operator's addresses, which come before the `configured` ones;
    `hints` the newest signed hint of each peer, whose signature is checked."""

    def __init__(
        self, path: Path, configured: Mapping[Id, str], added: Mapping[Id, str], hints: Collection[AddressHint] = ()
    ) -> None:
        self._path = path
        self._configured = dict(configured)
        self._added = dict(added)
        self._hints = {hint.key: hint for hint in hints}

    def __repr__(self) -> str:
        return f"AddressBook(configured={len(self._configured)}, added={len(self._added)}, hints={len(self._hints)})"

    @classmethod
    def load(cls, data_dir: Path, configured: Mapping[Id, str]) -> AddressBook:
        """Reads the address book of a data directory. Raises ConfigError when its file cannot be read."""
        path = data_dir / ADDRESSES
        data = read_private(path)
        if data is None:
            return cls(path, configured, {})
        try:
            kept = json.loads(data)
            added = {decode_id(peer): validate_dialled(at) for peer, at in kept["addresses"].items()}
            hints = [decode_hint(bytes.fromhex(text)) for text in kept.get("hints", ())]
            for hint in hints:
                validate_told(hint.address)
            return cls(path, configured, added, hints)
        except (ValueError, LookupError, TypeError, AttributeError, InvalidKey, ChainError) as error:
            raise ConfigError(
                f"{path}: expected the addresses that this node wrote ({error}); remove it to dial as configured"
            ) from error

    def get(self, peer: Id) -> str | None:
        """Returns where to dial `peer`; None where no address is known."""
        hint = self._hints.get(peer)
        told = None if hint is None else hint.address
        return self._added.get(peer, self._configured.get(peer, told))

    def get_all(self) -> dict[Id, str]:
        told = {peer: hint.address for peer, hint in self._hints.items()}
        return told | self._configured | self._added

    def is_added(self, peer: Id) -> bool:
        return peer in self._added

    def add(self, peer: Id, address: str) -> None:
        self._added[peer] = address

    def remove(self, peer: Id) -> None:
        """Removes the operator's address: the configured one, or the peer's own, is in force again."""
        self._added.pop(peer, None)

    def configure(self, addresses: Mapping[Id, str]) -> None:
        """Replaces the configured addresses."""
        self._configured = dict(addresses)

    # ---- hints: addresses that peers sent

    def get_hints(self) -> list[AddressHint]:
        return list(self._hints.values())

    def get_hint(self, peer: Id) -> AddressHint | None:
        return self._hints.get(peer)

    def put_hint(self, hint: AddressHint) -> None:
        """Replaces the hint of its key."""
        self._hints[hint.key] = hint

    def drop_hint(self, peer: Id) -> None:
        self._hints.pop(peer, None)

    # ---- the file

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        addresses = {encode_id(peer): address for peer, address in self._added.items()}
        hints = [encode_hint(hint).hex() for hint in self._hints.values()]
        return json.dumps({"addresses": addresses, "hints": hints}).encode()

    def save(self) -> None:
        """Writes the file durably. Raises NodeError."""
        self.write(self.encode())

    def write(self, data: bytes) -> None:
        """Writes the bytes that `encode` returned to the file. Raises NodeError."""
        write_private(self._path, data)
