"""`fednode rounds show`: the scores of contributions; and where members take from single peers, who was how far from
whom, and who took what of whom."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.changes.rules import SetRules
from chain.genesis import Genesis
from chain.signing import SigningKey
from chain.store.sqlite import SqliteStore
from ml.measures.alone import TrainedAlone
from ml.measures.classification import measure
from ml.measures.collapse import find_signs
from ml.measures.verdict import Verdict
from ml.specs.methods.uapdfl import compute_divergence
from node.cli import main
from node.cli.federation.rounds import print_scores
from node.pb import admin_pb2 as pb
from support.data.blobs import lose_blob
from support.data.synthetic import make_genesis
from support.federation.cluster import cluster
from support.federation.ledgers import make_ledgers
from support.federation.proposing import change, get_state, wait_for_state
from support.federation.pulling import FEDPER, UAPDFL, TakingTrainer, make_spec, taking
from support.federation.runs import start_run
from support.federation.virtual_time import run_virtual

ROUNDS = 4
RULES = SetRules({"keep_heights": (2, 50)})
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
    lose_blob(data_dir, bytes.fromhex(digest))
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


# ---- scores


@pytest.fixture(scope="module")
def combined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a node whose members combine prototypes."""
    path = tmp_path_factory.mktemp("dfpl")
    make_ledgers(path, 2)
    return path / "node0"


def test_scores_are_asked_for_and_a_stopped_node_has_distances_alone(capsys: Captured, combined: Path) -> None:
    plain = run_json(capsys, "rounds", "show", "2", "--data-dir", combined)
    assert (plain["scores"], plain["no_distance"], plain["no_effect"]) == ([], None, None)
    assert "DISTANCE" not in run(capsys, "rounds", "show", "2", "--data-dir", combined)
    shown = run_json(capsys, "rounds", "show", "2", "--scores", "--data-dir", combined)
    assert [list(score) for score in shown["scores"]] == [["author", "name", "distance", "effect"]] * 4
    assert [score["author"] for score in shown["scores"]] == shown["contributors"]
    assert [score["name"] for score in shown["scores"]] == shown["contributor_names"]
    assert all(score["distance"] > 0 and score["effect"] is None for score in shown["scores"])
    assert sorted(score["distance"] for score in shown["scores"])[1] == 1.0
    assert (shown["no_distance"], shown["no_effect"]) == (
        None,
        "a stopped node evaluates nothing: ask it while it runs",
    )
    assert {**shown, "scores": [], "no_effect": None} == plain
    lines = run(capsys, "rounds", "show", "2", "--scores", "--data-dir", combined).splitlines()
    place = next(i for i, line in enumerate(lines) if line.split() == ["MEMBER", "DISTANCE", "EFFECT"])
    for line, score in zip(lines[place + 1 :], shown["scores"], strict=False):
        assert line.split() == [score["name"], f"{score['distance']:.4g}", "-"]
    assert lines[-1] == "no effect: a stopped node evaluates nothing: ask it while it runs"


def test_scores_that_were_worked_out_are_shown_to_whoever_looks(
    capsys: Captured, combined: Path, tmp_path: Path
) -> None:
    data_dir = Path(shutil.copytree(combined, tmp_path / "data"))
    authors = run_json(capsys, "rounds", "show", "1", "--data-dir", data_dir)["contributors"]
    genesis = SqliteStore.stored_genesis(data_dir)
    assert genesis is not None
    kept = [
        {"author": author, "distance": 1.5 * i, "effect": None if i == 2 else i / 8} for i, author in enumerate(authors)
    ]
    with SqliteStore.open(data_dir, Genesis.from_mapping(genesis)) as store:
        record = store.get_round(1)
        assert record is not None
        store.put_round(1, record | {"scores": kept})
    shown = run_json(capsys, "rounds", "show", "1", "--data-dir", data_dir)["scores"]
    assert [{key: score[key] for key in ("author", "distance", "effect")} for score in shown] == kept
    lines = [line.split() for line in run(capsys, "rounds", "show", "1", "--data-dir", data_dir).splitlines()]
    assert lines[-4:] == [
        ["node0", "0", "+0"],
        ["node1", "1.5", "+0.125"],
        ["node2", "3", "-"],
        ["node3", "4.5", "+0.375"],
    ]


def test_what_is_missing_has_its_reason_below_the_table(capsys: Captured) -> None:
    far = pb.Score(name="node3", distance=1.23456e7, effect=-0.012345)
    shown = pb.Round(scores=[pb.Score(name="node0"), far], no_distance="too few", no_effect="time is up")
    print_scores(shown)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "",
        "MEMBER DISTANCE EFFECT",
        "node0 - -",
        "node3 1.235e+07 -0.01235",
        "no distance: too few",
        "no effect: time is up",
    ]


def test_where_nothing_is_combined_the_scores_say_so(capsys: Captured, data_dir: Path) -> None:
    lines = run(capsys, "rounds", "show", "2", "--scores", "--data-dir", data_dir).splitlines()
    reason = "members combine nothing in this round, and take from single peers at most"
    assert f"no distance: {reason}" in lines
    assert f"no effect: {reason}" in lines


def test_a_round_shows_what_its_answers_were_worth_and_what_speaks_against_the_model(
    capsys: Captured, tmp_path: Path
) -> None:
    genesis = make_ledgers(tmp_path, 2)
    y, labels = np.array([0] * 21 + [1] * 36), np.ones(57, np.int64)
    measures = replace(measure(y, labels, np.full((57, 3), 1 / 3), 0.7), classes=("malignant", "benign", "none"))
    signs = find_signs(measures, {})
    verdict = Verdict("auc", 0.9, 0.85, 57, -0.01, 0.09, rounds=2).of_newest(2)
    alone = TrainedAlone(2, 0, 0.5, measures, verdict=verdict)
    record = {"accuracy": 0.63, "measures": measures.to_mapping(), "signs": signs, "alone": alone.to_mapping()}
    with SqliteStore.open(tmp_path / "node0", genesis) as store:
        store.put_round(2, record)
    out = run(capsys, "rounds", "show", "2", "--data-dir", tmp_path / "node0")
    lines = [line.split() for line in out.splitlines()]
    assert ["balanced", "accuracy", "0.500"] in lines
    row = next(line for line in lines if line[:1] == ["malignant"])
    assert row[1:10] == ["21", "0.000", "(0.000", "to", "0.155)", "1.000", "(0.904", "to", "1.000)"]
    assert ["malignant", "0", "21"] in lines  # what they were taken for; nobody is of the third class
    assert "not learned        all 57 test samples are called benign, of which 36 are" in out
    shown = run_json(capsys, "rounds", "show", "2", "--data-dir", tmp_path / "node0")
    assert shown["signs"].keys() == {"one_class"}
    assert shown["measures"]["summary"]["accuracy"] == pytest.approx(36 / 57)
    assert shown["measures"]["classes"][2]["values"] == {"specificity": 1.0}
    assert shown["alone"]["verdict"]["sentence"] == verdict.sentence
    assert verdict.sentence in out
    listed = run(capsys, "rounds", "--data-dir", tmp_path / "node0")
    assert "one answer" in listed
    assert listed.endswith(f"\n{verdict.sentence}\n")
    series = run_json(capsys, "metrics", "--data-dir", tmp_path / "node0", "--series", "measures.sensitivity.benign")
    assert series["rounds"][-1]["measures.sensitivity.benign"] == 1.0


def test_head_is_the_newest_round_and_each_run_counts_its_own_work(capsys: Captured, tmp_path: Path) -> None:
    """Two rounds of a run that counts iterations, one of a run that counts epochs, and above it a change."""

    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, rounds=0, method={"name": "dfpl"}) as net:
            await net.wait_for_height(2)
            first = get_state(net, "node0").run
            await change(net, start_run(first, method={"name": "dfpl", "local_epochs": 2}, rounds=1))
            await wait_for_state(net, "the next run", lambda state: state.run.number == 2)
            await net.wait_for_height(get_state(net, "node0").run.first_height)
            await change(net, RULES)
            await wait_for_state(net, "the rule", lambda state: state.rules.keep_heights == 50)

    run_virtual(story())
    data_dir = tmp_path / "nodes" / "node0"
    newest, *others = run_json(capsys, "rounds", "list", "--data-dir", data_dir)["rounds"]
    assert (newest["run"], newest["round"], newest["counts_epochs"]) == (2, 1, True)
    assert {(entry["run"], entry["counts_epochs"]) for entry in others} == {(1, False)}
    head = run_json(capsys, "chain", "show", "head", "--data-dir", data_dir)
    assert head["height"] > newest["height"]  # a change
    assert run_json(capsys, "rounds", "show", "head", "--data-dir", data_dir) == newest
    assert "local epochs" in run(capsys, "rounds", "show", "head", "--data-dir", data_dir)
    assert "local iterations" in run(capsys, "rounds", "show", "1", "--data-dir", data_dir)
    planned = run_json(capsys, "plan", "--budget", "10s", "--data-dir", data_dir)
    assert planned["unit"] == "epoch"


def test_without_a_round_there_is_no_newest(capsys: Captured, tmp_path: Path) -> None:
    genesis = make_genesis([SigningKey.from_private_bytes(bytes(32))], difficulty=1, target_ms=50)
    SqliteStore.open(tmp_path, genesis).close()
    assert main(["rounds", "show", "head", "--data-dir", str(tmp_path)]) == 3
    assert "expected a round, but none has been finalised yet" in capsys.readouterr().err
    assert main(["rounds", "show", "newest", "--data-dir", str(tmp_path)]) == 2
    assert "or head (got 'newest')" in capsys.readouterr().err


def test_what_val_samples_show_and_other_signs_stand_with_the_round(capsys: Captured, tmp_path: Path) -> None:
    genesis = make_ledgers(tmp_path, 2)
    signs = {"overfitting": "it overfits: since round 1", "few": "9 test samples are too few to tell"}
    val = {"val_loss": 0.4321, "val_auc": 0.9, "val_samples": 24}
    with SqliteStore.open(tmp_path / "node0", genesis) as store:
        store.put_round(2, {"accuracy": 0.63, "apply": val, "signs": signs})
    lines = run(capsys, "rounds", "show", "2", "--data-dir", tmp_path / "node0").splitlines()
    told = [line.split(None, 1) for line in lines]
    assert ["val", "loss 0.432, AUC 0.900, 24 samples"] in told
    assert ["model", signs["few"]] in told
    assert any(signs["overfitting"] in line and "model" not in line for line in lines)
    listed = run(capsys, "rounds", "--data-dir", tmp_path / "node0")
    assert "overfits" in listed
    assert "few" not in listed
    series = run_json(capsys, "metrics", "--data-dir", tmp_path / "node0", "--series", "apply.val_loss")
    assert series["rounds"][-1]["apply.val_loss"] == 0.4321
