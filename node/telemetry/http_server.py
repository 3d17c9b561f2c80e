"""The HTTP server of a node: metrics for Prometheus, liveness and readiness for probes, and what a site adds to them
(SECURITY §4).

Its own answers are read-only and short. On loopback a browser's page from elsewhere must not read it under a name of
its own (DNS rebinding), so the `Host` has to be this machine's; beyond loopback the token stands for that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from node.addresses import is_loopback, parse_address
from node.config.node_sections import HttpSection
from node.errors import ConfigError
from node.telemetry.http_tls import HttpTls
from node.telemetry.http_token import HttpToken

log = logging.getLogger(__name__)

REQUEST_S = 10.0  # for a caller to say what it asks
IDLE_S = 30  # between two questions of a caller
STOP_S = 1  # for answers under way
MAX_HEADER_BYTES = 16 << 10
MAX_CALLERS = 256  # connections: a browser keeps six for each page

Answer = Callable[[Request], Awaitable[Response]]


class Encoder(Protocol):
    """The source of the metrics: their text, and its content type, for an `Accept` header."""

    def encode(self, accept: str) -> tuple[bytes, str]: ...


class Site(Protocol):
    """What is served beside metrics and probes. `close` ends the answers under way that would not end by themselves."""

    @property
    def routes(self) -> Sequence[BaseRoute]: ...

    def close(self) -> None: ...


class HttpServer:
    """Listens while it is entered. `describe_unready` says why the node is not ready, or None; `token` is what metrics
    need, and `tls` what is spoken, by default the section's.

    Raises ConfigError when the address is taken, or token or certificate cannot be read.
    """

    def __init__(
        self,
        section: HttpSection,
        describe_unready: Callable[[], str | None],
        metrics: Encoder | None,
        *,
        token: HttpToken | None = None,
        tls: HttpTls | None = None,
        site: Site | None = None,
    ) -> None:
        assert section.listen is not None  # noqa: S101 - nobody makes one that is off
        self._listen = section.listen
        self._host, self._port = parse_address(section.listen)
        self._token = token or HttpToken.read(section.token_file)
        self._tls = tls or HttpTls.read(section.tls)
        self._site = site
        self._describe_unready = describe_unready
        self._metrics = metrics
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        listening = self._bind()
        routes: list[BaseRoute] = [Route("/healthz", self._answer_health), Route("/readyz", self._answer_readiness)]
        if self._metrics is not None:
            routes.append(Route("/metrics", self._answer_metrics))
        if self._site is not None:
            routes += self._site.routes
        app: Any = Starlette(routes=routes)
        if is_loopback(self._host):
            app = _LocalHosts(app, self._host)
        config = uvicorn.Config(
            app,
            http=_PromptProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CALLERS,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=STOP_S,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        if self._tls is not None:
            config.load()
            config.ssl = self._tls.context
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="http")
        log.info("%s %s", "http" if self._tls is None else "https", self._listen)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._site is not None:
            self._site.close()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait({self._serving})

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            return socket.create_server((self._host, self._port), family=family, backlog=MAX_CALLERS)
        except OSError as error:
            why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            raise ConfigError(
                f"http.listen: {self._listen}: cannot listen there ({why}); choose another port, or 0 for none"
            ) from error

    # ---- answers

    async def _answer_health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _answer_readiness(self, request: Request) -> Response:
        reason = self._describe_unready()
        if reason is None:
            return PlainTextResponse("ready\n")
        told = f"not ready: {reason}\n" if self._token.is_shown(request.headers) else "not ready\n"
        return PlainTextResponse(told, 503)

    async def _answer_metrics(self, request: Request) -> Response:
        if not self._token.is_shown(request.headers):
            return PlainTextResponse("expected the token\n", 401, {"WWW-Authenticate": "Bearer"})
        assert self._metrics is not None  # noqa: S101 - or there is no such route
        body, content_type = self._metrics.encode(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


class _LocalHosts:
    """Turns away who asks for another host than this machine."""

    def __init__(self, app: Any, host: str) -> None:
        self._app = app
        self._known = {host.lower(), "localhost", "127.0.0.1", "::1"}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [value for name, value in scope["headers"] if name == b"host"]
        if len(headers) == 1 and _read_host(headers[0]) in self._known:
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse("unknown host\n", 421)(scope, receive, send)


def _read_host(header: bytes) -> str:
    """Without the port and the brackets of IPv6."""
    host = header.decode("latin-1").lower()
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal() and (":" not in name or name.endswith("]")):
        host = name
    return host.removeprefix("[").removesuffix("]")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the daemon's."""
        yield


class _PromptProtocol(H11Protocol):
    """Hangs up on who opens a connection and does not come to the point."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_S, self._on_deadline)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._cancel()
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(IDLE_S, self._on_deadline)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _on_deadline(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.close()
