"""`fednode rounds` where members take from single peers: who was how far from whom, and who took what of whom."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ml.specs.uapdfl import compute_divergence
from node.cli import main
from support.takers import FEDPER, UAPDFL, TakingTrainer, make_spec, taking
from support.virtual_time import run_virtual

ROUNDS = 4
NAMES = [f"node{i}" for i in range(6)]
Captured = pytest.CaptureFixture[str]


def make_data_dir(path: Path, method: Mapping[str, Any]) -> Path:
    """Of node1, after all rounds."""

    async def story() -> None:
        async with taking(path, 6, method, rounds=ROUNDS) as fed:
            await fed.wait_for_round(ROUNDS)

    run_virtual(story())
    return path / "node1"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data_dir(tmp_path_factory.mktemp("uapdfl"), UAPDFL)


@pytest.fixture
def data_dir(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def run(capsys: Captured, *arguments: str | Path) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def run_json(capsys: Captured, *arguments: str | Path) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run(capsys, *arguments, "--json"))
    return shown


def test_a_round_of_uapdfl_has_the_keys_that_others_rely_on(capsys: Captured, data_dir: Path) -> None:
    shown = run_json(capsys, "rounds", "show", "2", "--data-dir", data_dir)
    assert shown["pulled_bytes"] > 0
    assert shown["gone"] == {}
    assert list(shown["peering"]) == ["held", "div", "threshold", "nodes"]
    nodes = shown["peering"]["nodes"]
    keys = ["id", "name", "branch", "peers", "similar", "donor", "divergences", "weights"]
    assert all(list(node) == keys for node in nodes)
    assert [node["name"] for node in nodes] == NAMES
    assert [node["id"] for node in nodes] == shown["contributors"]
    assert (shown["peering"]["held"], shown["peering"]["div"], shown["peering"]["threshold"]) == (True, "symkl", 0.5)


def test_divergences_are_those_of_the_units_and_branches_follow_from_them(capsys: Captured, data_dir: Path) -> None:
    trainers = [TakingTrainer(i, make_spec(UAPDFL)) for i in range(6)]
    branches = set()
    for height in range(1, ROUNDS + 1):
        units = [trainer.make("unit", height)["unit"] for trainer in trainers]
        nodes = run_json(capsys, "rounds", "show", str(height), "--data-dir", data_dir)["peering"]["nodes"]
        for i, node in enumerate(nodes):
            assert node["divergences"] == pytest.approx([compute_divergence(units[i], unit) for unit in units])
            assert len(node["peers"]) == 2
            assert node["name"] not in node["peers"]
            alike = [name for name in node["peers"] if node["divergences"][NAMES.index(name)] <= 0.5]
            if len(alike) == 2:
                assert (node["branch"], node["donor"], node["similar"]) == ("dropout", node["peers"][0], [])
            else:
                assert (node["branch"], node["donor"], node["similar"]) == ("personalise", None, alike)
            branches.add(node["branch"])
    assert branches == {"dropout", "personalise"}


def test_a_round_shows_the_matrix_by_name_the_threshold_and_who_took_what(capsys: Captured, data_dir: Path) -> None:
    nodes = run_json(capsys, "rounds", "show", "2", "--data-dir", data_dir)["peering"]["nodes"]
    out = run(capsys, "rounds", "show", "2", "--data-dir", data_dir)
    lines = [line.split() for line in out.splitlines()]
    assert ["DIVERGENCES", *NAMES] in lines
    for node in nodes:
        assert [node["name"], *(f"{number:.3f}" for number in node["divergences"])] in lines
        drew = ", ".join(node["peers"]).split()
        if node["donor"]:
            takes = f"g and h of {node['donor']}"
        else:
            takes = f"g of {', '.join(node['peers'])}"
            takes += f"; h of {', '.join(node['similar'])}" if node["similar"] else ""
        assert [node["name"], node["branch"], *drew, *takes.split()] in lines
    assert ["threshold", "0.5", "(symkl)"] in lines
    assert any(line[:1] == ["pulled"] for line in lines)


def test_the_list_has_the_branch_of_this_node(capsys: Captured, data_dir: Path) -> None:
    heading, *rows = (line.split() for line in run(capsys, "rounds", "--data-dir", data_dir).splitlines())
    assert heading[-1] == "BRANCH"
    for row, height in zip(rows, range(ROUNDS, 0, -1), strict=True):
        nodes = run_json(capsys, "rounds", "show", str(height), "--data-dir", data_dir)["peering"]["nodes"]
        assert row[-1] == nodes[1]["branch"]
    assert all(entry["peering"] is None for entry in run_json(capsys, "rounds", "--data-dir", data_dir)["rounds"])


def test_without_the_aggregate_a_round_says_that_it_cannot_know(capsys: Captured, data_dir: Path) -> None:
    digest = run_json(capsys, "chain", "show", "3", "--data-dir", data_dir)["aggregate"]
    (data_dir / "blobs" / digest[:2] / digest).unlink()
    shown = run_json(capsys, "rounds", "show", "3", "--data-dir", data_dir)["peering"]
    assert (shown["held"], shown["nodes"]) == (False, [])
    assert "not held" in run(capsys, "rounds", "show", "3", "--data-dir", data_dir)


def test_a_block_shows_which_payloads_are_held(capsys: Captured, data_dir: Path) -> None:
    shown = run_json(capsys, "chain", "show", "1", "--payloads", "--data-dir", data_dir)
    for contribution in shown["contributions"]:
        for payload in contribution["payloads"]:
            is_voted = payload["kind"] in ("unit", "auxiliary")
            assert payload["held"] == (is_voted or contribution["name"] == "node1")
            assert bool(payload["arrays"]) == payload["held"]
    deep = run_json(capsys, "chain", "verify", "--deep", "--require-all", "--data-dir", data_dir)
    assert (deep["ok"], deep["recomputed"]) == (True, ROUNDS)


def test_where_nothing_is_measured_between_peers_only_the_draw_is_shown(capsys: Captured, tmp_path: Path) -> None:
    data_dir = make_data_dir(tmp_path, FEDPER)
    shown = run_json(capsys, "rounds", "show", "2", "--data-dir", data_dir)["peering"]
    assert (shown["held"], shown["div"], shown["threshold"]) == (True, None, None)
    assert all(len(node["peers"]) == 2 and node["branch"] is None for node in shown["nodes"])
    out = run(capsys, "rounds", "show", "2", "--data-dir", data_dir)
    assert "DIVERGENCES" not in out
    lines = [line.split() for line in out.splitlines()]
    assert ["NODE", "DREW"] in lines
    for node in shown["nodes"]:
        assert [node["name"], *", ".join(node["peers"]).split()] in lines
