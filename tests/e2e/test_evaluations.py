"""An evaluation on real nodes: one model, measured by each site on its own test samples, and signed."""

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


async def agree(net: Federation, *words: object) -> None:
    change = json.loads(await say(net, "node0", "propose", *words, "--yes", "--json"))["id"]
    for name in ("node1", "node2"):
        await wait_until_open(net, change, name)
        await say(net, name, "approve", change, "--yes")
    await wait_until_over(net, change)
    await net.wait_for(lambda now: all(now[name]["done"] for name in net.running), "the end of the run")


async def test_every_site_measures_the_model_and_training_goes_on(tmp_path: Path) -> None:
    directory = make_federation(tmp_path / "net", method="fedavg", rounds=2, difficulty=4096)
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for(lambda now: all(now[name]["done"] for name in net.running), "the end of the first run")
        await agree(net, "evaluation")
        told: list[dict[str, Any]] = json.loads(await say(net, "node3", "evaluation", "--json"))["evaluations"]
        own = json.loads(await say(net, "node3", "rounds", "show", str(told[0]["height"]), "--json"))
        await agree(net, "run", "--rounds", "1", "--continue", "--set", "select.evaluate=true")
        at_end = json.loads(await say(net, "node3", "evaluation", "--run", "3", "--json"))["evaluations"]
        runs = json.loads(await say(net, "node3", "runs", "--json"))["runs"]
        assert await net.stop("node0") == 0
        offline = await asyncio.to_thread(run_command, "evaluation", "--json", "--data-dir", net.get_data_dir("node0"))
        verified = await asyncio.to_thread(
            run_command, "chain", "verify", "--deep", "--data-dir", net.get_data_dir("node0")
        )
    (one,) = told
    assert (one["of_run"], one["of_round"]) == (1, 2)
    assert len(one["sites"]) == 4
    measures = next(site["measures"] for site in one["sites"] if site["name"] == "node3")
    assert measures["num_samples"] == own["measures"]["num_samples"]
    assert measures["summary"] == pytest.approx(own["measures"]["summary"], abs=0.6e-4)
    assert [run["method"] for run in runs] == ["fedavg", "evaluation", "fedavg"]
    assert json.loads(offline.out)["evaluations"] == [*told, *at_end]
    (ended,) = at_end  # by itself, as the run was to
    assert (ended["of_run"], ended["of_round"]) == (3, 1)
    assert [site["measures"]["num_samples"] for site in ended["sites"]] == [
        site["measures"]["num_samples"] for site in one["sites"]
    ]
    assert verified.code == 0, verified.err
