"""The memory network under virtual time: delays, loss, cuts and partitions, all from one seed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from chain.block import Id
from chain.errors import StoreFull
from node.p2p.transport.base import CHUNK_BYTES, BlobNotFound, BlobTooLong, Message, MessageKind, PeerUnavailable
from support.federation.memory_transport import MemoryNetwork, MemoryTransport
from support.federation.recording import Recorder, wait_until
from support.federation.virtual_time import Deadlock, VirtualTimeLoop, run_virtual

ALICE, BOB, CAROL = (bytes([i]) * 32 for i in (1, 2, 3))


def vote(i: int) -> Message:
    return Message(MessageKind.VOTE, i.to_bytes(4, "big"))


@asynccontextmanager
async def running(
    network: MemoryNetwork, *ids: Id
) -> AsyncIterator[tuple[dict[Id, MemoryTransport], dict[Id, Recorder]]]:
    """Every id runs and sees every other."""
    transports = {peer: network.transport(peer) for peer in ids}
    recorders = {peer: Recorder() for peer in ids}
    tasks = [asyncio.create_task(transports[peer].run(recorders[peer])) for peer in ids]
    try:
        await wait_until(lambda: all(len(t.connected()) == len(ids) - 1 for t in transports.values()), "all connected")
        yield transports, recorders
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_messages_arrive_and_the_clock_is_virtual() -> None:
    async def story() -> float:
        async with running(MemoryNetwork(latency_s=(100.0, 200.0)), ALICE, BOB) as (transports, recorders):
            start_s = asyncio.get_running_loop().time()
            for i in range(100):
                transports[ALICE].post(BOB, vote(i))
            await wait_until(lambda: len(recorders[BOB].messages) == 100, "100 votes", 300)
            assert sorted(recorders[BOB].get_data(MessageKind.VOTE)) == [vote(i).data for i in range(100)]
            assert recorders[BOB].get_data(MessageKind.VOTE) != [vote(i).data for i in range(100)]  # reordered
            sent, received = transports[ALICE].counters()[BOB], transports[BOB].counters()[ALICE]
            assert sent.bytes_sent == received.bytes_received == 100 * (4 + 36)
            assert sent.messages_sent == received.messages_received == 100
            return asyncio.get_running_loop().time() - start_s

    before_s = time.monotonic()
    took_s = run_virtual(story())
    assert 100 <= took_s <= 201
    assert time.monotonic() - before_s < took_s


def test_fifo_links_keep_the_order() -> None:
    async def story() -> None:
        async with running(MemoryNetwork(latency_s=(0.0, 20.0), fifo=True), ALICE, BOB) as (transports, recorders):
            for i in range(100):
                transports[ALICE].post(BOB, vote(i))
            await wait_until(lambda: len(recorders[BOB].messages) == 100, "100 votes", 30)
            assert recorders[BOB].get_data(MessageKind.VOTE) == [vote(i).data for i in range(100)]

    run_virtual(story())


def test_same_seed_same_weather_and_another_seed_another() -> None:
    async def story(seed: int) -> list[bytes]:
        network = MemoryNetwork(seed, loss=0.3, duplicate=0.2, latency_s=(0.0, 1.0))
        async with running(network, ALICE, BOB) as (transports, recorders):
            for i in range(200):
                transports[ALICE].post(BOB, vote(i))
            await asyncio.sleep(2)
            return recorders[BOB].get_data(MessageKind.VOTE)

    first = run_virtual(story(7))
    assert first == run_virtual(story(7)) != run_virtual(story(8))
    assert 100 < len(set(first)) < 180  # about 140 of 200 arrive
    assert len(first) > len(set(first))  # some of them twice


def test_a_cut_loses_what_is_on_its_way_and_healing_reconnects() -> None:
    async def story() -> None:
        network = MemoryNetwork(latency_s=(0.1, 0.1))
        async with running(network, ALICE, BOB, CAROL) as (transports, recorders):
            transports[ALICE].post(BOB, vote(1))
            await asyncio.sleep(0.05)
            network.cut(ALICE, BOB)
            await wait_until(lambda: transports[ALICE].connected() == {CAROL}, "alice sees bob go")
            transports[ALICE].post(BOB, vote(2))
            transports[ALICE].post(CAROL, vote(3))
            await asyncio.sleep(1)
            assert recorders[BOB].messages == []
            assert recorders[CAROL].get_data(MessageKind.VOTE, ALICE) == [vote(3).data]
            assert recorders[ALICE].downs == [BOB]
            assert transports[ALICE].counters()[BOB].dropped == 1
            with pytest.raises(PeerUnavailable):
                await transports[ALICE].request_blocks(BOB, 0, 1)
            network.heal()
            await wait_until(lambda: recorders[ALICE].ups.count(BOB) == 2, "alice sees bob again")
            transports[ALICE].post(BOB, vote(4))
            await wait_until(lambda: recorders[BOB].get_data(MessageKind.VOTE) == [vote(4).data], "vote 4")

    run_virtual(story())


def test_a_partition_cuts_between_sides_only() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        async with running(network, ALICE, BOB, CAROL) as (transports, _):
            network.partition([ALICE, BOB], [CAROL])
            await wait_until(lambda: not transports[CAROL].connected(), "carol alone")
            await wait_until(lambda: transports[ALICE].connected() == {BOB}, "alice and bob together")

    run_virtual(story())


def test_a_one_way_cut_looks_connected_and_loses_silently() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        async with running(network, ALICE, BOB) as (transports, recorders):
            network.cut(ALICE, BOB, one_way=True)
            transports[ALICE].post(BOB, vote(1))
            transports[BOB].post(ALICE, vote(2))
            await asyncio.sleep(1)
            assert transports[ALICE].connected() == {BOB}
            assert recorders[BOB].messages == []
            assert recorders[ALICE].get_data(MessageKind.VOTE) == [vote(2).data]
            with pytest.raises(PeerUnavailable):
                await transports[BOB].request_blocks(ALICE, 0, 1)

    run_virtual(story())


def test_a_peer_set_down_is_gone_for_all_until_set_up() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        async with running(network, ALICE, BOB, CAROL) as (transports, _):
            network.set_down(BOB)
            await wait_until(lambda: all(BOB not in t.connected() for t in transports.values()), "bob gone")
            assert transports[BOB].connected() == set()
            network.set_up(BOB)
            await wait_until(lambda: transports[BOB].connected() == {ALICE, CAROL}, "bob back")

    run_virtual(story())


def test_a_restarted_node_gets_a_fresh_transport_and_the_old_one_is_unplugged() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        async with running(network, ALICE, BOB) as (transports, recorders):
            again, recorder = network.transport(BOB), Recorder()
            task = asyncio.create_task(again.run(recorder))
            await wait_until(lambda: recorders[ALICE].ups == [BOB, BOB], "alice meets the new bob")
            assert recorders[ALICE].downs == [BOB]
            transports[ALICE].post(BOB, vote(1))
            await wait_until(lambda: len(recorder.messages) == 1, "the new bob hears")
            assert recorders[BOB].messages == []
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run_virtual(story())


def test_blobs_come_in_chunks_and_end_with_the_link() -> None:
    async def story() -> None:
        network = MemoryNetwork(latency_s=(1.0, 1.0))
        async with running(network, ALICE, BOB) as (transports, recorders):
            blob = bytes(range(256)) * 4096 * 3  # 3 MiB
            recorders[BOB].blobs[b"d" * 32] = blob
            got = [chunk async for chunk in transports[ALICE].fetch_blob(BOB, b"d" * 32, 100)]
            assert b"".join(got) == blob[100:]
            assert [len(chunk) for chunk in got] == [CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES - 100]
            with pytest.raises(BlobNotFound):
                await anext(transports[ALICE].fetch_blob(BOB, b"e" * 32))
            with pytest.raises(BlobTooLong):
                async for _ in transports[ALICE].fetch_blob(BOB, b"d" * 32, max_bytes=CHUNK_BYTES):
                    pass
            async with aclosing(transports[ALICE].fetch_blob(BOB, b"d" * 32)) as chunks:
                await anext(chunks)
                network.cut(ALICE, BOB)
                with pytest.raises(PeerUnavailable):
                    await anext(chunks)
            assert recorders[BOB].open_streams == 0

    run_virtual(story())


def test_statuses_are_paced_and_only_the_newest_waits() -> None:
    async def story() -> None:
        async with running(MemoryNetwork(latency_s=(0.0, 0.0)), ALICE, BOB) as (transports, recorders):
            for i in range(1000):
                transports[ALICE].post(BOB, Message(MessageKind.STATUS, i.to_bytes(4, "big")))
                await asyncio.sleep(0.01)
            await asyncio.sleep(1)
            heard = recorders[BOB].get_data(MessageKind.STATUS)
            assert 40 <= len(heard) <= 55  # 10 s at 4 a second, and the burst
            assert heard[-1] == (999).to_bytes(4, "big")

    run_virtual(story())


def test_nothing_waits_behind_a_status_that_has_to() -> None:
    async def story() -> None:
        async with running(MemoryNetwork(latency_s=(0.001, 0.001), status_per_s=0.1), ALICE, BOB) as (nodes, recorders):
            for i in range(20):
                nodes[ALICE].post(BOB, Message(MessageKind.STATUS, bytes([i])))
                await asyncio.sleep(0.01)
            nodes[ALICE].post(BOB, vote(1))
            await wait_until(lambda: recorders[BOB].get_data(MessageKind.VOTE) == [vote(1).data], "the vote", 0.1)
            assert bytes([19]) not in recorders[BOB].get_data(MessageKind.STATUS)

    run_virtual(story())


def test_the_nodes_own_trouble_in_a_handler_ends_the_run() -> None:
    class Broken(Recorder):
        def on_peer_up(self, peer: Id) -> None:
            raise StoreFull("the disk is full")

    async def story() -> None:
        network = MemoryNetwork()
        alice = asyncio.create_task(network.transport(ALICE).run(Broken()))
        bob = asyncio.create_task(network.transport(BOB).run(Recorder()))
        with pytest.raises(StoreFull, match="the disk is full"):
            await alice
        bob.cancel()
        await asyncio.gather(bob, return_exceptions=True)

    run_virtual(story())


def test_virtual_time_stands_still_while_a_thread_works() -> None:
    async def story() -> float:
        start_s = asyncio.get_running_loop().time()
        assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
        async with asyncio.timeout(1.0):
            await asyncio.to_thread(time.sleep, 0.05)
        return asyncio.get_running_loop().time() - start_s

    assert run_virtual(story()) == 0.0


def test_virtual_time_out_comes_at_once_and_a_deadlock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_virtual(wait_for_ever(), timeout_s=3600)
    monkeypatch.setattr("support.federation.virtual_time.DEADLOCK_AFTER_S", 0.05)
    loop = VirtualTimeLoop()
    task = loop.create_task(wait_for_ever())
    with pytest.raises(Deadlock):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
