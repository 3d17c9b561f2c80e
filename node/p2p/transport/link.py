"""The link to one peer: the control connection, with the Push stream on it. It is dialled, kept, and dialled again,
also at another address."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import NoReturn

import grpc

from chain.block import Id
from node.boundary import Boundary
from node.p2p.refusals import Reason
from node.p2p.transport.base import Handler, PeerFault
from node.p2p.transport.calls import Malformed, PeerCalls
from node.p2p.transport.channel import Caller, get_last_retry_s
from node.p2p.transport.rate_limits import Intake
from node.p2p.transport.sender import Sender
from node.pb import peer_pb2 as pb

log = logging.getLogger(__name__)

ACCEPTED_KEY = "fednode-accepted"  # initial metadata: this stream is taken, not about to be refused
REDIAL_S = 60.0  # how long one attempt may wait for the peer before it starts over, with a leaf that is fresh
STEADY_AFTER_S = 2.0  # a connection that lasted so long starts the pauses afresh
FIRST_PAUSE_S = 0.05
FIRST_REFUSED_PAUSE_S = 1.0
LAST_REFUSED_PAUSE_S = 60.0
_REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED)
_STREAM_ERRORS = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError, TimeoutError)


class Link:
    """Pushes what is posted to one peer, for as long as `run` runs, and says when the peer is up and when down.

    Without an address nobody is dialled. While the peer is up, `serve` answers what it asks for.
    """

    def __init__(
        self,
        address: str | None,
        caller: Caller,
        sender: Sender,
        intake: Intake,
        serve: Callable[[Handler], Awaitable[None]],
        refuse: Callable[[Id, PeerFault], None],
        boundary: Boundary,
    ) -> None:
        self.peer = intake.peer
        self._address = address
        self._moved = asyncio.Event()
        self._caller = caller
        self._sender = sender
        self._intake = intake
        self._serve = serve
        self._refuse = refuse
        self._boundary = boundary
        self._random = Random()  # noqa: S311  # jitter

    def __repr__(self) -> str:
        return f"Link({self.peer.hex()[:8]}, address={self._address}, open={self._sender.is_open})"

    def move(self, address: str | None) -> None:
        """Ends the connection that is there, and dials at another address, or nobody."""
        self._address = address
        self._moved.set()

    async def run(self, handler: Handler) -> None:
        """Until cancelled. Raises what is the node's own trouble."""
        while True:
            self._moved.clear()
            tasks = [asyncio.create_task(self._moved.wait())]
            if self._address is not None:
                tasks.append(asyncio.create_task(self._dial(self._address, handler)))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                task.result()

    async def _dial(self, address: str, handler: Handler) -> NoReturn:
        failures = 0
        leaf = self._caller.get_leaf()
        channel = self._caller.open_channel(self.peer, address)
        try:
            while True:
                began_s = time.monotonic()
                code: grpc.StatusCode | None = None
                with self._boundary.around("connection", self.peer):
                    code = await self._push(channel, handler)
                failures = 0 if time.monotonic() - began_s > STEADY_AFTER_S else failures + 1
                await asyncio.sleep(self._get_pause_s(address, failures, refused=code in _REFUSALS))
                if self._caller.get_leaf() is not leaf:
                    await channel.close(None)
                    leaf = self._caller.get_leaf()
                    channel = self._caller.open_channel(self.peer, address)
        finally:
            await channel.close(None)

    def _get_pause_s(self, address: str, failures: int, *, refused: bool) -> float:
        first_s, last_s = FIRST_PAUSE_S, get_last_retry_s(address)
        if refused:
            first_s, last_s = FIRST_REFUSED_PAUSE_S, LAST_REFUSED_PAUSE_S
        return min(first_s * 2.0 ** min(failures, 20), last_s) * self._random.uniform(0.7, 1.0)

    async def _push(self, channel: grpc.aio.Channel, handler: Handler) -> grpc.StatusCode | None:
        """One stream from its start to its end. Returns how it ended, None if it had not begun in time."""
        call = PeerCalls(channel).push(None, metadata=self._caller.get_metadata(), wait_for_ready=True)
        try:
            async with asyncio.timeout(REDIAL_S):
                metadata = await call.initial_metadata()
            if ACCEPTED_KEY not in metadata:
                return await call.code()
            return await self._converse(call, handler)
        except TimeoutError:
            return None
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            call.cancel()

    async def _converse(self, call: grpc.aio.StreamStreamCall, handler: Handler) -> grpc.StatusCode | None:  # type: ignore[type-arg]  # generic in the stubs alone
        self._sender.open()
        with self._boundary.around("connection", self.peer):
            handler.on_peer_up(self.peer)
        reader = asyncio.create_task(self._read(call, handler))
        writer = asyncio.create_task(self._sender.run(call.write))
        server = asyncio.ensure_future(self._serve(handler))
        try:
            await asyncio.wait({reader, writer, server}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer, server):
                task.cancel()
            outcomes = await asyncio.gather(reader, writer, server, return_exceptions=True)
            self._sender.close()
            with self._boundary.around("connection", self.peer):
                handler.on_peer_down(self.peer)
        for outcome in outcomes:
            if isinstance(outcome, PeerFault):
                self._refuse(self.peer, outcome)
                return None
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, (*_STREAM_ERRORS, asyncio.CancelledError)
            ):
                raise outcome
        return await call.code() if call.done() else None

    async def _read(self, call: grpc.aio.StreamStreamCall, handler: Handler) -> None:  # type: ignore[type-arg]  # as above
        """What a peer answers that does not dial us, and the end of the stream."""
        while isinstance(batch := await call.read(), pb.Batch | Malformed):
            if self._intake.is_refused():
                raise PeerFault("refused before", Reason.REFUSED)
            if isinstance(batch, Malformed):
                raise PeerFault(str(batch))
            wait_s = self._intake.take(batch, handler)
            if wait_s:
                await asyncio.sleep(wait_s)
