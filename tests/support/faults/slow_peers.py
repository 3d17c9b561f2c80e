"""Hosts that take connections and are no use: one that never answers, and one that answers byte by byte."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Self

from support.faults.connections import serve_connections

BLOCK = 65536
TICK_S = 0.05


class _Server:
    """Serves on a listening socket until the context is left, which ends every connection."""

    def __init__(self, listener: socket.socket) -> None:
        self.num_connections = 0
        self.num_bytes = 0
        self._listener = listener
        self._serving = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._serving.enter_async_context(serve_connections(self._count, self._listener))
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._serving.aclose()

    async def _count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class SilentServer(_Server):
    """Reads everything and answers nothing. `num_bytes` counts what it received."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(BLOCK):
            self.num_bytes += len(data)


class SlowProxy(_Server):
    """Passes on what callers send, and answers at `bytes_per_s`; None, the default, is without delay.

    `dial` connects to the server behind it. `num_bytes` counts what was answered slowly.
    """

    def __init__(self, listener: socket.socket, dial: Callable[[], socket.socket]) -> None:
        super().__init__(listener)
        self.bytes_per_s: float | None = None
        self._dial = dial

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.to_thread(self._dial)
        there.setblocking(False)
        answers, requests = await asyncio.open_connection(sock=there)
        ways: list[Awaitable[None]] = [self._pass_on(reader, requests), self._answer(answers, writer)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            requests.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(BLOCK):
            writer.write(data)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(BLOCK if self.bytes_per_s is None else 1):
            writer.write(data)
            await writer.drain()
            if self.bytes_per_s is not None:
                self.num_bytes += 1
                await asyncio.sleep(1 / self.bytes_per_s)
