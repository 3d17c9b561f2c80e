"""`fednode runs report` of real nodes: while they run, and what a stopped one has left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from support.federation.real_nodes import Federation, Finished, make_federation, run_command

pytestmark = pytest.mark.e2e


async def say(*words: object) -> Finished:
    return await asyncio.to_thread(run_command, *words)


async def report(*arguments: object) -> Finished:
    return await asyncio.to_thread(run_command, "runs", "report", *arguments)


async def test_a_running_and_a_stopped_node_tell_the_same_run(tmp_path: Path) -> None:
    async with Federation(make_federation(tmp_path / "net", rounds=2)) as net:
        await net.start()
        await net.wait_for(lambda now: all(status["done"] for status in now.values()), "two rounds")
        config = net.nodes["node1"].node.config_file
        await net.wait_for(lambda now: now["node1"]["measured_round"] == 2, "measures of round 2")
        page = tmp_path / "report.html"
        made = await report("1", "-o", page, "--config", config)
        assert (made.code, made.out) == (0, f"{page}: run 1, 2 rounds, verified\n")
        text = page.read_text()
        assert "The chain holds:" in text
        assert "The model of node1 after round 2" in text
        assert (await net.get_status("node1"))["head"] in text
        live = json.loads((await report("--json", "--config", config)).out)
        assert live["verified"]["recomputed"] == 2
        missing = await report("5", "-o", tmp_path / "none.html", "--config", config)
        assert (missing.code, missing.err) == (3, "fednode: run 5: there were runs 1 to 1\n")
        runs = ("runs", "list", "--json"), ("runs", "show", "1", "--json"), ("runs", "--json")
        told = [json.loads((await say(*words, "--config", config)).out) for words in runs]
        assert told[1]["authors"]
        assert await net.stop("node1") == 0
        assert [json.loads((await say(*words, "--config", config)).out) for words in runs] == told
        stopped = await report("--json", "--config", config)
        assert stopped.err.startswith("fednode: no node answers")
        left = json.loads(stopped.out)
        assert left["node"] == live["node"] == "node1"
        for key in ("chain", "run", "changes", "participants", "rounds", "evidence"):
            assert left[key] == live[key], key
