"""A running node over its admin socket: what it shows, who may ask, and how it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from chain.genesis import PROTOCOL_VERSION
from chain.signing import encode_id
from chain.store.rows import DATABASE
from ml.payload import encode_arrays
from node.admin import client as admin_client
from node.admin.client import AdminClient, is_served
from node.admin.json_view import to_json
from node.admin.server import prepare_place
from node.errors import ConfigError, InvalidRequest, NodeUnreachable, NotFound, PermissionRefused
from node.ledger.offline import verify_data_dir
from node.pb import admin_pb2 as pb
from node.pb import admin_pb2_grpc
from support.data.blobs import spoil_held_blob
from support.federation.asked import WAITS, Running, running
from support.federation.ledgers import flip_byte, read_cell
from support.federation.recording import PATIENCE_S

OTHER_UID = 65534  # nobody's


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


async def test_status_says_where_the_node_stands(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=3) as one:
        await one.net.wait_for_height(3)
        await one.net.wait_for(lambda: _has_record(one, 3), "the last record")
        status = await one.ask(lambda node: node.get_status())
        node0 = one.net["node0"]
        assert (status.id, status.name) == (encode_id(node0.key.id), "hospital-a")
        assert (status.height, status.head) == (3, node0.get_block(3).id.hex())
        assert (status.round, status.phase, status.done) == (3, "done", True)
        assert (status.members, status.members_in_sight, status.quorum, status.peers_connected) == (3, 3, 3, 2)
        assert (status.stalled, status.ready, status.HasField("stall_reason")) == (False, True, False)
        assert (status.accuracy, status.local_accuracy, status.measured_round) == (0.5, 0.5, 3)
        assert (status.device, status.num_train, status.pid) == ("cpu", 1, os.getpid())
        assert (status.precision, status.local_iterations, status.counts_epochs) == ("fp32", 20, False)
        assert status.alpha_s == pytest.approx(0.001 / 20)
        assert status.beta_s > 0
        assert (status.HasField("budget_s"), status.HasField("train_step")) == (False, False)
        assert status.bytes_sent > 0
        assert status.database_bytes > 0


def _has_record(one: Running, number: int) -> bool:
    store = one.net["node0"].store
    return store is not None and store.get_round(number) is not None


async def test_a_node_without_its_quorum_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, waits=WAITS | {"status_s": 0.2}) as one:

        async def is_ready() -> bool:
            return await one.ask(lambda node: node.is_serving("readiness"))

        async def has_lost_one() -> bool:
            status = await one.ask(lambda node: node.get_status())
            return (status.members_in_sight, status.ready, await is_ready()) == (2, False, False)

        await one.net.wait_for_height(1)
        await _ask_until(is_ready)
        await one.net.crash("node1")
        await _ask_until(has_lost_one)
        assert await one.ask(lambda node: node.is_serving("fednode.admin.v1"))
        assert await one.ask(lambda node: node.is_serving(""))


async def _ask_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 (a probe asks again, too)
            await asyncio.sleep(0.05)


async def test_peers_are_listed_with_what_they_last_said(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=2) as one:
        await one.net.wait_for_height(2)
        peers: list[pb.PeerView] = []

        async def are_all_at_2() -> bool:
            peers[:] = await one.ask(lambda node: node.list_peers())
            return all(peer.height == 2 for peer in peers)

        await _ask_until(are_all_at_2)
        assert [peer.name for peer in peers] == ["node1", "node2"]
        assert all(peer.member and peer.connected and peer.alive for peer in peers)
        assert all(peer.bytes_sent > 0 and peer.silent_s < PATIENCE_S for peer in peers)
        assert not peers[0].HasField("round")


async def test_blocks_and_rounds_are_those_of_the_store(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=3) as one:
        await one.net.wait_for_height(3)
        await one.net.wait_for(lambda: _has_record(one, 3), "the last record")
        head = await one.ask(lambda node: node.get_head())
        assert head.summary.height == 3
        assert await one.ask(lambda node: node.get_block(3)) == head
        assert await one.ask(lambda node: node.find_block(head.summary.id)) == head
        page = await one.ask(lambda node: node.list_blocks(None, 2, reverse=False))
        assert ([block.height for block in page.blocks], page.next) == ([3, 2], 1)
        rounds = await one.ask(lambda node: node.list_rounds(None, 20, reverse=True))
        assert [entry.round for entry in rounds.rounds] == [1, 2, 3]
        assert (await one.ask(lambda node: node.get_round(3))) == rounds.rounds[2]
        exported = await one.ask(lambda node: list(node.export(1, None)))
        store = one.net["node0"].store
        assert store is not None
        assert [(block, certificate) for _, block, certificate in exported] == [
            store.get_block_bytes(height) for height in (1, 2, 3)
        ]


async def test_scores_come_where_they_are_asked_for_and_stay(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=2) as one:
        await one.net.wait_for_height(2)
        await one.net.wait_for(lambda: _has_record(one, 2), "the last record")
        plain = await one.ask(lambda node: node.get_round(2))
        assert list(plain.scores) == []
        shown = await one.ask(lambda node: node.get_round(2, PATIENCE_S))
        assert [score.name for score in shown.scores] == list(plain.contributor_names)
        assert all(score.HasField("distance") and score.HasField("effect") for score in shown.scores)
        assert await one.ask(lambda node: node.get_round(2)) == shown
        with pytest.raises(InvalidRequest, match="expected more than 0 and at most 3600 seconds, got 0"):
            await one.ask(lambda node: node.get_round(2, 0.0))
        with pytest.raises(NotFound):
            await one.ask(lambda node: node.get_round(9, PATIENCE_S))


async def test_a_running_node_verifies_its_chain_and_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.net.wait_for_height(3)
        report = await one.ask(lambda node: node.verify(deep=True, require_all=True))
        assert report.ok, to_json(report)
        assert report.last >= 3
        assert report.recomputed == report.last
        await one.net.wait_for_height(report.last + 1)


async def test_a_fault_is_found_while_the_node_runs(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=3) as one:
        await one.net.wait_for_height(3)
        store = one.net["node0"].store
        assert store is not None
        digest = one.net["node0"].get_block(2).contributions[0].payloads[0].digest
        spoil_held_blob(store, digest, at=70)
        report = await one.ask(lambda node: node.verify(deep=True))
        assert (report.ok, report.fault.height) == (False, 2)
        assert digest.hex() in report.fault.what


async def test_an_abandoned_verification_ends(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=2) as one:
        await one.net.wait_for_height(2)
        updates = one.view.verify(0, deep=True, require_all=False)
        first = asyncio.ensure_future(anext(updates))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        report = await one.ask(lambda node: node.verify())
        assert report.ok


async def test_events_can_be_taken_up_where_one_left_off(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=3) as one:
        await one.net.wait_for_height(3)

        def watch(kinds: list[str], since: str, count: int) -> Callable[[AdminClient], list[pb.Event]]:
            return lambda node: list(islice(node.watch(kinds, since), count))

        blocks = await one.ask(watch(["block"], "0-0", 3))
        assert [json.loads(event.data)["height"] for event in blocks] == [1, 2, 3]
        miner = json.loads(blocks[0].data)
        assert miner["miner_name"] in one.net.nodes
        assert miner["miner"] == encode_id(one.net.id(miner["miner_name"]))
        again = await one.ask(watch(["block"], blocks[0].cursor, 2))
        assert again == blocks[1:]
        with pytest.raises(InvalidRequest, match="expected one of block, round"):
            await one.ask(watch(["blok"], "", 1))
        with pytest.raises(InvalidRequest, match="cursor 'seventeen'"):
            await one.ask(watch([], "seventeen", 1))
        life = blocks[0].cursor.split("-")[0]
        with pytest.raises(InvalidRequest, match=r"cursor '.*\.\.\.: expected one"):  # short: it comes in a trailer
            await one.ask(watch([], f"{life}-{'9' * 20_000}", 1))


async def test_what_is_wrong_with_a_question_is_said_in_grpcs_own_codes(tmp_path: Path) -> None:
    async with running(tmp_path, rounds=1) as one:
        await one.net.wait_for_height(1)
        with pytest.raises(NotFound, match="block 9: the chain ends at height 1"):
            await one.ask(lambda node: node.get_block(9))
        with pytest.raises(NotFound):
            await one.ask(lambda node: node.verify(9))
        with pytest.raises(NotFound):
            await one.ask(lambda node: list(node.export(0, 9)))
        with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
            await one.ask(lambda node: node.find_block("xyz"))
        with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
            await one.ask(lambda node: node.find_block("00 " * 32))
        names = encode_arrays({f"{i:0128}": np.zeros(1, np.uint8) for i in range(100)})
        with pytest.raises(InvalidRequest, match="expected one array x, got 0000"):
            await one.ask(lambda node: node.predict(names, top=1, wait_s=PATIENCE_S))
        async with aio.insecure_channel(f"unix:{one.path}") as channel:
            stub: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(channel)
            for request, code in [
                (pb.GetBlockRequest(), grpc.StatusCode.INVALID_ARGUMENT),
                (pb.GetBlockRequest(id="00" * 32), grpc.StatusCode.NOT_FOUND),
            ]:
                with pytest.raises(aio.AioRpcError) as caught:
                    await stub.GetBlock(request)
                assert caught.value.code() is code
            with pytest.raises(aio.AioRpcError) as caught:
                async for _ in stub.VerifyChain(pb.VerifyChainRequest(require_all=True)):
                    pass
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_configuration_genesis_and_version_are_shown_without_secrets(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        config = json.loads(one.view.get_config().json)
        assert config["node"]["name"] == "hospital-a"
        assert config["node"]["identity_key_file"] == "(redacted)"
        genesis = await one.ask(lambda node: node.genesis)
        assert genesis == one.net.genesis
        version = await one.ask(lambda node: node.get_version())
        assert (version.protocol, "grpcio" in version.libraries) == (PROTOCOL_VERSION, True)


async def test_the_socket_is_private_and_goes_with_the_server(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        assert stat.S_IMODE(one.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(one.path.parent.stat().st_mode) == 0o700
        with pytest.raises(ConfigError, match="another process is listening"):
            prepare_place(one.path)
    assert not one.path.exists()
    with pytest.raises(NodeUnreachable, match="no node answers"), AdminClient(one.path) as client:
        client.get_status()


def test_a_socket_left_behind_is_cleared_away_and_other_files_are_not(tmp_path: Path) -> None:
    path = tmp_path / "run" / "node.sock"
    prepare_place(path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert not is_served(path)
    prepare_place(path)
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(ConfigError, match="expected a socket or nothing"):
        prepare_place(path)
    assert path.read_text() == "mine"


def test_a_socket_that_this_user_may_not_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        AdminClient(path).close()
        path.chmod(0)
        if os.geteuid() == 0:  # whom no mode keeps out
            os.seteuid(OTHER_UID)
        try:
            with pytest.raises(PermissionRefused, match="another user's"):
                AdminClient(path)
        finally:
            if os.getuid() == 0:
                os.seteuid(0)


def test_a_socket_that_goes_away_as_it_is_looked_at_is_not_another_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: True)
    with AdminClient(tmp_path / "node.sock") as client, pytest.raises(NodeUnreachable):
        client.get_status()


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o755)
    with pytest.raises(PermissionRefused, match="expected a directory of mode 0700, got 0755"):
        prepare_place(directory / "node.sock")


async def test_health_and_reflection_are_served_beside_it(tmp_path: Path) -> None:
    async with running(tmp_path) as one, aio.insecure_channel(f"unix:{one.path}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="unheard-of"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for reply in reflection.ServerReflectionInfo(iter([request])):
            names = {service.name for service in reply.list_services_response.service}
            assert {"fednode.v1.Admin", "grpc.health.v1.Health"} <= names
            break


async def test_what_was_verified_online_is_what_a_copy_says(tmp_path: Path) -> None:
    """The audit of the disk agrees with the live tip."""
    async with running(tmp_path, rounds=3) as one:
        await one.net.wait_for_height(3)
        online = await one.ask(lambda node: node.verify(deep=True))
        status = await one.ask(lambda node: node.get_status())
        await one.net.crash("node0")
        copy = shutil.copytree(one.net["node0"].path, tmp_path / "copy")
        offline = verify_data_dir(copy, deep=True)
        assert (online.ok, online.head) == (True, status.head)
        online.seconds = offline.seconds = 0
        assert online == offline
        flip_byte(copy / DATABASE, read_cell(copy, "SELECT certificate FROM blocks WHERE height = 1"), 3)
        assert not verify_data_dir(copy).ok
