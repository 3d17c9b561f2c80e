"""Settings as Python has them, as the `KEY=VALUE` that a command line takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from node.errors import ConfigError

USUAL_DATA = "digits"


def write_settings(settings: Mapping[str, Any] | None) -> tuple[str, ...]:
    """One `KEY=VALUE` each, the value as JSON, which is YAML too. Raises ConfigError for what JSON does not have."""
    written = []
    for key, value in (settings or {}).items():
        try:
            written.append(f"{key}={json.dumps(value, allow_nan=False)}")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"settings: {key}: expected numbers, texts, lists or mappings (got {value!r})") from error
    return tuple(written)


def write_drop(drop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The setting that `drop` stands for: a column, or several."""
    return () if drop is None else write_settings({"input.drop": [drop] if isinstance(drop, str) else list(drop)})


def read_sites(site: Sequence[str | PathLike[str]] | None, data: str) -> tuple[str, ...]:
    """The paths in `site`, each the data of one node; none where `data` is dealt out. Raises ConfigError where both are
    given."""
    if site is not None and data != USUAL_DATA:
        raise ConfigError(f"site: expected no data beside it (got {data!r}): each node has the data of one path")
    return tuple(fspath(path) for path in site or ())
