"""Opening the identity that a configuration names, with its passphrase where it has one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from chain.signing import SigningKey
from node.config.identity import load_identity
from node.config.node_config import NodeConfig
from node.errors import ConfigError

MAX_PASSPHRASE_BYTES = 1024


def open_identity(config: NodeConfig) -> SigningKey:
    """This node's key. Raises ConfigError when a file is missing, KeyFileError when the key may not be used."""
    return open_key(config.node.identity_key_file, config.node.identity_passphrase_file)


def open_key(key_file: Path, passphrase_file: Path | None = None) -> SigningKey:
    """The key in `key_file`. Raises as `open_identity`."""
    with suppress(OSError):  # in a folder that is not ours to look into: loading it says so
        if not key_file.exists():
            raise ConfigError(f"{key_file}: no such file (fednode keygen -o makes an identity key)")
    return load_identity(key_file, read_passphrase(passphrase_file) if passphrase_file else None)


def read_passphrase(path: Path) -> bytes:
    """The first line of `path`. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            line = file.readline(MAX_PASSPHRASE_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the passphrase ({error.strerror})") from error
    if not 1 <= len(line) <= MAX_PASSPHRASE_BYTES:
        raise ConfigError(f"{path}: expected a passphrase of 1 to {MAX_PASSPHRASE_BYTES} bytes on the first line")
    return line
