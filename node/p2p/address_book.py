"""The address book: where this node dials its peers. Genesis gives hints, `network.peers` overrides them, and an
operator's word overrides both.

What the operator said is kept in `DATA/addresses.json`: a restart does not go back to where a peer no longer is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from chain.block import Id
from chain.errors import InvalidKey
from chain.signing import decode_id, encode_id
from node.addresses import validate_dialled
from node.errors import ConfigError
from node.host.private_file import read_private, write_private

ADDRESSES = "addresses.json"


class AddressBook:
    """`host:port` by node id. `added` are the operator's, which count before the `configured` ones."""

    def __init__(self, path: Path, configured: Mapping[Id, str], added: Mapping[Id, str]) -> None:
        self._path = path
        self._configured = dict(configured)
        self._added = dict(added)

    def __repr__(self) -> str:
        return f"AddressBook(configured={len(self._configured)}, added={len(self._added)})"

    @classmethod
    def load(cls, data_dir: Path, configured: Mapping[Id, str]) -> AddressBook:
        """Raises ConfigError when what was kept cannot be read."""
        path = data_dir / ADDRESSES
        data = read_private(path)
        if data is None:
            return cls(path, configured, {})
        try:
            kept = json.loads(data)["addresses"]
            return cls(path, configured, {decode_id(peer): validate_dialled(at) for peer, at in kept.items()})
        except (ValueError, LookupError, TypeError, AttributeError, InvalidKey) as error:
            raise ConfigError(
                f"{path}: expected the addresses that this node wrote ({error}); remove it to dial as configured"
            ) from error

    def get(self, peer: Id) -> str | None:
        return self._added.get(peer, self._configured.get(peer))

    def get_all(self) -> dict[Id, str]:
        return self._configured | self._added

    def is_added(self, peer: Id) -> bool:
        return peer in self._added

    def add(self, peer: Id, address: str) -> None:
        self._added[peer] = address

    def remove(self, peer: Id) -> None:
        """Back to what is configured."""
        self._added.pop(peer, None)

    def configure(self, addresses: Mapping[Id, str]) -> None:
        """The configuration says otherwise from now on."""
        self._configured = dict(addresses)

    def save(self) -> None:
        """Durable when it returns. Raises NodeError."""
        addresses = {encode_id(peer): address for peer, address in self._added.items()}
        write_private(self._path, json.dumps({"addresses": addresses}).encode())
