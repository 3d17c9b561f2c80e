"""A link between two nodes that a test cuts without either end noticing: a plain forwarder of TCP, or a proxy that is
asked by HTTP CONNECT.

    async with open_way("127.0.0.1:7050") as way:  # no target: a proxy, and CONNECT says whither
        ...                                        # dial way.address
        way.cut()                                  # what is sent from now on over connections that are there is lost
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from node.addresses import parse_address
from support.faults.connections import serve_connections

READ_BYTES = 64 * 1024
END_OF_HEAD = b"\r\n\r\n"


class Way:
    """A forwarder or proxy. `asked` holds what a proxy was asked for, by address; `names` says where the addresses are
    that only the proxy can resolve. `answer` is the status it answers with; with None it never answers."""

    def __init__(self, target: str | None, names: dict[str, str] | None = None) -> None:
        self.asked: list[str] = []
        self.num_opened = 0
        self.answer: bytes | None = b"200 OK"
        self.address = ""
        self._target = target
        self._names = names or {}
        self._cut = asyncio.Event()

    def cut(self) -> None:
        """Loses what is sent on the present connections from now on; later connections work."""
        self._cut.set()
        self._cut = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cut = self._cut
        with suppress(asyncio.IncompleteReadError):
            target = self._target if self._target is not None else await self._ask(reader, writer)
            if target is None:
                return
            there, back = await asyncio.open_connection(*parse_address(target))
            self.num_opened += 1
            try:
                await asyncio.gather(self._pass(reader, back, cut), self._pass(there, writer, cut))
            finally:
                back.transport.abort()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
        head = await reader.readuntil(END_OF_HEAD)
        verb, address, _ = head.split(b"\r\n")[0].decode().split(" ")
        assert verb == "CONNECT"
        self.asked.append(address)
        if self.answer is None:
            await reader.read()
            return None
        writer.write(b"HTTP/1.1 " + self.answer + END_OF_HEAD)
        await writer.drain()
        return self._names.get(address, address) if self.answer.startswith(b"200") else None

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        while data := await reader.read(READ_BYTES):
            if not cut.is_set():
                writer.write(data)
                await writer.drain()
        if cut.is_set():
            await asyncio.Event().wait()  # nor does it notice the end
        writer.close()


@asynccontextmanager
async def open_way(target: str | None = None, names: dict[str, str] | None = None) -> AsyncIterator[Way]:
    way = Way(target, names)
    async with serve_connections(way.serve) as way.address:
        yield way
