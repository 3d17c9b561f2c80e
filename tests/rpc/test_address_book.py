"""`peers add` and `remove`: where a member is dialled changes while the node runs, and outlives a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from chain.signing import encode_id
from node.admin import client as admin_client
from node.cli import main
from node.errors import ConfigError, InvalidRequest, NotFound
from node.p2p.address_book import ADDRESSES, AddressBook
from node.p2p.transport.base import Message, MessageKind, PeerUnavailable
from support.federation.asked import make_book, running
from support.federation.ports import find_free_ports
from support.federation.recording import PATIENCE_S, wait_until
from support.federation.transports import RpcNet, RpcNode, make_keys, rpc_net

VOTE = Message(MessageKind.VOTE, b"vote")
ALICE, BOB = (key.id for key in make_keys(2))


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


# ---- the book


def test_what_an_operator_added_counts_first_and_is_kept(tmp_path: Path) -> None:
    configured = {ALICE: "a:1"}
    book = AddressBook.load(tmp_path, configured)
    book.add(ALICE, "a:2")
    book.add(BOB, "b:1")
    book.save()
    again = AddressBook.load(tmp_path, configured)
    assert again.get_all() == {ALICE: "a:2", BOB: "b:1"}
    assert again.is_added(ALICE)
    again.remove(ALICE)
    again.remove(ALICE)
    assert (again.get(ALICE), again.is_added(ALICE), again.get(BOB)) == ("a:1", False, "b:1")
    again.save()
    assert AddressBook.load(tmp_path, {}).get_all() == {BOB: "b:1"}
    assert (tmp_path / ADDRESSES).stat().st_mode & 0o777 == 0o600


def test_a_book_that_cannot_be_read_keeps_the_node_from_starting(tmp_path: Path) -> None:
    for content in ("", "[]", '{"addresses": {"x": "a:1"}}', json.dumps({"addresses": {encode_id(ALICE): "a:0"}})):
        (tmp_path / ADDRESSES).write_text(content)
        with pytest.raises(ConfigError, match=r"addresses\.json: expected the addresses"):
            AddressBook.load(tmp_path, {})


# ---- dialling


def reaches(sender: RpcNode, receiver: RpcNode) -> bool:
    """Asked again and again, as a message may be lost while a connection changes."""
    sender.transport.post(receiver.id, VOTE)
    return bool(receiver.recorder.messages)


async def try_pull(puller: RpcNode, giver: RpcNode) -> bool:
    """Whether blobs can be had of a peer."""
    giver.recorder.blobs[b"d" * 32] = b"blob"
    try:
        return [chunk async for chunk in puller.transport.fetch_blob(giver.id, b"d" * 32)] == [b"blob"]
    except PeerUnavailable:
        return False


async def test_a_peer_that_has_moved_is_reached_at_its_new_address() -> None:
    """Bob, who dials nobody, is looked for where he no longer is."""
    alice_key, bob_key = make_keys(2)
    port, old, new = find_free_ports(3)
    net = RpcNet()
    alice = net.build(alice_key, f"127.0.0.1:{port}", {bob_key.id: f"127.0.0.1:{old}"})
    bob = net.build(bob_key, f"127.0.0.1:{new}", {}, members=[alice_key.id])
    bob.recorder.blobs[b"d" * 32] = b"blob"
    try:
        await alice.start()
        await bob.start()
        await asyncio.sleep(0.2)
        assert not alice.transport.connected()
        await alice.transport.redial(bob.id, f"127.0.0.1:{new}")
        await wait_until(lambda: alice.transport.connected() == {bob.id}, "bob reached")
        alice.transport.post(bob.id, VOTE)
        await wait_until(lambda: len(bob.recorder.messages) == 1, "the vote")
        chunks = [chunk async for chunk in alice.transport.fetch_blob(bob.id, b"d" * 32)]
        assert chunks == [b"blob"]
        await alice.transport.redial(bob.id, f"127.0.0.1:{old}")
        await wait_until(lambda: not alice.transport.connected(), "bob out of reach again")
        assert alice.recorder.downs == [bob.id]
    finally:
        await net.stop()


async def test_a_call_under_way_to_the_old_address_ends_by_itself() -> None:
    async with rpc_net(2) as net:
        alice, bob = net.nodes
        bob.recorder.blobs[b"d" * 32] = bytes(3 << 20)
        chunks = alice.transport.fetch_blob(bob.id, b"d" * 32)
        size = len(await anext(chunks))
        await alice.transport.redial(bob.id, f"127.0.0.1:{find_free_ports(1)[0]}")
        async for chunk in chunks:
            size += len(chunk)
        assert size == 3 << 20


async def test_a_peer_that_is_dialled_no_more_dials_and_is_answered_on_its_own_stream() -> None:
    async with rpc_net(2) as net:
        alice, bob = net.nodes
        address = f"127.0.0.1:{bob.transport.port}"
        for there in (None, address, None, address):
            await alice.transport.redial(bob.id, there)
            for sender, receiver in ((alice, bob), (bob, alice)):
                receiver.recorder.messages.clear()
                await wait_until(lambda s=sender, r=receiver: reaches(s, r), f"votes after {there}")  # type: ignore[misc]
            await wait_until(lambda: alice.transport.directions() == {bob.id: "accepted"}, "bob's stream")
            assert await try_pull(bob, alice)
            assert await try_pull(alice, bob)
        assert alice.recorder.downs == [bob.id]  # when she hung up first


async def test_without_tls_only_loopback_is_dialled() -> None:
    async with rpc_net(2, tls="off") as net:
        alice, bob = net.nodes
        with pytest.raises(ValueError, match="expected a loopback address"):
            await alice.transport.redial(bob.id, "198.51.100.1:7050")
        assert alice.transport.connected() == {bob.id}


# ---- as an operator does it


async def test_an_operator_adds_members_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(tmp_path) as one:
        socket = ["--socket", str(one.path)]
        node1 = encode_id(one.net.id("node1"))
        assert await asyncio.to_thread(main, ["peers", "add", f"{node1}@node1:7063", *socket]) == 0
        assert "node1 " in (said := capsys.readouterr().out)
        assert "is dialled at node1:7063" in said
        shown = {peer.name: peer for peer in await one.ask(lambda node: node.list_peers())}
        assert (shown["node1"].address, shown["node1"].added) == ("node1:7063", True)
        assert (shown["node2"].HasField("address"), shown["node2"].added) == (False, False)
        assert AddressBook.load(tmp_path, {}).get_all() == {one.net.id("node1"): "node1:7063"}

        assert await asyncio.to_thread(main, ["peers", "remove", "node1", *socket]) == 0
        assert "is not dialled" in capsys.readouterr().out
        assert not (await one.ask(lambda node: node.remove_peer("node1"))).added
        assert AddressBook.load(tmp_path, {}).get_all() == {}

        stranger, me = encode_id(make_keys(9)[8].id), encode_id(one.context.key.id)
        for place in (f"{stranger}@a:1", f"{me}@a:1"):
            with pytest.raises(NotFound):
                await one.ask(lambda node, place=place: node.add_peer(place))  # type: ignore[misc]
        for place in (node1, f"{node1}@", f"{node1}@a", f"{node1}@a:0", f"{node1}@a:70000", "@a:1"):
            with pytest.raises((InvalidRequest, NotFound), match="expected"):
                await one.ask(lambda node, place=place: node.add_peer(place))  # type: ignore[misc]
        assert await asyncio.to_thread(main, ["peers", "add", f"{stranger}@a:1", *socket]) == 3
        assert make_book(tmp_path / ADDRESSES).get_all() == {}
