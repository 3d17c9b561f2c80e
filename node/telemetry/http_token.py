"""The token over HTTP, which a caller shows as `Authorization: Bearer TOKEN` where the configuration names one
(SECURITY §4)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from node.errors import ConfigError

MAX_TOKEN_BYTES = 4096


class HttpToken:
    """Holds the token of one node, None where no token is needed; the operator may replace it while the node runs."""

    def __init__(self, token: bytes | None) -> None:
        self._token = token

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """Reads the token from a file. Raises ConfigError."""
        return cls(None if path is None else read_token(path))

    @property
    def is_needed(self) -> bool:
        return self._token is not None

    def replace(self, token: bytes | None) -> bool:
        """Sets the token that is needed from now on. Returns whether it has changed."""
        is_other, self._token = token != self._token, token
        return is_other

    def is_shown(self, headers: Mapping[str, str]) -> bool:
        """Returns whether a caller shows the token; True as well where none is needed."""
        if self._token is None:
            return True
        return hmac.compare_digest((read_bearer(headers) or "").encode(), self._token)


def read_bearer(headers: Mapping[str, str]) -> str | None:
    """Returns the token that a caller shows, None without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def read_token(path: Path) -> bytes:
    """Returns the first line of `path`. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            token = file.readline(MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"http.token_file: {path}: cannot be read ({error.strerror})") from error
    if not 16 <= len(token) <= MAX_TOKEN_BYTES:
        raise ConfigError(f"http.token_file: {path}: expected a token of at least 16 characters on the first line")
    return token
