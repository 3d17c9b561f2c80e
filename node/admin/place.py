"""The place of a node that is asked: read from an address as people write it, or from the node's configuration. `env`
names the file with the token that an address over TCP needs."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from node.errors import ConfigError, NodeUnreachable, PermissionRefused

if TYPE_CHECKING:  # a caller over a socket needs no signatures
    from node.admin.address import AdminAddress
    from node.config.node_config import NodeConfig


def read_place(text: str, env: Mapping[str, str]) -> AdminAddress:
    """Returns the place that `text` names. Raises ValueError for what is none, and the errors of
    `RemoteAddress.parse`."""
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if path and ("/" in path or ":" not in path):
        return Path(path)
    from node.admin.address import RemoteAddress

    try:
        return RemoteAddress.parse(text, env)
    except ValueError as error:
        raise ValueError(
            f"expected the path of a unix socket, as in run/node0.sock, host:port or ID@host:port (got {text!r}: "
            f"{error})"
        ) from error


class Configured(NamedTuple):
    """The node of a configuration: where it is asked, and its data directory."""

    place: AdminAddress
    data_dir: Path


def read_configured_place(path: Path, env: Mapping[str, str]) -> Configured:
    """Returns the node of the configuration in `path`. Raises ConfigError, also where it has neither socket nor
    address."""
    from node.config.node_config import load_config

    config = load_config(path, (), env)
    place: AdminAddress | None = config.admin.socket
    if place is None and config.admin.address is not None:
        place = _read_own_address(config, config.admin.address, env)
    if place is None:
        raise ConfigError(f"{path}: admin.socket: expected a socket, as nothing can be asked of a node without one")
    return Configured(place, config.node.data_dir)


def _read_own_address(config: NodeConfig, address: str, env: Mapping[str, str]) -> AdminAddress:
    """Returns the address at which this machine asks its own node if that has no socket."""
    from chain.signing import encode_id
    from node.addresses import is_on_loopback
    from node.admin.address import RemoteAddress
    from node.config.identity import open_identity

    if is_on_loopback(address):
        return RemoteAddress.parse(address, env)
    return RemoteAddress.parse(f"{encode_id(open_identity(config).id)}@{address}", env)


def validate_socket(path: Path) -> None:
    """Raises NodeUnreachable, naming what is there instead of a socket."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        why = "no such socket; is the node running?" if isinstance(error, FileNotFoundError) else error.strerror
        kind = PermissionRefused if isinstance(error, PermissionError) else NodeUnreachable
        raise kind(f"{path}: {why}") from error
    if not stat.S_ISSOCK(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a file; a configuration is named by --config"
        raise NodeUnreachable(f"{path}: expected a node's socket, got {what}")
