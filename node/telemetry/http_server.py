"""The HTTP server of a node: metrics for Prometheus, liveness and readiness for probes, and the routes of its page
(SECURITY §4).

Its own answers are read-only and short. On loopback a browser's page from elsewhere must not read it under a name of
its own (DNS rebinding), so the `Host` has to be this machine's; beyond loopback the token protects it.

Probes are answered even when the port has too many callers, else a healthy node would be restarted. When there are too
many, the connection that has sent nothing for longest is closed, of those from the address that has most.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from node.config.http_section import HttpSection
from node.errors import ConfigError
from node.telemetry.http_tls import HttpTls
from node.telemetry.http_token import HttpToken

log = logging.getLogger(__name__)

REQUEST_S = 10.0  # for a caller to send its request
IDLE_S = 30  # between two requests of a caller
STOP_S = 1  # for answers under way
MAX_HEADER_BYTES = 16 << 10
MAX_CALLERS = 256  # connections: a browser keeps six for each page
SPARE_CALLERS = 64  # more, while all others are being answered: only probes are answered, the rest must retry
ACCEPTED = 32  # connections at a time: far fewer than the limits, so that none is closed before its request can arrive
QUEUED = 1024  # connections that wait to be accepted
PROBES = ("/healthz", "/readyz")
_NETWORK_BITS = 64  # the IPv6 network that belongs to one caller

Answer = Callable[[Request], Awaitable[Response]]


class Encoder(Protocol):
    """The source of the metrics: their text, and its content type, for an `Accept` header."""

    def encode(self, accept: str) -> tuple[bytes, str]: ...


class Site(Protocol):
    """The routes served beside metrics and probes. `close` ends the answers under way that would not end by
    themselves."""

    @property
    def routes(self) -> Sequence[BaseRoute]: ...

    def close(self) -> None: ...


class HttpServer:
    """Serves HTTP while it is entered. `describe_unready` returns why the node is not ready, or None; `token` is what
    metrics need, and `tls` the certificate to serve with, both by default the section's.

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
        assert section.listen is not None  # noqa: S101 - a server that is off is not made
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
        routes: list[BaseRoute] = [
            Route(path, answer)
            for path, answer in zip(PROBES, (self._answer_health, self._answer_readiness), strict=True)
        ]
        if self._metrics is not None:
            routes.append(Route("/metrics", self._answer_metrics))
        if self._site is not None:
            routes += self._site.routes
        app: Any = _Uncrowded(Starlette(routes=routes), self._count_callers)
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
            backlog=ACCEPTED,
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

    def _bind(self) -> _Listening:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            bound = socket.create_server((self._host, self._port), family=family, backlog=QUEUED)
        except OSError as error:
            why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            raise ConfigError(
                f"http.listen: {self._listen}: cannot listen there ({why}); choose another port, or 0 for none"
            ) from error
        return _Listening(bound, self._list_callers)

    def _list_callers(self) -> Collection[Any]:
        """Returns the connections that the server answers, under TLS those after the handshake."""
        return () if self._server is None else self._server.server_state.connections

    def _count_callers(self) -> int:
        return len(self._list_callers())

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
        assert self._metrics is not None  # noqa: S101 - else there is no such route
        body, content_type = self._metrics.encode(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})


class _LocalHosts:
    """Refuses requests for another host than this machine."""

    def __init__(self, app: Any, host: str) -> None:
        self._app = app
        self._known = {host.lower(), "localhost", "127.0.0.1", "::1"}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [value for name, value in scope["headers"] if name == b"host"]
        if len(headers) == 1 and _read_host(headers[0]) in self._known:
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse("unknown host\n", 421)(scope, receive, send)


class _Uncrowded:
    """Answers only probes while there are more connections than may be served."""

    def __init__(self, app: Any, count: Callable[[], int]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._count() <= MAX_CALLERS or scope["path"] in PROBES:
            await self._app(scope, receive, send)
        else:
            refusal = PlainTextResponse(
                "too many callers; ask again\n", 503, {"Retry-After": "1", "Connection": "close"}
            )
            await refusal(scope, receive, send)


def _read_host(header: bytes) -> str:
    """Returns the host in a `Host` header, without the port and the brackets of IPv6."""
    host = header.decode("latin-1").lower()
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal() and (":" not in name or name.endswith("]")):
        host = name
    return host.removeprefix("[").removesuffix("]")


class _Listening(socket.socket):
    """The listening socket, in place of `bound`. It keeps count of connections that are not served yet (under TLS,
    before the handshake): of too many, it closes the oldest."""

    def __init__(self, bound: socket.socket, list_callers: Callable[[], Iterable[Any]]) -> None:
        super().__init__(fileno=bound.detach())
        self._list_callers = list_callers
        self._unheard: dict[int, socket.socket] = {}  # the oldest first; some may be served by now, or closed

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        self._unheard.pop(accepted.fileno(), None)  # a closed one with the same number
        self._unheard[accepted.fileno()] = accepted
        if len(self._unheard) > 2 * MAX_CALLERS:
            heard = {one.transport.get_extra_info("socket").fileno() for one in self._list_callers()}
            self._unheard = {
                number: one for number, one in self._unheard.items() if number == one.fileno() and number not in heard
            }
            for number in [*self._unheard][:-MAX_CALLERS]:
                with suppress(OSError):
                    self._unheard.pop(number).shutdown(socket.SHUT_RDWR)
        return accepted, address


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the daemon."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUED)  # as asyncio sets the queue to `ACCEPTED`


class _PromptProtocol(H11Protocol):
    """Closes the connection of a caller that does not send its request in time, and earlier where others need the
    place."""

    source = ""
    heard_s = 0.0
    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_silent(self) -> bool:
        """Returns whether the server is waiting for the caller."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.source = _find_source(None if self.client is None else self.client[0])
        self.heard_s = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST_S, self._on_deadline)
        _make_room([one for one in self.connections if isinstance(one, _PromptProtocol)], self)

    def data_received(self, data: bytes) -> None:
        self.heard_s = self.loop.time()
        super().data_received(data)

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
        if self.is_silent:
            self.transport.close()


def _make_room(callers: Iterable[_PromptProtocol], newest: _PromptProtocol) -> None:
    """Closes one connection if there are too many. One that waits for its answer is closed only where all others wait,
    too."""
    there = [one for one in callers if not one.transport.is_closing()]
    if len(there) <= MAX_CALLERS:
        return
    others = [one for one in there if one is not newest]
    silent = [one for one in others if one.is_silent]
    if silent or len(others) >= MAX_CALLERS + SPARE_CALLERS:
        counts = Counter(one.source for one in there)
        max(silent or others, key=lambda one: (counts[one.source], -one.heard_s)).transport.abort()


def _find_source(host: str | None) -> str:
    """Returns where a caller is: an IPv4 address, or an IPv6 network."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return ""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
