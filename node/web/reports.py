"""The report of a run over HTTP: made by `fednode runs report` in a process of its own, as it takes long to verify a
chain and the node goes on meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from node.errors import NodeError, NotFound, VerificationFailed
from node.web.commands import Commands
from node.web.endpoint import NO_BODY, Endpoint, Parameter, parse_whole, read_body
from node.web.streams import name_file

REPORT_S = 600.0


class Reports:
    """Makes reports, one at a time, about the node whose admin socket is `socket`."""

    def __init__(self, socket: Path | None) -> None:
        self._socket = socket
        self._commands = Commands("report", REPORT_S)

    def list_endpoints(self) -> Sequence[Endpoint]:
        run = Parameter("run", "integer", "Its number; 0 is the newest.", in_path=True)
        text = "As `fednode runs report`: one page of HTML, for which the whole chain is verified."
        return (
            Endpoint(
                "/runs/{run}/report",
                text,
                self._answer,
                {"type": "string"},
                (run,),
                method="POST",
                body=NO_BODY,
                media="text/html",
                only_looks=True,
            ),
        )

    async def _answer(self, request: Request) -> Response:
        await read_body(request)
        number = parse_whole("run", request.path_params["run"])
        if self._socket is None:
            raise NotFound("this node has no admin socket to make a report by: expected admin.socket")
        ended = await self._commands.run(
            request, "runs", "report", str(number), "-o", "-", "--socket", str(self._socket)
        )
        if ended.code == NotFound.exit_code:
            raise NotFound(ended.why)
        if ended.code not in (0, VerificationFailed.exit_code):  # an invalid chain has a report, too
            raise NodeError(ended.why)
        return Response(ended.out, media_type="text/html", headers=name_file(f"report-run-{number}.html"))
