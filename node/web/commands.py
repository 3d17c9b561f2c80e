"""Commands that a node runs for a visitor of its page, each in a process of its own: it may take long, and the node
goes on meanwhile."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from typing import NamedTuple

from starlette.requests import ClientDisconnect, Request

from node.errors import Busy, NodeError
from node.host.child import make_command


class Ended(NamedTuple):
    """The result of a command that has ended: its exit code, its output, and in `why` the last line of its error
    output."""

    code: int
    out: bytes
    why: str


class Commands:
    """Runs commands that make a `what`, such as a report: one at a time, and each for as long as its caller waits, at
    most `within_s`."""

    def __init__(self, what: str, within_s: float) -> None:
        self._what = what
        self._within_s = within_s
        self._turn = asyncio.Lock()

    async def run(self, request: Request, *arguments: str) -> Ended:
        """Runs a command for the caller of `request`, whose body was read. Raises Busy, NodeError where time is up, and
        ClientDisconnect when the caller leaves."""
        if self._turn.locked():
            raise Busy(f"another {self._what} is being made; ask again")
        async with self._turn:
            running = asyncio.create_task(run_command(*arguments), name=self._what)
            leaving = asyncio.create_task(_wait_until_left(request), name=f"caller of {self._what}")
            both = {running, leaving}
            try:
                await asyncio.wait(both, timeout=self._within_s, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
                if leaving.done():
                    raise ClientDisconnect
                raise NodeError(f"the {self._what} was not made within {self._within_s:g} s")
            finally:
                for task in both:
                    task.cancel()
                await asyncio.wait(both)


async def run_command(*arguments: str) -> Ended:
    """Runs a command of fednode to its end. If cancelled, it kills the process."""
    process = await asyncio.create_subprocess_exec(
        *make_command("node.cli", *arguments), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        out, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    why = said.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("fednode: ")
    return Ended(process.returncode or 0, out, why)


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
