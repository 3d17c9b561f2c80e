"""Address hints of nodes, on virtual time: told, kept, passed on, and dialled, whatever liars say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from chain.changes.members import AddMember
from chain.hints import AddressHint, encode_hint, sign_hint
from chain.signing import SigningKey
from node.consensus.context import NodeContext
from node.consensus.gossip.hints import AHEAD_MS, OWN_S, PAUSE_S, AddressHints
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.p2p.address_book import AddressBook
from node.p2p.refusals import Reason
from node.p2p.transport.base import Message, MessageKind
from support.data.chains import make_keys
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, cluster
from support.federation.memory_transport import MemoryTransport
from support.federation.proposing import get_service, propose, wait_until_over
from support.federation.virtual_time import run_virtual

HONEST = ("node0", "node1", "node2")
(NEW,) = make_keys(1, "newcomer")


def saying(address: str) -> Callable[[NodeContext], RoundService]:
    return lambda context: make_round_service(replace(context, advertise=address))


def get_dialled(net: Cluster, name: str, key: bytes) -> str | None:
    transport = net[name].get_context().transport
    assert isinstance(transport, MemoryTransport)
    return transport.addresses.get(key)


def get_hints(net: Cluster, name: str) -> AddressHints:
    return get_service(net, name).hints


def read_kept(net: Cluster, name: str) -> list[AddressHint]:
    """The hints that a start would find."""
    return AddressBook.load(net[name].path, {}).get_hints()


def make_hint(net: Cluster, key: SigningKey, address: str, at_s: float = 0.0) -> AddressHint:
    made_ms = net["node0"].clock.now_ms() + int(1000 * at_s)
    return sign_hint(key, net.genesis.chain_id, made_ms=made_ms, address=address)


def wrap(hint: AddressHint) -> Message:
    return Message(MessageKind.HINT, encode_hint(hint))


async def wait_until_dialled(net: Cluster, name: str, key: bytes, address: str) -> None:
    await net.wait_for(lambda: get_dialled(net, name, key) == address, f"{address} to be dialled by {name}")


@asynccontextmanager
async def hinting(path: Path) -> AsyncIterator[tuple[Cluster, Liar]]:
    """Three idle members, and a fourth that says what it is told to."""
    async with cluster(path, 4, rounds=1, start=HONEST) as net:
        await net.wait_for(lambda: all(get_service(net, name).is_done for name in HONEST), "the round to be over")
        async with lying(net, "node3") as liar:
            yield net, liar


def test_an_advertised_address_is_told_kept_and_dialled_by_all(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=1, start=()) as net:
            node1 = net.id("node1")
            net.start("node1", saying("b.example:7050"))
            for name in ("node0", "node2"):
                net.start(name)
            for name in ("node0", "node2"):
                await wait_until_dialled(net, name, node1, "b.example:7050")
            await net.crash("node1")
            net.start("node3")  # which hears of it from the others
            await net.wait_for(lambda: get_dialled(net, "node3", node1) == "b.example:7050", "it to be passed on")
            for name in ("node0", "node2", "node3"):
                assert AddressBook.load(net[name].path, {}).get(node1) == "b.example:7050"
                assert AddressBook.load(net[name].path, {node1: "said:1"}).get(node1) == "said:1"
            await asyncio.sleep(PAUSE_S)
            net["node1"].clock.skew_ms = -3600_000  # set back, and moved
            net.start("node1", saying("[2001:db8::1]:7050"))
            await net.wait_for(lambda: get_dialled(net, "node3", node1) == "[2001:db8::1]:7050", "the new one")
            assert get_dialled(net, "node1", node1) is None

    run_virtual(story())


def test_an_address_told_by_a_clock_far_ahead_is_told_again_once_it_is_set_right(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=1, start=HONEST[1:]) as net:
            node0 = net.id("node0")
            net["node0"].clock.skew_ms = 3 * AHEAD_MS
            net.start("node0", saying("node0:7050"))
            peer = get_service(net, "node1").peers.get(node0)
            assert peer is not None
            await net.wait_for(lambda: peer.refusals[Reason.CLOCK] > 0, "its hint to be refused")
            net["node0"].clock.skew_ms = 0
            await net.wait_for(lambda: get_dialled(net, "node1", node0) == "node0:7050", "it to be told", 2 * OWN_S)

    run_virtual(story())


def test_a_hint_that_was_taken_while_ones_own_clock_was_ahead_gives_way(tmp_path: Path) -> None:
    async def story() -> None:
        async with hinting(tmp_path) as (net, liar):
            net["node0"].clock.skew_ms = 3 * AHEAD_MS
            liar.send(wrap(make_hint(net, liar.key, "first:1")), "node0")
            await wait_until_dialled(net, "node0", liar.key.id, "first:1")
            net["node0"].clock.skew_ms = 0
            await asyncio.sleep(PAUSE_S)
            liar.send(wrap(make_hint(net, liar.key, "second:1")), "node0")
            await wait_until_dialled(net, "node0", liar.key.id, "second:1")

    run_virtual(story())


def test_the_word_of_the_operator_and_the_configuration_count_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=1, start=()) as net:
            node1, node2, node3 = (net.id(name) for name in ("node1", "node2", "node3"))
            book = AddressBook(tmp_path / "book.json", {node2: "configured:1"}, {node1: "added:1"})
            net.start("node0", lambda context: make_round_service(replace(context, book=book)))
            for name in ("node1", "node2", "node3"):
                net.start(name, saying(f"{name}:7050"))
            await net.wait_for(lambda: get_dialled(net, "node0", node3) == "node3:7050", "the hint")
            await net.wait_for(lambda: len(book.get_hints()) == 3, "all hints to be held")
            await asyncio.sleep(1)
            assert [get_dialled(net, "node0", key) for key in (node1, node2)] == ["added:1", "configured:1"]
            book.remove(node1)
            assert book.get(node1) == "node1:7050"

    run_virtual(story())


def test_a_forged_hint_is_its_senders_fault(tmp_path: Path) -> None:
    async def story() -> None:
        async with hinting(tmp_path) as (net, liar):
            good = make_hint(net, net["node1"].key, "evil:1")
            liar.send(wrap(replace(good, address="evil:2")), "node0")
            liar.send(Message(MessageKind.HINT, encode_hint(good)[:-1]), "node2")
            for name in ("node0", "node2"):
                await net.wait_for(lambda name=name: liar.is_refused_by(name), f"{name} to refuse the liar")  # type: ignore[misc]
            assert get_dialled(net, "node0", good.key) is None

    run_virtual(story())


@pytest.mark.parametrize(
    "address",
    ["evil", "evil:0", "evil:70000", "unix:/run/x", "a/b:80", "a b:80", "é:80", "[evil]:80", "@x:80", "a:80\n"],
)
def test_an_address_that_is_none_is_its_authors_fault_and_not_dialled(tmp_path: Path, address: str) -> None:
    async def story() -> None:
        async with hinting(tmp_path) as (net, liar):
            liar.send(wrap(make_hint(net, liar.key, address)), "node0")
            peer = get_service(net, "node0").peers.get(liar.key.id)
            assert peer is not None
            await net.wait_for(lambda: peer.refusals[Reason.RULE] == 1, "it to be counted")
            assert not liar.is_refused_by("node0")
            await asyncio.sleep(2)
            assert get_dialled(net, "node0", liar.key.id) is None

    run_virtual(story())


def test_hints_that_are_old_of_strangers_or_of_the_far_future_change_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with hinting(tmp_path) as (net, liar):
            key = liar.key
            newest = make_hint(net, key, "here:7050", 10)
            liar.send(wrap(newest), "node0")
            await net.wait_for(lambda: get_dialled(net, "node2", key.id) == "here:7050", "it to be passed on")
            ahead = make_hint(net, key, "later:1", 2 * AHEAD_MS / 1000)
            for hint in (make_hint(net, key, "old:1", 9), make_hint(net, NEW, "new:1"), ahead):
                liar.send(wrap(hint), "node0")
            of_itself = make_hint(net, net["node0"].key, "me:1", 10)  # signed with its very key: it knows better
            liar.send(wrap(of_itself), "node0")
            await asyncio.sleep(2 * PAUSE_S)
            assert read_kept(net, "node0") == [newest]
            assert not liar.is_refused_by("node0")
            assert get_dialled(net, "node2", key.id) == "here:7050"

    run_virtual(story())


def test_a_flood_of_hints_is_passed_on_and_dialled_once_in_a_while(tmp_path: Path) -> None:
    async def story() -> None:
        async with hinting(tmp_path) as (net, liar):
            for i in range(600):
                liar.send(wrap(make_hint(net, liar.key, f"host{i}:7050", i / 1000)), "node0")
                await asyncio.sleep(0.1)
            traffic = net["node0"].get_context().transport.counters()
            assert traffic[net.id("node1")].kinds["hint"].messages_sent <= 3
            await asyncio.sleep(PAUSE_S)
            assert get_dialled(net, "node0", liar.key.id) == "host599:7050"  # the last of them counts
            assert len(read_kept(net, "node0")) == 1

    run_virtual(story())


def test_the_hint_of_a_join_request_is_taken_once_the_joiner_is_let_in(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, rounds=1) as net:
            await wait_until_over(net)
            hint = make_hint(net, NEW, "d.example:7050")
            hints = get_hints(net, "node0")
            assert not hints.accept(hint)  # of a stranger
            await propose(net, "node0", AddMember(NEW.id, "newcomer"))
            assert not hints.accept(replace(hint, address="evil:1"))
            assert hints.accept(hint)
            assert not hints.accept(hint)
            await net.wait_for(lambda: get_dialled(net, "node0", NEW.id) == "d.example:7050", "it to be dialled")

    run_virtual(story())
