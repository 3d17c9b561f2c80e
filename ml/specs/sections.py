"""Settings in sections: a method's `outer: {lr: 0.7}` is the setting `outer.lr`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def within(section: str, setting: Any) -> Any:
    """Returns the setting as one of a section: for the field `outer_lr` the key is `outer.lr`."""
    setting.metadata = {**setting.metadata, "section": section}
    return setting


def get_key(name: str, metadata: Mapping[str, Any]) -> str:
    """Returns the key of a field: its name without a trailing underscore, after that of its section if it has one."""
    section = metadata.get("section")
    return name.rstrip("_") if section is None else f"{section}.{name.removeprefix(f'{section}_')}"


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by key, those in sections by dotted ones; `plugin` is a record and no section."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and key != "plugin":
            flat |= {f"{key}.{own}": of for own, of in value.items()}
        else:
            flat[key] = value
    return flat


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns flat settings with their sections as mappings."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        section, dot, own = key.partition(".")
        if dot:
            nested.setdefault(section, {})[own] = value
        else:
            nested[key] = value
    return nested
