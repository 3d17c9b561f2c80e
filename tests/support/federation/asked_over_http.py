"""A federation in one process whose first member serves its page."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.signing import encode_id
from node.admin.node_answers import NodeAnswers
from node.admin.page_keys import PageKeys, make_address
from node.admin.tokens import Role, Tokens
from node.admin.wiring import make_predictor
from node.clock import SystemClock
from node.config.http_section import HttpSection
from node.telemetry.http_server import HttpServer
from node.telemetry.http_token import HttpToken
from node.web.wiring import make_site
from support.federation.asked import CALLERS, Running, make_book, make_control, make_operator, running
from support.federation.ports import find_free_ports

CALL_S = 60.0


@dataclass
class Answered:
    """The answer to one request."""

    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A node's page, and keys for it."""

    def __init__(self, one: Running, port: int, keys: PageKeys, tokens: Tokens) -> None:
        self.one = one
        self.port = port
        self.keys = keys
        self.tokens = tokens
        self.me = encode_id(one.context.me)

    def open(self, role: Role) -> str:
        """Opens a page with this role. Returns its key."""
        opened = self.keys.redeem(self.keys.issue(role).key)
        assert opened is not None
        return opened[0]

    async def get(self, path: str, **headers: str) -> Answered:
        return await asyncio.get_running_loop().run_in_executor(CALLERS, self._ask, "GET", path, None, headers)

    async def post(self, path: str, said: Any = None, *, key: str | None = None, **headers: str) -> Answered:
        """Posts `said` as JSON, or bytes as they are, with the headers that a browser sends from the page itself."""
        sent = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{self.port}"}
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = said if isinstance(said, bytes) else json.dumps({} if said is None else said).encode()
        return await asyncio.get_running_loop().run_in_executor(CALLERS, self._ask, "POST", path, body, sent)

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answered:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_S)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()


@asynccontextmanager
async def serving_page(tmp_path: Path, rounds: int = 0, token: bytes | None = None) -> AsyncIterator[Served]:
    async with running(tmp_path, rounds=rounds) as one:
        context, service = one.context, one.net["node0"].service
        assert service is not None
        [port] = find_free_ports(1)
        section = HttpSection(listen=f"127.0.0.1:{port}")
        assert section.listen is not None
        keys, tokens, shown = PageKeys(make_address(section.listen), SystemClock()), Tokens(tmp_path), HttpToken(token)
        operator = make_operator(context, service, make_book(), tmp_path)
        control = make_control(context, service, view=one.view, book=make_book())
        site = make_site(
            NodeAnswers(one.view, make_predictor(service, context), operator, control),
            keys=keys,
            tokens=tokens,
            shown=shown,
            origins={"node.name": "node.yaml:3:3"},
            data={},
            clock=SystemClock(),
            socket=None,
        )
        async with HttpServer(section, lambda: None, None, token=shown, site=site):
            yield Served(one, port, keys, tokens)
