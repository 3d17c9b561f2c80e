"""The admin server: gRPC on a unix socket of mode 0600 in a directory of mode 0700, and over TCP for callers that show
a token (SECURITY §4).

Python gRPC cannot identify a caller on a socket, so the directory is the control: it is made private, and refused if it
is not. Over TCP every method needs a role. Health and reflection are served beside it in both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc
from google.protobuf.message import Message
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from chain.errors import ChainError, StoreCorrupted
from node.admin import operations
from node.admin.access import RemoteAccess
from node.admin.client import REFUSED, is_served
from node.admin.decoding import Decoding
from node.admin.node_answers import NodeAnswers
from node.admin.operations import ADMIN_SERVICE, SHUTDOWN, Operation, read_fields
from node.admin.page_keys import NoPage
from node.admin.predictor import NoModel, NotInTime, NotReady, TooManyPredictions
from node.admin.samples import MAX_BYTES
from node.errors import (
    ChangeRefused,
    ConfigError,
    InvalidRequest,
    NodeError,
    NodeUnreachable,
    NotFound,
    PermissionRefused,
    VerificationFailed,
)
from node.p2p.transport.timing import CallTiming, OnCall

log = logging.getLogger(__name__)

HEALTH_ADMIN = "fednode.admin.v1"
HEALTH_READINESS = "readiness"
READINESS_S = 0.25  # between two checks of readiness
STOP_GRACE_S = 0.2
# A caller that watches may ping this node to see whether it is still there; a caller that has gone is noticed.
KEEPALIVE = (
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
MAX_REQUEST_BYTES = MAX_BYTES + 64 * 1024
MAX_REASON_CHARS = 600  # it goes percent-encoded into a trailer, which a caller limits to 8 KiB

Context = aio.ServicerContext[Any, Any]

_CODES: dict[type[Exception], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    StoreCorrupted: grpc.StatusCode.DATA_LOSS,
    VerificationFailed: grpc.StatusCode.DATA_LOSS,
    NoModel: grpc.StatusCode.FAILED_PRECONDITION,
    NoPage: grpc.StatusCode.FAILED_PRECONDITION,
    ChangeRefused: grpc.StatusCode.FAILED_PRECONDITION,
    NotReady: grpc.StatusCode.UNAVAILABLE,
    NotInTime: grpc.StatusCode.DEADLINE_EXCEEDED,
    TooManyPredictions: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NodeUnreachable: grpc.StatusCode.UNAVAILABLE,  # last, as its subclasses above have codes of their own
}


class AdminServer:
    """Serves the `answers` of a node on `socket`, and to `remote` callers, while it is entered. `on_call` is called for
    every call that has ended.

    Raises PermissionRefused when others could reach the socket, ConfigError when another process listens there.
    """

    def __init__(
        self,
        socket: Path | None,
        answers: NodeAnswers,
        remote: RemoteAccess | None = None,
        on_call: OnCall | None = None,
    ) -> None:
        self._socket = socket
        self._remote = remote
        self._timing = () if on_call is None else (CallTiming(on_call),)
        self._view = answers.view
        handlers = {row.name: _make_handler(row, answers) for row in operations.OPERATIONS}
        self._handler = grpc.method_handlers_generic_handler(ADMIN_SERVICE, handlers)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack aio
        self._stack = AsyncExitStack()
        self.port = 0  # the port for remote callers, set once entered

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._socket is not None:
                await self._serve_socket(stack, self._socket)
            if self._remote is not None:
                server = self._make_server([self._remote.guard])
                self.port = self._remote.listen(server)
                await server.start()
                stack.push_async_callback(server.stop, STOP_GRACE_S)
            await self._health.set(HEALTH_ADMIN, health_pb2.HealthCheckResponse.SERVING)
            await self._set_readiness(self._view.is_ready)
            stack.push_async_callback(self._health.enter_graceful_shutdown)
            watching = asyncio.create_task(self._watch_readiness(), name="readiness")
            stack.push_async_callback(_end, watching)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _make_server(self, interceptors: Sequence[aio.ServerInterceptor[Any, Any]] = ()) -> aio.Server:
        server = aio.server(
            interceptors=(*self._timing, *interceptors, Decoding()),
            options=[
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_concurrent_streams", 64),
                ("grpc.so_reuseport", 0),
                *KEEPALIVE,
            ],
        )
        server.add_generic_rpc_handlers((self._handler,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((ADMIN_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    async def _serve_socket(self, stack: AsyncExitStack, socket: Path) -> None:
        prepare_place(socket)
        server = self._make_server()
        try:
            server.add_insecure_port(f"unix:{socket}")
        except RuntimeError as error:
            raise ConfigError(f"admin.socket: {socket}: cannot listen there ({error})") from error
        stack.callback(_remove, socket)
        socket.chmod(0o600)  # noqa: ASYNC240 (a system call)
        await server.start()
        stack.push_async_callback(server.stop, STOP_GRACE_S)

    async def _watch_readiness(self) -> None:
        known = self._view.is_ready
        while True:
            if self._view.is_ready != known:
                known = not known
                await self._set_readiness(known)
            await asyncio.sleep(READINESS_S)

    async def _set_readiness(self, is_ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self._health.set(HEALTH_READINESS, status.SERVING if is_ready else status.NOT_SERVING)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):  # gRPC may have removed it
        path.unlink()


# ---- the place of the socket


def prepare_place(path: Path) -> None:
    """Makes the directory of a socket private, and removes the socket that a killed daemon left there."""
    directory = path.parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ConfigError(f"admin.socket: {directory}: cannot be used as a directory ({error.strerror})") from error
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise PermissionRefused(
            f"admin.socket: {directory}: expected a directory of user {os.geteuid()}, got one of user {status.st_uid}"
        )
    if mode & 0o077:
        raise PermissionRefused(
            f"admin.socket: {directory}: expected a directory of mode 0700, got {mode:04o}; "
            f"chmod 700 it, or let the socket lie in another"
        )
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"admin.socket: {path}: expected a socket or nothing there, got something else")
    except FileNotFoundError:
        return
    if is_served(path):
        raise ConfigError(f"admin.socket: {path}: another process is listening there")
    log.info("a socket left behind by an earlier daemon was removed: %s", path)
    path.unlink(missing_ok=True)


# ---- the service


async def _refuse(context: Context, error: Exception) -> NoReturn:
    """Translates our errors into gRPC's, marked as ours; nothing else does."""
    codes = (code for kind, code in _CODES.items() if isinstance(error, kind))
    code, text = next(codes, grpc.StatusCode.INTERNAL), str(error)
    if not isinstance(error, NodeError | ChainError):
        log.exception("an admin call failed")
        text = f"{type(error).__name__}; the node's log says more"
    await context.abort(code, text[:MAX_REASON_CHARS], ((REFUSED, "1"),))


def _make_handler(operation: Operation[Any, Any], answers: NodeAnswers) -> grpc.RpcMethodHandler[Any, Any]:
    """Returns the gRPC handler that answers an operation."""

    async def answer(request: Message, context: Context) -> Message:
        try:
            reply: Message = await answers.ask(operation, **read_fields(request))
        except Exception as error:  # noqa: BLE001 (the servicer edge)
            await _refuse(context, error)
        if operation is SHUTDOWN:  # once the answer is sent, or its caller has gone
            context.add_done_callback(lambda _: answers.control.end())  # type: ignore[arg-type]
        return reply

    async def stream(request: Message, context: Context) -> AsyncIterator[Message]:
        try:
            async with aclosing(answers.stream(operation, **read_fields(request))) as replies:
                async for reply in replies:
                    yield reply
        except Exception as error:  # noqa: BLE001 (the servicer edge)
            await _refuse(context, error)

    read, write = operation.request.FromString, operation.reply.SerializeToString
    if operation.is_stream:
        return grpc.unary_stream_rpc_method_handler(stream, read, write)
    return grpc.unary_unary_rpc_method_handler(answer, read, write)
