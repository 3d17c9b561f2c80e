"""`fednode.aconnect`: a running node, used from coroutines. Calls wait in threads, so the loop runs on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from os import PathLike
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from fednode.client import Client, Record, connect
from node.errors import NodeError

MAX_AT_ONCE = 8  # calls in progress; further ones wait

P = ParamSpec("P")
T = TypeVar("T")


def aconnect(place: str | PathLike[str], token_file: str | PathLike[str] | None = None) -> AsyncClient:
    """Makes a client of the node at `place`, which has the forms that `fednode.connect` takes.

        async with fednode.aconnect("node0.yaml") as node:
            async for event in node.watch("block"):
                print(event["data"]["height"], (await node.status())["accuracy"])

    It opens nothing until the block is entered or the first call is made; errors are raised then.
    """
    return AsyncClient(place, token_file)


def awaited(call: Callable[Concatenate[Client, P], T]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Makes a coroutine method of `AsyncClient` from a method of `Client`, which runs in a thread."""

    @wraps(call)
    async def ask(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client._do(lambda opened: call(opened, *args, **kwargs))

    return ask


class AsyncClient:
    """A running node, with the calls of `fednode.Client` as coroutines. Made by `fednode.aconnect`.

    A call that is cancelled returns at once; the node may still carry it out.
    """

    def __init__(self, place: str | PathLike[str], token_file: str | PathLike[str] | None = None) -> None:
        self._place, self._token_file = place, token_file
        self._threads = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="fednode-client")
        self._opening = threading.Lock()
        self._client: Client | None = None
        self._watching: set[Client] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._place}{', closed' if self._is_closed else ''}>"

    async def __aenter__(self) -> Self:
        await self._do(lambda client: None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all calls in progress: they raise NodeError, and `watch` ends."""
        self._is_closed = True
        for client in (self._client, *self._watching):
            if client is not None:
                client.close()
        self._threads.shutdown(wait=False)

    def _open(self) -> Client:
        with self._opening:
            if self._client is None:
                self._client = connect(self._place, self._token_file)
            if self._is_closed:
                self._client.close()
            return self._client

    async def _do(self, work: Callable[[Client], T]) -> T:
        if self._is_closed:
            raise NodeError(f"the client of {self._place} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(self._open()))

    status = awaited(Client.status)
    rounds = awaited(Client.rounds)
    round = awaited(Client.round)
    metrics = awaited(Client.metrics)
    member_metrics = awaited(Client.member_metrics)
    members = awaited(Client.members)
    runs = awaited(Client.runs)
    statistics = awaited(Client.statistics)
    evaluations = awaited(Client.evaluations)
    proposals = awaited(Client.proposals)
    propose = awaited(Client.propose)
    approve = awaited(Client.approve)
    predict = awaited(Client.predict)
    evaluate = awaited(Client.evaluate)
    model = awaited(Client.model)

    async def watch(self, *kinds: str, since: str = "") -> AsyncIterator[Record]:
        """Yields events as `Client.watch` does. Cancelling the task that waits for an event ends it."""
        client = await self._do(Client.open_another)  # a client of its own, so that ending it ends no other call
        self._watching.add(client)
        thread = ThreadPoolExecutor(1, thread_name_prefix="fednode-watch")
        events, loop = client.watch(*kinds, since=since), asyncio.get_running_loop()
        try:
            while (event := await loop.run_in_executor(thread, next, events, None)) is not None:
                yield event
        finally:
            self._watching.discard(client)
            client.close()
            thread.shutdown(wait=False)
