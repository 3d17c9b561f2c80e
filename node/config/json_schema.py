"""The JSON Schema of node.yaml, for editors and validators, made from the models that check it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from node.config.node_config import NodeConfig

SCHEMA_HINT = "# yaml-language-server: $schema={}"  # the first line of a file, for editors that complete
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema() -> dict[str, Any]:
    """Makes the JSON Schema of node.yaml. Addresses and ids are checked more closely when a node reads them."""
    return {"$schema": DIALECT, **NodeConfig.model_json_schema(), "title": "node.yaml of fednode"}


def get_defaults() -> dict[str, Any]:
    """Returns the settings of a node that sets only what is required; keys without a default are not there."""
    return _get_defaults(NodeConfig)


def _get_defaults(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        if field.is_required():
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found[name] = _get_defaults(kind)
        else:
            default = field.get_default(call_default_factory=True)
            found[name] = default.model_dump(mode="json") if isinstance(default, BaseModel) else _to_json(default)
    return found


def _to_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
