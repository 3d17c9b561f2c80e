"""Attacks as an axis: which runs there are, what is refused, what runs under attack leave, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.errors import ConfigError
from node.experiments.piece import Piece, simulate_run
from node.experiments.plan import Experiment
from node.experiments.report import write_report
from node.experiments.results import BrokenResult, read_result, write_result
from node.experiments.sections import TableSection
from node.experiments.stock import take_stock
from node.experiments.tables import Table, make_table
from support.data.experiments import get_run, make_document, make_experiment

SMALL = """\
name: small
base: {rounds: 2, shots: 3, method: {local_iterations: 1}, attack: {liars: 1}}
sweep:
  clients: [4, 7]
  method: [fedavg, dfpl]
  attack: [none, noise, {name: noise, sigma: 2.0, label: louder}, shifted_prototypes]
  seed: [1, 2]
"""


def refuse(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        make_experiment(tmp_path, text)
    return [problem.removeprefix(f"{tmp_path / 'try.yaml'}:") for problem in caught.value.problems]


# ---- the sweep


def test_every_attack_is_run_on_the_methods_that_it_fits(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, SMALL)
    assert len(experiment.points) == 2 * 2 * 4 * 2
    unfit = [point for point in experiment.points if point.run is None]
    assert {(point.facts["method"], point.facts["attack"]) for point in unfit} == {("fedavg", "shifted_prototypes")}
    assert all("changes nothing that members of fedavg send" in (point.misfit or "") for point in unfit)
    assert len(experiment.runs) == len(experiment.points) - len(unfit)
    assert get_run(experiment, "dfpl, 7 clients, louder, seed 2").config["attack"] == {
        "name": "noise",
        "liars": 1,
        "sigma": 2.0,
    }


def test_a_run_without_an_attack_is_named_as_if_there_were_no_such_axis(tmp_path: Path) -> None:
    alone = (
        "name: x\nbase: {rounds: 2, shots: 3, clients: 4, method: {local_iterations: 1}}\nsweep: {method: [fedavg]}\n"
    )
    (run,) = make_experiment(tmp_path, alone).runs.values()
    assert run.id == get_run(make_experiment(tmp_path, SMALL), "fedavg, 4 clients, none, seed 1").id
    assert "attack" not in run.config


def test_a_task_may_say_how_many_lie(tmp_path: Path) -> None:
    text = """\
name: x
sweep:
  task: [{label: 1 of 4, clients: 4, attack: {liars: 1}}, {label: 3 of 10, clients: 10, attack: {liars: 3}}]
  method: [fedavg]
  attack: [none, huge]
"""
    runs = make_experiment(tmp_path, text).runs.values()
    found = [(run.label, run.config["clients"], run.config.get("attack", {}).get("liars")) for run in runs]
    assert found == [
        ("fedavg, 1 of 4, none, seed 1", 4, None),
        ("fedavg, 1 of 4, huge, seed 1", 4, 1),
        ("fedavg, 3 of 10, none, seed 1", 10, None),
        ("fedavg, 3 of 10, huge, seed 1", 10, 3),
    ]


def test_a_setting_of_attacks_may_be_an_axis(tmp_path: Path) -> None:
    text = "name: x\nsweep: {method: [fedavg], attack: [none, noise], attack.liars: [1, 2]}\n"
    experiment = make_experiment(tmp_path, text)
    assert len(experiment.points) == 4
    assert [run.config.get("attack", {}).get("liars") for run in experiment.runs.values()] == [None, 1, 2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "name: x\nsweep:\n  method: [fedavg]\n  attack: [noisy]\n",
            "4:12: sweep.attack.0: unknown attack 'noisy': did you mean 'noise'?",
        ),
        (
            "name: x\nsweep:\n  method: [fedavg]\n  attack: [{name: noise, sigmo: 1}]\n",
            "4:26: sweep.attack.0.sigmo: unknown key: did you mean 'sigma'?",
        ),
        (
            "name: x\nbase: {clients: 3}\nsweep:\n  method: [fedavg]\n  attack: [{name: noise, liars: 3}]\n",
            "5:26: sweep.attack.0.liars: expected fewer than the 3 clients, got 3",
        ),
        (
            "name: x\nsweep:\n  method: [fedavg]\n  attack: [poisoned_set]\n",
            "4:12: sweep.attack.0: fits no method here: poisoned_set changes nothing that members of fedavg send",
        ),
        (
            "name: x\nsweep:\n  method: [dfpl]\n  attack: [{name: noise, weight: 9}]\n",
            "4:12: sweep.attack.0: fits no method here: expected none, since dfpl signs 1 for all; got 9",
        ),
        (
            "name: x\nsweep:\n  method: [fedavg]\n  attack: [{name: none, liars: 1}]\n",
            "4:25: sweep.attack.0.liars: expected no settings of an attack that is none",
        ),
        (
            "name: x\nbase: {attack: {scale: 2}}\nsweep:\n  method: [fedavg]\n  attack: [noise]\n",
            "2:17: base.attack.scale: no attack here has such a setting.",
        ),
        (
            "name: x\nbase: {attack: {liars: 2}}\nsweep:\n  method: [fedavg]\n",
            "2:17: base.attack.liars: no attack here has such a setting.",
        ),
        (
            "name: x\nsweep:\n  method: [fedavg]\n  attack: [{name: noise, sigma: 1}]\n  attack.sigma: [2]\n",
            "4:26: sweep.attack.0.sigma: expected it here or in sweep.attack.sigma, not in both",
        ),
    ],
)
def test_an_attack_that_makes_no_sense_is_named_at_its_place(tmp_path: Path, text: str, problem: str) -> None:
    (got,) = refuse(tmp_path, text)
    assert got.startswith(problem)


def test_what_does_not_fit_its_budget_says_nothing_of_attacks(tmp_path: Path) -> None:
    text = "name: x\nbudget: {t_sum: 9, beta: 99}\nsweep: {method: [dfpl], attack: [noise]}\n"
    (point,) = make_experiment(tmp_path, text).points
    assert point.misfit is not None
    assert "noise" not in point.misfit


# ---- results


def test_what_came_of_a_run_under_attack_is_kept(tmp_path: Path) -> None:
    run = get_run(make_experiment(tmp_path, SMALL), "fedavg, 4 clients, noise, seed 1")
    write_result(tmp_path, run, simulate_run(Piece(run, tmp_path, ()), lambda _: None).document)
    result = read_result(tmp_path, run)
    assert result is not None
    assert result.error is None
    assert (len(result.liars), result.halted_at, result.is_attacked) == (1, None, True)
    assert [(row.left_out, row.spoiled) for row in result.rounds] == [(0, 0), (0, 0)]
    assert all(client.local_accuracy is not None for client in result.clients)


def make_halting(tmp_path: Path) -> Experiment:
    text = "name: x\nbase: {rounds: 3, shots: 3}\nsweep: {method: [{name: fedavg, local_iterations: 1}], "
    return make_experiment(tmp_path, text + "clients: [4], attack: [none, {name: silent, liars: 2}]}\n")


def test_a_run_that_came_to_a_halt_is_finished_and_told_apart(tmp_path: Path) -> None:
    experiment = make_halting(tmp_path)
    for run in experiment.runs.values():
        write_result(tmp_path, run, simulate_run(Piece(run, tmp_path, ()), lambda _: None).document)
    stock = take_stock(experiment, tmp_path)
    assert not stock.list_pending(experiment)
    assert [result.halted_at for result in stock.finished.values()] == [None, 1]
    table = make_table(
        experiment,
        TableSection.model_validate({"value": ["halted", "final_taa", "left_out"], "rows": "attack"}),
        stock.finished,
    )
    assert [[table.cells[row, column].text for column in table.columns] for row in table.rows][1] == [
        "100.0",
        "never",
        "–",
    ]
    (tmp_path / "experiment.yaml").write_text((tmp_path / "try.yaml").read_text())
    page = write_report(tmp_path).page.read_text()
    assert "Came to a halt: 1" in page
    assert "height 1 was never made" in page


@pytest.mark.parametrize(("halted_at", "num_rounds"), [(3, 3), (3, 1), (None, 2), (1, 1)])
def test_as_many_rounds_as_were_made_before_the_halt_are_expected(
    tmp_path: Path, halted_at: int | None, num_rounds: int
) -> None:
    run = list(make_halting(tmp_path).runs.values())[1]
    document = make_document([0.5] * num_rounds, num_clients=4, liars=[0, 1], halted_at=halted_at)
    write_result(tmp_path, run, document)
    with pytest.raises(BrokenResult, match=f"got {num_rounds} of them"):
        read_result(tmp_path, run)


def test_liars_that_are_no_clients_are_refused(tmp_path: Path) -> None:
    run = list(make_halting(tmp_path).runs.values())[1]
    write_result(tmp_path, run, make_document([0.5] * 3, num_clients=4, liars=[4]))
    with pytest.raises(BrokenResult, match="liars: expected some of 4 clients"):
        read_result(tmp_path, run)


# ---- what liars cost

COST = """\
name: cost
base: {clients: 4, rounds: 1}
sweep:
  method: [fedavg, {name: fedavg, aggregation: median, label: median}]
  attack: [none, silent, noise, huge]
  seed: [1, 2]
"""


def write_costs(tmp_path: Path, experiment: Experiment, accuracies: dict[str, tuple[float, ...]]) -> None:
    """Results of the runs with these labels, by the accuracies of their clients. In attacked ones client 3 lies."""
    for label, own in accuracies.items():
        run = get_run(experiment, label)
        lied: dict[str, Any] = {"liars": [3], "halted_at": None} if "attack" in run.config else {}
        honest = own[:3] if lied else own
        document = make_document([sum(honest) / len(honest)], num_clients=4, **lied)
        for client, accuracy in zip(document["clients"], own, strict=True):
            client["accuracy"] = accuracy
        write_result(tmp_path, run, document)


@pytest.fixture
def cost(tmp_path: Path) -> Experiment:
    experiment = make_experiment(tmp_path, COST)
    write_costs(
        tmp_path,
        experiment,
        {
            "fedavg, none, seed 1": (0.9, 0.9, 0.9, 0.1),  # whoever will lie has a hard time anyway
            "fedavg, none, seed 2": (0.8, 0.8, 0.8, 0.1),
            "fedavg, silent, seed 1": (0.8, 0.8, 0.8, 0.1),
            "fedavg, silent, seed 2": (0.6, 0.6, 0.6, 0.1),
            "fedavg, noise, seed 1": (0.9, 0.6, 0.3, 0.0),
            "fedavg, noise, seed 2": (0.5, 0.5, 0.5, 0.0),
            "fedavg, huge, seed 1": (0.8, 0.8, 0.8, 0.0),
            "fedavg, huge, seed 2": (0.7, 0.7, 0.7, 0.0),
            "median, none, seed 1": (0.7, 0.7, 0.7, 0.1),
            "median, noise, seed 1": (0.8, 0.8, 0.8, 0.0),
        },
    )
    return experiment


def lay_out(experiment: Experiment, tmp_path: Path, **section: Any) -> Table:
    return make_table(experiment, TableSection.model_validate(section), take_stock(experiment, tmp_path).finished)


def test_what_is_lost_is_lost_by_the_honest_against_the_same_seed(cost: Experiment, tmp_path: Path) -> None:
    table = lay_out(cost, tmp_path, value="final_taa", columns="attack", against={"attack": "none"})
    assert table.columns == (("silent",), ("noise",), ("huge",))
    texts = {row[0]: [table.cells[row, column].text for column in table.columns] for row in table.rows}
    assert texts["fedavg"] == ["15.00 ± 5.00", "30.00 ± 0.00", "10.00 ± 0.00"]
    assert texts["median"] == ["not run", "-10.00", "not run"]
    assert table.title == "Final TAA: lost against attack none"
    assert "How much worse than with attack none." in table.note
    assert [cell.best for cell in table.cells.values()] == [False] * 6  # not the same seeds


def test_the_worst_of_an_axis_is_named(cost: Experiment, tmp_path: Path) -> None:
    lies = {"attack": ["noise", "huge"]}
    table = lay_out(cost, tmp_path, value="final_taa", where=lies, against={"attack": "silent"}, worst_of="attack")
    cell = table.cells[("fedavg",), ()]
    assert (cell.choice, cell.text) == ("noise", "15.00 ± 5.00")
    lowest = lay_out(cost, tmp_path, value="final_taa", where=lies, worst_of="attack").cells[("fedavg",), ()]
    assert (lowest.choice, lowest.text) == ("noise", "55.00 ± 5.00")
    assert "The worst of attack." in table.note


def test_what_is_better_lower_is_lost_when_it_rises(cost: Experiment, tmp_path: Path) -> None:
    table = lay_out(cost, tmp_path, value="final_tal", columns="attack", against={"attack": "none"})
    assert table.cells[("fedavg",), ("huge",)].text == "-0.087 ± 0.013"  # of all four where nobody lies


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("{columns: attack, against: {atack: none}}", "against: unknown name 'atack'. Did you mean 'attack'?"),
        ("{columns: attack, against: {attack: nobody}}", "against: expected values that some run has"),
        ("{columns: attack, against: {data: digits}}", "against: expected axes of the sweep: method, attack"),
        (
            "{rows: client, columns: [method, attack], value: final_taa, against: {attack: none}}",
            "against: expected none",
        ),
        ("{best_of: attack, worst_of: attack}", "worst_of: expected it or best_of, not both"),
        ("{worst_of: atack}", "worst_of: unknown name 'atack'. Did you mean 'attack'?"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(tmp_path: Path, table: str, problem: str) -> None:
    got = refuse(tmp_path, f"{COST}report:\n  tables: [{table}]\n")
    assert len(got) == 1
    assert f"report.tables.0.{problem}" in got[0]
