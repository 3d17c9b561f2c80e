"""The acts of an operator from the page: only with a key or token that may act, only as JSON, never from elsewhere.

Each call is one of the admin server's, with the same checks behind it. What is signed is signed by this node's key, as
for `fednode approve`: whoever holds a key that may act can sign for this site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from chain.schema import quote
from node.admin.json_view import to_json
from node.admin.page_keys import PageKeys
from node.admin.round_control import Control
from node.admin.tokens import Role
from node.errors import InvalidRequest, PermissionRefused
from node.pb import admin_pb2 as pb
from node.web.endpoint import Endpoint

MAX_BODY_BYTES = 64 << 10
PROPOSED = ("start_run", "set_rounds", "end_run", "add_member", "remove_member", "set_rules")  # that the page makes
BEGINNINGS = ("continue", "new")  # of a run; whoever has a key of the page names no file on the node's machine

_STRING, _FLAG = {"type": "string"}, {"type": "boolean"}
_WHOLE = {"type": "integer", "minimum": 0}
_SESSION = {"type": "object", "properties": {"key": _STRING, "role": {"enum": ["read", "admin"]}}}


def _take(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


class Acting:
    """Carries out what is asked for by `control` of one node; `keys` are those of its page."""

    def __init__(self, control: Control, keys: PageKeys) -> None:
        self._control = control
        self._keys = keys

    def list_endpoints(self) -> Sequence[Endpoint]:
        def act(path: str, text: str, answer: Any, record: Any, **properties: Any) -> Endpoint:
            return Endpoint(path, text, answer, record, method="POST", role=Role.ADMIN, body=_take(**properties))

        return (
            Endpoint(
                "/session",
                "Gives the key of an address that `fednode open` printed back for the page's own. It needs no other.",
                self._open,
                _SESSION,
                method="POST",
                body=_take(key=_STRING),
                is_door=True,
            ),
            act("/pause", "As `fednode pause`.", self._pause, pb.TakingPart),
            act("/resume", "As `fednode resume`.", self._resume, pb.TakingPart),
            act(
                "/stop",
                "As `fednode stop --after`: 0 is the round in hand.",
                self._stop,
                pb.TakingPart,
                round=_WHOLE,
                withdraw=_FLAG,
            ),
            act("/log-level", "As `fednode log-level`.", self._set_log_level, pb.LogLevel, level=_STRING),
            act(
                "/approve",
                "As `fednode approve --yes`: signs this node's yes, to the change of this whole id.",
                self._approve,
                pb.ProposalView,
                change=_STRING,
                no_train=_FLAG,
                lend=_FLAG,
            ),
            act(
                "/propose",
                "As `fednode propose`: `terms` are those of the admin RPC's ProposeRequest, with a run beginning from "
                "`continue` or `new`. With `dry_run` nothing is signed. `shown` are the terms that a dry run gave: "
                "with others it is refused.",
                self._propose,
                pb.ProposalView,
                kind={"enum": list(PROPOSED)},
                terms={"type": "object"},
                note=_STRING,
                dry_run=_FLAG,
                shown=_STRING,
            ),
        )

    async def _open(self, request: Request) -> dict[str, Any]:
        said = await read_body(request, key=str)
        opened = self._keys.redeem(said.get("key", ""))
        if opened is None:
            raise PermissionRefused("this address was opened before, or too late: run fednode open again")
        key, role = opened
        return {"key": key, "role": role.value}

    # ---- rounds and the node

    async def _pause(self, request: Request) -> dict[str, Any]:
        await read_body(request)
        return to_json(await self._control.pause())

    async def _resume(self, request: Request) -> dict[str, Any]:
        await read_body(request)
        return to_json(await self._control.resume())

    async def _stop(self, request: Request) -> dict[str, Any]:
        said = await read_body(request, round=int, withdraw=bool)
        if said.get("withdraw", False):
            return to_json(await self._control.withdraw_stop())
        return to_json(await self._control.stop_after(said.get("round", 0)))

    async def _set_log_level(self, request: Request) -> dict[str, Any]:
        said = await read_body(request, level=str)
        return to_json(self._control.set_log_level(said.get("level", "")))

    # ---- the federation

    async def _approve(self, request: Request) -> dict[str, Any]:
        said = await read_body(request, change=str, no_train=bool, lend=bool)
        asked = pb.ApproveRequest(
            change=said.get("change", ""), no_train=said.get("no_train", False), lend=said.get("lend", False)
        )
        return to_json(await self._control.changes.approve(asked))

    async def _propose(self, request: Request) -> dict[str, Any]:
        said = await read_body(request, kind=str, terms=dict, note=str, dry_run=bool, shown=str)
        kind = said.get("kind", "")
        if kind not in PROPOSED:
            raise InvalidRequest(f"kind: expected one of {', '.join(PROPOSED)}, got {quote(kind)}")
        terms = said.get("terms", {})
        if kind == "start_run" and (initial := terms.get("initial")) not in BEGINNINGS:
            raise InvalidRequest(f"initial: expected {' or '.join(BEGINNINGS)}, got {quote(initial)}")
        asked = pb.ProposeRequest(
            kind=kind,
            terms=json.dumps(terms),
            note=said.get("note", ""),
            dry_run=said.get("dry_run", False),
            shown=said.get("shown"),
        )
        return to_json(await self._control.changes.propose(asked))


async def read_body(request: Request, **kinds: type) -> Mapping[str, Any]:
    """The JSON object of a request, with keys of these kinds and no others; none is needed. Raises InvalidRequest."""
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
