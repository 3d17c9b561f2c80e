"""The address of a node's admin server: a unix socket, or TCP with a token.

Over TCP beyond this machine the address is written `ID@host:port`: the node must prove that its id is this one, and TLS
keeps the token secret. Without an id a call goes out in plain, which is safe only on loopback.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chain.block import Id
from chain.errors import InvalidKey
from chain.signing import decode_id, encode_id
from node.addresses import is_on_loopback, parse_address
from node.errors import ConfigError, PermissionRefused

TOKEN_FILE_VARIABLE = "FEDNODE_TOKEN_FILE"  # noqa: S105 (a name of a variable that names a file)
MAX_TOKEN_BYTES = 256


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """The TCP address of a node: `host_port`, under TLS if the node's `id` is known, else in plain. Every call carries
    `token`."""

    host_port: str
    id: Id | None
    token: str = field(repr=False)

    def __str__(self) -> str:
        return self.host_port if self.id is None else f"{encode_id(self.id)[:8]}@{self.host_port}"

    @classmethod
    def parse(cls, text: str, env: Mapping[str, str]) -> RemoteAddress:
        """Reads `host:port` or `ID@host:port`, and the token from the file that the environment names.

        Raises ValueError for what is no address, PermissionRefused for an address that no token must be sent to, or
        when there is no token.
        """
        peer, at, host_port = text.rpartition("@")
        parse_address(host_port)
        try:
            node_id = decode_id(peer) if at else None
        except InvalidKey as error:
            raise ValueError(f"expected a node id before the @ ({error})") from error
        if node_id is None and not is_on_loopback(host_port):
            raise PermissionRefused(
                f"{host_port}: expected ID@{host_port}, as a token must not leave this machine in plain "
                f"(fednode id prints a node's id)"
            )
        return cls(host_port, node_id, read_token(env, host_port))


AdminAddress = Path | RemoteAddress


def read_token(env: Mapping[str, str], place: str) -> str:
    """Returns the first line of the file that the environment names. Raises PermissionRefused or ConfigError."""
    name = env.get(TOKEN_FILE_VARIABLE)
    if not name:
        raise PermissionRefused(
            f"{place}: expected --token-file, or {TOKEN_FILE_VARIABLE}, to name a file with a token, which fednode "
            "token new makes"
        )
    try:
        with Path(os.path.expanduser(name)).open("rb") as file:
            line = file.readline(MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"{name}: cannot read the token ({error.strerror})") from error
    if not 1 <= len(line) <= MAX_TOKEN_BYTES or not line.isascii():
        raise ConfigError(f"{name}: expected a token on the first line")
    return line.decode()
