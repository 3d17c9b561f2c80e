"""A run of statistics on real nodes: what each site has is counted and shown to all before anything is trained."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from node.config.yaml_source import dump_yaml
from support.federation.operators import wait_until_open, wait_until_over
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "edges": [40, 50, 60]},
    {"name": "sex", "values": ["f", "m"]},
    {"name": "chol", "edges": [150, 250]},
]
BOUNDS = {"age": {"low": 0, "high": 120}, "chol": {"low": 0, "high": 600}}


def write_site(path: Path, seed: int, unit: float) -> None:
    """A table of 100 patients, whose cholesterol is missing in some and is divided by `unit`."""
    drawn = random.Random(seed)
    lines = ["age,sex,chol,label"]
    for _ in range(100):
        chol = "" if drawn.random() < 0.2 else f"{drawn.gauss(230, 40) / unit:.2f}"
        lines.append(f"{drawn.gauss(50, 9):.0f},{drawn.choice('fm')},{chol},{drawn.choice(('no', 'yes'))}")
    path.write_text("\n".join(lines))


async def say(net: Federation, name: str, *words: object) -> str:
    done = await asyncio.to_thread(run_command, *words, "-c", net.nodes[name].node.config_file)
    assert done.code == 0, f"{name}: fednode {words}: {done.err}{done.out}"
    return done.out


async def count(net: Federation, file: Path, *asked: str) -> None:
    """A run of statistics, which three of four agree on, until it is over."""
    words = ("propose", "statistics", file, *asked, "--yes", "--json")
    change = json.loads(await say(net, "node0", *words))["id"]
    for name in ("node1", "node2"):
        await wait_until_open(net, change, name)
        await say(net, name, "approve", change, "--yes")
    await wait_until_over(net, change)
    await net.wait_for(lambda now: all(now[name]["done"] for name in net.running), "the end of the run")


async def test_sites_are_counted_side_by_side_before_anything_is_trained(tmp_path: Path) -> None:
    sites = [tmp_path / f"{name}.csv" for name in "abcd"]
    for i, site in enumerate(sites):
        write_site(site, i, 38.67 if i == 2 else 1.0)
    directory = make_federation(
        tmp_path / "net",
        sites=tuple(map(str, sites)),
        partition="domains",
        method="fedavg",
        rounds=1,
        difficulty=4096,
        settings=("input.columns=auto", "input.missing=mean"),
    )
    file = tmp_path / "columns.yaml"
    file.write_text(dump_yaml({"columns": COLUMNS}))
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for(lambda now: all(now[name]["done"] for name in net.running), "the end of the first run")
        await count(net, file, "--correlations")
        told: dict[str, Any] = json.loads(await say(net, "node3", "statistics", "--json"))
        shown = await say(net, "node3", "statistics")
        suggested = await say(net, "node3", "statistics", "--suggest")
        await count(net, file, "--correlations", "--masked")
        masked: dict[str, Any] = json.loads(await say(net, "node3", "statistics", "--json"))
        behind = await say(net, "node3", "statistics")
        of_all = await say(net, "node3", "statistics", "--suggest")
        file.write_text(dump_yaml({"columns": [{**column, **BOUNDS.get(column["name"], {})} for column in COLUMNS]}))
        await count(net, file, "--correlations", "--masked", "--noise", "5")
        hidden: dict[str, Any] = json.loads(await say(net, "node3", "statistics", "--json"))
        told_by_now = await say(net, "node3", "privacy")
        assert await net.stop("node0") == 0
        offline = await asyncio.to_thread(run_command, "statistics", "2", "--data-dir", net.get_data_dir("node0"))
        verified = await asyncio.to_thread(
            run_command, "chain", "verify", "--deep", "--data-dir", net.get_data_dir("node0")
        )
    assert [feature["name"] for feature in told["features"]] == ["age", "sex=f", "sex=m", "sex=(other)", "chol"]
    total = told["all"]["samples"]
    assert total == sum(site["samples"] for site in told["sites"])
    assert total == pytest.approx(320, abs=16)  # of equal rows all are on one side
    chol = [site["features"][4] for site in told["sites"]]
    assert told["all"]["features"][4]["values"] == sum(one["values"] for one in chol) < total
    assert [sum(one["bins"][i] for one in chol) for i in range(3)] == told["all"]["features"][4]["bins"]
    assert 40 < told["all"]["features"][0]["median"] < 60
    assert "quartiles" in shown
    assert told["differences"] == [
        "chol: the mean of node2 is about 1/38.67 of the others', as of cholesterol in mg/dL and in mmol/L"
    ]
    assert told["differences"][0] in shown
    assert "missing: mean+flag" in suggested
    assert "edges" not in suggested
    assert "correlation with yes" in shown
    assert offline.out == shown
    assert (masked["run"], masked["masked"], masked["all"]) == (3, True, told["all"])  # to the last digit
    assert [site["held"] for site in masked["sites"]] == [False] * 4
    assert "nobody sees those of one of them" in behind
    assert "mean:" in of_all
    assert "normalize" not in of_all
    assert (hidden["run"], hidden["all"]["samples"]) == (4, total)
    assert hidden["all"]["features"] != told["all"]["features"]
    assert hidden["all"]["features"][0]["mean"] == pytest.approx(told["all"]["features"][0]["mean"], abs=40)
    assert told_by_now.startswith("the first run of the chain hides nothing: what was told was told in others")
    assert "told so far, in 1 local phases: epsilon 0.73, delta 1e-05" in told_by_now
    assert verified.code == 0, verified.err
