"""Commands that a visitor has a node run: one at a time, for as long as somebody waits, and told of by their codes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.admin.page_keys import PageKeys, make_address
from node.admin.tokens import Role, Tokens
from node.clock import SystemClock
from node.config.http_section import HttpSection
from node.telemetry.http_server import HttpServer
from node.telemetry.http_token import HttpToken
from node.web import checkup, commands
from node.web.checkup import Checkup
from node.web.guard import Guard
from node.web.reports import Reports
from node.web.shared import SharedAnswers
from node.web.site import Site
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, wait_until

# Says which process it is, waits for the word to end, and ends with that for its code.
COMMAND = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
(here / "pid.new").write_text(str(os.getpid()))
(here / "pid.new").rename(here / "pid")
while not (here / "code").exists():
    time.sleep(0.01)
print('{"ok": true}')
sys.exit("first\\nfednode: the reason" if (here / "code").read_text() == "1" else int((here / "code").read_text()))
"""
DOCTOR, REPORT = ("POST", "/api/v1/doctor"), ("POST", "/api/v1/runs/1/report")
BOTH = pytest.mark.parametrize("asked", [DOCTOR, REPORT], ids=["doctor", "report"])


@dataclass(frozen=True, slots=True)
class Answered:
    code: int
    retry_after: str | None
    body: bytes

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


@dataclass(frozen=True, slots=True)
class Serving:
    """A node's page whose commands are COMMAND, at work in `here`."""

    here: Path
    port: int
    key: str

    async def ask(self, method: str, path: str) -> Answered:
        return await asyncio.to_thread(self._ask, method, path)

    async def ask_until_free(self, method: str, path: str) -> Answered:
        """The process is gone a moment before the node has heard of it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            answered = await self.ask(method, path)
            if answered.code != 503 or time.monotonic() > deadline_s:
                return answered
            await asyncio.sleep(0.01)

    def _ask(self, method: str, path: str) -> Answered:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, "{}" if method == "POST" else None, self._make_headers())
            got = connection.getresponse()
            return Answered(got.status, got.getheader("Retry-After"), got.read())
        finally:
            connection.close()

    def _make_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}

    async def begin(self, method: str, path: str) -> asyncio.StreamWriter:
        """Asks, and leaves the answer to come."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Content-Length: 0"]
        lines += [f"{name}: {value}" for name, value in self._make_headers().items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        return writer

    async def wait_for_command(self) -> int:
        """Its process."""
        await wait_until((self.here / "pid").exists, "a command to run")
        return int((self.here / "pid").read_text())

    def end(self, code: int) -> None:
        (self.here / "code").write_text(str(code))

    async def wait_for_end(self, process: int) -> None:
        await wait_until(lambda: not Path(f"/proc/{process}").exists(), "the command to be gone")


@pytest.fixture(autouse=True)
def _own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(commands, "make_command", lambda *_: (sys.executable, "-c", COMMAND, str(tmp_path)))
    yield
    if (tmp_path / "pid").exists():
        with suppress(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 9)


@asynccontextmanager
async def serving(here: Path) -> AsyncIterator[Serving]:
    [port] = find_free_ports(1)
    address, clock = f"127.0.0.1:{port}", SystemClock()
    keys = PageKeys(make_address(address), clock)
    endpoints = [*Checkup(["--config", "node.yaml"]).list_endpoints(), *Reports(here / "node.sock").list_endpoints()]
    site = Site(endpoints, Guard(keys, Tokens(here), HttpToken(None)), SharedAnswers(clock), asyncio.Event())
    async with HttpServer(HttpSection(listen=address), lambda: None, None, site=site):
        opened = keys.redeem(keys.issue(Role.READ).key)
        assert opened is not None
        yield Serving(here, port, opened[0])


@BOTH
async def test_whoever_asks_meanwhile_is_told_to_ask_again(tmp_path: Path, asked: tuple[str, str]) -> None:
    async with serving(tmp_path) as page:
        first = asyncio.create_task(page.ask(*asked))
        await page.wait_for_command()
        others = await asyncio.gather(*(page.ask(*asked) for _ in range(3)))
        assert {(other.code, other.retry_after) for other in others} == {(503, "5")}
        assert all("is being made; ask again" in other.error for other in others)
        page.end(0)
        assert (await first).code == 200
        assert (await page.ask(*asked)).code == 200


@BOTH
async def test_a_caller_who_leaves_leaves_no_process(tmp_path: Path, asked: tuple[str, str]) -> None:
    async with serving(tmp_path) as page:
        caller = await page.begin(*asked)
        process = await page.wait_for_command()
        caller.close()
        await page.wait_for_end(process)
        page.end(0)
        assert (await page.ask_until_free(*asked)).code == 200


async def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "PATIENCE_S", 0.1)
    async with serving(tmp_path) as page:
        answer = await page.ask(*DOCTOR)
        assert (answer.code, answer.error) == (500, "the checkup was not made within 0.1 s")


@pytest.mark.parametrize(
    ("asked", "code", "answered"),
    [(DOCTOR, 6, 200), (DOCTOR, 5, 500), (DOCTOR, 1, 500), (REPORT, 5, 200), (REPORT, 3, 404), (REPORT, 1, 500)],
)
async def test_an_exit_code_says_what_came_of_it(
    tmp_path: Path, asked: tuple[str, str], code: int, answered: int
) -> None:
    async with serving(tmp_path) as page:
        page.end(code)
        answer = await page.ask(*asked)
        assert answer.code == answered
        assert json.loads(answer.body) == {"ok": True} if answered == 200 else "error" in json.loads(answer.body)
        if code == 1:
            assert answer.error == "the reason"
