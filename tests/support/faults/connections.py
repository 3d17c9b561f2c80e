"""A server of a test on loopback, of whose connections nothing stays: each is aborted as soon as it was served, however
that ends, and all of them when the context is left.

    async with serve_connections(talk) as address:  # talk(reader, writer) is a coroutine
        ...
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

LOOPBACK = "127.0.0.1"
STEPS_TO_ACCEPT = 4  # iterations of the loop until the callback receives a connection from the kernel

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serve_connections(serve: Serve, listener: socket.socket | None = None) -> AsyncIterator[str]:
    """Yields the address of a server that runs `serve` on each connection; without a listening socket, on a free port
    of loopback. An OSError ends a connection quietly."""
    tasks: set[asyncio.Task[None]] = set()
    is_over = False

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_over:  # accepted before the server was closed
            writer.transport.abort()
            return
        task = asyncio.create_task(hold(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also if the task never began

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await serve(reader, writer)

    own = listener or socket.create_server((LOOPBACK, 0))
    server = await asyncio.start_server(accept, sock=own)
    host, port = own.getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        for _ in range(STEPS_TO_ACCEPT):  # asyncio forgets the socket of a connection that it is accepting meanwhile
            await asyncio.sleep(0)
        is_over = True
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
