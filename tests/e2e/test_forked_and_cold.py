"""Nodes of tests are copies of a process that has imported what they need: they do what nodes from nothing do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.host.forking import is_supported
from support.federation.processes import get_parent, read_maps
from support.federation.real_nodes import Federation, ask_stopped, make_federation

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not is_supported(), reason="Linux alone can share")]

ROUNDS = 3
SAME = ("rounds", "done", "device", "precision", "parameters", "num_train", "num_test", "accuracy", "loss", "version")


@dataclass(frozen=True)
class Lived:
    """What a lone node said after its rounds, and left."""

    status: Mapping[str, Any]
    parent: int
    torch: Mapping[str, bool]
    chain: Any


async def live(directory: Path, *, stands_alone: bool) -> Lived:
    async with Federation(directory, stands_alone=stands_alone) as net:
        await net.start()
        await net.wait_for(lambda now: now["node0"]["measured_round"] == ROUNDS, "the last record")
        status = await net.get_status("node0")
        parent = get_parent(status["pid"])
        pids = {"daemon": status["pid"], "worker": status["worker_pid"], "miner": status["miner_pids"][0]}
        torch = {name: "libtorch" in read_maps(pid) for name, pid in pids.items()}
        assert await net.stop("node0") == 0
    chain = ask_stopped(directory, 0, "chain", "list", "--reverse")["blocks"]
    return Lived(status, parent, torch, [block["aggregate"] for block in chain])


async def test_a_forked_node_and_a_cold_one_do_the_same_and_a_cold_one_has_torch_in_its_worker_alone(
    tmp_path: Path,
) -> None:
    directory = make_federation(tmp_path / "net", num_nodes=1, rounds=ROUNDS, method="fedavg", difficulty=1)
    other = shutil.copytree(directory, tmp_path / "other")
    forked, cold = await live(directory, stands_alone=False), await live(other, stands_alone=True)
    assert (cold.parent, forked.parent == os.getpid()) == (os.getpid(), False)
    assert cold.torch == {"daemon": False, "worker": True, "miner": False}
    assert len(set(cold.chain)) == len(cold.chain) == ROUNDS + 1
    assert forked.chain == cold.chain
    assert {key: forked.status[key] for key in SAME} == {key: cold.status[key] for key in SAME}
