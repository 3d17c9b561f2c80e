"""The routes of the table of operations: each operation that has an address below `/api/v1` as an endpoint."""

from __future__ import annotations

from typing import Any, Literal

from google.protobuf.descriptor import FieldDescriptor
from starlette.requests import Request

from node.admin import operations
from node.admin.json_view import get_key, to_json
from node.admin.node_answers import NodeAnswers
from node.admin.operations import Http, Operation, read_fields
from node.admin.tokens import Role
from node.errors import InvalidRequest
from node.web.endpoint import NO_BODY, Endpoint, Parameter, parse_whole, read_body, read_flag, take_body

_TYPES: dict[int, tuple[type, Literal["string", "boolean", "integer"]]] = {
    FieldDescriptor.TYPE_STRING: (str, "string"),
    FieldDescriptor.TYPE_BOOL: (bool, "boolean"),
    FieldDescriptor.TYPE_UINT32: (int, "integer"),
    FieldDescriptor.TYPE_UINT64: (int, "integer"),
}


def list_routes(answers: NodeAnswers, role: Role) -> list[Endpoint]:
    """Lists the routes of the operations that need this role, in the order of the table."""
    rows = operations.OPERATIONS
    return [make_route(row, row.http, answers) for row in rows if row.http is not None and row.role is role]


def make_route(operation: Operation[Any, Any], http: Http, answers: NodeAnswers) -> Endpoint:
    """Makes an endpoint that reads the request's fields from the path, from behind the `?`, and for a POST from its
    body. A POST of role read changes nothing."""
    fields = {get_key(one): one for one in operation.request.DESCRIPTOR.fields}
    parameters = {
        fields[name].name: Parameter(
            name, _TYPES[fields[name].type][1], text, f"{{{name}}}" in http.path, fields[name].is_repeated
        )
        for name, text in http.parameters.items()
    }
    small = {one.name for one in fields.values() if one.type == FieldDescriptor.TYPE_UINT32}
    kinds = {name: _TYPES[fields[name].type] for name in http.body or ()}
    unset = read_fields(operation.request())

    async def answer(request: Request) -> dict[str, Any]:
        said = {name: _read(request, one, is_small=name in small) for name, one in parameters.items()}
        if http.body is not None:
            said |= await read_body(request, **{name: kind for name, (kind, _) in kinds.items()})
        asked = unset | {name: value for name, value in said.items() if value is not None}
        return to_json(await answers.ask(operation, **asked))

    schemas = {name: {"type": word} | ({"minimum": 0} if kind is int else {}) for name, (kind, word) in kinds.items()}
    is_post, only_looks = http.body is not None, operation.role is Role.READ
    return Endpoint(
        http.path,
        http.text,
        answer,
        operation.reply,
        tuple(parameters.values()),
        method="POST" if is_post else "GET",
        role=operation.role,
        body=None if not is_post else NO_BODY if only_looks else take_body(schemas),
        only_looks=is_post and only_looks,
    )


def _read(request: Request, parameter: Parameter, *, is_small: bool) -> Any:
    """Reads a parameter, None where it is not set. Raises InvalidRequest."""
    name, said = parameter.name, request.query_params
    if parameter.is_repeated:
        return said.getlist(name)
    if parameter.kind == "boolean":
        return read_flag(request, name)
    text = request.path_params[name] if parameter.in_path else said.get(name)
    if text is None or parameter.kind == "string":
        return text
    number = parse_whole(name, text)
    if is_small and not parameter.in_path and number >= 1 << 32:
        raise InvalidRequest(f"{name}: expected less than 2^32, got {number}")
    return number
