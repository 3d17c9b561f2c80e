"""The calls of peer.proto, as both ends make them. Bytes that are no message become `Malformed`, so that this code
judges them and not gRPC.

gRPC itself would log a traceback for each such request, and turn such a reply into None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from node.pb import peer_pb2 as pb

SERVICE = "fednode.v1.Peer"

M = TypeVar("M", bound=Message)


class Malformed:
    """Stands for bytes that are no message of the expected type."""

    def __str__(self) -> str:
        return "expected a message of peer.proto, got other bytes"


class PeerCalls:
    """Makes the calls of peer.proto on a peer, over `channel`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.push = channel.stream_stream(f"/{SERVICE}/Push", pb.Batch.SerializeToString, _parse(pb.Batch))
        self.blocks = channel.unary_unary(
            f"/{SERVICE}/Blocks", pb.BlocksRequest.SerializeToString, _parse(pb.BlocksReply)
        )
        self.serve = channel.stream_stream(
            f"/{SERVICE}/Serve", pb.ServeReply.SerializeToString, _parse(pb.ServeRequest)
        )
        self.blob = channel.stream_stream(f"/{SERVICE}/Blob", pb.BlobRequest.SerializeToString, _parse(pb.BlobChunk))


class PeerServicer(Protocol):
    """Answers these calls: methods named as in peer.proto."""

    async def Push(self, request_iterator: Any, context: Any) -> None: ...  # noqa: N802

    async def Blocks(self, request: pb.BlocksRequest | Malformed, context: Any) -> pb.BlocksReply: ...  # noqa: N802

    async def Blob(self, request_iterator: Any, context: Any) -> None: ...  # noqa: N802

    async def Serve(self, request_iterator: Any, context: Any) -> None: ...  # noqa: N802

    async def Hello(self, request: pb.HelloRequest | Malformed, context: Any) -> pb.HelloReply: ...  # noqa: N802


def serve_calls(service: PeerServicer, server: grpc.aio.Server) -> None:
    """Has `server` pass the calls to `service`."""
    handlers = {
        "Push": grpc.stream_stream_rpc_method_handler(service.Push, _parse(pb.Batch), pb.Batch.SerializeToString),
        "Blocks": grpc.unary_unary_rpc_method_handler(
            service.Blocks, _parse(pb.BlocksRequest), pb.BlocksReply.SerializeToString
        ),
        "Blob": grpc.stream_stream_rpc_method_handler(
            service.Blob, _parse(pb.BlobRequest), pb.BlobChunk.SerializeToString
        ),
        "Serve": grpc.stream_stream_rpc_method_handler(
            service.Serve, _parse(pb.ServeReply), pb.ServeRequest.SerializeToString
        ),
        "Hello": grpc.unary_unary_rpc_method_handler(
            service.Hello, _parse(pb.HelloRequest), pb.HelloReply.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _parse(kind: type[M]) -> Callable[[bytes], M | Malformed]:
    def parse(data: bytes) -> M | Malformed:
        try:
            return kind.FromString(data)
        except DecodeError:
            return Malformed()

    return parse
