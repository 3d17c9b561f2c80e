"""Three real sites, each with a skewed part of breast_cancer in its own units' scales, agree on what normalises all and
fills empty cells, whatever the order of their columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from sklearn.datasets import load_breast_cancer

from ml.data import open_dataset
from ml.data.base import ArrayDataset, InputFormat
from ml.data.table_input import TableInput
from node.config.genesis_file import load_genesis
from node.config.yaml_source import dump_yaml, read_yaml
from node.training.own_split import open_own_sides
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = pytest.mark.e2e

ROUNDS = 5
SITES = {"node0": (250, 40), "node1": (80, 90), "node2": (20, 80)}  # benign and malignant


def write_sites(directory: Path, share_empty: float) -> None:
    """A table for each, one with its columns the other way round and one more; so many of the cells are empty."""
    cancer, rng = load_breast_cancer(), np.random.default_rng(1)
    rows = {name: list(rng.permutation(np.flatnonzero(cancer.target == c))) for c, name in ((1, "b"), (0, "m"))}
    for name, (num_b, num_m) in SITES.items():
        own = [rows["b"].pop() for _ in range(num_b)] + [rows["m"].pop() for _ in range(num_m)]
        table = [[*cancer.feature_names, "label"]]
        for i in own:
            cells = ["" if rng.random() < share_empty else repr(value) for value in cancer.data[i].tolist()]
            table.append([*cells, cancer.target_names[cancer.target[i]]])
        if name == "node1":
            table = [[f"row {i}" if i else "note", *reversed(row)] for i, row in enumerate(table)]
        (directory / f"{name}.csv").write_text("\n".join(map(",".join, table)) + "\n")


def open_as_node(data_dir: Path, file: Path, table: TableInput | None) -> ArrayDataset:
    """What a site trains on, by the split that it has made."""
    data = {"format": "csv", "path": str(file)}
    return open_dataset(data, table=table, sides=open_own_sides(data_dir, data))[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share_empty", "settings"), [(0.0, ()), (0.2, ("input.missing=mean",))], ids=["full", "empty"]
)
async def test_sites_with_unscaled_features_agree_on_constants_and_learn(
    tmp_path: Path, share_empty: float, settings: tuple[str, ...]
) -> None:
    write_sites(tmp_path, share_empty)
    directory = make_federation(
        tmp_path / "net",
        num_nodes=3,
        rounds=ROUNDS,
        method="fedavg",
        data=f"csv:{tmp_path / 'node0.csv'}",
        partition="iid",
        settings=(
            "local_iterations=20",
            "lr=0.1",
            "class_weights=agreed",
            "input.normalize=agreed",
            "input.class_counts=true",
            *settings,
        ),
    )
    for name in SITES:
        config = directory / f"{name}.yaml"
        told = read_yaml(config).value
        told["training"] = {**told.get("training", {}), "compare_local": True}
        config.write_text(dump_yaml({**told, "data": {"format": "csv", "path": f"../{name}.csv"}}))
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for_height(2)
        await net.stop("node1")
        await net.start("node1")
        statuses = await net.wait_for(
            lambda now: all(status["done"] and status["applied_round"] == ROUNDS for status in now.values()), "the end"
        )
        assert await net.check_agreement() == ROUNDS
        table = InputFormat.from_mapping(load_genesis(directory / "genesis.yaml").genesis.run.input).table
        trained = [open_as_node(net.get_data_dir(name), tmp_path / f"{name}.csv", table) for name in SITES]
        num = sum(map(len, trained))
        for status in statuses.values():
            assert status["statistics"] == f"agreed from 3 sites, {num} samples"
            assert status["accuracy"] > 0.8
            assert status["alone"]["measures"]["summary"]["balanced_accuracy"] > 0.5
        shown = run_command("rounds", "show", 1, "--config", directory / "node0.yaml")
        assert f"statistics agreed from 3 sites, {num} samples" in shown.out, shown.err
        by = ("--answer-by", "federation", "--json")
        asked = run_command("predict", "--config", directory / "node2.yaml", tmp_path / "node0.csv", *by)
        assert asked.code == 0, asked.err
        labels = [one["class"] for one in json.loads(asked.out)["predictions"]]
        own = [line.rpartition(",")[2] for line in (tmp_path / "node0.csv").read_text().splitlines()[1:]]
        assert np.mean([a == b for a, b in zip(labels, own, strict=True)]) > 0.8
        asked = run_command("evaluate", "--config", directory / "node2.yaml", tmp_path / "node0.csv", "--json")
        assert asked.code == 0, asked.err
        found = json.loads(asked.out)
        alone, measures = found["alone"], found["alone"]["measures"]
        assert 1 <= alone["rounds"] <= ROUNDS
        assert measures["num_samples"] == len(own) == found["measures"]["num_samples"]
        assert {"auc", "balanced_accuracy"} <= measures["intervals"].keys()
        assert {"sensitivity", "specificity", "auc"} <= measures["classes"][0]["intervals"].keys()
    for name in SITES:
        verified = run_command("chain", "verify", "--deep", "--data-dir", net.get_data_dir(name))
        assert verified.code == 0, verified.err + verified.out
    file = tmp_path / "model.safetensors"
    exported = run_command("model", "export", file, "--data-dir", net.get_data_dir("node1"))
    assert exported.code == 0, exported.err
    with safe_open(file, framework="np") as opened:
        input_ = json.loads(opened.metadata()["fednode.input"])
    pooled = np.concatenate([part.x for part in trained])[:, :, 0, 0].astype(np.float64)
    assert np.isnan(pooled).any() == bool(share_empty)
    np.testing.assert_allclose(input_["mean"], np.nanmean(pooled, 0), rtol=1e-6)
    np.testing.assert_allclose(input_["std"], np.nanstd(pooled, 0), rtol=1e-6)
    assert len(input_["columns"]) == pooled.shape[1]
