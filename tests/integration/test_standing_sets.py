"""Federations that share sets once and train on them later: a set becomes a blob, and comes back to training."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.beacon import compute_beacon
from chain.block import Id
from chain.errors import StoreFull
from chain.signing import encode_id
from ml.payload import encode_arrays
from ml.specs import MethodSpec
from node.admin.offline import OfflineNode
from node.p2p.transport.base import BLOB
from node.training.exchange import Exchange, get_offers
from node.training.progress import OnProgress
from node.training.trainer import NOTHING_TAKEN, Trained, WorkerDied
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.pulling import get_shape
from support.federation.sharing import MODEL, NUM_SAMPLES, make_set, make_spec
from support.federation.virtual_time import run_virtual

NODES = ("node0", "node1", "node2", "node3")
LAST_READ = 3  # the last height whose training reads sets: lambda_dis is above 0 for t = 1 and 2
SHARE_COLLECT_S = 60.0
FEW = 20  # samples


class SharingTrainer(ScriptedTrainer):
    """Leaves a set in a file at height 1 and makes up a model at any other. `times` are how long training takes where
    that is not `train_s`; what it is given to read is kept, by height. `deaths` is how often it dies of the first."""

    def __init__(self, seed: int, spec: MethodSpec, outgoing: Path, num_samples: int) -> None:
        super().__init__(seed)
        self.spec = spec
        self.made = make_set(seed, num_samples)
        self.times: dict[int, float] = {}
        self.deaths = 0
        self.shared: dict[int, list[Exchange]] = {}
        self.left: list[tuple[Path, int]] = []  # each file, and its inode
        self._outgoing = outgoing

    async def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        self.shared.setdefault(height, []).append(shared)
        await asyncio.sleep(self.times.get(height, self.train_s))
        for path in shared.files.values():
            assert path.is_file()
        if self.deaths and shared.files:
            self.deaths -= 1
            raise WorkerDied("the worker died: exit status -9")
        self.trained.append(height)
        metrics = {"loss": 0.0, "accuracy": 0.5, "iterations": 1.0}
        if height == 1:
            path = self._outgoing / f"{self.seed}-{len(self.left)}"
            path.write_bytes(self.made.data)
            self.left.append((path, path.stat().st_ino))
            return Trained(10 + self.seed, {"chunk_digests": self.made.list_data}, metrics, {"encrypted_set": path})
        rng = np.random.default_rng([self.seed, height])
        arrays = self.spec.schemas(height)["model"].arrays
        made = {name: rng.standard_normal(get_shape(array)).astype(array.dtype) for name, array in arrays.items()}
        return Trained(10 + self.seed, {"model": encode_arrays(made)}, metrics)


class SharingCluster:
    """A cluster, and what its trainers made and were given."""

    def __init__(self, net: Cluster, spec: MethodSpec, trainers: Mapping[str, SharingTrainer]) -> None:
        self.net = net
        self.spec = spec
        self.trainers = trainers

    def get_wanted(self, name: str, height: int, gone: frozenset[Id] = frozenset()) -> set[bytes]:
        node = self.net[name]
        offers = get_offers(node.get_block(1))
        beacon = compute_beacon(node.get_block(height - 1))
        return set(self.spec.wanted_in_training(height, beacon, self.net.id(name), offers, gone))

    def get_path(self, name: str, author: str) -> Path:
        """Where the set of one lies at another, if it does."""
        digest = self.trainers[author].made.digest.hex()
        return self.net[name].path / "blobs" / digest[:2] / digest

    async def wait_for_training(self, height: int, *names: str) -> None:
        await self.net.wait_for(
            lambda: all(height in self.trainers[name].trained for name in names or NODES), f"training for {height}"
        )

    def get_record(self, name: str, height: int) -> dict[str, Any]:
        store = self.net[name].store
        assert store is not None
        record = store.get_round(height)
        assert record is not None, f"{name} has no record of round {height}"
        return record


@asynccontextmanager
async def sharing(
    path: Path, *, num_samples: int = FEW, rounds: int = 4, start: Sequence[str] = NODES, **settings: Any
) -> AsyncIterator[SharingCluster]:
    outgoing = path / "outgoing"
    outgoing.mkdir()
    spec = make_spec(share_collect_s=SHARE_COLLECT_S, **settings)
    trainers = [SharingTrainer(i, spec, outgoing, num_samples) for i in range(len(NODES))]
    async with cluster(
        path, len(NODES), trainers=trainers, method=spec.to_mapping(), model=MODEL, rounds=rounds, start=start
    ) as net:
        yield SharingCluster(net, spec, dict(zip(NODES, trainers, strict=True)))


def run(story: Callable[[], Any]) -> None:
    run_virtual(story())


# ---- into the store


def test_the_files_that_training_leaves_become_the_blobs_and_are_read_by_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path) as fed:
            await fed.net.wait_for_height(2)
            for name, trainer in fed.trainers.items():
                ((path, inode),) = trainer.left
                assert not path.exists()
                assert fed.get_path(name, name).stat().st_ino == inode  # moved, not copied
            for name in NODES:
                for author in NODES:
                    assert fed.get_path(name, author).read_bytes() == fed.trainers[author].made.data
            block = fed.net["node0"].get_block(1)
            assert block.header.aggregate == fed.net.genesis.run.initial_model

    run(story)


def test_a_node_whose_disk_is_full_shares_nothing_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(source: Path) -> tuple[bytes, int]:
        raise StoreFull(f"{source}: No space left on device")

    async def story() -> None:
        async with sharing(tmp_path, start=NODES[1:]) as fed:
            fed.net.start("node0")
            store = fed.net["node0"].store
            assert store is not None
            store.adopt_blob = refuse  # type: ignore[method-assign]
            await fed.net.wait_for_height(4)
            assert fed.net.check_agreement() == 4
            authors = [{c.author for c in fed.net["node0"].get_block(height).contributions} for height in range(1, 5)]
            assert fed.net.id("node0") not in authors[0]
            assert fed.net.id("node0") in set.union(*authors[1:])
            assert fed.trainers["node0"].shared[2][0].files  # it draws from others all the same

    with caplog.at_level(logging.ERROR):
        run(story)
    assert "round 1 goes on without this node's contribution, the disk is full" in caplog.text
    assert "No space left on device" in caplog.text


def test_what_comes_when_the_height_is_over_does_not_stay(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, start=NODES[1:]) as fed:
            fed.net.start("node0")
            service = fed.net["node0"].service
            assert service is not None
            sign, store = service.signer.sign_contribution, fed.net["node0"].store
            assert store is not None

            async def sign_late(tip: Any, *rest: Any, **options: Any) -> Any:
                assert fed.get_path("node0", "node0").exists()
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(type(store), "head_height", tip.height + 1)
                    return await sign(tip, *rest, **options)

            service.signer.sign_contribution = sign_late  # type: ignore[method-assign]
            await fed.wait_for_training(1)
            await fed.net.wait_for(lambda: fed.net["node0"].height >= 1, "the block without node0")
            assert fed.trainers["node0"].left
            assert not fed.get_path("node0", "node0").exists()

    run(story)


# ---- to training


@pytest.mark.parametrize("draw", ["epoch", "batch", "round"])
def test_training_is_given_the_sets_that_were_drawn_for_as_long_as_they_count(tmp_path: Path, draw: str) -> None:
    async def story() -> None:
        async with sharing(tmp_path, draw=draw) as fed:
            await fed.wait_for_training(4)
            counts = set()
            for name in NODES:
                given = fed.trainers[name].shared
                for height in (2, LAST_READ):
                    (exchange,) = given[height]
                    block = fed.net[name].get_block(1)
                    assert (exchange.beacon, exchange.me) == (compute_beacon(block), fed.net.id(name)) or height > 2
                    assert exchange.offers == get_offers(block)
                    assert exchange.files.keys() == fed.get_wanted(name, height)
                    assert not exchange.gone
                    counts.add(len(exchange.files))
                    record = fed.get_record(name, height)
                    assert (record["pulled_bytes"], record["gone"]) == (0, {})
                for height in (1, 4):
                    assert (given[height][0].files, given[height][0].offers) == ({}, ())
                assert fed.get_record(name, 1)["pulled_bytes"] is None
            assert max(counts) <= 3
            assert counts == {"batch": {3}, "round": {1}}.get(draw, counts)

    run(story)


def test_a_worker_that_dies_in_training_is_given_the_same_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, rounds=2) as fed:
            fed.trainers["node2"].deaths = 2
            await fed.net.wait_for_height(2)
            assert len(fed.trainers["node2"].shared[2]) == 3
            assert len({id(exchange) for exchange in fed.trainers["node2"].shared[2]}) == 1

    run(story)


def slow_down(fed: SharingCluster, height: int) -> None:
    """From there on training lasts until a test has done its mischief."""
    for trainer in fed.trainers.values():
        trainer.times[height] = 1000.0


def test_after_a_restart_the_sets_are_given_from_the_disk(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path) as fed:
            slow_down(fed, 2)
            await fed.net.wait_for_height(1)
            await fed.net.crash("node1")
            fed.trainers["node1"].shared.clear()
            fed.net.start("node1")
            await fed.net.wait_for(lambda: 2 in fed.trainers["node1"].shared, "training for 2")
            (exchange,) = fed.trainers["node1"].shared[2]
            assert exchange.files.keys() == fed.get_wanted("node1", 2)
            transport = fed.net.network.find(fed.net.id("node1"))
            assert transport is not None
            assert not any(BLOB in traffic.kinds for traffic in transport.counters().values())
            assert fed.trainers["node1"].trained == [1]

    run(story)


def lose(path: Path) -> None:
    path.unlink()


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        (last,) = file.read()
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


@pytest.mark.parametrize("harm", [lose, damage])
def test_a_set_that_is_lost_is_fetched_again_before_training(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    async def story() -> None:
        async with sharing(tmp_path, num_samples=NUM_SAMPLES, draw="batch") as fed:
            slow_down(fed, 2)
            await fed.net.wait_for_height(1)
            await fed.net.crash("node1")
            harm(fed.get_path("node1", "node0"))
            fed.trainers["node1"].shared.clear()
            fed.trainers["node1"].times.clear()
            fed.net.start("node1")
            await fed.wait_for_training(2, "node1")
            (exchange,) = fed.trainers["node1"].shared[2]
            assert (len(exchange.files), exchange.gone) == (3, frozenset())
            assert fed.get_path("node1", "node0").read_bytes() == fed.trainers["node0"].made.data
            service = fed.net["node1"].service
            assert service is not None
            assert service.records.current is not None
            assert service.records.current.pulled_bytes == len(fed.trainers["node0"].made.data)

    run(story)


def test_without_a_set_that_nobody_has_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """node3 is gone with its disk, and nobody else has kept what it had shared."""

    async def story() -> None:
        async with sharing(tmp_path, rounds=2, draw="batch") as fed:
            slow_down(fed, 2)
            await fed.net.wait_for_height(1)
            for name in NODES:
                await fed.net.crash(name)
            for name in NODES[:3]:
                fed.get_path(name, "node3").unlink()
                fed.trainers[name].shared.clear()
                fed.trainers[name].times.clear()
                fed.net.start(name)
            await fed.net.wait_for_height(2, *NODES[:3])
            lost = fed.net.id("node3")
            for name in NODES[:3]:
                (exchange,) = fed.trainers[name].shared[2]
                assert exchange.gone == {lost}
                assert exchange.files.keys() == fed.get_wanted(name, 2, frozenset({lost}))
                assert len(exchange.files) == 2
            await fed.net.wait_for(lambda: fed.net["node0"].store.get_round(2) is not None, "node0's record")  # type: ignore[union-attr]
            record = fed.get_record("node0", 2)
            assert record["pulled_bytes"] == 0
            assert "encrypted_set: cannot be had" in record["gone"][encode_id(lost)]

    with caplog.at_level(logging.WARNING):
        run(story)
    assert "round 2 goes on without node3: encrypted_set: cannot be had" in caplog.text


def test_a_member_that_comes_late_fetches_what_it_draws(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, rounds=3, start=NODES[:3], draw="batch") as fed:
            slow_down(fed, LAST_READ)
            await fed.net.wait_for_height(2, *NODES[:3])
            fed.net.start("node3")
            await fed.net.wait_for(lambda: LAST_READ in fed.trainers["node3"].shared, "node3 to train")
            (exchange,) = fed.trainers["node3"].shared[LAST_READ]
            assert len(exchange.files) == 3
            assert not exchange.gone
            for name in NODES[:3]:
                assert fed.get_path("node3", name).read_bytes() == fed.trainers[name].made.data

    run(story)


# ---- the sharing round


def test_who_is_missing_is_waited_for_longer_in_the_sharing_round_and_never_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, rounds=3) as fed:
            collect_s = fed.net.genesis.rules.waits.collect_s
            fed.trainers["node3"].times = {1: SHARE_COLLECT_S / 2, 2: 1000.0}
            clock = fed.net["node0"].clock
            await fed.net.wait_for_height(1)
            shared_s = clock.monotonic()
            assert len(fed.net["node0"].get_block(1).contributions) == 4
            assert SHARE_COLLECT_S / 2 <= shared_s < SHARE_COLLECT_S
            await fed.net.wait_for_height(2)
            assert len(fed.net["node0"].get_block(2).contributions) == 3
            assert collect_s <= clock.monotonic() - shared_s < SHARE_COLLECT_S / 2

    run(story)


def test_a_member_that_never_comes_costs_the_sharing_round_its_own_wait(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, rounds=2, start=NODES[:3]) as fed:
            await fed.net.wait_for_height(1, *NODES[:3])
            shared_s = fed.net["node0"].clock.monotonic()
            assert SHARE_COLLECT_S <= shared_s < SHARE_COLLECT_S + 5
            await fed.net.wait_for_height(2, *NODES[:3])
            assert fed.net["node0"].clock.monotonic() - shared_s < fed.net.genesis.rules.waits.collect_s

    run(story)


def test_once_the_contribution_is_signed_a_restart_trains_nothing_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, rounds=2, start=["node0"]) as fed:
            store = fed.net["node0"].store
            assert store is not None
            await fed.net.wait_for(lambda: store.get_contribution(1) is not None, "node0's contribution")
            signed = store.get_contribution(1)
            await fed.net.crash("node0")
            for name in NODES:
                fed.net.start(name)
            await fed.net.wait_for_height(2)
            block = fed.net["node1"].get_block(1)
            assert signed in block.contributions
            assert fed.trainers["node0"].trained == [1, 2]
            assert len(fed.trainers["node0"].left) == 1
            assert fed.get_path("node1", "node0").read_bytes() == fed.trainers["node0"].made.data

    run(story)


def test_a_restart_before_it_is_signed_trains_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path, rounds=2, start=["node0"]) as fed:
            fed.trainers["node0"].times[1] = 10.0
            await fed.net.wait_for(lambda: 1 in fed.trainers["node0"].shared, "node0 to train")
            await fed.net.crash("node0")
            fed.trainers["node0"].times.clear()
            for name in NODES:
                fed.net.start(name)
            await fed.net.wait_for_height(2)
            assert fed.trainers["node0"].trained == [1, 2]
            assert len(fed.net["node1"].get_block(1).contributions) == 4

    run(story)


# ---- what is told of it


def test_a_round_shows_its_epochs_lambdas_and_draws(tmp_path: Path) -> None:
    async def story() -> None:
        async with sharing(tmp_path) as fed:
            await fed.net.wait_for_height(4)
            spec, ids = fed.spec, {fed.net.id(name): name for name in NODES}
            offers = get_offers(fed.net["node0"].get_block(1))
            beacon = compute_beacon(fed.net["node0"].get_block(1))
            for author in ids:
                drawn[ids[author]] = [ids[offer.author] for offer in spec.get_drawn(2, beacon, author, offers)]  # type: ignore[attr-defined]

    drawn: dict[str, list[str]] = {}
    run(story)
    with OfflineNode(tmp_path / "node1") as node:
        first, second, last = (node.get_round(height) for height in (1, 2, 4))
    assert not first.HasField("schedule")
    assert not first.HasField("peering")
    assert (second.schedule.epochs, second.schedule.lambda_c, second.schedule.lambda_dis) == (5, 0.5, 0.5)
    assert {taker.name: list(taker.peers) for taker in second.peering.nodes} == drawn
    assert (last.schedule.epochs, last.schedule.lambda_c, last.schedule.lambda_dis) == (1, 1.0, 0.0)
    assert not last.HasField("peering")
