"""Endpoints: the requests under `/api/v1/`, each with the record that it returns. OpenAPI is written from them."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf.message import Message
from starlette.requests import Request

from chain.layout import MAX_HEIGHT
from chain.schema import quote
from node.admin.operations import ROUND
from node.admin.tokens import Role
from node.errors import InvalidRequest

MAX_BODY_BYTES = 64 << 10
NO_BODY: Mapping[str, Any] = {"type": "object", "additionalProperties": False}

Record = type[Message] | Mapping[str, Any]  # a message of admin.proto, or a JSON Schema that holds several
Answer = Callable[[Request], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter in the path or behind the `?`."""

    name: str
    kind: Literal["integer", "string", "boolean", "number"]
    text: str
    in_path: bool = False
    is_repeated: bool = False


OF_ROUND = Parameter("round", "string", ROUND["round"])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address below `/api/v1`. `answer` returns the record, or for a stream the whole response; `body` is the
    schema of a POST's body. `is_door` marks the endpoint where callers exchange a key and need none yet. A POST that
    `only_looks` costs more than a read and changes nothing: the role read may send it."""

    path: str
    text: str
    answer: Answer
    record: Record
    parameters: tuple[Parameter, ...] = ()
    method: Literal["GET", "POST"] = "GET"
    role: Role = Role.READ
    body: Mapping[str, Any] | None = None
    media: str = "application/json"
    is_door: bool = False
    only_looks: bool = False

    @property
    def is_open(self) -> bool:
        """Returns whether it needs no key where reading needs none."""
        return self.method == "GET" or self.only_looks

    @property
    def is_stream(self) -> bool:
        return self.media != "application/json"


def take_body(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema of a body with these keys and no others."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


# ---- the fields of a request


def read_whole(request: Request, name: str, otherwise: int | None = None) -> int | None:
    """Reads a whole number from 0 on behind the `?`. Raises InvalidRequest."""
    text = request.query_params.get(name)
    return otherwise if text is None else parse_whole(name, text)


def parse_whole(name: str, text: str) -> int:
    """Parses a whole number from 0 on. Raises InvalidRequest."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_HEIGHT):
        raise InvalidRequest(f"{name}: expected a whole number from 0 on, got {quote(text)}")
    return int(text)


def read_number(request: Request, name: str) -> float | None:
    """Reads a finite number behind the `?`. Raises InvalidRequest."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidRequest(f"{name}: expected a number, got {quote(text)}")
    return value


def read_flag(request: Request, name: str) -> bool:
    """Reads true or false behind the `?`. Raises InvalidRequest."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name}: expected true or false, got {quote(text)}")
    return text == "true"


async def read_body(request: Request, **kinds: type) -> Mapping[str, Any]:
    """Returns the JSON object of a request, with keys of these kinds and no others; the body may be empty. Raises
    InvalidRequest."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest("expected Content-Type: application/json")
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise InvalidRequest(f"expected at most {MAX_BODY_BYTES} bytes")
    try:
        said = json.loads(bytes(data) or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("expected a JSON object") from error
    if not isinstance(said, dict):
        raise InvalidRequest(f"expected a JSON object, got {quote(said)}")
    for name, value in said.items():
        if name not in kinds:
            raise InvalidRequest(f"{name[:40]}: unknown key; expected {', '.join(kinds) or 'none'}")
        if type(value) is not kinds[name]:
            raise InvalidRequest(f"{name}: expected {kinds[name].__name__}, got {quote(value)}")
    return said
