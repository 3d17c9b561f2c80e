"""The streams of a node over HTTP: events as they happen, the progress of an audit, the blocks of the chain, and the
model.

Events are server-sent: each has the cursor of WatchEvents as its id, so that an EventSource that was cut off continues
after the last event it has received.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from chain.audit import ExportFrames
from node.admin.json_view import to_json
from node.admin.node_answers import NodeAnswers
from node.errors import Busy, NodeError
from node.finite import to_finite
from node.pb import admin_pb2 as pb
from node.web.endpoint import NO_BODY, OF_ROUND, Endpoint, Parameter, read_body, read_flag, read_whole

MAX_STREAMS = 24  # that follow events at a time; a page without one polls
MAX_AUDITS = 4  # running or waiting
BATCH_S = 0.5  # the least time between two writes to a page
AT_ONCE_S = 0.02  # events within this time are written together
QUIET_S = 15.0  # without events for so long, a comment is sent to keep the connection open
RETRY_MS = 2000
MAX_BATCH = 256
ROUTINE = ("block", "round")  # events of every round, after which shared answers may be old for a moment
KEPT_EVENTS = 256  # encoded once for all pages

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_EVENTS, _BYTES = "text/event-stream", "application/octet-stream"


class Streams:
    """Streams events, audits, blocks and the model of one node. `closed` ends the streams that would not end by
    themselves. `on_news` is called for each event that is not routine, before a page receives it."""

    def __init__(self, answers: NodeAnswers, closed: asyncio.Event, on_news: Callable[[], None] = lambda: None) -> None:
        self._answers = answers
        self._closed = closed
        self._on_news = on_news
        self._following = _Places(
            MAX_STREAMS, f"expected at most {MAX_STREAMS} streams of events at a time; ask for /overview"
        )
        self._auditing = _Places(MAX_AUDITS, "other audits of this chain run already; ask again")
        self._written: dict[str, bytes] = {}  # the newest events, by their cursors

    def list_endpoints(self) -> Sequence[Endpoint]:
        kinds = Parameter("kinds", "string", "A kind of event; all kinds without any.", is_repeated=True)
        since = Parameter("since", "string", "A cursor to go on behind; else the `Last-Event-ID` of the request.")
        first = Parameter("from", "integer", "The first height.")
        last = Parameter("to", "integer", "The last height; the head unless told otherwise.")
        deep = Parameter("deep", "boolean", "Also recompute every aggregate whose blobs are held.")
        return (
            Endpoint("/events", "As `fednode chain watch`.", self._follow, pb.Event, (kinds, since), media=_EVENTS),
            Endpoint(
                "/verify",
                "As `fednode chain verify`.",
                self._verify,
                pb.VerifyUpdate,
                (first, deep),
                method="POST",
                body=NO_BODY,
                media=_EVENTS,
                only_looks=True,
            ),
            Endpoint(
                "/export",
                "Finalised blocks, in a file as `fednode chain export` writes it.",
                self._export,
                {"type": "string", "format": "binary"},
                (first, last),
                media=_BYTES,
            ),
            Endpoint(
                "/model/file",
                "The model as safetensors, as `fednode model export` writes it.",
                self._export_model,
                {"type": "string", "format": "binary"},
                (OF_ROUND,),
                media=_BYTES,
            ),
        )

    # ---- events

    async def _follow(self, request: Request) -> Response:
        since = request.query_params.get("since") or request.headers.get("last-event-id", "")
        kinds = request.query_params.getlist("kinds")
        self._answers.view.read_start(kinds, since)  # checked here, as a stream that has begun cannot report an error
        events = self._answers.view.watch_events(kinds, since)
        return _Placed(self._write_events(events), self._following)

    async def _write_events(self, events: AsyncGenerator[pb.Event, None]) -> AsyncIterator[bytes]:
        """Yields the events since the last write, joined, at most twice a second."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_BATCH)
        loop, written_s = asyncio.get_running_loop(), float("-inf")
        reading = asyncio.create_task(_read_into(queue, events, self._write), name="page events")
        closing = asyncio.create_task(self._closed.wait(), name="page closing")
        getting = asyncio.create_task(queue.get(), name="page next")
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            while not closing.done() and not (reading.done() and queue.empty()):
                done, _ = await asyncio.wait(
                    {getting, closing, reading}, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED
                )
                if getting in done:
                    await asyncio.sleep(max(AT_ONCE_S, written_s + BATCH_S - loop.time()))
                    written_s = loop.time()
                    first, getting = getting.result(), asyncio.create_task(queue.get(), name="page next")
                    yield b"".join([first, *_take_all(queue)])
                elif not done:
                    yield b":\n\n"
        finally:
            for task in (reading, closing, getting):
                task.cancel()
            await asyncio.wait({reading, closing, getting})

    def _write(self, event: pb.Event) -> bytes:
        """Returns an event as all pages receive it, encoded once."""
        written = self._written.get(event.cursor)
        if written is None:
            if event.kind not in ROUTINE:
                self._on_news()
            record = to_json(event)
            record["data"] = json.loads(event.data)
            written = self._written[event.cursor] = write_event(event.kind, record, event.cursor)
            if len(self._written) > KEPT_EVENTS:
                del self._written[next(iter(self._written))]
        return written

    # ---- the chain

    async def _verify(self, request: Request) -> Response:
        await read_body(request)
        first, deep = read_whole(request, "from", 0) or 0, read_flag(request, "deep")
        updates = self._answers.view.verify_chain(first, deep=deep, require_all=False)
        return _Placed(self._write_audit(updates), self._auditing)

    async def _write_audit(self, updates: AsyncGenerator[pb.VerifyUpdate, None]) -> AsyncIterator[bytes]:
        try:
            async with aclosing(updates):
                async for update in updates:
                    yield write_event("update", to_json(update))
                    if self._closed.is_set():
                        return
        except NodeError as error:
            yield write_event("refused", {"error": str(error)})

    async def _export(self, request: Request) -> Response:
        first = read_whole(request, "from", 0) or 0
        blocks = self._answers.view.export_chain(first, read_whole(request, "to"))
        begun = await anext(blocks)  # raises here if the request is invalid

        async def write() -> AsyncIterator[bytes]:
            frames = ExportFrames(self._answers.view.chain.genesis.chain_id, first)
            async with aclosing(blocks):
                yield frames.write_head() + frames.write_block(begun.block, begun.certificate)
                async for block in blocks:
                    yield frames.write_block(block.block, block.certificate)
            yield frames.write_end()

        return StreamingResponse(write(), media_type=_BYTES, headers=name_file("chain.fednode"))

    async def _export_model(self, request: Request) -> Response:
        model = await self._answers.view.read_model(request.query_params.get("round", ""))

        async def write() -> AsyncIterator[bytes]:
            for message in model.to_messages():
                if message.WhichOneof("chunk") == "data":
                    yield message.data

        return StreamingResponse(write(), media_type=_BYTES, headers=name_file("model.safetensors"))


class _Places:
    """Limits the answers at a time to `most`. `refusal` is the error text for callers beyond that."""

    def __init__(self, most: int, refusal: str) -> None:
        self._free = most
        self._refusal = refusal

    def take(self) -> None:
        """Takes a place. Raises Busy if none is free."""
        if self._free <= 0:
            raise Busy(self._refusal)
        self._free -= 1

    def leave(self) -> None:
        self._free += 1


class _Placed(StreamingResponse):
    """A stream of events that takes its place when it is made, not at its first event, as many callers may ask before
    the first stream begins. Raises Busy if no place is free."""

    def __init__(self, events: AsyncIterator[bytes], places: _Places) -> None:
        super().__init__(events, media_type=_EVENTS, headers=_HEADERS)
        places.take()
        self._places = places

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._places.leave()


async def _read_into(
    queue: asyncio.Queue[bytes], events: AsyncGenerator[pb.Event, None], write: Callable[[pb.Event], bytes]
) -> None:
    """Puts events into the queue until the node has no more. A page too slow for the queue misses the events that the
    node's log drops meanwhile."""
    async with aclosing(events):
        async for event in events:
            await queue.put(write(event))


def _take_all(queue: asyncio.Queue[bytes]) -> list[bytes]:
    return [queue.get_nowait() for _ in range(queue.qsize())]


def write_event(kind: str, record: dict[str, Any], cursor: str | None = None) -> bytes:
    """Returns one server-sent event."""
    head = f"event: {kind}\n" if cursor is None else f"id: {cursor}\nevent: {kind}\n"
    return f"{head}data: {json.dumps(to_finite(record), allow_nan=False)}\n\n".encode()


def name_file(name: str) -> dict[str, str]:
    """Returns the headers that have a browser save the answer under this name."""
    return {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
