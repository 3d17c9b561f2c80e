"""A node asked over TCP: a token's role is what counts, for every method, and beyond loopback TLS pins the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from chain.signing import SigningKey, encode_id
from node.admin import access as admin_access
from node.admin import client as admin_client
from node.admin.access import ROLES
from node.admin.address import RemoteAddress
from node.admin.client import AdminClient
from node.admin.tokens import Role
from node.cli import main
from node.errors import NodeUnreachable, PermissionRefused
from support.federation.asked_over_tcp import remote
from support.federation.recording import PATIENCE_S

OK, DENIED = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
UNKNOWN_CALLER = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


async def ask(address: RemoteAddress, question: Callable[[AdminClient], Any]) -> Any:
    def run() -> Any:
        with AdminClient(address) as client:
            return question(client)

    return await asyncio.to_thread(run)


async def test_a_token_opens_what_its_role_allows_and_nothing_is_open_without(tmp_path: Path) -> None:
    async with remote(tmp_path) as there:
        reader = RemoteAddress(there.address, None, there.reader)
        changer = RemoteAddress(there.address, None, there.changer)
        assert (await ask(reader, AdminClient.get_status)).name == "hospital-a"
        assert [block.height for block in (await ask(reader, lambda n: n.list_blocks(0, 1, reverse=True))).blocks] == [
            0
        ]
        with pytest.raises(PermissionRefused, match="BanPeer: expected a token of role admin, got one of read"):
            await ask(reader, lambda node: node.ban_peer("node1", 5))
        assert not there.one.context.bans.get_banned()
        assert (await ask(changer, lambda node: node.ban_peer("node1", 5))).banned_for == "hand"
        assert (await ask(changer, AdminClient.get_status)).name == "hospital-a"
        with pytest.raises(PermissionRefused, match="not known, or was revoked"):
            await ask(RemoteAddress(there.address, None, "fn_guess"), AdminClient.get_status)
        there.tokens.revoke("reader")
        with pytest.raises(PermissionRefused, match="not known, or was revoked"):
            await ask(reader, AdminClient.get_status)


async def test_every_method_of_every_service_asks_for_a_token(tmp_path: Path) -> None:
    async with remote(tmp_path) as there, grpc.aio.insecure_channel(there.address) as channel:

        async def get_code(method: str, metadata: tuple[tuple[str, str], ...] = ()) -> grpc.StatusCode:
            call = channel.unary_stream(
                method, request_serializer=lambda data: data, response_deserializer=lambda data: data
            )(b"", metadata=metadata, timeout=PATIENCE_S)
            with suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            return await call.code()

        for name in ROLES:
            assert await get_code(f"/fednode.v1.Admin/{name}") is UNKNOWN_CALLER, name
        assert await get_code("/grpc.health.v1.Health/Check") is UNKNOWN_CALLER
        assert await get_code("/grpc.health.v1.Health/Watch") is UNKNOWN_CALLER
        reader = (("authorization", f"Bearer {there.reader}"),)
        changing = [name for name, role in ROLES.items() if role is not Role.READ]
        assert {"Predict", "BanPeer", "AddPeer", "PauseTraining", "Shutdown", "Reload"} <= set(changing)
        for name in changing:
            assert await get_code(f"/fednode.v1.Admin/{name}", reader) is DENIED
        assert await get_code("/fednode.v1.Admin/GetStatus", reader) is OK
        for wrong in ("", "Bearer", f"bearer {there.reader}", f"Basic {there.reader}", "Bearer " + "x" * 5000):
            assert await get_code("/fednode.v1.Admin/GetStatus", (("authorization", wrong),)) is UNKNOWN_CALLER

        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests: Iterator[reflection_pb2.ServerReflectionRequest] = iter(())  # what is sent may come after the refusal
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _ in stub.ServerReflectionInfo(requests):
                pass
        assert error.value.code() is UNKNOWN_CALLER
        health = health_pb2_grpc.HealthStub(channel)
        reply = await health.Check(health_pb2.HealthCheckRequest(service=""), metadata=reader)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("token", ["none", "reader"])
async def test_who_is_refused_is_so_before_the_request_is_read(tmp_path: Path, token: str) -> None:
    async with remote(tmp_path) as there, grpc.aio.insecure_channel(there.address) as channel:
        shown = there.reader if token == "reader" else "fn_none"
        call = channel.stream_unary("/fednode.v1.Admin/Predict", bytes, bytes)(
            None, metadata=(("authorization", f"Bearer {shown}"),), timeout=PATIENCE_S
        )
        async with asyncio.timeout(PATIENCE_S / 2):  # nothing is ever sent
            assert await call.code() is (DENIED if token == "reader" else UNKNOWN_CALLER)


async def test_beyond_loopback_a_caller_pins_the_node_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_access, "is_on_loopback", lambda _: False)
    async with remote(tmp_path) as there:
        pinned = RemoteAddress(there.address, there.key.id, there.reader)
        assert (await ask(pinned, AdminClient.get_status)).id == encode_id(there.key.id)
        stranger = SigningKey.from_private_bytes(b"s" * 32)
        with pytest.raises(NodeUnreachable):
            await ask(RemoteAddress(there.address, stranger.id, there.reader), AdminClient.get_status)
        with pytest.raises(NodeUnreachable):
            await ask(RemoteAddress(there.address, None, there.reader), AdminClient.get_status)


async def test_commands_take_the_address_and_a_file_with_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with remote(tmp_path) as there:
        file = tmp_path / "token"
        file.write_text(there.reader + "\n")
        monkeypatch.setenv("FEDNODE_TOKEN_FILE", str(file))
        run = ["--address", there.address]
        assert await asyncio.to_thread(main, ["status", *run]) == 0
        assert "hospital-a" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["chain", "verify", *run]) == 0
        assert await asyncio.to_thread(main, ["peers", "ban", "node1", *run]) == 77
        assert "expected a token of role admin" in capsys.readouterr().err
        capsys.readouterr()
        other = tmp_path / "other"
        other.write_text(there.changer + "\n")
        change = ["peers", "ban", "node1", *run]
        assert await asyncio.to_thread(main, [*change, "--token-file", str(other)]) == 0  # before the variable's
        assert await asyncio.to_thread(main, change) == 77  # of that command alone
        monkeypatch.delenv("FEDNODE_TOKEN_FILE")
        assert await asyncio.to_thread(main, ["status", *run]) == 77
        assert "expected --token-file" in capsys.readouterr().err
        assert await asyncio.to_thread(main, ["status", *run, "--token-file", str(tmp_path / "none")]) == 78
        monkeypatch.setenv("FEDNODE_TOKEN_FILE", str(file))
        monkeypatch.setenv("FEDNODE_ADDRESS", there.address)
        assert await asyncio.to_thread(main, ["health"]) == 0


async def test_a_method_unknown_to_the_table_needs_admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_access, "ROLES", {})
    async with remote(tmp_path) as there:
        with pytest.raises(PermissionRefused, match="GetStatus: expected a token of role admin"):
            await ask(RemoteAddress(there.address, None, there.reader), AdminClient.get_status)
        assert (await ask(RemoteAddress(there.address, None, there.changer), AdminClient.get_status)).height >= 0
