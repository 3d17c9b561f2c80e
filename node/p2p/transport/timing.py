"""The timing of calls that peers make here: a listener gets the seconds of each."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

OnCall = Callable[[str, str, float], None]  # method as in `Peer/Blocks`, code as in `ok`, seconds

ENDLESS = frozenset({"Push", "Serve", "WatchEvents", "Watch", "ServerReflectionInfo"})  # as long as the caller stays

_CODES = {code.value[0]: code.name.lower() for code in grpc.StatusCode}
_MAKERS = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


class CallTiming(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Calls `on_call` after every call that ends by itself. It has to be the first of a server's interceptors."""

    def __init__(self, on_call: OnCall) -> None:
        self._on_call = on_call

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        service, _, method = details.method.removeprefix("/").rpartition("/")
        if handler is None or method in ENDLESS:
            return handler
        name = f"{service.rpartition('.')[2]}/{method}"
        attribute, make = _MAKERS[handler.request_streaming, handler.response_streaming]
        serve = getattr(handler, attribute)

        async def serve_one(request: Any, context: Any) -> Any:
            with self._timing(name, context):
                return await serve(request, context)

        async def serve_many(request: Any, context: Any) -> AsyncIterator[Any]:
            with self._timing(name, context):
                async for reply in serve(request, context):
                    yield reply

        wrapped = serve_many if inspect.isasyncgenfunction(serve) else serve_one  # as gRPC distinguishes them
        return make(wrapped, handler.request_deserializer, handler.response_serializer)

    @contextmanager
    def _timing(self, name: str, context: Any) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            code = context.code()
            number = code.value[0] if isinstance(code, grpc.StatusCode) else (code or 0)
            self._on_call(name, _CODES.get(number, "unknown"), time.monotonic() - began_s)
