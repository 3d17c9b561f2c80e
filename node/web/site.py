"""The site of a node: its page and `/api/v1/`, as routes for the node's HTTP server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from chain.errors import ChainError
from node.admin.predictor import NotInTime, NotReady, TooManyPredictions
from node.errors import (
    Busy,
    ChangeRefused,
    InvalidRequest,
    NodeError,
    NodeUnreachable,
    NotFound,
    PermissionRefused,
)
from node.finite import to_finite
from node.web.endpoint import Endpoint
from node.web.files import PageFiles
from node.web.guard import Guard, SafetyHeaders, Unauthenticated
from node.web.openapi import write_openapi
from node.web.shared import SharedAnswers

log = logging.getLogger(__name__)

API = "/api/v1"
MAX_ERROR_CHARS = 2000
AGAIN_S = 5  # the delay that a busy node asks callers to wait

_CODES: Mapping[type[Exception], int] = {
    Unauthenticated: 401,
    PermissionRefused: 403,
    InvalidRequest: 400,
    NotFound: 404,
    ChangeRefused: 409,
    TooManyPredictions: 429,
    NotReady: 503,
    Busy: 503,
    NotInTime: 504,
    NodeUnreachable: 502,
}


class Site:
    """Serves `endpoints` to the callers that `guard` allows, and the page. `closed` is set when the node stops
    serving."""

    def __init__(
        self, endpoints: Sequence[Endpoint], guard: Guard, shared: SharedAnswers, closed: asyncio.Event
    ) -> None:
        self._endpoints = endpoints
        self._guard = guard
        self._shared = shared
        self._closed = closed
        self._files = PageFiles()
        self._openapi = json.dumps(write_openapi(endpoints)).encode()

    @property
    def routes(self) -> Sequence[BaseRoute]:
        below = [Route(one.path, self._make_answer(one), methods=[one.method]) for one in self._endpoints]
        below += [Route("/openapi.json", self._answer_openapi), Route("/{path:path}", self._answer_unknown)]
        page = [Route("/", self._files.answer), Route("/{path:path}", self._files.answer)]
        safe = [Middleware(SafetyHeaders)]
        return [
            Mount(API, routes=below, middleware=[*safe, Middleware(_OwnOrigin)]),
            Mount("/", routes=page, middleware=safe),
        ]

    def close(self) -> None:
        self._closed.set()

    # ---- answers

    def _make_answer(self, endpoint: Endpoint) -> Any:
        async def answer(request: Request) -> Response:
            try:
                self._guard.check(request, endpoint.role, is_open=endpoint.is_open)
                return await self._answer(endpoint, request)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # noqa: BLE001 (the edge: no error of a request ends the daemon)
                return _refuse(error)

        async def open_session(request: Request) -> Response:
            """Answers without checking a key: the caller comes to exchange one, and has no other."""
            try:
                return _send(encode_json(await endpoint.answer(request)))
            except Exception as error:  # noqa: BLE001 (the edge)
                return _refuse(error)

        return open_session if endpoint.is_door else answer

    async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
        if endpoint.is_stream:
            response: Response = await endpoint.answer(request)
            return response
        if endpoint.method == "POST":
            try:
                return _send(encode_json(await endpoint.answer(request)))
            finally:
                if not endpoint.only_looks:
                    self._shared.clear()

        async def make() -> bytes:
            return encode_json(await endpoint.answer(request))

        return _send(await self._shared.get(f"{request.url.path}?{request.url.query}", make))

    async def _answer_openapi(self, request: Request) -> Response:
        return _send(self._openapi)

    async def _answer_unknown(self, request: Request) -> Response:
        return JSONResponse({"error": "no such record; /api/v1/openapi.json lists them"}, 404)


class _OwnOrigin:
    """Refuses requests that a page from elsewhere has a browser send."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            Guard.check_origin(Request(scope))
        except PermissionRefused as error:
            await _refuse(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def encode_json(record: Any) -> bytes:
    return json.dumps(to_finite(record), allow_nan=False).encode()


def _send(data: bytes) -> Response:
    return Response(data, media_type="application/json", headers={"Cache-Control": "no-store"})


def _refuse(error: Exception) -> Response:
    """Translates our errors into HTTP's; nothing else does."""
    code, text = next((code for kind, code in _CODES.items() if isinstance(error, kind)), 500), str(error)
    if not isinstance(error, NodeError | ChainError):
        log.error("an answer over HTTP failed", exc_info=error)
        text = f"{type(error).__name__}; the node's log says more"
    headers = {"Cache-Control": "no-store"}
    if code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Busy):
        headers["Retry-After"] = str(AGAIN_S)
    return JSONResponse({"error": text[:MAX_ERROR_CHARS]}, code, headers)
