"""`fednode.aconnect`: a running node, asked from coroutines. Threads ask and wait, so the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fednode.client import PREDICT_S, Client, Record, connect
from node.errors import NodeError

if TYPE_CHECKING:
    from torch import nn

    from fednode.prediction import Predictions

MAX_AT_ONCE = 8  # calls in hand; more wait

T = TypeVar("T")


def aconnect(place: str | PathLike[str], token_file: str | PathLike[str] | None = None) -> AsyncClient:
    """A client of the node at `place`, which is as `fednode.connect` has it.

        async with fednode.aconnect("node0.yaml") as node:
            async for event in node.watch("block"):
                print(event["data"]["height"], (await node.status())["accuracy"])

    Nothing is opened before the block is entered, or the first question is asked: errors come then.
    """
    return AsyncClient(place, token_file)


class AsyncClient:
    """A running node, as `fednode.Client` has it: the same calls, which are awaited. Made by `fednode.aconnect`.

    A call that is cancelled is not waited for any longer; what it asked for may still be done.
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
        """Ends what is in hand: calls raise NodeError, and `watch` comes to its end."""
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

    async def status(self) -> Record:
        """As `Client.status`."""
        return await self._do(Client.status)

    async def rounds(self, limit: int | None = None) -> list[Record]:
        """As `Client.rounds`."""
        return await self._do(lambda client: client.rounds(limit))

    async def round(self, height: int) -> Record:
        """As `Client.round`."""
        return await self._do(lambda client: client.round(height))

    async def metrics(
        self, series: Iterable[str] | str | None = None, *, first: int = 1, last: int | None = None
    ) -> list[Record]:
        """As `Client.metrics`."""
        return await self._do(lambda client: client.metrics(series, first=first, last=last))

    async def member_metrics(
        self, measure: str | None = None, *, first: int = 1, last: int | None = None
    ) -> list[Record]:
        """As `Client.member_metrics`."""
        return await self._do(lambda client: client.member_metrics(measure, first=first, last=last))

    async def watch(self, *kinds: str, since: str = "") -> AsyncIterator[Record]:
        """As `Client.watch`. Cancelling who waits for an event ends it."""
        client = await self._do(Client.open_another)  # whose end is no other call's
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

    async def members(self) -> Record:
        """As `Client.members`."""
        return await self._do(Client.members)

    async def runs(self) -> list[Record]:
        """As `Client.runs`."""
        return await self._do(Client.runs)

    async def statistics(self, run: int = 0) -> Record:
        """Does what `Client.statistics` does."""
        return await self._do(lambda client: client.statistics(run))

    async def evaluations(self, run: int | None = None) -> list[Record]:
        """Does what `Client.evaluations` does."""
        return await self._do(lambda client: client.evaluations(run))

    async def proposals(self) -> list[Record]:
        """As `Client.proposals`."""
        return await self._do(Client.proposals)

    async def propose(
        self,
        kind: str,
        *,
        note: str = "",
        expires: int | None = None,
        first: int | None = None,
        dry_run: bool = False,
        **terms: Any,
    ) -> Record:
        """As `Client.propose`."""
        return await self._do(
            lambda client: client.propose(kind, note=note, expires=expires, first=first, dry_run=dry_run, **terms)
        )

    async def approve(self, change: str, *, no_train: bool = False, lend: bool = False) -> Record:
        """As `Client.approve`."""
        return await self._do(lambda client: client.approve(change, no_train=no_train, lend=lend))

    async def predict(
        self,
        samples: object,
        *,
        label: str | tuple[str, ...] | None = None,
        prior: float | None = None,
        round: int | str = "",  # noqa: A002 (as the command has it)
        calibrated: bool = False,
        answer_by: str = "",
        timeout_s: float = PREDICT_S,
    ) -> Predictions:
        """As `Client.predict`."""
        return await self._do(
            lambda client: client.predict(
                samples,
                label=label,
                prior=prior,
                round=round,
                calibrated=calibrated,
                answer_by=answer_by,
                timeout_s=timeout_s,
            )
        )

    async def evaluate(
        self,
        inputs: object,
        *,
        label: str | tuple[str, ...] | None = None,
        resamples: int = 1000,
        threshold: float | None = None,
        prevalence: float | None = None,
        positive: str | None = None,
        by: str | None = None,
        cuts: Sequence[float] = (),
        round: int | str = "",  # noqa: A002 (as the command has it)
        calibrated: bool = False,
        timeout_s: float = PREDICT_S,
    ) -> Record:
        """As `Client.evaluate`."""
        return await self._do(
            lambda client: client.evaluate(
                inputs,
                label=label,
                resamples=resamples,
                threshold=threshold,
                prevalence=prevalence,
                positive=positive,
                by=by,
                cuts=cuts,
                round=round,
                calibrated=calibrated,
                timeout_s=timeout_s,
            )
        )

    async def model(
        self,
        *,
        plugins: Iterable[str] = (),
        round: int | str = "",  # noqa: A002 (as the command has it)
    ) -> nn.Module:
        """Does what `Client.model` does."""
        return await self._do(lambda client: client.model(plugins=plugins, round=round))
