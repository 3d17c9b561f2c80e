"""Settings as Python has them, as the `KEY=VALUE` that a command line takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from node.errors import ConfigError


def write_settings(settings: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns each setting as `KEY=VALUE`, the value as JSON, which is also YAML. Raises ConfigError for a value that
    JSON cannot hold."""
    written = []
    for key, value in (settings or {}).items():
        try:
            written.append(f"{key}={json.dumps(value, allow_nan=False)}")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"settings: {key}: expected numbers, texts, lists or mappings (got {value!r})") from error
    return tuple(written)
