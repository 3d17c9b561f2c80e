"""Real nodes that come late, or come back with less than they had: from an observer alone, and without their model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.catch_up import OBSERVER, SETTINGS, add_observer, name_observer
from chain.signing import SigningKey
from node.testnet.cluster import NodeProcess
from node.testnet.layout import TestnetSpec, make_testnet
from support.data.synthetic import make_chain
from support.federation.ports import find_free_ports
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROUNDS = 120
LATE = "node3"
HOLDERS = ("node0", "node1", "node2")


async def test_a_member_takes_old_rounds_from_an_observer_when_nobody_else_is_there(tmp_path: Path) -> None:
    base_port = find_free_ports(5)[0]
    key = SigningKey.generate()
    named = name_observer(key)
    spec = TestnetSpec(method="dfpl", rounds=0, settings=SETTINGS, difficulty=16, base_port=base_port, observers=named)
    testnet = make_testnet(tmp_path / "net", spec)
    observer = add_observer(testnet, key)
    make_chain(testnet, ROUNDS, testnet.nodes[:3])
    verified = run_command("chain", "verify", "--deep", "--data-dir", testnet.directory / "data" / "node0")
    assert verified.code == 0, verified.err
    async with Federation(testnet.directory) as net:
        net.nodes[OBSERVER] = NodeProcess(observer)
        await net.start(*HOLDERS)
        await net.wait_for_height(ROUNDS + 2)
        await net.start(OBSERVER)
        await net.wait_for_height(ROUNDS + 2, OBSERVER)
        for name in HOLDERS:
            assert await net.stop(name) == 0
        there = (await net.get_status(OBSERVER))["height"]
        await net.start(LATE)
        await net.wait_for_height(there, LATE)
        assert (await net.get_status(LATE))["height"] == there
        await net.start(*HOLDERS)
        contributed = await net.wait_for_contribution(LATE, there)
        await net.wait_for_height(contributed, OBSERVER)
        assert await net.check_agreement() >= contributed
        assert OBSERVER not in await net.read_contributors(OBSERVER, contributed)
        for name in (LATE, OBSERVER):
            await net.stop(name)
            verified = run_command("chain", "verify", "--deep", "--data-dir", net.get_data_dir(name))
            assert verified.code == 0, verified.err


async def test_a_member_whose_checkpoint_is_gone_contributes_again(tmp_path: Path) -> None:
    """First the newest, then its whole model."""
    directory = make_federation(tmp_path / "net", method="dfpl", rounds=0, difficulty=16, settings=SETTINGS)
    async with Federation(directory) as net:
        await net.start()
        contributed = await net.wait_for_contribution(LATE, 3)
        for lose in (lose_newest, shutil.rmtree):
            await net.kill(LATE)
            lose(net.get_data_dir(LATE) / "checkpoints" / "run-1")
            await net.wait_for_height(contributed + 3)
            await net.start(LATE)
            contributed = await net.wait_for_contribution(LATE, (await net.get_status("node0"))["height"])
            assert await net.check_agreement() >= contributed


def lose_newest(checkpoints: Path) -> None:
    max(checkpoints.iterdir(), key=lambda file: file.stat().st_mtime_ns).unlink()
