"""The checkup of a node over HTTP: `fednode doctor`, run in a process of its own, as the data may be read for it."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from node.errors import NodeError, NotFound
from node.host.child import make_command
from node.web.acting import read_body
from node.web.endpoint import Endpoint

PATIENCE_S = 120.0
UNWELL = 6  # the exit code where a check failed

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
                },
            },
        },
    },
}


class Checkup:
    """That of the node that was started with `options`, None where it came from no file; one at a time."""

    def __init__(self, options: Sequence[str] | None) -> None:
        self._options = options
        self._turn = asyncio.Lock()

    def list_endpoints(self) -> Sequence[Endpoint]:
        text = "As `fednode doctor`. It changes nothing, and takes a key, as it may read all data."
        body = {"type": "object", "additionalProperties": False}
        return (Endpoint("/doctor", text, self._answer, _RECORD, method="POST", body=body),)

    async def _answer(self, request: Request) -> dict[str, Any]:
        await read_body(request)
        if self._options is None:
            raise NotFound("this node was not started from a file that could be looked at")
        async with self._turn:
            return await _examine(self._options)


async def _examine(options: Sequence[str]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *make_command("node.cli", "doctor", *options, "--json"), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            found, said = await process.communicate()
    except TimeoutError as error:
        raise NodeError(f"doctor has not ended within {PATIENCE_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode not in (0, UNWELL):
        raise NodeError(said.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("fednode: "))
    checks: dict[str, Any] = json.loads(found)
    return checks
