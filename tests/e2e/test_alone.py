"""Training alone beside the rounds of real nodes: it is told of, outlives a restart, and changes nothing shared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = pytest.mark.e2e


@pytest.mark.outer
async def test_a_site_sees_what_it_would_have_without_the_others(tmp_path: Path) -> None:
    directory = make_federation(tmp_path / "net", num_nodes=3, rounds=0, method="fedavg", partition="dirichlet:1")
    file = directory / "node0.yaml"
    config = yaml.safe_load(file.read_text())
    config["training"] |= {"compare_local": True, "answer_by": "mixed"}
    config["data"]["val"] = 0.2
    file.write_text(yaml.safe_dump(config))
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for(
            lambda all_: (
                all_["node0"]["alone"] is not None
                and _count(all_["node0"]) >= 3
                and all_["node0"]["alone"]["verdict"] is not None
            ),
            "three rounds done alone",
        )
        statuses = await net.get_statuses()
        assert statuses["node1"]["alone"] is None
        alone = statuses["node0"]["alone"]
        assert 0 < alone["measures"]["summary"]["accuracy"] <= 1
        assert alone["seconds"] > 0
        assert alone["failure"] is None
        assert alone["mixed"]["num_samples"] == alone["measures"]["num_samples"]
        assert 0 <= alone["weight"] <= 1
        shown = run_command("rounds", "show", statuses["node0"]["measured_round"], "-c", file)
        assert "after the work of" in shown.out
        verdict = alone["verdict"]
        assert verdict["interval"]["low"] <= verdict["difference"] <= verdict["interval"]["high"]
        assert verdict["measure"] == "auc"
        assert verdict["sentence"] in shown.out
        check_evaluation(tmp_path, file)
        assert await net.stop("node0") == 0
        before = _count(statuses["node0"])
        await net.start("node0")
        await net.wait_for(
            lambda all_: all_["node0"]["measured_round"] > statuses["node0"]["measured_round"] + 2, "rounds to go on"
        )
        after = (await net.get_statuses())["node0"]
        assert _count(after) >= before
        assert await net.check_agreement() > 3
    assert (directory / "data/node0/checkpoints/run-1/alone/trained.safetensors").exists()


def check_evaluation(tmp_path: Path, config: Path) -> None:
    """On samples of one's own both models are measured."""
    digits = load_digits()
    x = digits.images[:200, None].astype(np.float32) / 16
    np.savez(tmp_path / "own.npz", x=x, y=digits.target[:200])
    done = run_command("evaluate", tmp_path / "own.npz", "-c", config, "--json")
    found = json.loads(done.out)
    assert found["alone"]["measures"]["num_samples"] == found["measures"]["num_samples"] == 200
    alone = found["alone"]["measures"]["summary"]
    assert 0.1 < alone["accuracy"] <= 1
    assert found["measures"]["summary"]["loss"] != alone["loss"]  # they are two models
    assert found["alone"]["rounds"] >= 3
    done = run_command("evaluate", tmp_path / "own.npz", "-c", config)
    assert "FEDERATION" in done.out
    assert found["alone"]["verdict"]["num_samples"] == 200
    assert done.out.startswith("verdict       ")
    assert "members may have trained on rows of this" in done.err
    assert 0 < found["mixed"]["weight"] < 1
    assert found["mixed"]["measures"]["num_samples"] == 200
    assert found["answer_by"] == "mixed"
    assert " alone; predict answers by: mixed" in done.out
    said = json.loads(run_command("predict", tmp_path / "own.npz", "-c", config, "--calibrated", "--json").out)
    assert said["answer_by"] == "mixed"
    assert 0 < said["weight"] < 1
    assert said["temperature"] > 0
    assert sum(line.split()[:1] == ["alone"] for line in done.out.splitlines()) == 21  # how far, and each class twice


def _count(status: dict[str, object]) -> int:
    alone = status["alone"]
    assert isinstance(alone, dict)
    return int(alone["rounds"])
