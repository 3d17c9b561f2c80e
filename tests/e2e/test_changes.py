"""Changes of a federation by its operators' shells: four real nodes, and the commands that a person would type."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.federation.operators import wait_until_open, wait_until_over
from support.federation.real_nodes import Federation, Finished, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


async def tell(net: Federation, name: str, *words: str) -> Finished:
    return await asyncio.to_thread(run_command, *words, "-c", net.nodes[name].node.config_file)


async def say(net: Federation, name: str, *words: str) -> str:
    done = await tell(net, name, *words)
    assert done.code == 0, done.err
    return done.out


async def tell_json(net: Federation, name: str, *words: str) -> Any:
    return json.loads(await say(net, name, *words, "--json"))


async def list_open(net: Federation, name: str) -> list[str]:
    return [each["id"] for each in (await tell_json(net, name, "proposals"))["proposals"]]


async def agree(net: Federation, name: str, change: str) -> str:
    """By this node's operator, once the node has heard of it."""
    await wait_until_open(net, change, name)
    assert await list_open(net, name) == [change]
    assert "1 change waits for approval" in await say(net, name, "status")
    return await say(net, name, "approve", change, "--yes")


async def test_four_sites_agree_on_a_rule_and_on_a_second_run(tmp_path: Path) -> None:
    spec = {"method": "fedavg", "rounds": 3, "difficulty": 4096}
    async with Federation(make_federation(tmp_path / "net", **spec)) as net:
        await net.start()
        await net.wait_until_ready()

        before = await say(net, "node0", "members")
        assert sorted(line.split()[0] for line in before.splitlines()[1:5]) == ["node0", "node1", "node2", "node3"]
        assert await say(net, "node0", "proposals") == "no change waits for approval\n"

        refused = await tell(net, "node0", "propose", "set", "waits.colect_s=5", "--yes")
        assert (refused.code, refused.out) == (1, "")
        assert "Did you mean 'waits.collect_s'?" in refused.err
        unasked = await tell(net, "node0", "propose", "set", "waits.collect_s=5")
        assert (unasked.code, "expected --yes" in unasked.err) == (1, True)

        said = await say(net, "node0", "propose", "set", "waits.collect_s=5", "--yes", "--note", "slow links")
        assert said.startswith("set rules, by node0")
        assert "-> 5.0" in said
        (rule,) = await list_open(net, "node0")
        for name in ("node1", "node2"):
            assert "approved; it " in await agree(net, name, rule)

        await wait_until_over(net, rule)
        assert await list_open(net, "node3") == []
        gone = await tell(net, "node3", "approve", rule, "--yes")
        assert (gone.code, "no such change is open here" in gone.err) == (3, True)

        await net.wait_for(lambda now: all(status["done"] for status in now.values()), "the three rounds")
        words = ("propose", "run", "--set", "lr=0.05", "--rounds", "2", "--continue", "--yes")
        run = await tell_json(net, "node1", *words)
        for name in ("node0", "node2"):  # three of four are enough
            await agree(net, name, run["id"])

        await wait_until_over(net, run["id"])
        runs = (await tell_json(net, "node0", "runs"))["runs"]
        assert [each["number"] for each in runs] == [1, 2]
        assert (runs[0]["made"], runs[0]["rounds"], runs[1]["change"]) == (3, 3, run["id"])
        first = await say(net, "node0", "runs", "show", "1")
        assert "all founders, with genesis" in first
        assert "of 3 rounds" in first
        second = await say(net, "node0", "runs", "show", "2")
        assert "lr 0.05" in second
        assert "approved by" in second
        assert await net.check_agreement() >= 5
