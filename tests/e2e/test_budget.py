"""A real node under a time budget: it measures itself, says how far it is, and plans."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.outer]

ROUNDS = 5  # a first phase may be so slow that the second is short by it


async def test_a_node_trains_as_much_as_its_budget_allows_and_shows_how_far_it_is(tmp_path: Path) -> None:
    directory = make_federation(
        tmp_path / "net", num_nodes=1, partition="iid", rounds=ROUNDS, settings=("budget_s=3", "local_iterations=5")
    )
    config_file = directory / "node0.yaml"
    text = config_file.read_text()
    assert "precision: auto" in text
    config_file.write_text(text.replace("precision: auto", "precision: bf16"))
    async with Federation(directory) as net:
        await net.start()
        statuses = await net.wait_for(
            lambda now: now["node0"]["round"] > 1 and now["node0"]["train_step"] is not None, "a training under way"
        )  # the first round's is a probe
        status = statuses["node0"]
        under_way = status["round"]
        assert (status["device"], status["precision"], status["budget_s"]) == ("cpu", "bf16", 3.0)
        assert 5 < status["local_iterations"] == status["train_steps"] >= status["train_step"]
        statuses = await net.wait_for(
            lambda now: now["node0"]["applied_round"] == now["node0"]["measured_round"] == ROUNDS, "the last round"
        )
        status = statuses["node0"]
        assert (status["train_step"], status["train_steps"]) == (None, None)
        done = await asyncio.to_thread(
            run_command, "plan", "--budget", "60s", "--rounds", 10, "--config", config_file, "--json"
        )
        assert done.code == 0, done.err
        plan = json.loads(done.out)
        assert (plan["alpha_s"], plan["beta_s"]) == pytest.approx((status["alpha_s"], status["beta_s"]))
        assert plan["plans"][0]["used_s"] <= plan["plans"][0]["available_s"] <= 60
        shown = await asyncio.to_thread(run_command, "rounds", "show", under_way, "--config", config_file, "--json")
        record = json.loads(shown.out)
        assert record["train"]["iterations"] > 5
        assert record["beta_s"] is not None
    assert "worker ready  run 1  device cpu  bf16" in net.nodes["node0"].log_file.read_text()
