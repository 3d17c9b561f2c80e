"""The tokens that allow access to a node over TCP: each has a name and a role, and they are kept in `DATA/tokens.json`,
mode 0600 (SECURITY §4).

A token is 256 random bits, so only its SHA-256 is kept: it cannot be inverted, and a slow hash would only slow down the
node. The file is read again whenever it has changed, so that a revoked token ends at the next call.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from node.errors import NodeError, NotFound, PermissionRefused
from node.host.private_file import read_private, write_private

TOKENS = "tokens.json"
PREFIX = "fn_"  # makes a leaked token recognisable
MAX_TOKENS = 1000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Role(StrEnum):
    """The permission of a caller: to read; to have this node decode files and compute answers, too; to change things,
    too. Each includes those before it."""

    READ = "read"
    PREDICT = "predict"
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        order = [*Role]
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Token:
    """The record kept of a token. `sha256` is of the token's text, `created` RFC 3339."""

    name: str
    role: Role
    sha256: str
    created: str


class Tokens:
    """The tokens of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / TOKENS
        self._version: tuple[int, int, int] | None = None
        self._known: tuple[Token, ...] = ()

    def __repr__(self) -> str:
        return f"Tokens({str(self._path)!r}, known={len(self._known)})"

    # ---- what the command line does

    def add(self, name: str, role: Role, created: str) -> str:
        """Makes a token and returns it; it is shown only once. Raises NodeError."""
        if not _NAME.fullmatch(name):
            raise NodeError(f"name: expected letters, digits, '.', '_' and '-', at most 64 (got {name!r})")
        text = PREFIX + secrets.token_urlsafe(32)
        with self._changing() as tokens:
            if any(token.name == name for token in tokens):
                raise NodeError(f"{self._path}: there is a token {name} already; revoke it first")
            if len(tokens) >= MAX_TOKENS:
                raise NodeError(f"{self._path}: expected at most {MAX_TOKENS} tokens; revoke some first")
            tokens.append(Token(name, role, _hash(text), created))
        return text

    def revoke(self, name: str) -> None:
        """Removes the token of this name. Raises NotFound."""
        with self._changing() as tokens:
            kept = [token for token in tokens if token.name != name]
            if len(kept) == len(tokens):
                raise NotFound(f"{self._path}: no token {name}")
            tokens[:] = kept

    def get_all(self) -> Sequence[Token]:
        """Returns the tokens. Raises NodeError when the file is not one of ours, PermissionRefused when others can
        change or read it."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return ()
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise PermissionRefused(
                f"{self._path}: expected mode 0600 and user {os.geteuid()}, got {mode:04o} and user {status.st_uid}"
            )
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self._version:
            self._known = _decode(self._path, read_private(self._path) or b"")
            self._version = version
        return self._known

    @contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        """Yields the list of tokens to be changed, and writes it afterwards; one process at a time."""
        if not self._path.parent.is_dir():
            raise NotFound(f"{self._path.parent}: expected a node's data directory")
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            self._version = None
            tokens = list(self.get_all())
            yield tokens
            write_private(self._path, json.dumps({"tokens": [asdict(token) for token in tokens]}).encode())
        finally:
            os.close(folder)

    # ---- what the server does

    def find_role(self, text: str) -> Role | None:
        """Returns the role of this token, None for an unknown one. It takes as long for every wrong token."""
        digest = _hash(text)
        found: Role | None = None
        for token in self.get_all():
            if hmac.compare_digest(token.sha256, digest):
                found = token.role
        return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _decode(path: Path, data: bytes) -> tuple[Token, ...]:
    try:
        tokens = tuple(
            Token(str(row["name"]), Role(row["role"]), str(row["sha256"]), str(row["created"]))
            for row in json.loads(data)["tokens"]
        )
        if not all(_SHA256.fullmatch(token.sha256) for token in tokens):
            raise ValueError("a hash is none")
    except (ValueError, LookupError, TypeError) as error:
        raise NodeError(f"{path}: expected the tokens that fednode token wrote ({error})") from error
    return tokens
