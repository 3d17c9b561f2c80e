"""Redaction: a configuration without its secrets, so that it can be shown (SECURITY §4)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

REDACTED = "(redacted)"


def redact(value: Any, key: str = "", *, keep_places: bool = False) -> Any:
    """Returns a configuration without the paths of secret files, without tokens, and without the user part of
    addresses.

    With `keep_places` all paths stay, for somebody who can read the configuration file anyway: no secret itself is in
    it.
    """
    if isinstance(value, dict):
        return {name: redact(below, name, keep_places=keep_places) for name, below in value.items()}
    if isinstance(value, list):
        return [redact(below, key, keep_places=keep_places) for below in value]
    if not isinstance(value, str):
        return value
    if key.endswith("_file"):
        return value if keep_places else REDACTED
    if "token" in key or "passphrase" in key:
        return REDACTED
    if "://" in value and "@" in urlsplit(value).netloc:
        parts = urlsplit(value)
        return parts._replace(netloc=f"{REDACTED}@{parts.netloc.rpartition('@')[2]}").geturl()
    return value
