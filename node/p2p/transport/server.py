"""The calls that peers make on this node. Nothing here calls other nodes, and no call is served before its caller is
known and not refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import grpc

from chain.block import Digest, Id
from chain.errors import InvalidKey
from chain.genesis import PROTOCOL_VERSION
from chain.signing import decode_id, encode_id
from node.boundary import Boundary
from node.p2p.bans import Bans
from node.p2p.refusals import Reason
from node.p2p.tls import MutualTls, UnknownCaller
from node.p2p.transport.answers import Answers, NotAnswered
from node.p2p.transport.base import Direction, Handler, PeerFault
from node.p2p.transport.calls import Malformed
from node.p2p.transport.channel import PEER_KEY
from node.p2p.transport.link import ACCEPTED_KEY, DEAF_KEY
from node.p2p.transport.rate_limits import Intake
from node.p2p.transport.served_lines import ServedLine, ServedLines
from node.p2p.transport.session import Session, Stream
from node.p2p.transport.timing import CallTiming, OnCall
from node.pb import peer_pb2 as pb
from node.version import get_version

log = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M", pb.Batch, pb.BlobRequest)
Context = Any  # grpc.aio.ServicerContext, generic in the stubs and opaque at run time

MAX_REQUEST_BYTES = 2 << 20
HANDSHAKE_S = 10.0
MAX_CONNECTIONS = 512
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second daemon on our port must fail, not share it
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # else a ping's own timeout of a minute applies
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),  # without a call: a peer that has a request reconnects
    ("grpc.compression_enabled_algorithms_bitset", 1),  # the identity alone
)


def make_server(
    service: PeerService,
    max_streams: int,
    num_peers: int,
    handshake_s: float,
    *,
    max_connections: int,
    on_call: OnCall | None = None,
) -> grpc.aio.Server:
    """Makes a server for `service` with our limits. `max_streams` is per connection; in all there is room for the calls
    of every peer, including peers admitted while it runs. Connections beyond `max_connections` are closed at once,
    whoever dialled them: each costs a file descriptor before its caller is known. `on_call` is called after each
    call."""
    options = [
        *_OPTIONS,
        ("grpc.max_concurrent_streams", max_streams),
        ("grpc.server_handshake_timeout_ms", int(handshake_s * 1000)),
        ("grpc.max_allowed_incoming_connections", max_connections),
    ]
    interceptors = (*([CallTiming(on_call)] if on_call is not None else []), _Promptness(service))
    return grpc.aio.server(
        options=options, interceptors=interceptors, maximum_concurrent_rpcs=max_streams + 24 * _count_room(num_peers)
    )


def _count_room(num_peers: int) -> int:
    """Returns how many peers the server has room for until a restart."""
    return 2 * num_peers + 32


class _Promptness(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Admits the caller of a unary call when the call begins, and limits the wait for its request.

    gRPC itself would first wait for the request, without a time limit: a member that opens calls and sends nothing
    could take the places of all others.
    """

    def __init__(self, service: PeerService) -> None:
        self._service = service

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler

        async def serve(request_iterator: object, context: Context) -> Any:
            return await handler.unary_unary(await self._service.await_request(context), context)

        return grpc.stream_unary_rpc_method_handler(serve, handler.request_deserializer, handler.response_serializer)


class _Ended(Exception):
    """The caller is no longer admitted, or may do less than when it called."""


class PeerService:
    """Serves the calls of peer.proto. `intakes` holds every peer that is admitted, `sessions` the streams that are open
    with it, and `served` the lines that it holds open: all as they are when a call begins.

    With `tls` None callers are believed without proof. `on_failure` is called with an error that must end the node; the
    `boundary` deals with every other unforeseen error of a call.
    """

    def __init__(
        self,
        handler: Handler,
        intakes: Mapping[Id, Intake],
        sessions: Mapping[Id, Session],
        served: Mapping[Id, ServedLines],
        bans: Bans,
        tls: MutualTls | None,
        boundary: Boundary,
        on_failure: Callable[[Exception], None],
        chain_id: Digest = b"",
    ) -> None:
        self._handler = handler
        self._intakes = intakes
        self._answers = Answers(handler)
        self._sessions = sessions
        self._served = served
        self._bans = bans
        self._tls = tls
        self._boundary = boundary
        self._on_failure = on_failure
        self._chain_id = chain_id
        self._calls: dict[Id, set[asyncio.Timeout]] = {}  # calls under way: each is ended by its timeout

    def end_calls(self, peer: Id) -> None:
        """Ends all calls of the peer that are under way. `intakes` decides whether it may call again."""
        now_s = asyncio.get_running_loop().time()
        for call in self._calls.pop(peer, ()):
            call.reschedule(now_s)

    def refuse(self, peer: Id, fault: PeerFault) -> None:
        """Ends the peer's streams and admits no call of it until its refusal ends."""
        if (intake := self._intakes.get(peer)) is not None:
            intake.counters.refusals[fault.reason] += 1
        refusal_s = self._bans.add_fault(peer)
        log.warning("refused %s for %.0f s: %s", encode_id(peer), refusal_s, fault)
        if (session := self._sessions.get(peer)) is not None:
            session.end()

    async def await_request(self, context: Context) -> Any:
        """Returns the one message of a unary call. Aborts the call if the caller may not call, has too many such calls
        open, or does not send it in time."""
        intake = await self._admit(context)
        if intake.num_awaited >= 2 * intake.limits.blocks_at_once:
            intake.counters.refusals[Reason.CALLS] += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once that ask nothing")
        intake.num_awaited += 1
        try:
            async with asyncio.timeout(intake.limits.request_grace_s):
                request = await context.read()
        except TimeoutError:
            intake.counters.refusals[Reason.SLOW] += 1
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "asked nothing")
        except grpc.aio.BaseError as error:  # the caller has gone
            raise asyncio.CancelledError from error
        finally:
            intake.num_awaited -= 1
        if request is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "asked nothing")
        return request

    # The calls of peer.proto

    async def Push(self, request_iterator: object, context: Context) -> None:  # noqa: N802
        await self._serve("connection", context, lambda intake: self._push(intake, context))

    async def Blocks(self, request: pb.BlocksRequest | Malformed, context: Context) -> pb.BlocksReply:  # noqa: N802
        return await self._serve("blocks", context, lambda intake: self._answers.answer_blocks(intake, request))

    async def Blob(self, request_iterator: object, context: Context) -> None:  # noqa: N802
        await self._serve("blob", context, lambda intake: self._blob(intake, context))

    async def Serve(self, request_iterator: object, context: Context) -> None:  # noqa: N802
        await self._serve("serve", context, lambda intake: self.hold_line(intake, context))

    async def Hello(self, request: pb.HelloRequest | Malformed, context: Context) -> pb.HelloReply:  # noqa: N802
        return await self._serve("hello", context, lambda intake: self._hello(intake, request))

    async def _serve(self, what: str, context: Context, serve: Callable[[Intake], Awaitable[T]]) -> T:
        """Admits the caller, serves the call, and turns each error into a gRPC status: the edge of the servicer."""
        intake = await self._admit(context)
        try:
            async with self._endable(intake.peer):
                return await serve(intake)
        except _Ended:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "let in no more, or to less")
        except NotAnswered as refusal:
            await context.abort(refusal.code, refusal.details)
        except PeerFault as fault:
            self.refuse(intake.peer, fault)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(fault))
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as error:  # the caller has gone: gRPC reports this as a cancelled call
            raise asyncio.CancelledError from error
        except Exception as failure:  # noqa: BLE001  # the servicer edge: not swallowed by gRPC
            if not self._boundary.takes(failure, what, intake.peer):
                self._on_failure(failure)  # which ends the node
            await context.abort(grpc.StatusCode.INTERNAL)
        raise AssertionError("abort always raises")

    @asynccontextmanager
    async def _endable(self, peer: Id) -> AsyncGenerator[None, None]:
        """Lets `end_calls` end the call that runs inside. Raises _Ended then."""
        calls = self._calls.setdefault(peer, set())
        call = asyncio.timeout(None)
        calls.add(call)
        try:
            async with call:
                yield
        except TimeoutError as error:
            if call.expired():
                raise _Ended from error
            raise
        finally:
            calls.discard(call)
            if not calls and self._calls.get(peer) is calls:
                del self._calls[peer]

    async def _admit(self, context: Context) -> Intake:
        try:
            peer = self._identify(context)
            intake = self._intakes[peer]
        except (UnknownCaller, InvalidKey, KeyError) as error:
            log.warning("turned away a caller at %s: %s", context.peer(), error)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown caller")
        if intake.is_refused():
            intake.counters.refusals[Reason.REFUSED] += 1
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"refused for {self._bans.get_remaining_s(peer):.0f} s more"
            )
        return intake

    def _identify(self, context: Context) -> Id:
        if self._tls is None:
            return decode_id(str(dict(context.invocation_metadata()).get(PEER_KEY, "")))
        certificates = list(context.auth_context().get("x509_pem_cert", ()))
        if len(certificates) != 1:
            raise UnknownCaller(f"expected one certificate, got {len(certificates)}")
        return self._tls.resolve(certificates[0])

    # Push

    async def _push(self, intake: Intake, context: Context) -> None:
        await self._await_turn(intake)
        session, stream = self._sessions[intake.peer], Stream()
        accepted = ((ACCEPTED_KEY, "1"),)
        if any(key == DEAF_KEY for key, _ in context.invocation_metadata()):
            await context.send_initial_metadata(accepted)
            with session.hearing(stream):
                await self._converse(self._read(intake, context), stream.ended.wait())
        else:
            with self._lending(intake.peer), session.joined(Direction.ACCEPTED, stream, self._handler):
                await context.send_initial_metadata(accepted)  # when the caller receives this, it is up here
                writing = session.write(stream, context.write)
                await self._converse(self._hear(intake, context, session, stream), writing, stream.ended.wait())
        if stream.ended.is_set():
            await context.abort(grpc.StatusCode.ABORTED, "replaced or refused")

    async def _await_turn(self, intake: Intake) -> None:
        """Makes a peer that opens one stream after the other wait, as each costs a greeting and ends the one before."""
        if intake.num_streams_waiting >= intake.limits.streams_waiting:
            intake.counters.refusals[Reason.CALLS] += 1
            raise NotAnswered(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams one after the other")
        intake.num_streams_waiting += 1
        try:
            await asyncio.sleep(intake.take_stream())
        finally:
            intake.num_streams_waiting -= 1
        if intake.is_refused():  # since it called
            raise NotAnswered(grpc.StatusCode.PERMISSION_DENIED, "refused")

    async def _converse(self, *parts: Coroutine[Any, Any, Any]) -> None:
        """Runs all parts until the first of them ends."""
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, (TimeoutError, grpc.aio.BaseError)):
                raise outcome

    async def _hear(self, intake: Intake, context: Context, session: Session, stream: Stream) -> None:
        """Reads what the caller sends. When the caller closes its side, lets this node finish what it is sending."""
        await self._read(intake, context)
        if not intake.is_refused():
            await session.until_replaced(stream)

    async def _read(self, intake: Intake, context: Context) -> None:
        while (batch := await _read(context, pb.Batch)) is not None:
            if intake.is_refused():
                return
            wait_s = intake.take(batch, self._handler)
            if wait_s:
                await asyncio.sleep(wait_s)

    @contextmanager
    def _lending(self, peer: Id) -> Iterator[None]:
        """Lets the peer hold lines open for as long as it pushes."""
        lines = self._served[peer]
        lines.num_pushing += 1
        try:
            yield
        finally:
            lines.num_pushing -= 1
            if not lines.num_pushing:
                lines.end()

    # Hello

    async def _hello(self, intake: Intake, request: pb.HelloRequest | Malformed) -> pb.HelloReply:
        if isinstance(request, Malformed):
            raise PeerFault(f"hello: {request}")
        await asyncio.sleep(intake.take_blocks_request())
        now_ms = time.time_ns() // 1_000_000
        return pb.HelloReply(chain_id=self._chain_id, version=get_version(), protocol=PROTOCOL_VERSION, time_ms=now_ms)

    # Blob

    async def _blob(self, intake: Intake, context: Context) -> None:
        with self._answers.blob_slot(intake):
            while (request := await _read(context, pb.BlobRequest)) is not None:
                # A caller that reads nothing keeps only its slot: gRPC ends such a call when the caller goes.
                await self._answers.answer_blob(intake, request, context.write)

    # Serve

    async def hold_line(self, intake: Intake, context: Context) -> None:
        """Keeps a line on which this node can request things of the caller, for as long as the caller pushes."""
        lines = self._served.get(intake.peer)
        if lines is None or not lines.num_pushing:
            raise NotAnswered(grpc.StatusCode.FAILED_PRECONDITION, "expected a stream of messages first")
        if lines.is_full:
            intake.counters.refusals[Reason.CALLS] += 1
            raise NotAnswered(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams at once")
        line = ServedLine(lines, context)
        with lines.holding(line):
            # when the caller receives this, its line is counted here
            await context.send_initial_metadata(((ACCEPTED_KEY, "1"),))
            lines.put(line)
            await line.ended


async def _read(context: Context, kind: type[M]) -> M | None:
    """Returns the caller's next message, None at the end of them. Raises PeerFault for bytes that are no message."""
    message = await context.read()
    if isinstance(message, Malformed):
        raise PeerFault(str(message))
    return message if isinstance(message, kind) else None
