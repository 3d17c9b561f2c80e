"""The link to one peer: the control connection that this node dials, with the Push stream on it. While the peer has not
dialled this node, the link is dialled and kept up, and dialled again after it breaks or the address changes.

Of two nodes that may dial each other the one with the lower key dials at once, and the other waits a moment for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NoReturn

import grpc

from chain.block import Id
from node.boundary import Boundary
from node.p2p.refusals import Reason
from node.p2p.transport.base import Direction, Handler, PeerFault
from node.p2p.transport.calls import Malformed, PeerCalls
from node.p2p.transport.channel import Caller, get_last_retry_s
from node.p2p.transport.session import GIVE_UP_S, Session, Stream
from node.pb import peer_pb2 as pb

log = logging.getLogger(__name__)

DEFER_S = 0.5  # how long the higher of two keys waits for the lower to dial
LOOK_S = 1.0  # how often to check whether a refusal has ended
DEAF_KEY = "fednode-deaf"  # metadata: the caller accepts no messages on this stream, as it refuses the peer for now
ACCEPTED_KEY = "fednode-accepted"  # initial metadata: this stream is accepted, not about to be refused
REDIAL_S = 60.0  # how long one attempt may wait for the peer before the next, with a fresh leaf
STEADY_AFTER_S = 2.0  # a connection that lasted so long resets the pauses
FIRST_PAUSE_S = 0.05
FIRST_REFUSED_PAUSE_S = 1.0
LAST_REFUSED_PAUSE_S = 60.0
_REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED)
_STREAM_ERRORS = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError, TimeoutError)


class Link:
    """Dials one peer, for as long as `run` runs, while the peer has not dialled this node. Posted messages go over
    `session`.

    Without an address the peer is not dialled. With `waits` the peer has a moment to dial first. `serve` answers what
    the peer requests over this link.
    """

    def __init__(
        self,
        address: str | None,
        caller: Caller,
        session: Session,
        serve: Callable[[Handler], Coroutine[Any, Any, None]],
        refuse: Callable[[Id, PeerFault], None],
        boundary: Boundary,
        *,
        waits: bool,
    ) -> None:
        self.peer = session.peer
        self._address = address
        self._moved = asyncio.Event()
        self._caller = caller
        self._session = session
        self._intake = session.intake
        self._serve = serve
        self._refuse = refuse
        self._boundary = boundary
        self._waits = waits
        self._random = Random()  # noqa: S311  # jitter

    def __repr__(self) -> str:
        return f"Link({self.peer.hex()[:8]}, address={self._address}, session={self._session!r})"

    @property
    def address(self) -> str | None:
        """Returns the address at which the peer is dialled; None where it is not dialled."""
        return self._address

    def move(self, address: str | None) -> None:
        """Ends the connection that is there, and dials at another address, or not at all with None."""
        self._address = address
        self._moved.set()

    async def run(self, handler: Handler) -> None:
        """Runs until cancelled. Raises an error that must end the node."""
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
        while True:
            await self._session.until_alone()
            if self._waits:
                await asyncio.sleep(DEFER_S * self._random.uniform(0.7, 1.0))
            if not self._session.has_accepted:
                await self._keep(address, handler)

    async def _keep(self, address: str, handler: Handler) -> None:
        """Keeps one connection up after the other, until the peer has dialled this node."""
        failures = 0
        leaf = self._caller.get_leaf()
        channel = self._caller.open_channel(self.peer, address)
        try:
            while True:
                began_s = time.monotonic()
                code: grpc.StatusCode | None = None
                with self._boundary.around("connection", self.peer):
                    code = await self._push(channel, handler)
                if self._session.has_accepted:
                    return
                failures = 0 if time.monotonic() - began_s > STEADY_AFTER_S else failures + 1
                await asyncio.sleep(self._get_pause_s(address, failures, refused=code in _REFUSALS))
                if self._session.has_accepted:
                    return
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
        """Runs one stream from its start to its end. Returns how it ended, None if it had not begun in time."""
        stream = Stream(refuses_input=self._intake.is_refused())
        metadata = (*self._caller.get_metadata(), *(((DEAF_KEY, "1"),) if stream.refuses_input else ()))
        call = PeerCalls(channel).push(None, metadata=metadata, wait_for_ready=True)
        self._session.is_dialling = True
        try:
            async with asyncio.timeout(REDIAL_S):
                answer = await call.initial_metadata()
            if ACCEPTED_KEY not in answer:
                return await call.code()
            await self.converse(call, stream, handler)
            return await call.code() if call.done() else None
        except TimeoutError:
            return None
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            self._session.is_dialling = False
            call.cancel()

    async def converse(self, call: Any, stream: Stream, handler: Handler) -> None:
        with self._session.joined(Direction.DIALLED, stream, handler):
            conversation: list[Coroutine[Any, Any, Any]] = [
                self._read(call, handler),
                self._session.write(stream, call.write),
                self.give_up(call, stream),
                stream.ended.wait(),
                self._hear_again() if stream.refuses_input else self._serve(handler),
            ]
            tasks = [asyncio.create_task(part) for part in conversation]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, PeerFault):
                self._refuse(self.peer, outcome)
                return
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, (*_STREAM_ERRORS, asyncio.CancelledError)
            ):
                raise outcome

    async def give_up(self, call: Any, stream: Stream) -> None:
        """Waits until the peer's stream has replaced this one, finishes the message being sent, and reads what still
        comes: the peer closes the stream when it has sent all."""
        await stream.superseded.wait()
        async with stream.writing:
            await call.done_writing()
        await asyncio.sleep(GIVE_UP_S)

    async def _hear_again(self) -> None:
        """Returns once the peer is no longer refused."""
        while self._intake.is_refused():  # noqa: ASYNC110 (time ends a refusal, or an operator)
            await asyncio.sleep(LOOK_S)

    async def _read(self, call: Any, handler: Handler) -> None:
        """Reads what the peer sends, until the stream ends."""
        while isinstance(batch := await call.read(), pb.Batch | Malformed):
            if self._intake.is_refused():
                raise PeerFault("refused before", Reason.REFUSED)
            if isinstance(batch, Malformed):
                raise PeerFault(str(batch))
            wait_s = self._intake.take(batch, handler)
            if wait_s:
                await asyncio.sleep(wait_s)
