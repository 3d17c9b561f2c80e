"""A watch over TCP: it outlives hours of silence, and ends when the way to the node is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.admin import client as admin_client
from node.admin import server as admin_server
from node.admin.address import TOKEN_FILE_VARIABLE, RemoteAddress
from node.admin.client import AdminClient
from node.errors import NodeUnreachable
from support.faults.way import open_way
from support.federation.asked_over_tcp import Remote, remote
from support.federation.recording import PATIENCE_S

QUIET = ("operator",)  # of which nothing happens here by itself


def ping(monkeypatch: pytest.MonkeyPatch, every_ms: int) -> None:
    """Has the client ask so often, and the server stand a little more."""
    timeouts = dict.fromkeys(("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"), 2000)
    rest = dict(admin_client.KEEPALIVE) | timeouts | {"grpc.keepalive_time_ms": every_ms}
    monkeypatch.setattr(admin_client, "KEEPALIVE", tuple(rest.items()))
    taken = dict(admin_server.KEEPALIVE) | {"grpc.http2.min_ping_interval_without_data_ms": every_ms // 2}
    monkeypatch.setattr(admin_server, "KEEPALIVE", tuple(taken.items()))


def make_client(one: Remote, address: str, path: Path) -> AdminClient:
    token = path / "token"
    token.write_text(one.reader)
    token.chmod(0o600)
    return AdminClient(RemoteAddress.parse(address, {TOKEN_FILE_VARIABLE: str(token)}))


@pytest.mark.outer
async def test_a_quiet_watch_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not expect so many pings ends the connection after a few of them."""
    ping(monkeypatch, 300)
    async with remote(tmp_path) as one:
        with make_client(one, one.address, tmp_path) as client:
            events = client.watch(QUIET, "")
            waiting = asyncio.ensure_future(asyncio.to_thread(next, events))
            await asyncio.sleep(7)  # gRPC sends one a second at most
            assert not waiting.done()
            service = one.one.net["node0"].service
            assert service is not None
            service.events.publish("operator", note="still there")
            assert (await asyncio.wait_for(waiting, PATIENCE_S)).kind == "operator"


@pytest.mark.outer
async def test_a_watch_ends_when_the_node_can_be_reached_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ping(monkeypatch, 500)
    async with remote(tmp_path) as one, open_way(one.address) as way:
        with make_client(one, way.address, tmp_path) as client:
            assert (await asyncio.to_thread(client.get_status)).name == "hospital-a"
            waiting = asyncio.ensure_future(asyncio.to_thread(next, client.watch(QUIET, "")))
            await asyncio.sleep(0.5)
            way.cut()
            with pytest.raises(NodeUnreachable):
                await asyncio.wait_for(waiting, PATIENCE_S)
