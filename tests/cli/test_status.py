"""`fednode status`: how the command shows a node's answer."""

from __future__ import annotations

from typing import Any

from node.cli.model.measures import describe_briefly
from node.cli.node.status import MAX_NOT_AWAITED, MAX_TRANSFERS, describe, describe_in_a_line
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


def test_transfers_are_listed_as_far_as_a_screen_goes() -> None:
    assert "transfers" not in get_facts()
    sent = pb.Transfer(
        peer_name="node3", digest="ab" * 32, bytes=45_000_000, resumed=5_000_000, total_bytes=123_300_000, seconds=4.0
    )
    named = pb.Transfer(incoming=True, peer_name="node3", kind="encrypted_set", author_name="node2", total_bytes=2**20)
    facts = describe(make_status(transfers=[named, *[sent] * (MAX_TRANSFERS + 1)]))
    at = [name for name, _ in facts].index("transfers")
    lines = [line for _, line in facts[at : at + MAX_TRANSFERS + 1]]
    assert lines[0] == "encrypted set of node2 from node3, 0 B of 1.0 MB, 0 B a second"
    assert lines[1] == "blob abababab to node3, 45.0 MB of 123.3 MB, 10.0 MB a second"
    assert lines[-1] == "and 2 more"
    assert [name for name, _ in facts[at + 1 : at + MAX_TRANSFERS + 1]] == [""] * MAX_TRANSFERS
    assert facts[at + MAX_TRANSFERS + 1][0] == "sent"


def test_device_and_precision_are_shown_once_the_worker_is_ready() -> None:
    assert get_facts()["worker"] == "not ready"
    starting = "the worker is not ready yet: it is being started, imports the model and reads the data"
    assert get_facts(unready_reason=starting)["worker"] == starting
    assert "cuda" in get_facts(unready_reason="2 of 4 in sight", device="cuda:0")["worker"]
    ready = {"device": "cuda:0", "precision": "bf16", "num_train": 9, "num_test": 3, "parameters": 1000}
    assert get_facts(**ready)["worker"] == "cuda:0 bf16, 9 train / 3 test, 1,000 parameters"


def test_who_is_not_awaited_is_named_with_the_reason() -> None:
    assert "not awaited" not in get_facts()
    one = pb.NotAwaited(name="node3", reason="waited for in vain 2 times, last at height 9: no contribution came")
    assert get_facts(not_awaited=[one])["not awaited"] == f"node3: {one.reason}"
    facts = describe(make_status(not_awaited=[one] * (MAX_NOT_AWAITED + 2)))
    at = [name for name, _ in facts].index("not awaited")
    assert facts[at + MAX_NOT_AWAITED] == ("", "and 2 more")
    assert facts[at + MAX_NOT_AWAITED + 1][0] == "sent"


def test_a_wrong_clock_stands_at_the_top() -> None:
    lines = ["the clock of node3 is 300.0 s ahead of the median of 4 members' clocks", "the clock of node1 is …"]
    assert describe(make_status(clocks_wrong=lines))[:2] == [("CLOCK", lines[0]), ("", lines[1])]


def test_another_history_stands_at_the_top() -> None:
    told = "node0 has another block at height 5"
    assert describe(make_status(other_history=told))[0] == ("OTHER HISTORY", told)


def test_the_age_of_the_head_is_told() -> None:
    times = {"head_time": "2026-11-20T14:00:00.250Z", "time": "2026-11-20T14:05:00.250Z"}
    assert get_facts(**times)["head"].endswith("2026-11-20 14:00:00 UTC, 5 min ago")
    turned = {"head_time": times["time"], "time": times["head_time"]}  # by the clock of whoever made it
    assert get_facts(**turned)["head"].endswith(" UTC")


def test_measures_and_what_is_not_learned_are_told() -> None:
    measures = pb.Measures(summary={"balanced_accuracy": 0.5, "auc": 0.61, "loss": 1.0})
    measures.classes.add(class_name="malignant", num_samples=21, values={"sensitivity": 0.0})
    measures.classes.add(class_name="benign", num_samples=36, values={"sensitivity": 1.0})
    signs = ["all 57 test samples are called benign, of which 36 are", "loss 0.7 on the test samples is no better"]
    facts = describe(make_status(measures=measures, not_learning=signs))
    assert facts[:2] == [("NOT LEARNING", signs[0]), ("", signs[1])]
    told = "balanced accuracy 0.500, AUC 0.610, sensitivity 0.000 (malignant) to 1.000 (benign)"
    assert dict(facts)["measures"] == told
    assert "measures" not in get_facts()


def test_the_verdict_stands_before_the_figures_it_judges() -> None:
    told = "Federating helps here: AUC 0.910 against 0.880 alone (+0.030, +0.004 to +0.056), on 61 test samples."
    alone = pb.TrainedAlone(rounds=12, verdict=pb.Verdict(measure="auc", sentence=told))
    facts = describe(make_status(alone=alone, measures=pb.Measures(summary={"auc": 0.91})))
    at = [name for name, _ in facts].index("verdict")
    assert facts[at : at + 3] == [("verdict", told), ("accuracy", "not measured yet"), ("measures", "AUC 0.910")]
    assert "verdict" not in get_facts(alone=pb.TrainedAlone(owed_steps=3))


def test_what_both_models_mixed_are_worth_stands_beside() -> None:
    measures, mixed = pb.Measures(summary={"auc": 0.9}), pb.Measures(summary={"accuracy": 0.8, "auc": 0.91})
    facts = get_facts(alone=pb.TrainedAlone(rounds=2, measures=measures, mixed=mixed, weight=0.54))
    assert facts["alone"] == "AUC 0.900; after the work of 2 rounds"
    assert facts["mixed"] == "accuracy 0.800, AUC 0.910; 0.54 federation, 0.46 alone"
    assert "mixed" not in get_facts(alone=pb.TrainedAlone(rounds=2, measures=measures))


def test_classes_are_named_in_one_order() -> None:
    measures = [pb.Measures(), pb.Measures()]
    for found, values in zip(measures, ((0.5, 0.75), (1.0, 0.25)), strict=True):
        for name, value in zip(("benign", "malignant"), values, strict=True):
            found.classes.add(class_name=name, num_samples=9, values={"sensitivity": value})
    assert [describe_briefly(found) for found in measures] == [
        "sensitivity 0.500 (benign) to 0.750 (malignant)",
        "sensitivity 1.000 (benign) to 0.250 (malignant)",
    ]


def test_what_was_told_of_samples_shows_with_its_budget() -> None:
    told = pb.PrivacySpent(phases=12, epsilon=2.25, epsilon_phases=12, delta=1e-5, budget=8.0)
    assert get_facts(privacy=told)["privacy"] == "epsilon 2.25, of 8, delta 1e-05, after 12 local phases"
    later = pb.PrivacySpent(phases=12, epsilon=2.25, epsilon_phases=9, delta=1e-5)
    assert get_facts(privacy=later)["privacy"] == "epsilon 2.25, delta 1e-05, after 9 of 12 local phases"
    unknown = pb.PrivacySpent(phases=1, delta=1e-5)
    assert get_facts(privacy=unknown)["privacy"].startswith("1 local phase told of; epsilon is being added up")
    guessed = pb.PrivacySpent(phases=9, epsilon_phases=9, guessable=4, delta=1e-5)
    assert get_facts(privacy=guessed)["privacy"] == (
        "9 local phases told of, 4 of them with noise that can be guessed: epsilon is infinite"
    )
    aside = pb.PrivacySpent(phases=9, epsilon=2.25, epsilon_phases=9, guessable=4, set_aside=True, delta=1e-5)
    assert get_facts(privacy=aside)["privacy"] == (
        "epsilon 2.25, delta 1e-05, after 9 local phases, with 4 set aside whose noise can be guessed"
    )
    none = pb.PrivacySpent(phases=3, epsilon_phases=3, delta=1e-5)  # infinite, which JSON has no number for
    assert get_facts(privacy=none)["privacy"] == "3 local phases told of, with noise so small that nothing is hidden"


def test_a_sign_against_a_model_that_learns_is_not_called_not_learning() -> None:
    sign = "it overfits: since round 2, the best, the training loss fell"
    assert describe(make_status(model_signs=[sign]))[0] == ("MODEL", sign)


def test_a_run_that_patience_has_ended_does_not_say_that_its_rounds_are_made() -> None:
    assert get_facts(done=True)["round"] == "13 of 20: the set rounds are done"
    ended: dict[str, Any] = {"selected": pb.Selected(by="loss", best_round=9, patience=3, stopped=13)}
    assert get_facts(done=True, **ended)["round"] == "13 of 20: patience has ended the run"


def test_a_height_without_training_has_no_pace_of_nought() -> None:
    assert get_facts(local_iterations=0, beta_s=0.5)["pace"] == "nothing to train now, 0.500 s of mining (beta)"


def test_a_sites_own_best_round_is_shown_beside() -> None:
    own, selected = pb.OwnBest(round=9, by="loss", score=0.41), pb.Selected(by="loss", best_round=7, score=0.25)
    assert "own best" not in get_facts(selected=selected)
    assert get_facts(own_best=own)["own best"] == "9 by val loss 0.4100"
    names = list(get_facts(own_best=own, selected=selected))
    assert names.index("own best") == names.index("best round") + 1


def test_the_best_round_is_shown_with_the_patience_that_is_left() -> None:
    assert "best round" not in get_facts()

    def show(done: bool = False, **fields: object) -> str:
        usual: dict[str, object] = {"by": "loss", "patience": 3, "best_round": 7, "score": 0.25, "last_round": 7}
        return get_facts(selected=pb.Selected(**(usual | fields)), done=done)["best round"]  # type: ignore[arg-type]

    assert show() == "7 by val loss 0.2500; 3 more without a better one end the run"
    later: dict[str, Any] = {"since": 2, "last_round": 9, "last_score": 0.3}
    assert show(**later) == "7 by val loss 0.2500, 0.3000 in round 9; 1 more without a better one end the run"
    assert show(done=True, stopped=11, **later).endswith("0.3000 in round 9; patience has ended the run after round 11")
    assert show(patience=0) == "7 by val loss 0.2500"
    assert show(done=True) == "7 by val loss 0.2500"
    none = "no quorum of members has measured a round by val samples"
    assert show(best_round=0) == f"{none} yet; the run goes on to its rounds"
    assert show(best_round=0, done=True) == none
