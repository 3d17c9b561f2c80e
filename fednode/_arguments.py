"""Arguments of the Python API: one of a wrong kind is a ConfigError that names it."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real

from node.errors import ConfigError

_KINDS: Mapping[str, type] = {"a text": str, "a whole number": Integral, "a number": Real, "a dictionary": Mapping}


def read_whole(name: str, given: object) -> int:
    """Returns a whole number, also from one of numpy's. Raises ConfigError."""
    _check("a whole number", name, given)
    return int(given)  # type: ignore[call-overload, no-any-return]


def require_kind(kind: str, *, or_none: bool = False, **given: object) -> None:
    """Raises ConfigError for an argument that is not of the kind; `kind` names it in words."""
    for name, value in given.items():
        if not (or_none and value is None):
            _check(kind, name, value)


def _check(kind: str, name: str, value: object) -> None:
    if not isinstance(value, _KINDS[kind]) or isinstance(value, bool):
        raise ConfigError(f"{name}: expected {kind} (got {value!r})")
