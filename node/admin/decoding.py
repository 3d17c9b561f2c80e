"""Decodes requests on the admin socket, and refuses bytes that are no message of the expected type.

gRPC by itself would log a traceback for each, and report an internal error to the caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from node.p2p.transport.calls import Malformed


class Decoding(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Answers calls whose request cannot be decoded with INVALID_ARGUMENT. It runs last before the service, after the
    check of the caller's token."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        return _make_careful(handler, handler_call_details.method.rpartition("/")[2])


def _make_careful(handler: Any, name: str) -> Any:
    """Returns a handler of the same shape that refuses a request that could not be decoded."""

    def parse(data: bytes) -> Any:
        try:
            return handler.request_deserializer(data)
        except DecodeError:
            return Malformed()

    async def check(request: Any, context: Any) -> None:
        if isinstance(request, Malformed):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{name}: expected its request, got other bytes")

    async def check_each(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            await check(request, context)
            yield request

    async def answer(request: Any, context: Any) -> Any:
        await check(request, context)
        return await handler.unary_unary(request, context)

    async def stream(request: Any, context: Any) -> None:
        await check(request, context)
        await _send(handler.unary_stream(request, context), context)

    async def converse(requests: AsyncIterator[Any], context: Any) -> None:
        await _send(handler.stream_stream(check_each(requests, context), context), context)

    match handler.request_streaming, handler.response_streaming:
        case False, False:
            return grpc.unary_unary_rpc_method_handler(answer, parse, handler.response_serializer)
        case False, True:
            return grpc.unary_stream_rpc_method_handler(stream, parse, handler.response_serializer)
        case True, True:
            return grpc.stream_stream_rpc_method_handler(converse, parse, handler.response_serializer)
    return handler  # nothing here is called with a stream and answers once


async def _send(answers: Any, context: Any) -> None:
    """Sends the answers that a handler yields, or waits for one that writes them itself."""
    if not isinstance(answers, AsyncGenerator):
        await answers
        return
    async with aclosing(answers):
        async for answer in answers:
            await context.write(answer)
