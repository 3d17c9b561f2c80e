"""What `fednode status` makes of a node's answer."""

from __future__ import annotations

from node.cli.status import describe, describe_in_a_line
from node.pb import admin_pb2 as pb


def make_status(**fields: object) -> pb.NodeStatus:
    usual = {"round": 13, "rounds": 20, "phase": "train", "members": 4, "local_iterations": 20}
    return pb.NodeStatus(**(usual | fields))  # type: ignore[arg-type]


def get_facts(**fields: object) -> dict[str, str]:
    return dict(describe(make_status(**fields)))


def test_progress_is_part_of_the_phase_while_there_is_some() -> None:
    under_way = {"train_step": 120, "train_steps": 400}
    assert get_facts(**under_way)["round"].startswith("13 of 20: train 120/400 steps, view 0")
    assert get_facts()["round"].startswith("13 of 20: train, view 0")
    assert "  round 13 train 120/400 steps  " in describe_in_a_line(make_status(**under_way))


def test_the_pace_says_what_is_known_of_it() -> None:
    assert get_facts()["pace"] == "20 local iterations a round"
    known = {"local_iterations": 1, "counts_epochs": True, "alpha_s": 0.25, "beta_s": 2.0}
    assert get_facts(**known)["pace"] == "1 local epoch a round, 0.250 s each (alpha), 2.0 s of mining (beta)"


def test_a_budget_is_shown_with_what_was_spent_of_it() -> None:
    assert "budget" not in get_facts()
    assert get_facts(budget_s=10.0)["budget"] == "10 s a round"
    spent = get_facts(budget_s=10.0, measured_round=12, train_s=7.5, mine_s=2.0)["budget"]
    assert spent == "10 s a round, 7.5 s of training and 2.0 s of mining in round 12"


def test_device_and_precision_are_shown_once_the_worker_is_ready() -> None:
    assert get_facts()["worker"] == "not ready"
    ready = {"device": "cuda:0", "precision": "bf16", "num_train": 9, "num_test": 3, "parameters": 1000}
    assert get_facts(**ready)["worker"] == "cuda:0 bf16, 9 train / 3 test, 1,000 parameters"
