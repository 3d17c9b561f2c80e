"""`make bench-join`: what it takes a new site to join a federation whose chain is long, as docs/federation.md says it.

Three real nodes hold a valid chain of so many rounds (`support.data.synthetic`) and go on from there. A member writes a
join file, the new site is set up with it and started; then its request is proposed. From then on it is let in: it takes
the chain, checks it, and stands ready. Once it does the others approve.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_testnet
from node.config.yaml_source import dump_yaml, read_yaml
from node.host.machine import get_machine
from node.testnet.cluster import NodeProcess
from node.testnet.layout import Testnet, TestnetNode, TestnetSpec
from node.testnet.ports import LOOPBACK, find_free_ports
from support.data.synthetic import make_chain
from support.federation.operators import (
    approve,
    get_since,
    init_newcomer,
    propose,
    wait_until_newcomer_is_ready,
    wait_until_over,
)
from support.federation.real_nodes import Federation

NUM_FOUNDERS = 3
JOINER = "joiner"
SETTINGS = ("local_iterations=500",)  # rounds of some seconds: a new worker takes as long to come up


def run_join_bench(*, rounds: int, seed: int, report: Report) -> dict[str, Any]:
    """Figures by name, in seconds and heights."""
    spec = TestnetSpec(
        method="dfpl", num_nodes=NUM_FOUNDERS, rounds=0, seed=seed, settings=SETTINGS, difficulty=DIFFICULTY
    )
    with temporary_testnet(spec) as testnet:
        report(f"making a chain of {rounds} rounds")
        make_chain(testnet, rounds, testnet.nodes)
        figures = asyncio.run(_run(testnet, rounds, report))
    return {"machine": get_machine(), "job": {"founders": NUM_FOUNDERS, "rounds": rounds, "seed": seed}, **figures}


async def _run(testnet: Testnet, rounds: int, report: Report) -> dict[str, Any]:
    async with Federation(testnet.directory) as net:
        await net.start()
        await net.wait_until_ready()
        await net.wait_for_height(rounds + 2)
        report("a site is set up and started")
        first, *others = net.names
        newcomer = await init_newcomer(net, JOINER, f"{LOOPBACK}:{find_free_ports(1)[0]}", via=first)
        _train_like(net.nodes[first].node, newcomer.node)
        joiner = net.nodes[JOINER] = NodeProcess(newcomer.node)
        began_s = time.perf_counter()
        await joiner.start()
        change = await propose(net, first, "add_member", request=newcomer.request)
        await wait_until_newcomer_is_ready(net, change, first)
        ready_s = time.perf_counter() - began_s
        blocks = (await net.get_status(JOINER))["height"]
        report("it stands ready, and the others approve")
        began_s = time.perf_counter()
        await approve(net, change, *others)
        await wait_until_over(net, change, JOINER)
        admitted_s, admitted = time.perf_counter() - began_s, await get_since(net, JOINER)
        contributed = await net.wait_for_contribution(JOINER, admitted)
        contributed_s = time.perf_counter() - began_s
        await net.check_agreement()
        round_s = await _get_round_s(joiner, admitted)
    return {
        "blocks": blocks,
        "ready_s": ready_s,
        "admitted_s": admitted_s,
        "admitted_at": admitted,
        "contributed_at": contributed,
        "heights_to_contribution": contributed - admitted,
        "contributes_s": contributed_s - admitted_s,
        "round_s": round_s,
    }


def _train_like(member: TestnetNode, joiner: TestnetNode) -> None:
    """Gives a site as much data as a member has, and as many threads: its rounds are to be no longer than theirs."""
    own, theirs = (read_yaml(node.config_file).value for node in (joiner, member))
    own["data"], own["training"] = theirs["data"], {**own["training"], "threads": theirs["training"]["threads"]}
    joiner.config_file.write_text(dump_yaml(own), encoding="utf-8")


async def _get_round_s(joiner: NodeProcess, height: int) -> float:
    """How long a round has taken lately, by the times of the blocks before `height`."""
    times = (await joiner.get_block_times())[:height]
    recent = times[-3:]
    return (recent[-1] - recent[0]) / (len(recent) - 1)
