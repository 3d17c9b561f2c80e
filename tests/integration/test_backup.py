"""A member that is backed up while it runs and restored elsewhere: it contradicts nothing, catches up and goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from node.ledger.backup import take_snapshot, write_archive
from node.ledger.restoring import restore
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual
from support.federation.wiretap import TappedNetwork


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def back_up(net: Cluster, name: str, file: Path) -> int:
    """While its node runs. The height that it holds."""
    store = net[name].store
    assert store is not None
    folder = store.path / "backup.tmp"
    folder.mkdir()
    snapshot = take_snapshot(store, net.genesis, folder)
    write_archive(file, snapshot.manifest, snapshot.read(), {})
    shutil.rmtree(folder)
    return snapshot.manifest.height


@pytest.mark.parametrize("seed", range(3))
def test_it_signs_nothing_twice_catches_up_and_goes_on(tmp_path: Path, seed: int) -> None:
    """It goes when it has just contributed to a height for which the others still train, and comes back with a model
    that is older, so that it would train something else."""

    async def story() -> None:
        trainers = [ScriptedTrainer(i, train_s=0.5 if i else 0.02) for i in range(4)]
        path = tmp_path / "nodes"
        async with cluster(path, 4, network_class=TappedNetwork, seed=seed, trainers=trainers) as net:
            await net.wait_for_height(2)
            held = back_up(net, "node0", tmp_path / "node0.tar")
            assert held >= 2
            await net.wait_for_height(6)
            await net.wait_for(lambda: has_contributed(net, "node0"), "node0 to contribute")
            await net.crash("node0")
            shutil.rmtree(net["node0"].path)
            restore(tmp_path / "node0.tar", net["node0"].path, net.genesis)
            net["node0"].trainer = ScriptedTrainer(99)
            net.start("node0")
            height = net["node1"].height
            await net.wait_for_height(height + 14)
            net.check_agreement()
            for node in net.nodes.values():
                assert node.store is not None
                assert node.store.get_evidence() == ()
            tap = net.network
            assert isinstance(tap, TappedNetwork)
            tap.check()
            blocks = [net["node1"].get_block(at) for at in range(height + 5, height + 15)]
            took_part = sum(net.id("node0") in {each.author for each in block.contributions} for block in blocks)
            assert took_part >= 8

    run_virtual(story())


def has_contributed(net: Cluster, name: str) -> bool:
    store = net[name].store
    return store is not None and store.get_contribution(net[name].height + 1) is not None
