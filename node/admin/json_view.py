"""The messages of admin.proto as JSON: the same names, numbers as numbers, null where an optional field is not set."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from node.pb import admin_pb2 as pb


def to_json(message: Message) -> dict[str, Any]:
    """Returns every field in the order it is declared, under its name, or its `json_name` where the .proto sets one."""
    return {get_key(field): _get_value(message, field) for field in message.DESCRIPTOR.fields}


def show_block(block: pb.Block) -> dict[str, Any]:
    """Returns the fields of a block's summary, and after them those that only this view has."""
    details = to_json(block)
    summary: dict[str, Any] = details.pop("summary")
    return summary | details


def get_key(field: Any) -> str:
    """Returns the name under which a field of a message is shown."""
    name: str = field.name
    given: str = field.json_name
    first, *others = name.split("_")
    derived = first + "".join(word.capitalize() for word in others)  # the name that protobuf derives by default
    return name if given == derived else given


def _get_value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return {key: _show(value[key]) for key in sorted(value)}
        return [_show(item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _show(value)


def _show(value: Any) -> Any:
    return to_json(value) if isinstance(value, Message) else value
