"""Four real nodes watched by a real Prometheus: what it sees of them while all is well, and what it says of faults."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.testnet.cluster import NodeProcess
from support.federation.ports import find_free_ports
from support.federation.real_nodes import Federation, make_federation, paused
from support.machines.prometheus import PROGRAM, Prometheus, fill_in
from support.machines.scrape import ADDED, NAMES, list_expressions

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="prometheus is not installed"),
]

MAX_SERIES = 300  # of a node in a federation of four
QUIET = {
    "FednodeChainStalled",
    "FednodeHeadsDiverge",
    "FednodePeerMissing",
    "FednodeRejectionsRising",
    "FednodePeerNotAwaited",
    "FednodeClockWrong",
}
EMPTY = {*QUIET, "Calls answered, 99th percentile", "Not taken, per minute"}  # where nothing happens to tell of


@asynccontextmanager
async def watched(path: Path, *, has_token: bool = False) -> AsyncIterator[tuple[Federation, Prometheus, list[str]]]:
    """Four nodes, the Prometheus that scrapes them, and the addresses under which it knows them."""
    first = find_free_ports(4)[0]
    directory = make_federation(path / "net", num_nodes=4, rounds=0, http_port=first)
    token_file = path / "token"
    token_file.write_text(f"{'t' * 32}\n")
    targets = [f"127.0.0.1:{first + i}" for i in range(4)]
    async with Federation(directory) as net:
        if has_token:
            for name, node in net.nodes.items():
                net.nodes[name] = NodeProcess(node.node, options=("--set", f"http.token_file={token_file}"))
        await net.start()
        async with Prometheus.serve(path / "prometheus", targets, token_file if has_token else None) as prometheus:
            await net.wait_for_height(2)
            await prometheus.wait_for("up", lambda found: found == [1, 1, 1, 1])
            yield net, prometheus, targets


async def test_all_that_is_promised_arrives_and_everything_asked_for_is_answered(tmp_path: Path) -> None:
    async with watched(tmp_path) as (net, prometheus, _):
        await net.wait_for_height(12)
        await prometheus.wait_for("fednode_chain_height > 11", lambda found: len(found) == 4)
        for name, (kind, labels) in NAMES.items():
            if name == "fednode_rpc_seconds":  # of calls, of which none need have been made
                continue
            found = await prometheus.query(name + "_count" if kind == "histogram" else name)
            assert len({one["instance"] for one, _ in found}) == 4, name
            shown = frozenset[str]().union(*(one for one, _ in found)) - ADDED - {"__name__"}
            assert shown <= labels, name
            assert labels - shown <= {"reason"}, name  # empty for what was accepted: Prometheus drops such a label
        for place, expression in list_expressions():
            if not expression.startswith("label_values"):
                found = await prometheus.query(fill_in(expression))
                assert found or place in EMPTY, place
        alerts = {name for name, _, _ in await prometheus.get_alerts()}
        assert not alerts & {"FednodeHeadsDiverge", "FednodeRejectionsRising"}  # the others may be for a moment
        series = [value for _, value in await prometheus.query('count by (instance) ({job="fednode"})')]
        assert len(series) == 4
        assert max(series) < MAX_SERIES
        largest = max(value for _, value in await prometheus.query("scrape_duration_seconds"))
        print(f"series a node: {series}; slowest scrape {largest:.3f} s")


async def test_two_blocks_at_one_height_are_heard_of(tmp_path: Path) -> None:
    """All nodes begin the same chain anew, and make other blocks of it."""
    async with watched(tmp_path) as (net, prometheus, _):
        settled = (
            'count by (height) (count by (block, height) (last_over_time(fednode_chain_settled_info{height="10"}[5m])))'
        )
        await prometheus.wait_for(settled, lambda found: found == [1])
        for name in net.names:
            assert await net.stop(name) == 0
            shutil.rmtree(net.get_data_dir(name))
        await net.start()
        await prometheus.wait_for_alert("FednodeHeadsDiverge", "", "firing")
        await prometheus.wait_for(settled, lambda found: found == [2])


async def test_a_token_lets_it_in(tmp_path: Path) -> None:
    async with watched(tmp_path, has_token=True) as (_, prometheus, _):
        await prometheus.wait_for("fednode_chain_height > 1", lambda found: len(found) == 4)


async def test_alerts_say_who_is_missing_and_that_the_chain_stands(tmp_path: Path) -> None:
    async with watched(tmp_path) as (net, prometheus, targets):
        missing, stalled = "FednodePeerMissing", "FednodeChainStalled"
        await net.wait_until_ready()
        with paused(net.get_pid("node3")):  # a node that hangs is one that does not answer
            await prometheus.wait_for_alert(missing, targets[3], "pending", "firing")
            await prometheus.wait_for_alert(missing, targets[0], "firing")
            await prometheus.wait_for('fednode_peer_in_sight{name="node3"} == 0', lambda found: len(found) == 3)
        for target in (targets[0], targets[3]):
            await prometheus.wait_for_alert(missing, target, "gone")
        await net.kill("node3")
        await net.kill("node2")
        await prometheus.wait_for_alert(stalled, targets[0], "pending", "firing")
        await prometheus.wait_for_alert(stalled, targets[1], "firing")
        await prometheus.wait_for_alert(missing, targets[2], "firing")
        await net.start()
        for target in targets:
            await prometheus.wait_for_alert(stalled, target, "gone")
            await prometheus.wait_for_alert(missing, target, "gone")
        await asyncio.gather(*(net.stop(name) for name in net.names))
        for target in targets:
            await prometheus.wait_for_alert(missing, target, "firing")
