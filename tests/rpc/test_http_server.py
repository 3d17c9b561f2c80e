"""The node over HTTP: each request gets its answer, or a closed connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from node.config.http_section import HttpSection
from node.errors import ConfigError
from node.telemetry import http_server
from node.telemetry.http_server import HttpServer
from support.federation.ports import find_free_ports

TOKEN = "x" * 32


@dataclass
class Site:
    """The node behind the server, and its address."""

    port: int
    reason: str | None = None
    accepts: list[str] = field(default_factory=list)

    def encode(self, accept: str) -> tuple[bytes, str]:
        self.accepts.append(accept)
        return b"fednode_round 7\n", "text/plain; version=0.0.4"

    async def get(self, path: str, *headers: str, host: str | None = None, method: str = "GET") -> tuple[int, str]:
        """Status and body."""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {host or f'127.0.0.1:{self.port}'}",
            *headers,
            "Connection: close",
        ]
        answer = await self.say("\r\n".join([*lines, "", ""]).encode())
        head, _, body = answer.partition("\r\n\r\n")
        return int(head.split(" ")[1]), body

    async def say(self, data: bytes) -> str:
        """All that is answered until the server hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        return answer.decode()


@asynccontextmanager
async def serving(
    *, token_file: Path | None = None, metrics: bool = True, other: Held | None = None
) -> AsyncIterator[Site]:
    [port] = find_free_ports(1)
    site = Site(port)
    section = HttpSection(listen=f"127.0.0.1:{port}", token_file=token_file)
    async with HttpServer(section, lambda: site.reason, site if metrics else None, site=other):
        yield site


def write_token(tmp_path: Path, text: str = TOKEN) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{text}\n")
    return path


async def test_probes_say_whether_it_lives_and_is_ready() -> None:
    async with serving() as site:
        assert await site.get("/healthz") == (200, "ok\n")
        assert await site.get("/readyz") == (200, "ready\n")
        site.reason = "2 of 4 members in sight"
        assert await site.get("/readyz") == (503, "not ready: 2 of 4 members in sight\n")
        assert await site.get("/healthz") == (200, "ok\n")


async def test_metrics_are_given_as_they_are_asked_for() -> None:
    async with serving() as site:
        assert await site.get("/metrics", "Accept: application/openmetrics-text") == (200, "fednode_round 7\n")
        assert site.accepts == ["application/openmetrics-text"]
    async with serving(metrics=False) as site:
        assert (await site.get("/metrics"))[0] == 404


async def test_nothing_else_is_answered_and_nothing_can_be_changed() -> None:
    async with serving() as site:
        assert (await site.get("/"))[0] == 404
        assert (await site.get("/metrics", "Content-Length: 0", method="POST"))[0] == 405


async def test_a_token_guards_the_metrics_and_the_probes_say_less_without(tmp_path: Path) -> None:
    async with serving(token_file=write_token(tmp_path)) as site:
        for wrong in (
            (),
            (f"Authorization: Bearer {TOKEN}x",),
            (f"Authorization: Basic {TOKEN}",),
            ("Authorization: é",),
        ):
            assert (await site.get("/metrics", *wrong))[0] == 401
        assert (await site.get("/metrics", f"Authorization: Bearer {TOKEN}"))[0] == 200
        site.reason = "node2 is missing"
        assert await site.get("/readyz") == (503, "not ready\n")
        assert await site.get("/readyz", f"Authorization: bearer {TOKEN}") == (503, "not ready: node2 is missing\n")


@pytest.mark.parametrize("text", ["", "short"])
def test_a_token_has_to_be_one(tmp_path: Path, text: str) -> None:
    section = HttpSection(listen="127.0.0.1:1", token_file=write_token(tmp_path, text))
    with pytest.raises(ConfigError, match=r"http\.token_file: .*expected a token of at least 16 characters"):
        HttpServer(section, lambda: None, None)
    section = HttpSection(listen="127.0.0.1:1", token_file=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"http\.token_file: .*cannot be read \(No such file"):
        HttpServer(section, lambda: None, None)


async def test_a_page_from_elsewhere_does_not_reach_it_under_its_own_name() -> None:
    async with serving() as site:
        for host in (
            "evil.example",
            f"evil.example:{site.port}",
            "127.0.0.1.evil.example",
            "[::2]:80",
            "localhost@evil",
        ):
            assert (await site.get("/metrics", host=host))[0] == 421, host
        for host in ("localhost", f"LOCALHOST:{site.port}", "127.0.0.1", f"[::1]:{site.port}", "[::1]"):
            assert (await site.get("/metrics", host=host))[0] == 200, host


@pytest.mark.slow
async def test_who_does_not_come_to_the_point_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    monkeypatch.setattr(http_server, "IDLE_S", 1)
    async with serving() as site:
        assert await site.say(b"") == ""
        assert await site.say(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ") == ""
        kept = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert (await site.say(kept + b"GET /healthz HT")).endswith("ok\n")
        body = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\nx"
        assert (await site.say(body)).endswith("ok\n")


async def test_headers_without_end_are_refused() -> None:
    async with serving() as site:
        answer = await site.say(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (http_server.MAX_HEADER_BYTES + 1000))
        assert answer.startswith("HTTP/1.1 400")


async def test_probes_answer_however_many_say_half_a_request() -> None:
    async def say_half() -> None:
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")
            try:
                with suppress(ConnectionError):
                    await reader.read()
            finally:
                writer.close()

    async with serving() as site, asyncio.TaskGroup() as callers:
        saying = [callers.create_task(say_half()) for _ in range(420)]
        await asyncio.sleep(0.1)  # or until most are there
        for _ in range(20):
            assert await site.get("/healthz") == (200, "ok\n")
            assert (await site.get("/metrics"))[0] == 200
        for each in saying:
            each.cancel()


async def test_of_too_many_callers_those_from_where_most_come_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CALLERS", 4)
    async with serving() as site:
        few = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(2)]
        many = [await asyncio.open_connection("127.0.0.1", site.port, local_addr=("127.0.0.2", 0)) for _ in range(12)]
        for reader, writer in few:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(60):
                assert (await reader.read()).endswith(b"ok\n")
        for _, writer in few + many:
            writer.close()


class Held:
    """An answer that takes until it is let go."""

    def __init__(self) -> None:
        self.is_let_go = asyncio.Event()
        self.num_asked = 0

    @property
    def routes(self) -> Sequence[BaseRoute]:
        return [Route("/held", self.answer)]

    async def answer(self, request: Request) -> Response:
        self.num_asked += 1
        await self.is_let_go.wait()
        return PlainTextResponse("held\n")

    def close(self) -> None:
        self.is_let_go.set()


async def test_who_waits_for_an_answer_keeps_its_place_and_probes_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CALLERS", 2)
    held = Held()
    async with serving(other=held) as site, asyncio.timeout(60):
        waiting = [asyncio.create_task(site.get("/held")) for _ in range(2)]
        while held.num_asked < 2:  # noqa: ASYNC110 (another end of a socket)
            await asyncio.sleep(0.01)
        assert (await site.get("/metrics"))[0] == 503
        assert await site.get("/healthz") == (200, "ok\n")
        assert (await site.get("/readyz"))[0] == 200
        held.close()
        assert [await each for each in waiting] == [(200, "held\n")] * 2
        assert (await site.get("/metrics"))[0] == 200


async def test_an_address_that_is_taken_is_a_configuration_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"http\.listen: {listen}: .* \(Address already in use\)"):
            async with HttpServer(HttpSection(listen=listen), lambda: None, None):
                pass


async def test_the_port_is_free_again_afterwards() -> None:
    async with serving() as site:
        assert await site.get("/healthz") == (200, "ok\n")
    with pytest.raises(ConnectionRefusedError):
        await site.get("/healthz")
    with socket.create_server(("127.0.0.1", site.port)):
        pass
