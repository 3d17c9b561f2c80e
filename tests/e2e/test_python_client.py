"""A real node asked from Python: from several threads, beside a running loop, and until it ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fednode
from node.testnet.running import is_running

pytestmark = pytest.mark.e2e

SMALL: dict[str, Any] = {"method": "fedavg", "partition": "iid", "settings": {"local_iterations": 2}}
FORGOTTEN = """
import fednode

cluster = fednode.LocalCluster(1, method="fedavg", rounds=0, partition="iid")
cluster.start()
with cluster.connect("node0") as node:
    print(node.status()["pid"], cluster.directory)
"""


@pytest.mark.outer
async def test_threads_and_coroutines_ask_the_nodes_of_a_cluster() -> None:
    """On a loop that runs, as a notebook's does."""
    with fednode.LocalCluster(2, rounds=3, **SMALL) as cluster:
        with cluster.connect("node0") as node, ThreadPoolExecutor(2) as threads:
            assert node.status()["name"] == "node0"
            watched = threads.submit(lambda: [event["data"]["height"] for event in take(node, 3)])
            others = [threads.submit(node.members) for _ in range(4)]
            assert all(len(other.result()["members"]) == 2 for other in others)
            assert watched.result() == [1, 2, 3]
        cluster.wait()
        async with fednode.aconnect(cluster.directory / "node1.yaml") as other:
            status, rows = await asyncio.gather(other.status(), other.metrics())
            assert status["applied_round"] == 3
            assert [row["height"] for row in rows] == [1, 2, 3]
            said = await other.predict(np.zeros((3, 8, 8), np.float32))
            assert said.probabilities.shape == (3, 10)
            assert said.probabilities.sum(axis=1) == pytest.approx(np.ones(3), abs=1e-3)
            signed = await other.propose("set_rounds", rounds=5)
        with cluster.connect("node0") as node:
            wait_for_change(node, signed["id"])
            node.approve(signed["id"])
        with cluster.connect("node1") as node:
            heights = (event["data"]["height"] for event in node.watch("block", since="0-0"))
            assert next(height for height in heights if height == 6) == 6  # the change took the fourth
        with pytest.raises(fednode.NodeError, match="expected one of node0, node1, got 'node7'"):
            cluster.connect("node7")
        waiting = cluster.connect("node0")
    with pytest.raises(fednode.NodeUnreachable, match="no node answers there"):
        waiting.status()
    waiting.close()
    cluster.stop()


def take(node: fednode.Client, count: int) -> list[dict[str, Any]]:
    events = node.watch("block", since="0-0")
    return [next(events) for _ in range(count)]


def wait_for_change(node: fednode.Client, change: str) -> None:
    """Until the node has heard of it."""
    for event in node.watch("proposal", since="0-0"):
        if any(proposal["id"] == change for proposal in node.proposals()):
            return
        assert event["kind"] == "proposal"


@pytest.mark.outer
def test_a_cluster_that_a_program_forgets_ends_with_it() -> None:
    done = subprocess.run([sys.executable, "-c", FORGOTTEN], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    pid, directory = done.stdout.split()
    assert not is_running(int(pid))
    assert subprocess.run(["ls", directory], capture_output=True).returncode != 0
    assert done.stderr == ""
