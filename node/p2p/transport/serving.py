"""The serving of a peer that this node has dialled: streams are held open to it, on which it requests blocks and blobs
and receives them, as if it had dialled this node.

One idle stream is there at any time, until there are as many as a peer may have requests at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Any, NoReturn

import grpc

from chain.block import Id
from node.boundary import Boundary
from node.p2p.refusals import Reason
from node.p2p.transport.answers import Answers, NotAnswered
from node.p2p.transport.base import Handler, PeerFault, PeerUnavailable, TransportError
from node.p2p.transport.calls import Malformed, PeerCalls
from node.p2p.transport.dialled_lines import DialledLines
from node.p2p.transport.link import ACCEPTED_KEY, FIRST_PAUSE_S, LAST_REFUSED_PAUSE_S, REDIAL_S, STEADY_AFTER_S
from node.p2p.transport.rate_limits import Intake
from node.pb import peer_pb2 as pb


class Serving:
    """Answers one peer for as long as `run` runs. `get_lines` returns the lines dialled to it, whose connection the
    streams share; `refuse` is called with a fault that no correct node commits."""

    def __init__(
        self,
        intake: Intake,
        get_lines: Callable[[Id], DialledLines],
        refuse: Callable[[Id, PeerFault], None],
        boundary: Boundary,
    ) -> None:
        self._intake = intake
        self._get_lines = get_lines
        self._refuse = refuse
        self._boundary = boundary
        self._random = Random()  # noqa: S311  # jitter
        self._num_streams = 0
        self._num_busy = 0

    def __repr__(self) -> str:
        return f"Serving({self._intake.peer.hex()[:8]}, streams={self._num_streams}, busy={self._num_busy})"

    async def run(self, handler: Handler) -> None:
        """Runs until cancelled. Raises an error that must end the node."""
        self._num_streams = self._num_busy = 0
        try:
            async with asyncio.TaskGroup() as streams:
                self._open_another(streams, Answers(handler))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    def _open_another(self, streams: asyncio.TaskGroup, answers: Answers) -> None:
        if self._num_streams == self._num_busy and self._num_streams < self._intake.limits.max_lines:
            self._num_streams += 1
            streams.create_task(self._hold(streams, answers), name="serve")

    async def _hold(self, streams: asyncio.TaskGroup, answers: Answers) -> NoReturn:
        """Keeps one stream open, and opens it again after it has ended. A stream that was used is reopened after the
        shortest pause, as a peer ends its stream to stop a reply that it no longer needs."""
        failures = 0
        while True:
            began_s = time.monotonic()
            failures += 1
            try:
                async with self._open() as call:
                    while isinstance(request := await call.read(), pb.ServeRequest | Malformed):
                        failures = 0
                        with self._being_busy():
                            self._open_another(streams, answers)
                            await self._answer(answers, request, call)
            except PeerUnavailable:
                pass
            except PeerFault as fault:
                self._refuse(self._intake.peer, fault)
            if time.monotonic() - began_s > STEADY_AFTER_S:
                failures = 0
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(failures, 20), LAST_REFUSED_PAUSE_S)
            await asyncio.sleep(pause_s * self._random.uniform(0.7, 1.0))

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Any, None]:
        """Opens one stream and waits until the peer has accepted it. Raises PeerUnavailable, also where the stream
        breaks later."""
        lines = self._get_lines(self._intake.peer)
        async with lines.open() as connection:
            with connection.translating():
                call = PeerCalls(connection.channel).serve(None, metadata=lines.metadata, wait_for_ready=True)
                try:
                    if not await _is_accepted(call):
                        raise PeerUnavailable("it takes no stream")
                    yield call
                finally:
                    call.cancel()

    @contextmanager
    def _being_busy(self) -> Iterator[None]:
        self._num_busy += 1
        try:
            yield
        finally:
            self._num_busy -= 1

    async def _answer(self, answers: Answers, request: pb.ServeRequest | Malformed, call: Any) -> None:
        """Answers one request. Raises PeerFault, and PeerUnavailable where the stream cannot be used any more."""
        if isinstance(request, Malformed):
            raise PeerFault(f"serve: {request}")
        body = request.WhichOneof("body")
        if body is None:
            raise PeerFault("serve: expected a request of a known kind")
        peer = self._intake.peer
        try:
            with self._boundary.around(
                body, peer, passing=(TransportError, NotAnswered, grpc.RpcError, asyncio.InvalidStateError)
            ) as crossing:
                if self._intake.is_refused():
                    self._intake.counters.refusals[Reason.REFUSED] += 1
                    raise NotAnswered(grpc.StatusCode.PERMISSION_DENIED, "refused")
                if body == "blocks":
                    await self._answer_blocks(answers, request.blocks, call)
                else:
                    await self._answer_blob(answers, request.blob, call)
        except NotAnswered as refusal:
            if refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED:  # the peer reads nothing
                raise PeerUnavailable(refusal.details) from refusal
            await self._write(call, pb.ServeReply(refused=refusal.details))
        if crossing.failure is not None:
            await self._write(call, pb.ServeReply(refused="it failed"))

    async def _answer_blocks(self, answers: Answers, request: pb.BlocksRequest, call: Any) -> None:
        await self._write(call, pb.ServeReply(blocks=await answers.answer_blocks(self._intake, request)))

    async def _answer_blob(self, answers: Answers, request: pb.BlobRequest, call: Any) -> None:
        async def write(chunk: pb.BlobChunk) -> None:
            await call.write(pb.ServeReply(chunk=chunk))

        with answers.blob_slot(self._intake):
            await answers.answer_blob(self._intake, request, write)

    async def _write(self, call: Any, reply: pb.ServeReply) -> None:
        try:
            async with asyncio.timeout(self._intake.limits.write_s):
                await call.write(reply)
        except TimeoutError as error:
            self._intake.counters.refusals[Reason.SLOW] += 1
            raise PeerUnavailable("read too slowly") from error


async def _is_accepted(call: Any) -> bool:
    try:
        async with asyncio.timeout(REDIAL_S):
            return ACCEPTED_KEY in await call.initial_metadata()
    except TimeoutError:
        return False
