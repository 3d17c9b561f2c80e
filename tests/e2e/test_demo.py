"""`fednode demo`: what it prints, and what it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chain.signing import decode_id
from support.federation.real_nodes import DemoRun, Federation, run_command, run_process

pytestmark = pytest.mark.e2e

NODE_KEYS = ["name", "id", "height", "head", "accuracy", "local_accuracy", "bytes_sent_per_round"]
KEYS = ["nodes", "heads_agree", "rounds", "payload_bytes_per_round", "model_bytes", "seconds"]
PHASES = ["train", "exchange", "mine", "vote", "apply", "wall"]


def test_its_last_line_is_the_result_as_json(demo: DemoRun) -> None:
    assert demo.finished.code == 0, demo.finished.err
    result = json.loads(demo.finished.out.splitlines()[-1])
    assert list(result) == KEYS
    assert [list(node) for node in result["nodes"]] == [NODE_KEYS] * 4
    assert list(result["seconds"]) == PHASES
    assert result["rounds"] == demo.rounds
    assert result["heads_agree"] is True


def test_it_measures_what_the_nodes_did(demo: DemoRun) -> None:
    nodes, seconds = demo.result["nodes"], demo.result["seconds"]
    assert [node["name"] for node in nodes] == ["node0", "node1", "node2", "node3"]
    assert len({decode_id(node["id"]) for node in nodes}) == 4
    assert {node["height"] for node in nodes} == {demo.rounds}
    assert len({node["head"] for node in nodes}) == 1
    for node in nodes:
        assert 0 <= node["local_accuracy"] <= 1
        assert 0 <= node["accuracy"] <= 1
        assert node["bytes_sent_per_round"] > demo.result["payload_bytes_per_round"]
    assert sum(node["accuracy"] for node in nodes) > sum(node["local_accuracy"] for node in nodes)
    assert 0 < demo.result["payload_bytes_per_round"] < 1.2 * demo.result["model_bytes"]  # prototypes beside it
    phases = [seconds[phase] for phase in PHASES if phase != "wall"]
    assert all(0 <= took <= seconds["wall"] for took in phases)  # each is a median of its own


async def test_a_node_that_was_kept_starts_again_where_it_was(demo: DemoRun) -> None:
    async with Federation(demo.directory) as net:
        await net.start("node2")
        status = await net.get_status("node2")
        told = next(node for node in demo.result["nodes"] if node["name"] == "node2")
        assert (status["phase"], status["done"]) == ("done", True)
        assert {key: status[key] for key in ("id", "height", "head", "accuracy")} == {
            key: told[key] for key in ("id", "height", "head", "accuracy")
        }
        assert await net.stop("node2") == 0


def test_in_a_pipe_it_prints_a_line_per_round_and_takes_method_and_settings() -> None:
    done = run_process(
        *("demo", "-n", 2, "--rounds", 2, "--method", "fedavg", "--partition", "iid"),
        *("--set", "local_iterations=1", "--set", "waits.collect_s=120"),
    )
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    lines = done.out.splitlines()
    assert lines[0] == "2 nodes on this machine: fedavg on digits split iid, 2 rounds"
    for number in (1, 2):
        assert any(f"round {number:2} applied by all" in line for line in lines)
    assert "heads agree" in lines


def test_what_it_cannot_start_from_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_command("demo", "--set", "lrr=1", "--keep", tmp_path / "net")
    assert done.code == 78
    assert len(done.err.splitlines()) == 1
    assert "--set lrr: method.lrr: unknown key" in done.err
    assert list(tmp_path.iterdir()) == []
