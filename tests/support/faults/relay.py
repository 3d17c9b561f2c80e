"""A relay to a server on loopback, as slow as a test wants it.

    async with relaying([("127.0.0.1", 7050)], bytes_per_s=200_000) as (relay,):
        ...                            # dial relay.address instead of the server
        relay.bytes_per_s = None       # from now on as fast as it goes
        relay.way.clear()              # nothing passes any more, and nobody is told

What passes is not looked at: TLS is between the two ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from support.faults.connections import serve_connections

READ_BYTES = 16 * 1024
HELD_BYTES = 64 * 1024  # held by each end, so that what a server has sent is nearly what has passed


class Relay:
    """A relay that passes the server's bytes at `bytes_per_s` on each connection, at once if None; `passed` counts them
    over all connections. Bytes to the server pass at once; none pass while `way` is not set."""

    def __init__(self, host: str, port: int, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self.passed = 0
        self.way = asyncio.Event()
        self.way.set()
        self._host = host
        self._port = port
        self.address = ""

    async def carry(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await self._dial()
        ways = {asyncio.create_task(self._up(from_client, to_server))}
        ways.add(asyncio.create_task(self._down(from_server, to_client)))
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            to_server.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        dialled = socket.socket()
        try:
            dialled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, HELD_BYTES)
            dialled.setblocking(False)
            await asyncio.get_running_loop().sock_connect(dialled, (self._host, self._port))
            return await asyncio.open_connection(sock=dialled, limit=READ_BYTES)
        except BaseException:
            dialled.close()
            raise

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await self.way.wait()
                writer.write(data)
                await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        free_s = loop.time()  # the time at which the next byte may pass
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await self.way.wait()
                writer.write(data)
                await writer.drain()
                self.passed += len(data)
                if self.bytes_per_s is not None:
                    free_s = max(free_s, loop.time()) + len(data) / self.bytes_per_s
                    await asyncio.sleep(free_s - loop.time())


@asynccontextmanager
async def relaying(
    servers: Iterable[tuple[str, int]], *, bytes_per_s: float | None = None
) -> AsyncIterator[tuple[Relay, ...]]:
    """Runs one relay for each server, given by host and port."""
    async with AsyncExitStack() as stack:
        relays = []
        for host, port in servers:
            relay = Relay(host, port, bytes_per_s)
            relay.address = await stack.enter_async_context(serve_connections(relay.carry))
            relays.append(relay)
        yield tuple(relays)
