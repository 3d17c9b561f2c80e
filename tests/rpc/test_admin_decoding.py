"""Bytes on the admin socket that are no message: the caller is told, nothing is logged, and the next call works."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from node.admin.access import ROLES
from support.federation.asked import running
from support.federation.recording import PATIENCE_S

NO_MESSAGES = (b"\xff", b"\x0a\xff\x01")  # a broken tag, a length beyond the end


def keep(data: bytes) -> bytes:
    return data


async def test_every_method_says_that_its_request_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    methods = [f"/fednode.v1.Admin/{name}" for name in ROLES]
    methods += ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]
    async with running(tmp_path) as one, grpc.aio.insecure_channel(f"unix:{one.path}") as channel:
        for method in methods:
            for data in NO_MESSAGES:
                call = channel.unary_stream(method, keep, keep)(data, timeout=PATIENCE_S)
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await call.read()
                assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method
                name = method.rpartition("/")[2]
                assert refusal.value.details() == f"{name}: expected its request, got other bytes"
        banning = channel.unary_unary("/fednode.v1.Admin/BanPeer", keep, keep)(b"\x0a\x02\xc3\x28", timeout=PATIENCE_S)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await banning
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        stream = channel.stream_stream(f"/{reflection.SERVICE_NAME}/ServerReflectionInfo", keep, keep)(
            None, timeout=PATIENCE_S
        )
        await stream.write(b"\xff")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stream.read()
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await one.ask(lambda node: node.get_status())).height >= 0
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        watching.cancel()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
