"""The acts of an operator from the page: only with a key or token that may act, only as JSON, never from elsewhere.

Each call is one of the admin server's, with the same checks behind it. A change is signed by this node's key, as for
`fednode approve`: whoever holds a key that may act can sign for this site.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from chain.schema import quote
from node.admin.json_view import to_json
from node.admin.node_answers import NodeAnswers
from node.admin.operations import PROPOSE
from node.admin.page_keys import PageKeys
from node.admin.tokens import Role
from node.errors import InvalidRequest, PermissionRefused
from node.pb import admin_pb2 as pb
from node.web.endpoint import Endpoint, read_body, take_body
from node.web.routes import list_routes

PROPOSED = ("start_run", "set_rounds", "end_run", "add_member", "remove_member", "set_rules")  # by the page
BEGINNINGS = ("continue", "new")  # of a run; a visitor of the page may name no file on the node's machine

_STRING = {"type": "string"}
_SESSION = {"type": "object", "properties": {"key": _STRING, "role": {"enum": ["read", "admin"]}}}
_PROPOSED = {
    "kind": {"enum": list(PROPOSED)},
    "terms": {"type": "object"},
    "note": _STRING,
    "dry_run": {"type": "boolean"},
    "shown": _STRING,
}


class Acting:
    """Carries out an operator's requests by the `answers` of one node; `keys` are those of its page."""

    def __init__(self, answers: NodeAnswers, keys: PageKeys) -> None:
        self._answers = answers
        self._keys = keys

    def list_endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint(
                "/session",
                "Gives the key of an address that `fednode open` printed back for the page's own. It needs no other.",
                self._open,
                _SESSION,
                method="POST",
                body=take_body({"key": _STRING}),
                is_door=True,
            ),
            *list_routes(self._answers, Role.ADMIN),
            Endpoint(
                "/propose",
                "As `fednode propose`: `terms` are those of the admin RPC's ProposeRequest, with a run beginning from "
                "`continue` or `new`. With `dry_run` nothing is signed. `shown` are the terms that a dry run gave: "
                "with others it is refused.",
                self._propose,
                pb.ProposalView,
                method="POST",
                role=Role.ADMIN,
                body=take_body(_PROPOSED),
            ),
        )

    async def _open(self, request: Request) -> dict[str, Any]:
        said = await read_body(request, key=str)
        opened = self._keys.redeem(said.get("key", ""))
        if opened is None:
            raise PermissionRefused("this address was opened before, or too late: run fednode open again")
        key, role = opened
        return {"key": key, "role": role.value}

    async def _propose(self, request: Request) -> dict[str, Any]:
        said = await read_body(request, kind=str, terms=dict, note=str, dry_run=bool, shown=str)
        kind = said.get("kind", "")
        if kind not in PROPOSED:
            raise InvalidRequest(f"kind: expected one of {', '.join(PROPOSED)}, got {quote(kind)}")
        terms = said.get("terms", {})
        if kind == "start_run" and (initial := terms.get("initial")) not in BEGINNINGS:
            raise InvalidRequest(f"initial: expected {' or '.join(BEGINNINGS)}, got {quote(initial)}")
        asked = {**said, "kind": kind, "terms": json.dumps(terms)}
        return to_json(await self._answers.ask(PROPOSE, **asked))
