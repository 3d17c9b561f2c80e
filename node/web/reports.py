"""The report of a run over HTTP: made by `fednode runs report` in a process of its own, as verifying a chain takes long
and the node goes on meanwhile."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from node.errors import NodeError, NotFound
from node.host.child import make_command
from node.web.endpoint import Endpoint, Parameter, parse_whole
from node.web.streams import name_file, refuse_busy

REPORT_S = 600.0
NOT_FOUND, BROKEN = 3, 5  # exit codes: the page of a chain that does not hold says so


class Reports:
    """Those of the node whose admin socket is `socket`; one at a time."""

    def __init__(self, socket: Path | None) -> None:
        self._socket = socket
        self._turn = asyncio.Lock()

    def list_endpoints(self) -> Sequence[Endpoint]:
        run = Parameter("run", "integer", "Its number; 0 is the newest.", in_path=True)
        text = "As `fednode runs report`: one page of HTML, for which the whole chain is verified."
        return (Endpoint("/runs/{run}/report", text, self._answer, {"type": "string"}, (run,), media="text/html"),)

    async def _answer(self, request: Request) -> Response:
        number = parse_whole("run", request.path_params["run"])
        if self._socket is None:
            raise NotFound("this node has no admin socket to make a report by: expected admin.socket")
        if self._turn.locked():
            return refuse_busy("another report is being made; ask again")
        async with self._turn:
            page = await _make(number, self._socket)
        return Response(page, media_type="text/html", headers=name_file(f"report-run-{number}.html"))


async def _make(number: int, socket: Path) -> bytes:
    """The page. Raises NotFound and NodeError."""
    command = make_command("node.cli", "runs", "report", str(number), "-o", "-", "--socket", str(socket))
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(REPORT_S):
            page, said = await process.communicate()
    except TimeoutError as error:
        raise NodeError(f"the report was not made within {REPORT_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode in (0, BROKEN):
        return page
    why = said.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("fednode: ")
    raise NotFound(why) if process.returncode == NOT_FOUND else NodeError(why)
