"""Three real nodes learn labels, and three learn numbers: each has a file of its own; all are measured on another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.config.yaml_source import dump_yaml, read_yaml
from support.data.tasks import LABELS, write_diabetes, write_digits
from support.federation.real_nodes import Federation, Finished, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def give_data(directory: Path, own: list[dict[str, Any]]) -> None:
    """Each node its own samples, and training alone beside."""
    for i, data in enumerate(own):
        path = directory / f"node{i}.yaml"
        config = dict(read_yaml(path).value)
        config["training"] = {**config["training"], "compare_local": True}
        path.write_text(dump_yaml(config | {"data": data}))


def succeed(*arguments: object) -> Finished:
    done = run_command(*arguments)
    assert done.code == 0, f"{arguments}: {done.err}{done.out}"
    return done


async def run_all_rounds(net: Federation, rounds: int) -> None:
    await net.start()
    await net.wait_for(lambda now: all(status["done"] for status in now.values()), "all rounds")
    assert await net.check_agreement() == rounds


def verify(directory: Path) -> None:
    succeed("chain", "verify", "--deep", "--config", directory / "node0.yaml")


async def test_three_nodes_learn_a_number(tmp_path: Path) -> None:
    *own, common = write_diabetes(tmp_path, 3, as_kept=True)
    directory = make_federation(
        tmp_path / "net",
        num_nodes=3,
        rounds=6,
        method="fedavg",
        task="regression",
        data=f"csv:{own[0]}",
        partition="iid",
        settings=(
            "data.columns.label=progression",
            "local_epochs=4",
            "lr=0.02",
            "input.columns=auto",
            "input.missing=mean",
        ),
    )
    input_ = read_yaml(directory / "genesis.yaml").value["input"]
    assert {"name": "sex", "values": ["female", "male"]} in input_["columns"]
    assert (input_["missing"], input_["shape"]) == ("mean", [11, 1, 1])
    label = {"columns": {"label": "progression"}}
    give_data(directory, [{"format": "csv", "path": str(path), **label} for path in own])
    config = directory / "node0.yaml"
    assert "TARGET" in succeed("data", "inspect", "--config", config).out
    async with Federation(directory) as net:
        await run_all_rounds(net, 6)
        found = json.loads(succeed("evaluate", common, "--config", config, "--json").out)
        summary, (target,) = found["measures"]["summary"], found["measures"]["classes"]
        assert found["signs"] == {}
        assert summary["r2"] > 0.3  # a linear model has about 0.45
        assert 45 < summary["rmse"] < 68
        assert target["class"] == "progression"
        assert target["intervals"]["rmse"]["low"] < target["values"]["rmse"] < target["intervals"]["rmse"]["high"]
        shown = succeed("evaluate", common, "--config", config, "--resamples", "0").out
        assert "root mean squared error" in shown
        assert "TARGET" in shown

        asked = ("--answer-by", "federation", "--config", config, "--json")
        told = json.loads(succeed("predict", common, *asked).out)["predictions"]
        said = np.array([one["values"]["progression"] for one in told])
        truth = np.array([one["expected"][0] for one in told])
        assert np.sqrt(np.square(said - truth).mean()) == pytest.approx(summary["rmse"], rel=1e-6)
        assert "progression IN FILE" in succeed("predict", common, "--config", config).out

        status = succeed("status", "--config", config).out
        assert "R2" in status
        assert "mean absolute error" in status
        assert "alone" in status
        assert "R2" in succeed("rounds", "show", "6", "--config", config).out
        rows = json.loads(succeed("metrics", "--series", "measures.r2,train.r2", "--config", config, "--json").out)
        assert rows
    verify(directory)


async def test_three_nodes_learn_labels(tmp_path: Path) -> None:
    whole = write_digits(tmp_path / "digits.npz")
    directory = make_federation(
        tmp_path / "net",
        num_nodes=3,
        rounds=6,
        method="fedavg",
        task="multilabel",
        data=f"npz:{whole}",
        partition="dirichlet:0.5",
        settings=("local_epochs=2", "lr=0.2"),
    )
    config = directory / "node0.yaml"
    archive = np.load(whole)
    np.savez(tmp_path / "test.npz", x=archive["x_test"], y=archive["y_test"], classes=archive["classes"])
    async with Federation(directory) as net:
        await run_all_rounds(net, 6)
        found = json.loads(succeed("evaluate", tmp_path / "test.npz", "--config", config, "--json").out)
        summary = found["measures"]["summary"]
        assert found["signs"] == {}
        assert summary["exact_match"] > 0.7
        assert summary["hamming_loss"] < 0.12
        assert summary["auc"] > 0.93
        assert tuple(one["class"] for one in found["measures"]["classes"]) == LABELS
        for one in found["measures"]["classes"]:
            assert one["values"]["sensitivity"] > 0.75
            assert one["values"]["specificity"] > 0.75
        shown = succeed("evaluate", tmp_path / "test.npz", "--config", config, "--resamples", "0").out
        assert "exact match" in shown
        assert "LABEL" in shown

        told = json.loads(succeed("predict", tmp_path / "test.npz", "--config", config, "--json").out)["predictions"]
        right = [one["expected"] == [label["class"] for label in one["labels"]] for one in told]
        assert np.mean(right) == pytest.approx(summary["exact_match"])
        assert right == [one["correct"] for one in told]
        assert "LABELS" in succeed("predict", tmp_path / "test.npz", "--config", config).out
        statuses = await net.get_statuses()
        assert all(status["accuracy"] > 0.5 for status in statuses.values())  # all labels right
    verify(directory)
