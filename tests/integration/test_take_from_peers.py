"""Federations whose members take from single peers what is on demand (PROTOCOL §2), and peers that do not give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.beacon import compute_beacon
from chain.signing import encode_id
from chain.store.sqlite import SqliteStore
from ml import specs
from ml.payload import Array, decode_arrays, encode_arrays
from node.admin.offline import OfflineNode
from node.admin.wiring import make_view
from node.config.genesis_file import get_genesis_spec
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.ledger.audit import run_audit
from node.p2p.refusals import Reason
from node.p2p.transport.base import BLOB, FRAMING_BYTES, PeerUnavailable
from node.payloads.fetcher import SMALL_BYTES
from node.payloads.on_demand import get_kinds
from node.runs.specs import RunSpecs
from support.data.blobs import lose_blob
from support.federation.asked import make_book, make_config
from support.federation.fixed_specs import find_round
from support.federation.pulling import FEDPER, UAPDFL, Stingy, TakingCluster, count_numbers, taking
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

SIX = tuple(f"node{i}" for i in range(6))


def run(story: Callable[[], Any]) -> None:
    run_virtual(story())


@pytest.mark.parametrize("method", [UAPDFL, FEDPER], ids=lambda method: method["name"])
def test_six_members_each_get_what_the_spec_says_they_want(tmp_path: Path, method: dict[str, Any]) -> None:
    async def story() -> None:
        async with taking(tmp_path, 6, method, rounds=4) as fed:
            await fed.wait_for_round(4)
            assert fed.net.check_agreement() == 4
            counts = set()
            for height in range(1, 5):
                block = fed.net["node0"].get_block(height)
                assert len(block.contributions) == 6
                assert any(block.header.aggregate) == (method["name"] == "uapdfl")
                for name in SIX:
                    exchange = fed.get_exchange(name, height)
                    beacon = compute_beacon(fed.net["node0"].get_block(height - 1))
                    assert (exchange.beacon, exchange.me) == (beacon, fed.net.id(name))
                    assert [offer.author for offer in exchange.offers] == [c.author for c in block.contributions]
                    assert exchange.blobs.keys() == fed.get_wanted(name, height)
                    assert not exchange.gone
                    counts.add(len(exchange.blobs))
            assert len(counts) > 1 or method is FEDPER  # both branches came up

    run(story)


def test_what_is_pulled_is_what_the_paper_counts(tmp_path: Path) -> None:
    """One whole model, or g of all of Q and h of S, within a tenth and 1 KiB for each peer and kind (DESIGN §8)."""

    async def story() -> None:
        async with taking(tmp_path, 6, UAPDFL, rounds=3) as fed:
            await fed.wait_for_round(3)
            spec = fed.trainers["node0"].spec
            for height in range(1, 4):
                sizes = fed.get_sizes(height)
                for name in SIX:
                    exchange = fed.get_exchange(name, height)
                    kinds = [
                        kind
                        for offer in exchange.offers
                        for kind, digest in offer.digests.items()
                        if digest in exchange.blobs
                    ]
                    formula = 4 * sum(count_numbers(spec, kind) for kind in kinds)
                    pulled = fed.get_record(name, height)["pulled_bytes"]
                    assert pulled == sum(sizes[digest] for digest in exchange.blobs)
                    assert formula <= pulled <= 1.1 * formula + 1024 * len(kinds)
            for name in SIX:
                counters = fed.get_transport(name).counters().values()
                traffic = [traffic.kinds[BLOB] for traffic in counters if BLOB in traffic.kinds]
                pulled = sum(fed.get_record(name, height)["pulled_bytes"] for height in range(1, 4))
                voted = sum(
                    ref.size
                    for height in range(1, 4)
                    for contribution in fed.net["node0"].get_block(height).contributions
                    for ref in contribution.payloads
                    if contribution.author != fed.net.id(name) and ref.kind in (3, 4)
                )
                received = sum(kind.bytes_received - FRAMING_BYTES * kind.messages_received for kind in traffic)
                assert received == pulled + voted
            sent = sum(
                fed.get_record(name, height)["bytes_sent"].get(BLOB, 0) for name in SIX for height in range(1, 4)
            )
            counted = sum(
                counters.kinds[BLOB].bytes_sent
                for name in SIX
                for counters in fed.get_transport(name).counters().values()
                if BLOB in counters.kinds
            )
            assert 0.8 * counted <= sent <= counted  # no byte in two rounds; of the last one others pull on

    run(story)


def test_what_is_on_demand_is_pulled_by_nobody_before_the_block_is_final(tmp_path: Path) -> None:
    async def story() -> None:
        heights: list[tuple[int, int]] = []

        class Watching(Stingy):
            async def serve(self, data: bytes) -> AsyncGenerator[bytes, None]:
                machine = fed.net["node1"].service
                assert machine is not None
                heights.append((len(self.offered) // 2, max(node.height for node in fed.net.nodes.values())))
                yield data

        async with taking(tmp_path, 4, UAPDFL, rounds=3, start=["node0", "node1", "node2"]) as fed:
            fed.net.start("node3", Watching)
            await fed.wait_for_round(3)
            assert heights
            assert all(final >= offered for offered, final in heights)

    run(story)


# ---- peers whose models do harm


def test_who_does_harm_is_left_out_of_the_draw_for_as_long_as_blobs_are_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, {"name": "fedper", "num_peers": 3}, rounds=6) as fed:
            liar = fed.net.id("node3")
            fed.trainers["node0"].refuses.add(liar)
            await fed.wait_for_round(6)
            keep = fed.net.genesis.rules.keep_heights
            refused = [height for height in range(1, 7) if liar not in fed.get_exchange("node0", height).gone]
            assert refused == list(range(1, 7, keep + 1))
            for height in range(1, 7):
                exchange = fed.get_exchange("node0", height)
                told = fed.get_record("node0", height)["gone"][encode_id(liar)]
                if height in refused:
                    assert exchange.blobs.keys() == fed.get_wanted("node0", height)
                    assert told == "does harm here: too much of a loss"
                else:
                    assert exchange.blobs.keys() == fed.get_wanted("node0", height, frozenset({liar}))
                    assert told.startswith("left out of the draw, as what it offered in round ")
                assert not fed.get_record("node1", height)["gone"]  # its own choice, and nobody else's
            service = fed.net["node0"].service
            assert service is not None
            assert service.get_refusals()[liar][Reason.HARM] == len(refused)
            assert fed.net.check_agreement() == 6

    run(story)


# ---- peers that do not give


class Hanging(Stingy):
    """Takes the question and never answers."""

    async def serve(self, data: bytes) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield data


class Flipping(Stingy):
    """Serves other bytes than it has signed."""

    async def serve(self, data: bytes) -> AsyncGenerator[bytes, None]:
        yield bytes([data[0] ^ 1]) + data[1:]


class Overflowing(Stingy):
    """Serves without end."""

    async def serve(self, data: bytes) -> AsyncGenerator[bytes, None]:
        while True:
            yield data


class Dribbling(Stingy):
    """Serves a byte now and then."""

    async def serve(self, data: bytes) -> AsyncGenerator[bytes, None]:
        for at in range(len(data)):
            await asyncio.sleep(0.4)
            yield data[at : at + 1]


@pytest.mark.parametrize("liar", [Hanging, Flipping, Overflowing, Dribbling])
def test_who_does_not_serve_what_it_offers_is_dropped_and_keeps_its_votes(
    tmp_path: Path, liar: Callable[[NodeContext], RoundService]
) -> None:
    """Three of four are there, and three votes are needed."""

    async def story() -> None:
        names = ["node0", "node1"]
        async with taking(tmp_path, 4, {**UAPDFL, "num_peers": 3}, rounds=3, start=names) as fed:
            fed.net.start("node2", liar)
            await fed.wait_for_round(3, *names)
            lies = fed.net.id("node2")
            collect_s = fed.net.genesis.rules.waits.collect_s
            for height in range(1, 4):
                block = fed.net["node0"].get_block(height)
                assert lies in {contribution.author for contribution in block.contributions}
                for name in names:
                    exchange = fed.get_exchange(name, height)
                    record = fed.get_record(name, height)
                    wanted = fed.get_wanted(name, height, exchange.gone)
                    assert exchange.blobs.keys() == wanted
                    assert exchange.gone <= {lies}
                    assert "cannot be had" in record["gone"][encode_id(lies)] if exchange.gone else not record["gone"]
                    assert record["seconds"]["apply"] <= collect_s + 0.5
            assert any(fed.get_exchange(name, height).gone for name in names for height in range(1, 4))
            fed.net.check_agreement()

    run(story)


def spoil_shape(kind: str, arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array[..., :1] for name, array in arrays.items()} if kind == "g" else arrays


def spoil_numbers(kind: str, arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: np.full_like(array, np.nan) for name, array in arrays.items()} if kind == "g" else arrays


@pytest.mark.parametrize("spoil", [spoil_shape, spoil_numbers])
def test_what_does_not_fit_its_schema_takes_its_author_out_of_the_choice_alone(
    tmp_path: Path, spoil: Callable[[str, dict[str, Array]], dict[str, Array]]
) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, {**FEDPER, "num_peers": 3}, rounds=3, start=()) as fed:
            fed.trainers["node3"].spoil = spoil
            for name in fed.net.nodes:
                fed.net.start(name)
            await fed.wait_for_round(3)
            lies = fed.net.id("node3")
            for height in range(1, 4):
                assert len(fed.net["node0"].get_block(height).contributions) == 4
                for name in ("node0", "node1", "node2"):
                    exchange = fed.get_exchange(name, height)
                    assert exchange.gone == {lies}
                    assert exchange.blobs.keys() == fed.get_wanted(name, height, exchange.gone)
                    assert len(exchange.blobs) == 2
                    assert "g: " in fed.get_record(name, height)["gone"][encode_id(lies)]
            service = fed.net["node0"].service
            assert service is not None
            told = [event.data for event in service.events.kept if event.kind == "rejected"]
            assert {event["author"] for event in told} == {lies.hex()}
            assert {event["height"] for event in told} == {1, 2, 3}

    run(story)


def test_a_peer_that_dies_between_its_contribution_and_the_pull_is_not_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        class Dying(Stingy):
            """Gone as soon as anyone asks for what it has offered."""

            async def serve(self, data: bytes) -> AsyncGenerator[bytes, None]:
                fed.net.network.set_down(self.signer.id)
                await asyncio.sleep(fed.net.network.notice_s)
                raise PeerUnavailable("the connection broke off")
                yield data

        async with taking(tmp_path, 6, {**UAPDFL, "num_peers": 5}, rounds=3, start=SIX[:5]) as fed:
            fed.net.start("node5", Dying)
            await fed.wait_for_round(3, *SIX[:5])
            dead = fed.net.id("node5")
            offered = fed.get_offer("node5", 1)
            assert offered is not None
            assert fed.get_offer("node5", 2) is None
            for name in SIX[:5]:
                exchange = fed.get_exchange(name, 1)
                assert exchange.gone == ({dead} if set(offered.digests.values()) & fed.get_wanted(name, 1) else set())
                assert exchange.blobs.keys() == fed.get_wanted(name, 1, exchange.gone)
                assert fed.get_record(name, 1)["seconds"]["apply"] < 0.5
            assert any(fed.get_exchange(name, 1).gone for name in SIX[:5])
            fed.net.check_agreement()

    run(story)


def test_what_an_author_cannot_serve_is_pulled_from_those_who_have_it(tmp_path: Path) -> None:
    """node3 serves each blob once, then never again: who comes later gets it from whoever was first."""

    async def story() -> None:
        class ServesOnce(Stingy):
            async def serve(self, data: bytes) -> AsyncGenerator[bytes, None]:
                if self.asked.count(self.asked[-1]) > 1:
                    await asyncio.sleep(0.1)
                    raise PeerUnavailable("busy")
                yield data

        method = {**FEDPER, "num_peers": 3}
        async with taking(tmp_path, 4, method, rounds=2, start=["node0", "node1", "node2"]) as fed:
            fed.net.start("node3", ServesOnce)
            await fed.wait_for_round(2)
            for height in (1, 2):
                for name in ("node0", "node1", "node2"):
                    exchange = fed.get_exchange(name, height)
                    assert not exchange.gone
                    assert len(exchange.blobs) == 3

    run(story)


# ---- those who are not in the block, or come late, or die


def test_a_straggler_takes_nothing_of_anyone(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, UAPDFL, rounds=3, start=()) as fed:
            fed.trainers["node3"].train_s = 60.0
            for name in fed.net.nodes:
                fed.net.start(name)
            await fed.wait_for_round(3, "node0", "node1", "node2")
            await fed.net.wait_for(lambda: 3 in fed.trainers["node3"].applied, "the straggler to apply")
            exchange = fed.get_exchange("node3", 3)
            assert (len(exchange.offers), exchange.blobs, exchange.gone) == (3, {}, frozenset())
            assert fed.net.id("node3") not in {offer.author for offer in exchange.offers}

    run(story)


def test_a_late_member_catches_up_takes_nothing_and_then_takes_part(tmp_path: Path) -> None:
    async def story() -> None:
        early = ("node0", "node1", "node2")
        async with taking(tmp_path, 4, UAPDFL, start=early) as fed:
            await fed.net.wait_for_height(4, *early)
            fed.net.start("node3")
            me = fed.net.id("node3")

            def has_taken() -> bool:
                return any(exchange[-1].blobs for exchange in fed.trainers["node3"].taken.values())

            await fed.net.wait_for(has_taken, "node3 to take from others")
            for exchanges in fed.trainers["node3"].taken.values():
                for exchange in exchanges:
                    assert bool(exchange.blobs) == (me in {offer.author for offer in exchange.offers})
            fed.net.check_agreement()

    run(story)


def test_a_restarted_member_applies_the_same_again_without_pulling_it_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, FEDPER, rounds=3) as fed:
            await fed.wait_for_round(3)
            first = fed.get_exchange("node1", 3)
            await fed.net.crash("node1")
            fed.net.start("node1")
            await fed.net.wait_for(lambda: len(fed.trainers["node1"].taken[3]) == 2, "node1 to apply again")
            assert fed.get_exchange("node1", 3) == first
            assert not any(BLOB in traffic.kinds for traffic in fed.get_transport("node1").counters().values())

    run(story)


def test_a_restarted_member_that_lost_what_it_had_pulled_waits_for_company_before_it_asks(tmp_path: Path) -> None:
    async def story() -> None:
        settings: dict[str, Any] = {"network": {"notice_s": 0.5}}
        async with taking(tmp_path, 4, FEDPER, rounds=3, **settings) as fed:
            await fed.wait_for_round(3)
            first = fed.get_exchange("node1", 3)
            await fed.net.crash("node1")
            for digest in first.blobs:
                lose_blob(fed.net["node1"].path, digest)
            fed.net.start("node1")
            await fed.net.wait_for(lambda: len(fed.trainers["node1"].taken[3]) == 2, "node1 to apply again")
            assert fed.get_exchange("node1", 3) == first

    run(story)


def test_a_worker_that_dies_while_it_applies_is_given_the_same_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, UAPDFL, rounds=2, start=()) as fed:
            fed.trainers["node0"].deaths = 1
            for name in fed.net.nodes:
                fed.net.start(name)
            await fed.wait_for_round(2)
            first, *again = fed.trainers["node0"].taken[1]
            assert again == [first]
            assert fed.get_record("node0", 1)["pulled_bytes"] == sum(map(len, first.blobs.values()))

    run(story)


def test_a_running_node_explains_a_round_as_its_directory_does(tmp_path: Path) -> None:
    async def story() -> None:
        contexts: list[NodeContext] = []

        def make_service(context: NodeContext) -> RoundService:
            contexts.append(context)
            return make_round_service(context)

        async with taking(tmp_path, 4, UAPDFL, rounds=2, start=["node1", "node2", "node3"]) as fed:
            fed.net.start("node0", make_service)
            await fed.wait_for_round(2)
            service = fed.net["node0"].service
            assert service is not None
            shown = await make_view(service, contexts[0], make_config(tmp_path), make_book()).get_round(2)
            assert shown.peering.held
            await fed.net.crash("node0")
            with OfflineNode(fed.net["node0"].path) as offline:
                assert offline.get_round(2) == shown

    run(story)


# ---- what stays on disk


def get_held(fed: TakingCluster, name: str, height: int, *, of_own: bool) -> list[bool]:
    """For each payload on demand in a block, this node's or the others', whether the node holds it."""
    store = fed.net[name].store
    assert store is not None
    round_ = find_round(RunSpecs.load(store), height)
    return [
        store.has_blob(offer.digests[kind])
        for offer in fed.get_exchange(name, height).offers
        if (offer.author == fed.net.id(name)) == of_own
        for kind in sorted(get_kinds(round_))
    ]


def test_own_blobs_stay_and_those_of_others_go_when_nobody_asks_any_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, {**FEDPER, "num_peers": 3}, rounds=6) as fed:
            await fed.wait_for_round(6)
            keep = fed.net.genesis.rules.keep_heights
            for name in fed.net.nodes:
                for height in range(1, 7):
                    assert all(get_held(fed, name, height, of_own=True))
                    held = get_held(fed, name, height, of_own=False)
                    assert all(held) if height > 6 - keep else not any(held)

    run(story)


@pytest.mark.parametrize("method", [UAPDFL, FEDPER], ids=lambda method: method["name"])
def test_a_chain_is_recomputed_in_full_without_the_blobs_of_others(tmp_path: Path, method: dict[str, Any]) -> None:
    async def story() -> None:
        early = ("node0", "node1", "node2")
        async with taking(tmp_path, 4, method, rounds=6, start=early) as fed:
            await fed.wait_for_round(6, *early)
            fed.net.start("node3")
            await fed.net.wait_for_height(6, "node3")
            for name in ("node0", "node3"):
                store = fed.net[name].store
                assert store is not None
                spec = get_genesis_spec(fed.net.genesis)

                def has_all(store: SqliteStore = store, spec: specs.MethodSpec = spec) -> bool:
                    return not run_audit(fed.net.genesis, store, deep=True).not_held

                await fed.net.wait_for(has_all, f"{name} to hold what is voted on")
                report = run_audit(fed.net.genesis, store, deep=True, require_all=True)
                assert report.ok, report
                assert report.recomputed == 6

    run(story)


def test_an_old_vote_stays_when_someone_offers_its_digests_as_its_own_on_demand(tmp_path: Path) -> None:
    """Whoever names an old blob is not who decides how long the others keep it."""

    async def story() -> None:
        async with taking(tmp_path, 4, UAPDFL, rounds=7, start=()) as fed:
            liar = fed.trainers["node3"]

            def spoil(kind: str, arrays: dict[str, Array]) -> dict[str, Array]:
                if liar.trained[-1] == 3 and kind == "h":
                    return fed.trainers["node0"].make("unit", 1)
                if liar.trained[-1] == 3 and kind == "g":
                    store, block = fed.net["node3"].store, fed.net["node3"].get_block(1)
                    assert store is not None
                    data = store.get_blob(block.header.aggregate)
                    return dict(decode_arrays(data, len(data)))
                return arrays

            liar.spoil = spoil
            for name in fed.net.nodes:
                fed.net.start(name)
            await fed.wait_for_round(7)
            agreed = fed.net["node0"].get_block(1).header.aggregate
            offered = fed.get_offer("node3", 3)
            assert offered is not None
            assert offered.digests["g"] == agreed
            for name in ("node0", "node1", "node2"):
                store = fed.net[name].store
                assert store is not None
                assert store.has_blob(agreed)
                report = run_audit(fed.net.genesis, store, deep=True, require_all=True)
                assert report.ok, report
                assert report.recomputed == 7

    run(story)


def test_large_blobs_on_demand_travel_and_go_like_all_large_ones(tmp_path: Path) -> None:
    model = {"name": "mlp", "hidden": [4200]}  # 64 x 4200 numbers are more than a chunk
    assert len(encode_arrays({"w": np.zeros((64, 4200), np.float32)})) > SMALL_BYTES

    async def story() -> None:
        method = {**FEDPER, "num_peers": 1}
        async with taking(tmp_path, 3, method, rounds=4, model=model) as fed:
            await fed.wait_for_round(4)
            keep = fed.net.genesis.rules.keep_heights
            for name in fed.net.nodes:
                for height in range(1, 5):
                    exchange = fed.get_exchange(name, height)
                    assert len(exchange.blobs) == 1
                    assert not exchange.gone
                store = fed.net[name].store
                assert store is not None
                own = [fed.get_offer(name, height) for height in range(1, 5)]
                held = [store.has_blob(offer.digests["g"]) for offer in own if offer is not None]
                assert held == [height > 4 - keep for height in range(1, 5)]
                assert not list((fed.net[name].path / "blobs" / "tmp").iterdir())

    run(story)
