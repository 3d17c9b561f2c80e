"""The identity key on disk: PKCS#8 PEM, readable by its owner alone, opened with its passphrase where it has one
(SECURITY §4).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from chain.errors import InvalidKey
from chain.signing import SigningKey
from node.config.node_config import NodeConfig
from node.errors import ConfigError, KeyFileError

MAX_KEY_FILE_BYTES = 16 * 1024
MAX_PASSPHRASE_BYTES = 1024
_HOW_TO_OPEN = " (node.identity_passphrase_file, or --passphrase-file, names the file that holds it)"


def create_identity(path: Path, passphrase: bytes | None = None) -> SigningKey:
    """Writes a new identity to `path`, durably. Raises KeyFileError if there is a file already, or none can be
    written."""
    key = SigningKey.generate()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise KeyFileError(f"{path}: expected no file, as a key is never overwritten; move it away first") from error
    except OSError as error:
        raise KeyFileError(f"{path}: cannot create the key file: {error.strerror}") from error
    with open(file, "wb") as out:
        out.write(key.to_pem(passphrase))
        out.flush()
        os.fsync(out.fileno())
    _sync_folder(path.parent)
    return key


def load_identity(path: Path, passphrase: bytes | None = None) -> SigningKey:
    """Returns the identity in `path`. Raises KeyFileError when anyone but its owner could read it, or it is not a
    key."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot read the key file: {error.strerror}") from error
    try:
        validate_access(path, os.fstat(file), read_only=bool(os.fstatvfs(file).f_flag & os.ST_RDONLY))
        pem = os.read(file, MAX_KEY_FILE_BYTES + 1)
    finally:
        os.close(file)
    if len(pem) > MAX_KEY_FILE_BYTES:
        raise KeyFileError(f"{path}: expected a key of at most {MAX_KEY_FILE_BYTES} bytes")
    try:
        return SigningKey.from_pem(pem, passphrase)
    except InvalidKey as error:
        hint = "" if passphrase or b"ENCRYPTED" not in pem else _HOW_TO_OPEN
        raise KeyFileError(f"{path}: {error}{hint}") from error


def validate_access(path: Path, status: os.stat_result, *, read_only: bool) -> None:
    """Raises KeyFileError unless this user owns the file, with mode 0600 or less. A mounted secret of root's is
    accepted, too: Kubernetes' fsGroup gives it mode 0440 and this process's group, systemd an access list, whose mask
    shows as the same mode, and root's group."""
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"{path}: expected a regular file")
    groups = {os.getegid(), *os.getgroups(), 0}
    if read_only and status.st_uid == 0 and status.st_gid in groups and mode & ~0o440 == 0:
        return
    if status.st_uid != os.geteuid():
        raise KeyFileError(f"{path}: expected owner uid {os.geteuid()}, got {status.st_uid}")
    if mode & 0o077:
        raise KeyFileError(f"{path}: expected mode 0600, got {mode:04o}: others could read it; `chmod 600 {path}`")


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def open_identity(config: NodeConfig) -> SigningKey:
    """Returns this node's key. Raises ConfigError when a file is missing, KeyFileError when the key may not be used."""
    return open_key(config.node.identity_key_file, config.node.identity_passphrase_file)


def open_spare(config: NodeConfig) -> SigningKey | None:
    """Returns this node's other key, if it has one. Raises as `open_identity`."""
    path = config.node.spare_key_file
    return open_key(path, config.node.identity_passphrase_file) if path.exists() else None


def open_key(key_file: Path, passphrase_file: Path | None = None) -> SigningKey:
    """Returns the key in `key_file`. Raises as `open_identity`."""
    with suppress(OSError):  # a folder that cannot be read: loading the key reports it
        if not key_file.exists():
            raise ConfigError(f"{key_file}: no such file (fednode keygen -o makes an identity key)")
    return load_identity(key_file, read_passphrase(passphrase_file) if passphrase_file else None)


def read_passphrase(path: Path) -> bytes:
    """Returns the first line of `path`. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            line = file.readline(MAX_PASSPHRASE_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the passphrase ({error.strerror})") from error
    if not 1 <= len(line) <= MAX_PASSPHRASE_BYTES:
        raise ConfigError(f"{path}: expected a passphrase of 1 to {MAX_PASSPHRASE_BYTES} bytes on the first line")
    return line
