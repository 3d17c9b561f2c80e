"""The OpenAPI document of `/api/v1/`, from its endpoints and the messages of admin.proto, whose names it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from node.admin.json_view import get_key
from node.pb import admin_pb2 as pb
from node.version import get_version
from node.web.endpoint import Endpoint, Parameter

_INTEGERS = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
}
_NUMBERS = {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}
_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def write_openapi(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Returns the document, OpenAPI 3.1."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _describe(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fednode",
            "version": get_version(),
            "description": "The records of one node, as its command line prints them with --json.",
        },
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    error = {"description": "Why not.", "content": {"application/json": {"schema": _refer("Error")}}}
    told: dict[str, Any] = {
        "summary": endpoint.text,
        "parameters": [_show_parameter(one) for one in endpoint.parameters],
        "responses": {
            "200": {
                "description": "The record.",
                "content": {endpoint.media: {"schema": _show_record(endpoint.record, schemas)}},
            },
            "default": error,
        },
        "security": [] if endpoint.is_door else [{"bearer": [endpoint.role.value]}],
    }
    if endpoint.is_open:
        told["security"] = [{}, *told["security"]]  # on loopback no key is needed
    if endpoint.body is not None:
        is_file = endpoint.body.get("format") == "binary"
        media = "application/octet-stream" if is_file else "application/json"
        told["requestBody"] = {"required": is_file, "content": {media: {"schema": dict(endpoint.body)}}}
    return told


def _show_parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.kind}
    if parameter.is_repeated:
        schema = {"type": "array", "items": schema}
    return {
        "name": parameter.name,
        "in": "path" if parameter.in_path else "query",
        "required": parameter.in_path,
        "description": parameter.text,
        "schema": schema,
    }


def _show_record(record: Any, schemas: dict[str, Any]) -> Any:
    """Returns a JSON Schema in which each message is replaced by its own schema."""
    if isinstance(record, type) and issubclass(record, Message):
        return _show_message(record.DESCRIPTOR, schemas)
    if isinstance(record, Mapping):
        return {key: _show_record(value, schemas) for key, value in record.items()}
    if isinstance(record, list):
        return [_show_record(each, schemas) for each in record]
    return record


def _show_message(message: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if message.name not in schemas:
        schemas[message.name] = {}
        fields = {get_key(field): _show_field(field, schemas) for field in message.fields}
        if message.name == pb.Block.DESCRIPTOR.name:
            fields = _lift_summary(fields, schemas)
        if message.name == pb.Event.DESCRIPTOR.name:
            fields["data"] = {"type": "object"}
        schemas[message.name] = {"type": "object", "properties": fields, "required": [*fields]}
    return _refer(message.name)


def _lift_summary(fields: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Puts the fields of a block's summary first, as `show_block` does."""
    others = {name: schema for name, schema in fields.items() if name != "summary"}
    summary: dict[str, Any] = schemas[pb.BlockSummary.DESCRIPTOR.name]["properties"]
    return summary | others


def _show_field(field: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _show_value(message.fields_by_name["value"], schemas)}
    if field.is_repeated:
        return {"type": "array", "items": _show_value(field, schemas)}
    value = _show_value(field, schemas)
    if not field.has_presence:
        return value
    return {"anyOf": [value, {"type": "null"}]}


def _show_value(field: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        return _show_message(field.message_type, schemas)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return {"type": "boolean"}
    if field.type in _INTEGERS:
        return {"type": "integer"}
    return {"type": "number"} if field.type in _NUMBERS else {"type": "string"}


def _refer(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
