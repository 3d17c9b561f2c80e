"""Lent models on real nodes: of a method without a model in common, for one evaluation, by who agreed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.federation.operators import wait_until_open, wait_until_over
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


async def say(net: Federation, name: str, *words: object) -> str:
    done = await asyncio.to_thread(run_command, *words, "-c", net.nodes[name].node.config_file)
    assert done.code == 0, f"{name}: fednode {words}: {done.err}{done.out}"
    return done.out


async def test_models_of_sites_are_measured_at_all_others_and_deleted(tmp_path: Path) -> None:
    directory = make_federation(tmp_path / "net", method="dfpl", rounds=2, difficulty=4096)
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for(lambda now: all(now[name]["done"] for name in net.running), "the end of the first run")
        proposed = await say(net, "node0", "propose", "evaluation", "--lend", "--yes", "--json")
        change = json.loads(proposed)["id"]
        for name, words in (("node1", ("--lend",)), ("node2", ())):
            await wait_until_open(net, change, name)
            await say(net, name, "approve", change, "--yes", *words)
        await wait_until_over(net, change)
        await net.wait_for(lambda now: all(now[name]["done"] for name in net.running), "the end of the evaluation")
        matrix: list[dict[str, Any]] = json.loads(await say(net, "node3", "evaluation", "--json"))["evaluations"]
        table = await say(net, "node3", "evaluation")
        assert await net.stop("node0") == 0
        verified = await asyncio.to_thread(
            run_command, "chain", "verify", "--deep", "--require-all", "--data-dir", net.get_data_dir("node0")
        )
    assert sorted(one["lender_name"] for one in matrix) == ["node0", "node1"]
    assert all(len([site for site in one["sites"] if site["measures"]]) == 4 for one in matrix)
    assert "run 1, round 2, node1's own" in table
    assert verified.code == 0, verified.err
