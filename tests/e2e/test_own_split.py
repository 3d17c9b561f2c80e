"""Real nodes with tables of their own: one keeps its split while its table grows, and one has no rows at first."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest

from node.config.yaml_source import dump_yaml, read_yaml
from node.training.data_watch import DATA_FILE
from node.training.own_split import SEED_FILE, SPLIT_FILE
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def write(path: Path, num_rows: int) -> None:
    r = random.Random(3)
    rows = [f"{r.gauss(i % 2, 1):.4f},{r.gauss(0, 1):.4f},{'bm'[i % 2]}" for i in range(num_rows)]
    path.write_text("\n".join(["a,b,label", *rows]) + "\n")


async def test_rows_keep_their_sides_over_starts_and_backups(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    write(table, 200)
    made = {"num_nodes": 1, "rounds": 0, "difficulty": 4096, "method": "fedavg", "partition": "iid"}
    directory = make_federation(tmp_path / "net", data=f"csv:{table}", settings=("local_iterations=2",), **made)
    config = directory / "node0.yaml"
    config.write_text(dump_yaml(read_yaml(config).value | {"data": {"format": "csv", "path": str(table)}}))
    async with Federation(directory) as net:
        data_dir = net.get_data_dir("node0")
        await net.start()
        await net.wait_for_height(2)
        await net.stop("node0")
        first = json.loads((data_dir / SPLIT_FILE).read_text())
        assert (data_dir / DATA_FILE).is_file()

        write(table, 203)
        await net.start("node0")
        told = await net.wait_for(lambda now: now["node0"]["data_change"] is not None, "the change of the data")
        assert re.fullmatch(
            r"your data differ from round \d+: 200 -> 203 rows(, \d more held out)?", told["node0"]["data_change"]
        )
        assert told["node0"]["num_train"] + told["node0"]["num_test"] == 203
        height = told["node0"]["height"]
        await net.wait_for_height(height + 3)
        rounds = json.loads(run_command("rounds", "list", "--limit", 1000, "-c", config, "--json").out)["rounds"]
        assert [one["data_change"] for one in rounds if one["data_change"]] == [told["node0"]["data_change"]]

        write(table, 204)
        await net.wait_for(lambda now: now["node0"]["data_change"].startswith("the files of your data"), "the write")
        assert "DATA CHANGED" in run_command("status", "-c", config).out

        done = run_command("backup", tmp_path / "node0.tar", "-c", config)
        assert done.code == 0, done.err
        await net.kill("node0")
    kept = {name: (data_dir / name).read_bytes() for name in (SEED_FILE, SPLIT_FILE)}
    grown = json.loads(kept[SPLIT_FILE])
    assert len(grown["train"]) + len(grown["test"]) > len(first["train"]) + len(first["test"])
    shutil.rmtree(data_dir)
    assert run_command("restore", tmp_path / "node0.tar", "-c", config).code == 0
    assert {name: (data_dir / name).read_bytes() for name in kept} == kept


async def test_a_site_without_samples_votes_until_it_has_some(tmp_path: Path) -> None:
    table, empty = tmp_path / "a.csv", tmp_path / "b.csv"
    write(table, 200)
    write(empty, 0)
    made = {"num_nodes": 4, "rounds": 0, "difficulty": 4096, "method": "fedavg", "partition": "iid"}
    directory = make_federation(tmp_path / "net", data=f"csv:{table}", settings=("local_iterations=2",), **made)
    config = directory / "node3.yaml"
    config.write_text(dump_yaml(read_yaml(config).value | {"data": {"format": "csv", "path": str(empty)}}))
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for_height(2)  # which takes its vote
        await net.wait_for(lambda now: now["node3"]["training_trouble"] is not None, "a word about its data")
        status = (await net.get_statuses())["node3"]
        assert "0 samples: contributes nothing, until fednode reload finds some" in status["training_trouble"]
        assert "NOT TRAINED" in run_command("status", "-c", config).out
        write(empty, 30)
        done = run_command("reload", "-c", config)
        assert (done.code, done.out) == (0, "applied: data\n"), done.err
        height = max(one["height"] for one in (await net.get_statuses()).values())
        await net.wait_for_contribution("node3", height + 1)
        assert (await net.get_statuses())["node3"]["num_train"] == 24
        assert run_command("reload", "-c", config).out == "applied: nothing\n"
