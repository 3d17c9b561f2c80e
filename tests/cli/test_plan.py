"""`fednode plan`: the paper's tables from numbers that are given, and plans from what a node measured."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

from chain.store.rows import DATABASE
from ml.bounds.fedproto import Constants
from ml.clients import loss_constants
from ml.clients.loss_constants import Measured
from node.cli import main
from node.cli.research.plan import parse_duration, parse_frequency
from node.training.local_work import LocalWork
from support.federation.ledgers import make_ledgers

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDNODE_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)


def run(capsys: Captured, *arguments: object) -> tuple[int, str, str]:
    code = main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: Captured, *arguments: object) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    shown: dict[str, Any] = json.loads(out)
    return shown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("100s", 100.0), ("5m", 300.0), ("1.5h", 5400.0), ("250ms", 0.25), ("300ms", 0.3), ("2 min", 120.0), ("7", 7.0)],
)
def test_a_time_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1e9", "nan", "1h30m", "١s", "9" * 13])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected a time, as in 100s"):
        parse_duration(text)


def test_the_papers_numbers_are_printed_as_the_paper_does(capsys: Captured) -> None:
    shown = run_json(capsys, "--budget", "100s", "--rounds", 6, "--alpha", 1, "--beta", 4)
    assert shown == {
        "budget_s": 100.0,
        "alpha_s": 1.0,
        "beta_s": 4.0,
        "unit": "iteration",
        "plans": [{"rounds": 6, "local_iterations": 12, "available_s": 76.0, "used_s": 72.0}],
    }
    code, out, _ = run(capsys, "--budget", "100s", "--rounds", 6, "--alpha", 1, "--beta", 4)
    assert code == 0
    assert out.splitlines()[:3] == [
        "E               12 local iterations a round",
        "t_sum - R*beta  76 s of training, in 6 rounds",
        "E*alpha*R       72 s of it used",
    ]


@pytest.mark.parametrize(
    ("text", "hertz"), [("2.5GHz", 2.5e9), ("32 MHz", 32e6), ("1e9", 1e9), ("5khz", 5000.0), ("7", 7.0)]
)
def test_a_frequency_has_a_unit_or_is_in_hertz(text: str, hertz: float) -> None:
    assert parse_frequency(text) == pytest.approx(hertz, rel=1e-15)


@pytest.mark.parametrize("text", ["", "GHz", "-1", "1THz", "1m", "inf"])
def test_what_is_no_frequency_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected a frequency, as in"):
        parse_frequency(text)


def test_alpha_and_beta_follow_from_cycles(capsys: Captured) -> None:
    budget = ("--budget", "100s", "--rounds", 6)
    training = (*budget, "--cycles", "1e6", "--frequency", "32MHz", "--beta", 4)
    shown = run_json(capsys, *training)  # alpha = 32 * 1e6 / 32e6 = 1 s
    assert (shown["alpha_s"], shown["beta_s"], shown["plans"][0]["local_iterations"]) == (1.0, 4.0, 12)
    assert run_json(capsys, *training, "--samples", 16)["alpha_s"] == 0.5
    mining = ("--hash-cycles", "4e9", "--difficulty", 20, "--clients", 20, "--frequency", "1GHz")
    shown = run_json(capsys, *budget, *mining, "--alpha", 2)  # beta = 20 * 4e9 / (20 * 1e9) = 4 s
    assert (shown["alpha_s"], shown["beta_s"], shown["plans"][0]["local_iterations"]) == (2.0, 4.0, 6)
    shown = run_json(capsys, *budget, *mining, "--cycles", "125e6")  # alpha = 32 * 125e6 / 1e9 = 4 s
    assert (shown["alpha_s"], shown["beta_s"], shown["plans"][0]["local_iterations"]) == (4.0, 4.0, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cycles", 1, "--beta", 1), "expected --frequency beside --cycles"),
        (("--cycles", 1, "--alpha", 1, "--frequency", 1), "expected --alpha or --cycles, not both"),
        (("--difficulty", 1, "--frequency", 1), "expected --hash-cycles, --clients beside --difficulty"),
        (("--frequency", 1), "beside --frequency"),
        (("--samples", 16, "--alpha", 1, "--beta", 1), "expected --cycles beside --samples"),
    ],
)
def test_half_of_what_a_time_follows_from_is_a_usage_error(
    arguments: tuple[object, ...], said: str, capsys: Captured
) -> None:
    code, _, err = run(capsys, "--budget", "100s", *arguments)
    assert code == 2
    assert said in " ".join(err.replace("│", " ").split())


def test_cycles_that_are_no_number_above_0_are_refused_with_1(capsys: Captured) -> None:
    code, _, err = run(capsys, "--budget", "1s", "--cycles", 0, "--frequency", 1, "--beta", 1)
    assert (code, "cycles_per_sample: expected a finite number above 0" in err) == (1, True)


def test_without_rounds_there_is_a_table_of_all_that_fit(capsys: Captured) -> None:
    code, out, _ = run(capsys, "--budget", "100s", "--alpha", 1, "--beta", 4)
    assert code == 0
    lines = [line.split() for line in out.splitlines()[2:]]
    assert [line[0] for line in lines] == [str(rounds) for rounds in range(1, 21)]
    assert lines[4] == ["5", "16", "80", "80"]
    assert lines[-1] == ["20", "1", "20", "20"]
    many = run_json(capsys, "--budget", "1h", "--alpha", "10ms", "--beta", "20ms")["plans"]
    rounds = [plan["rounds"] for plan in many]
    assert (len(rounds), rounds[0], rounds[-1], many[-1]["local_iterations"]) == (20, 1, 120_000, 1)
    assert rounds == sorted(set(rounds))


def test_what_leaves_no_time_for_one_iteration_is_refused_with_1(capsys: Captured) -> None:
    for arguments in (["--rounds", 30], []):
        code, out, err = run(capsys, "--budget", "4s", "--alpha", 1, "--beta", 4, *arguments)
        assert (code, out) == (1, "")
        assert "expected at least one local iteration of 1 s" in err
    code, _, err = run(capsys, "--budget", "4s", "--alpha", 0, "--beta", 4)
    assert (code, "alpha_s: expected a finite number above 0" in err) == (1, True)


def test_a_time_that_is_none_is_a_usage_error(capsys: Captured) -> None:
    code, _, err = run(capsys, "--budget", "soon")
    assert code == 2
    assert "expected a time" in err


def test_a_stopped_nodes_measurements_are_used_where_none_are_given(capsys: Captured, tmp_path: Path) -> None:
    make_ledgers(tmp_path / "nodes", 3)
    data_dir = tmp_path / "nodes" / "node1"
    main(["rounds", "list", "--data-dir", str(data_dir), "--json"])
    records = json.loads(capsys.readouterr().out)["rounds"]
    local_work = LocalWork.from_records(None, reversed(records))
    assert local_work.alpha_s == pytest.approx(0.001)
    shown = run_json(capsys, "--budget", "10s", "--rounds", 2, "--data-dir", data_dir)
    assert (shown["alpha_s"], shown["beta_s"]) == (local_work.alpha_s, local_work.beta_s)
    given = run_json(capsys, "--budget", "10s", "--rounds", 2, "--alpha", "2s", "--data-dir", data_dir)
    assert (given["alpha_s"], given["beta_s"], given["plans"][0]["local_iterations"]) == (2.0, local_work.beta_s, 2)
    code, out, _ = run(capsys, "--budget", "100s", "--data-dir", data_dir)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.endswith("as genesis sets")] == ["3"]


@pytest.mark.parametrize("work", [{"local_epochs": 2}, {"iteration": "epoch"}, {}], ids=str)
def test_what_is_counted_is_what_the_method_counts(work: dict[str, Any], capsys: Captured, tmp_path: Path) -> None:
    make_ledgers(tmp_path / "nodes", 1, method={"name": "dfpl", **work})
    shown = run_json(capsys, "--budget", "10s", "--rounds", 2, "--data-dir", tmp_path / "nodes" / "node0")
    unit = "epoch" if work else "iteration"
    assert shown["unit"] == unit
    assert main(["rounds", "show", "1", "--data-dir", str(tmp_path / "nodes" / "node0")]) == 0
    assert f"s a local {unit}" in capsys.readouterr().out


def test_a_node_that_has_measured_nothing_says_what_it_needs(capsys: Captured, tmp_path: Path) -> None:
    make_ledgers(tmp_path / "nodes", 1)
    with closing(sqlite3.connect(tmp_path / "nodes" / "node0" / DATABASE)) as database:
        database.execute("DELETE FROM rounds")  # as if it had only caught up
        database.commit()
    code, _, err = run(capsys, "--budget", "10s", "--beta", "1s", "--data-dir", tmp_path / "nodes" / "node0")
    assert code == 1
    assert "expected a round that was measured there, or --alpha TIME" in err
    code, _, err = run(capsys, "--budget", "10s")
    assert code == 4
    assert "--socket" in err


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of two nodes that would train dfpl as printed."""
    directory = tmp_path_factory.mktemp("net") / "cluster"
    assert main(["testnet", "-n", "2", "-o", str(directory), "--method", "dfpl", "--set", "aux=l2"]) == 0
    return directory


def test_a_bound_is_measured_on_the_nodes_own_samples(network: Path, capsys: Captured) -> None:
    given = ("--budget", "100s", "--alpha", 1, "--beta", 4, "--bound", "--config", network / "node0.yaml")
    shown = run_json(capsys, *given, "--rounds", 5)
    bound, (plan,) = shown["bound"], shown["plans"]
    assert (bound["lambda"], bound["lr"], len(bound["squares"])) == (1.0, 0.1, 61)
    squares, noise = bound["squares"], bound["sigma"] ** 2
    assert squares[-1] < squares[0]
    assert plan["lambda_below"] == pytest.approx(squares[0] / (bound["l2"] * 16 * bound["g"]))  # E is 16
    total = sum(squares[:16])
    assert plan["lr_below_without_lambda"] == pytest.approx(2 * total / (bound["l1"] * (total + 16 * noise)))
    assert plan["lambda_below"] < 1  # so that with lambda 1 no learning rate is low enough
    assert (plan["lr_below_first"], plan["lr_below"]) == (0, 0)
    l1, pull = bound["l1"], bound["l2"] * bound["g"]
    change = -(0.1 - l1 * 0.01 / 2) * total + 16 * (l1 * 0.01 / 2 * noise + 0.1 * pull)  # theorem 1
    assert (plan["change"], plan["total_change"]) == (pytest.approx(change), pytest.approx(5 * change))
    assert "mean_square" not in plan


def test_a_table_marks_the_best_number_of_rounds_and_those_that_reach_a_goal(
    network: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Measured(Constants(l1=2, l2=3, sigma=4, g=5), tuple(100 / 2**e for e in range(60)))
    monkeypatch.setattr(loss_constants, "measure_constants", lambda *_, **__: known)
    given = ("--budget", "100s", "--alpha", 2, "--beta", 4, "--bound", "--config", network / "node0.yaml")
    code, out, _ = run(capsys, *given)
    assert code == 0
    limits, changes = ([line.split() for line in out.splitlines() if line.split()[:2] == ["5", "8"]])[1:]
    assert limits[3:5] == ["none", "0.242"]  # lambda is 1: (199.2 - 120) / (199.2 + 128)
    assert changes[2] == "40"
    (best,) = (line.split() for line in out.splitlines() if line.endswith("best"))
    assert f"by this bound R = {best[0]} is best; what exchange brings is not in it" in out
    shown = run_json(capsys, *given, "--target", 40, "--gap", 20)
    assert shown["bound"]["best_rounds"] == int(best[0])
    # D = 0.18 * 40 - 0.1 * (3.2 + 30) = 3.88: 40 / 3.88 = 10.3 iterations are enough
    assert shown["bound"]["max_rounds"] == pytest.approx((100 - 2 * 40 / 3.88) / 4)
    enough = [plan["rounds"] for plan in shown["plans"] if plan["is_enough"]]
    assert enough == [rounds for rounds in range(1, 17) if rounds * ((100 / rounds - 4) // 2) > 40 / 3.88]
    assert shown["plans"][4]["mean_square"] == pytest.approx((40 + 3.32 * 40) / (0.18 * 40))
    assert all(plan["mean_square"] < 40 for plan in shown["plans"] if plan["is_enough"])
    code, out, _ = run(capsys, *given, "--target", 40, "--gap", 20)
    assert (code, "a mean squared gradient below 40: R below 19.85, where E is not rounded down" in out) == (0, True)
    code, out, _ = run(capsys, *given, "--target", 15, "--gap", 20)
    assert code == 0
    assert "a mean squared gradient below 15: no number of rounds comes below 15: expected lambda below" in out
    assert run_json(capsys, *given, "--target", 15, "--gap", 20)["bound"]["max_rounds"] is None
    too_fast = Measured(Constants(l1=20, l2=3, sigma=4, g=5), (100.0,))  # for eta 0.1
    monkeypatch.setattr(loss_constants, "measure_constants", lambda *_, **__: too_fast)
    shown = run_json(capsys, *given, "--target", 40, "--gap", 20)
    assert {(plan["mean_square"], plan["is_enough"]) for plan in shown["plans"]} == {(None, False)}
    assert shown["bound"]["best_rounds"] is None
    code, out, _ = run(capsys, *given)
    assert (code, "by this bound no R makes the loss certain to fall; what exchange brings" in out) == (0, True)
    assert not any(line.endswith("best") for line in out.splitlines())


@pytest.mark.parametrize("given", [("--target", 1), ("--gap", 1), ("--target", 1, "--gap", 1)], ids=str)
def test_a_goal_is_one_of_a_bound(given: tuple[object, ...], network: Path, capsys: Captured) -> None:
    bound = ("--bound", "--config", network / "node0.yaml") if len(given) == 2 else ()
    code, _, err = run(capsys, "--budget", "100s", "--alpha", 1, "--beta", 4, *bound, *given)
    assert code == 2
    assert "expected --bound, --target and --gap together" in " ".join(err.replace("│", " ").split())


def test_a_bound_needs_samples_and_a_method_that_it_is_of(network: Path, tmp_path: Path, capsys: Captured) -> None:
    code, _, err = run(capsys, "--budget", "100s", "--alpha", 1, "--beta", 4, "--bound")
    assert code == 2
    assert "expected --config beside --bound" in " ".join(err.replace("│", " ").split())
    assert main(["testnet", "-n", "2", "-o", str(tmp_path / "other"), "--method", "fedavg"]) == 0
    config_file = tmp_path / "other" / "node0.yaml"
    code, _, err = run(capsys, "--budget", "100s", "--alpha", 1, "--beta", 4, "--bound", "--config", config_file)
    assert (code, "expected a chain of dfpl with aux l2 (got fedavg)" in err) == (1, True)
    assert main(["testnet", "-n", "2", "-o", str(tmp_path / "sq"), "--method", "dfpl", "--set", "aux=sq"]) == 0
    given = ("--budget", "100s", "--alpha", 1, "--beta", 4, "--bound", "--config", tmp_path / "sq" / "node0.yaml")
    code, _, err = run(capsys, *given)
    assert (code, "expected a chain of dfpl with aux l2 (got dfpl with aux sq)" in err) == (1, True)


@pytest.mark.parametrize("setting", ["iteration=epoch", "local_epochs=2"])
@pytest.mark.parametrize("how", [(), ("--json",)], ids=["text", "json"])
def test_a_bound_of_epochs_is_refused_before_anything_is_measured_or_printed(
    setting: str, how: tuple[str, ...], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_constants, "measure_constants", lambda *_, **__: pytest.fail("it was measured"))
    assert (
        main(
            ["testnet", "-n", "2", "-o", str(tmp_path / "net"), "--set", setting, "--method", "dfpl", "--set", "aux=l2"]
        )
        == 0
    )
    capsys.readouterr()
    given = ("--budget", "100s", "--alpha", 1, "--beta", 4, "--bound", "--config", tmp_path / "net" / "node0.yaml")
    assert run(capsys, *given, *how) == (1, "", "fednode: --bound: expected local iterations, got epochs\n")
