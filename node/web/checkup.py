"""The checkup of a node over HTTP: `fednode doctor`, run in a process of its own, as it may read all data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from node.errors import HealthProblem, NodeError, NotFound
from node.web.commands import Commands
from node.web.endpoint import NO_BODY, Endpoint, read_body

PATIENCE_S = 120.0

_RECORD = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "checks": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "check": {"type": "string"},
                    "verdict": {"enum": ["ok", "warn", "fail"]},
                    "found": {"type": "string"},
                    "advice": {"type": ["string", "null"], "description": "What to do, unless it is well."},
                    "missing": {
                        "type": "array",
                        "description": "Of a table the columns with empty cells.",
                        "items": {
                            "type": "object",
                            "properties": {
                                "column": {"type": "string"},
                                "missing": {"type": "integer", "description": "Empty cells."},
                                "rows": {"type": "integer", "description": "All cells."},
                            },
                        },
                    },
                },
            },
        },
    },
}


class Checkup:
    """Runs the checkup of the node that was started with `options` (None where it came from no file), one at a time."""

    def __init__(self, options: Sequence[str] | None) -> None:
        self._options = options
        self._commands = Commands("checkup", PATIENCE_S)

    def list_endpoints(self) -> Sequence[Endpoint]:
        text = "As `fednode doctor`. It changes nothing, and takes a key, as it may read all data. One at a time."
        return (Endpoint("/doctor", text, self._answer, _RECORD, method="POST", body=NO_BODY),)

    async def _answer(self, request: Request) -> dict[str, Any]:
        await read_body(request)
        if self._options is None:
            raise NotFound("this node was not started from a file that could be looked at")
        ended = await self._commands.run(request, "doctor", *self._options, "--json")
        if ended.code not in (0, HealthProblem.exit_code):
            raise NodeError(ended.why)
        checks: dict[str, Any] = json.loads(ended.out)
        return checks
