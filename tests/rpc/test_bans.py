"""A ban by hand: the peer's connection ends and is refused, what others relay of it counts, and a restart changes
nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from chain.signing import encode_id
from node.admin import client as admin_client
from node.admin.peer_control import BANS, MAX_BAN_MINUTES, restore_bans
from node.cli import main
from node.errors import ConfigError, InvalidRequest, NotFound
from node.p2p.bans import Bans
from node.p2p.transport.base import Message, MessageKind
from support.faults.strangers import open_channel, own_leaf, try_blocks
from support.federation.asked import WAITS, running
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import HandClock, rpc_net

ALICE, BOB = b"a" * 32, b"b" * 32
VOTE = Message(MessageKind.VOTE, b"vote")


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


def test_a_ban_by_hand_lasts_as_long_as_was_said_and_adds_no_fault() -> None:
    clock = HandClock()
    bans = Bans(clock)
    bans.ban(ALICE, 600)
    assert bans.add_fault(ALICE) == 600  # what it sends meanwhile is not taken, and no fault
    clock.now_s = 599
    assert bans.is_banned(ALICE)
    assert bans.get_by_hand() == {ALICE: 1}
    clock.now_s = 600
    assert not bans.is_banned(ALICE)
    assert bans.get_banned() == {}
    assert bans.add_fault(ALICE) == 60  # its first
    bans.ban(ALICE, 10)
    assert bans.get_remaining_s(ALICE) == 60
    bans.lift(ALICE)
    assert not bans.is_banned(ALICE)
    assert bans.add_fault(ALICE) == 120  # what it did is not forgotten with the refusal
    assert BOB not in bans.get_banned()


async def test_the_connection_ends_and_is_refused_and_let_in_again() -> None:
    async with rpc_net(2) as net:
        alice, bob = net.nodes
        bob.transport.post(alice.id, VOTE)
        await wait_until(lambda: len(alice.recorder.messages) == 1, "the first vote")
        alice.transport.bans.ban(bob.id, 600)
        alice.transport.hang_up(bob.id)
        await wait_until(lambda: alice.id not in bob.transport.connected(), "the connection ended")
        bob.transport.post(alice.id, VOTE)
        await wait_until(lambda: alice.transport.counters()[bob.id].refused > 0, "a connection refused")
        assert len(alice.recorder.messages) == 1
        async with open_channel(alice.transport.port, alice.id, own_leaf(bob.key)) as channel:
            assert await try_blocks(channel) is grpc.StatusCode.PERMISSION_DENIED
            alice.transport.bans.lift(bob.id)
            assert await try_blocks(channel) is grpc.StatusCode.OK


async def test_an_operator_bans_by_name_or_id_and_it_outlives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        banned = await one.ask(lambda node: node.ban_peer("node1", 30))
        assert (banned.name, banned.banned_for) == ("node1", "hand")
        assert 1700 < banned.banned_s <= 1800
        shown = {peer.name: peer for peer in await one.ask(lambda node: node.list_peers())}
        assert shown["node1"].banned_for == "hand"
        assert not shown["node2"].HasField("banned_s")
        node1, node2 = one.net.id("node1"), one.net.id("node2")
        await one.ask(lambda node: node.ban_peer(encode_id(node2), 1))

        bans, now_ms = Bans(HandClock()), one.context.clock.now_ms()
        restore_bans(bans, tmp_path, now_ms)
        assert bans.get_by_hand().keys() == {node1, node2}
        later = Bans(HandClock())
        restore_bans(later, tmp_path, now_ms + 120_000)
        assert later.get_by_hand().keys() == {node1}

        assert not (await one.ask(lambda node: node.unban_peer("node1"))).HasField("banned_s")
        bans = Bans(HandClock())
        restore_bans(bans, tmp_path, now_ms)
        assert bans.get_by_hand().keys() == {node2}
        for which, kind in (("nobody", NotFound), ("node0", NotFound)):
            with pytest.raises(kind):
                await one.ask(lambda node, which=which: node.ban_peer(which, 1))  # type: ignore[misc]
        for act in (
            lambda node: node.ban_peer(encode_id(node2)[:8], 1),
            lambda node: node.unban_peer(encode_id(node2)[:51]),
            lambda node: node.add_peer(f"{encode_id(node2)[:8]}@b:1"),
            lambda node: node.remove_peer(encode_id(node2)[:4]),
        ):
            with pytest.raises(InvalidRequest, match=f"so begins that of node2 {encode_id(node2)}"):
                await one.ask(act)
        for minutes in (0, -1, MAX_BAN_MINUTES + 1, float("nan"), float("inf")):
            with pytest.raises(InvalidRequest, match="minutes"):
                await one.ask(lambda node, minutes=minutes: node.ban_peer("node1", minutes))  # type: ignore[misc]


def test_bans_that_cannot_be_read_keep_the_node_from_starting(tmp_path: Path) -> None:
    bans = Bans(HandClock())
    restore_bans(bans, tmp_path, 0)
    for content in ("", "[]", '{"until_ms": {"x": 1}}', '{"until_ms": []}'):
        (tmp_path / BANS).write_text(content)
        with pytest.raises(ConfigError, match=r"bans\.json: expected the bans"):
            restore_bans(bans, tmp_path, 0)
    assert bans.get_banned() == {}


async def test_the_commands_say_whom_and_for_how_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(tmp_path) as one:
        socket = ["--socket", str(one.path)]
        assert await asyncio.to_thread(main, ["peers", "ban", "node1", "--minutes", "30", *socket]) == 0
        assert "is refused for 30 min" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["peers", *socket]) == 0
        assert "banned 30 min" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["peers", "unban", "node1", *socket]) == 0
        assert "may connect" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["peers", "ban", "nobody", *socket]) == 3
        assert await asyncio.to_thread(main, ["peers", "ban", "node1", "--minutes", "0", *socket]) == 2
        assert not one.context.bans.get_banned()


async def test_a_peers_chain_is_compared_over_the_admin_socket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, rounds=3, waits=WAITS | {"status_s": 0.2}) as one:
        await one.net.wait_for_height(3)
        socket = ["--socket", str(one.path)]
        service = one.net["node0"].service
        assert service is not None
        await wait_until(
            lambda: all(peer.status is not None and peer.status.head_height == 3 for peer in service.peers), "statuses"
        )
        shown = await one.ask(lambda node: node.compare("node2"))
        assert (shown.peer, shown.peer_name) == (encode_id(one.net.id("node2")), "node2")
        assert (shown.common, shown.height, shown.other_height, shown.HasField("ours")) == (3, 3, 3, False)
        assert await asyncio.to_thread(main, ["chain", "diff", "--peer", "node2", *socket]) == 0
        assert "the same up to height 3, where both end" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["chain", "evidence", *socket]) == 0
        await one.net.crash("node2")
        assert await asyncio.to_thread(main, ["chain", "diff", "--peer", "node2", *socket]) == 4
        assert await asyncio.to_thread(main, ["chain", "diff", "--peer", "nobody", *socket]) == 3
