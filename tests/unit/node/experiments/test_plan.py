"""The plan of an experiment's file: its runs, their names, and mistakes refused at their place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from node.errors import ConfigError
from node.experiments.contents import get_report
from node.experiments.loading import load_experiment
from node.experiments.plan import compute_id
from node.experiments.tables import make_table
from support.data.experiments import get_run, make_experiment

ROOT = Path(__file__).parents[4]
READY = ROOT / "deploy" / "experiments"

SMALL = """\
name: small
base: {clients: 2, rounds: 3}
sweep:
  method: [local, {name: dfpl, infer: prototype, label: DFPL}]
  partition: ["classes:3,1", iid]
  seed: [1, 2, 3]
"""


def refuse(tmp_path: Path, text: str) -> list[str]:
    """Every problem of a file, without the file's own path."""
    with pytest.raises(ConfigError) as caught:
        make_experiment(tmp_path, text)
    return [problem.removeprefix(f"{tmp_path / 'try.yaml'}:") for problem in caught.value.problems]


# ---- runs


def test_every_combination_is_a_run_and_the_first_seed_comes_first(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, SMALL)
    assert len(experiment.points) == len(experiment.runs) == 2 * 2 * 3
    assert [run.label for run in experiment.runs.values()][:5] == [
        "local, classes:3,1, seed 1",
        "DFPL, classes:3,1, seed 1",
        "local, iid, seed 1",
        "DFPL, iid, seed 1",
        "local, classes:3,1, seed 2",
    ]
    assert experiment.axes == ("partition", "method")


def test_a_run_has_its_whole_configuration_defaults_written_out(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, SMALL)
    config = get_run(experiment, "DFPL, iid, seed 2").config
    assert (config["clients"], config["rounds"], config["seed"], config["partition"]) == (2, 3, 2, "iid")
    assert config["data"] == {"format": "digits"}
    assert config["model"] == {"name": "mlp", "hidden": [64, 32]}
    assert config["method"]["infer"] == "prototype"
    assert config["method"]["lambda"] == 1.0  # a default


def test_facts_follow_from_the_configuration(tmp_path: Path) -> None:
    facts = make_experiment(tmp_path, SMALL).points[0].facts
    assert (facts["partition.avg"], facts["partition.std"], facts["method"]) == (3, 1, "local")
    assert (facts["method.lr"], facts["model.hidden"], facts["shots"]) == (0.1, [64, 32], "all")


def test_a_task_sets_several_keys_at_once(tmp_path: Path) -> None:
    text = """\
name: tasks
base: {method: {lr: 0.5}}
sweep:
  task:
    - {label: small, data: digits, model: {name: mlp, hidden: [8]}, clients: 3}
    - {label: large, data: {format: idx, path: data/mnist}, model: cnn_mnist, method: {lr: 0.01}}
  method: [local]
"""
    small, large = make_experiment(tmp_path, text).runs.values()
    assert (small.config["model"]["hidden"], small.config["clients"], small.config["method"]["lr"]) == ([8], 3, 0.5)
    assert (large.config["model"]["name"], large.config["clients"], large.config["method"]["lr"]) == (
        "cnn_mnist",
        10,
        0.01,
    )
    assert large.config["data"] == {"format": "idx", "path": "data/mnist"}  # as written: results may move
    assert [small.label, large.label] == ["local, small, seed 1", "local, large, seed 1"]


def test_common_settings_reach_the_methods_that_have_them(tmp_path: Path) -> None:
    text = "name: x\nbase: {method: {lambda: 2, lr: 0.5}}\nsweep: {method: [local, dfpl, {name: dfpl, lambda: 3}]}\n"
    local, dfpl, other = make_experiment(tmp_path, text).runs.values()
    assert "lambda" not in local.config["method"]
    assert [run.config["method"]["lr"] for run in (local, dfpl, other)] == [0.5, 0.5, 0.5]
    assert [run.config["method"]["lambda"] for run in (dfpl, other)] == [2.0, 3.0]


def test_rules_of_aggregation_are_swept_over_the_methods_that_have_them(tmp_path: Path) -> None:
    text = "name: x\nsweep: {method: [uapdfl, fedavg], method.aggregation: [mean, trimmed_mean]}\n"
    runs = list(make_experiment(tmp_path, text).runs.values())
    assert [run.config["method"].get("aggregation") for run in runs] == [None, "mean", "trimmed_mean"]
    assert not any("weight_cap" in run.config["method"] for run in runs)
    text = "name: x\nsweep: {method: [{name: dfpl, proto_agg: median}]}\n"
    assert any("set aggregation to median instead" in problem for problem in refuse(tmp_path, text))


def test_settings_in_a_section_of_a_method_are_axes_and_items_by_dotted_keys(tmp_path: Path) -> None:
    text = """\
name: x
base: {method: {outer: {lr: 0.5}}}
sweep:
  method: [{name: fedavg, outer: {optimizer: adam, beta1: 0.5}}, dfpl]
  method.outer.eps: [0.01, 0.1]
"""
    experiment = make_experiment(tmp_path, text)
    first, second = (run for run in experiment.runs.values() if run.config["method"]["name"] == "fedavg")
    outer = {"optimizer": "adam", "lr": 0.5, "beta1": 0.5, "beta2": 0.99}
    assert [run.config["method"]["outer"] for run in (first, second)] == [{**outer, "eps": 0.01}, {**outer, "eps": 0.1}]
    assert len(experiment.runs) == 3  # local has no such setting
    assert experiment.points[0].facts["method.outer.beta1"] == 0.5
    text = "name: x\nsweep: {method: [{name: fedavg, outer: {optimizer: sgd}}]}\n"
    assert [problem.partition(":")[0] for problem in refuse(tmp_path, text)] == ["2"]


def test_epochs_take_the_place_of_common_iterations(tmp_path: Path) -> None:
    text = "name: x\nbase: {method: {local_iterations: 5}}\nsweep: {method: [local, {name: dfpl, local_epochs: 2}]}\n"
    local, dfpl = make_experiment(tmp_path, text).runs.values()
    assert local.config["method"]["local_iterations"] == 5
    assert dfpl.config["method"]["local_epochs"] == 2
    assert "local_iterations" not in dfpl.config["method"]


def test_a_swept_setting_that_a_method_has_not_leaves_it_one_run(tmp_path: Path) -> None:
    text = "name: x\nsweep: {method: [local, dfpl], method.lambda: [0, 1, 4]}\n"
    experiment = make_experiment(tmp_path, text)
    assert len(experiment.points) == 6
    assert len(experiment.runs) == 4  # local once, dfpl three times
    assert [point.facts["method.lambda"] for point in experiment.points if point.facts["method"] == "local"] == [
        0,
        1,
        4,
    ]


def test_a_method_may_have_rounds_of_its_own(tmp_path: Path) -> None:
    text = """\
name: x
base: {rounds: 8}
sweep: {method: [local, {name: fedavg, rounds: 4, local_iterations: 40, label: twice the work}]}
"""
    experiment = make_experiment(tmp_path, text)
    local, fedavg = experiment.runs.values()
    assert (local.num_rounds, fedavg.num_rounds) == (8, 4)
    assert "rounds" not in fedavg.config["method"]
    assert [point.facts["rounds"] for point in experiment.points] == [8, 4]
    assert fedavg.label == "twice the work, seed 1"


def test_a_method_may_guard_its_clients_as_no_other_does(tmp_path: Path) -> None:
    text = "name: x\nsweep: {method: [uapdfl, {name: uapdfl, max_loss_ratio: 4.0, label: guarded}]}\n"
    free, guarded = make_experiment(tmp_path, text).runs.values()
    assert "max_loss_ratio" not in free.config  # and so is named as it ever was
    assert guarded.config == {**free.config, "max_loss_ratio": 4.0}
    (problem,) = refuse(tmp_path, text.replace("4.0", "0.5"))
    assert "sweep.method.1.max_loss_ratio: must be at least 1 (got 0.5)" in problem


def test_heights_before_a_methods_first_round_come_on_top_of_its_rounds(tmp_path: Path) -> None:
    text = """\
name: x
base: {rounds: 4}
sweep: {method: [fedavg, fededs, {name: fededs, share: false}, {name: fededs, rounds: 2, label: short}]}
"""
    experiment = make_experiment(tmp_path, text)
    runs = experiment.runs.values()
    assert [(run.num_rounds, run.sharing_heights, run.num_heights) for run in runs] == [
        (4, 0, 4),
        (4, 1, 5),
        (4, 0, 4),
        (2, 1, 3),
    ]
    assert [run.config["rounds"] for run in runs] == [run.num_heights for run in runs]
    assert [point.facts["rounds"] for point in experiment.points] == [4, 4, 4, 2]


# ---- names


def test_a_name_is_of_what_is_computed_and_not_of_how_it_is_written(tmp_path: Path) -> None:
    first = make_experiment(tmp_path, SMALL)
    again = make_experiment(tmp_path, SMALL.replace("name: small", "title: Other\nname: other").replace("DFPL", "Ours"))
    assert list(first.runs) == list(again.runs)
    explicit = make_experiment(
        tmp_path, SMALL.replace("[local,", "[{name: local, lr: 0.1},").replace("[1, 2, 3]", "[2]")
    )
    assert set(explicit.runs) < set(first.runs)


@pytest.mark.parametrize("change", [{"seed": 9}, {"rounds": 4}, {"method": {"name": "local", "lr": 0.2}}, {"data": {}}])
def test_whatever_changes_the_numbers_changes_the_name(tmp_path: Path, change: dict[str, Any]) -> None:
    config = dict(next(iter(make_experiment(tmp_path, SMALL).runs.values())).config)
    assert compute_id({**config, **change}) != compute_id(config)
    assert compute_id(dict(reversed(config.items()))) == compute_id(config)


def test_tasks_may_have_devices_of_their_own_but_not_two_for_one_run(tmp_path: Path) -> None:
    text = "name: x\nsweep:\n  task: [{{label: a, device: cpu}}, {{label: b, device: cuda{}}}]\n  method: [local]\n"
    runs = make_experiment(tmp_path, text.format(", clients: 3")).runs.values()
    assert [run.config["device"] for run in runs] == ["cpu", "cuda"]
    assert refuse(tmp_path, text.format("")) == [
        "3:3: sweep.task: b on cuda is a run that another task has on cpu: expected one device"
    ]


# ---- time budgets

BUDGET = """\
name: budget
budget: {{t_sum: 100, alpha: [1, 2, 3, 4], beta: {beta}}}
sweep: {{method: [dfpl], rounds: [{rounds}]}}
"""


@pytest.mark.parametrize(
    ("beta", "rounds", "available", "iterations", "used"),
    [
        (4, 6, 76, [12, 6, 4, 3], [72, 72, 72, 72]),
        (4, 5, 80, [16, 8, 5, 4], [80, 80, 75, 80]),
        (5, 6, 70, [11, 5, 3, 2], [66, 60, 54, 48]),
        (7, 4, 72, [18, 9, 6, 4], [72, 72, 72, 64]),
    ],
)
def test_local_iterations_follow_from_the_budget(
    tmp_path: Path, beta: int, rounds: int, available: int, iterations: list[int], used: list[int]
) -> None:
    points = make_experiment(tmp_path, BUDGET.format(beta=beta, rounds=rounds)).points
    assert [point.run.config["method"]["local_iterations"] for point in points if point.run] == iterations
    assert [point.budget.used_s for point in points if point.budget] == used
    assert {point.budget.available_s for point in points if point.budget} == {available}


def test_what_does_not_fit_is_no_run_and_says_why(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, BUDGET.format(beta=4, rounds="10, 20, 30"))
    misfits = [point for point in experiment.points if point.run is None]
    assert [(point.facts["rounds"], point.facts["budget.alpha"]) for point in misfits] == [
        (20, 2),
        (20, 3),
        (20, 4),
        *((30, alpha) for alpha in (1, 2, 3, 4)),
    ]
    assert misfits[0].misfit is not None
    assert "expected at least one local iteration of 2 s" in misfits[0].misfit


def test_budgets_that_come_to_the_same_iterations_share_a_run(tmp_path: Path) -> None:
    text = BUDGET.format(beta="[4, 5]", rounds=5)
    experiment = make_experiment(tmp_path, text)
    iterations = [point.run.config["method"]["local_iterations"] for point in experiment.points if point.run]
    assert len(experiment.points) == 8
    assert len(experiment.runs) == len(set(iterations)) == 7  # 16 8 5 4 and 15 7 5 3


# ---- what is refused


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("name: x\nsweep: {}\n", ["2:1: sweep.method: required, but missing"]),
        ("name: x\nswep: {}\nsweep: {method: [local]}\n", ["2:1: swep: unknown key. Did you mean 'sweep'?"]),
        (
            "name: x\nsweep:\n  method: [locale]\n",
            ["3:12: sweep.method.0: unknown method 'locale': did you mean 'local'?"],
        ),
        (
            "name: x\nsweep:\n  method:\n    - {name: dfpl, lamda: 1}\n",
            ["4:20: sweep.method.0.lamda: unknown key: did you mean 'lambda'?"],
        ),
        (
            "name: x\nbase:\n  method: {lrr: 1}\nsweep: {method: [local]}\n",
            ["3:12: base.method.lrr: no method here has such a setting. Did you mean 'lr'?"],
        ),
        (
            "name: x\nsweep:\n  method: [local]\n  methd.lr: [1]\n",
            ["4:3: sweep.methd.lr: unknown axis. Did you mean 'method'?"],
        ),
        ("name: x\nsweep: {method: [local], seed: [1, 1]}\n", ["2:36: sweep.seed.1: given twice on one axis: 1"]),
        ("name: x\nsweep: {method: []}\n", ["2:9: sweep.method: expected at least one value (got [])"]),
        (
            "name: x\nsweep: {method: [local], partition: [classes]}\n",
            ["2:38: sweep.partition.0: expected classes:AVG,STD"],
        ),
        ("name: x\nreuse: [a/b]\nsweep: {method: [local]}\n", ["2:9: reuse.0: expected letters, digits"]),
        ("name: x\nbase: {rounds: 0}\nsweep: {method: [local]}\n", ["2:8: base.rounds: must be at least 1 (got 0)"]),
        (
            "name: x\nsweep: {method: [{name: dfpl, lambda: 1}], method.lambda: [2]}\n",
            ["2:31: sweep.method.0.lambda: expected it here or in sweep.method.lambda, not in both"],
        ),
        (
            "name: x\nsweep: {method: [local, {name: fedavg, rounds: 2}], rounds: [1, 2]}\n",
            ["2:40: sweep.method.1.rounds: expected it here or in sweep.rounds, not in both"],
        ),
        (
            "name: x\nbudget: {t_sum: 9, beta: 1}\nsweep: {method: [{name: local, local_epochs: 1}]}\n",
            ["3:32: sweep.method.0.local_epochs: expected none beside a budget"],
        ),
        (
            "name: x\nsweep:\n  task: [{label: a, dat: digits}]\n  method: [local]\n",
            ["3:21: sweep.task.0.dat: unknown key. Did you mean 'data'?"],
        ),
    ],
)
def test_every_problem_is_named_at_its_place(tmp_path: Path, text: str, problems: list[str]) -> None:
    got = refuse(tmp_path, text)
    assert len(got) == len(problems)
    for line, start in zip(got, problems, strict=True):
        assert line.startswith(start)


REPORT = "name: x\nsweep: {method: [local, dfpl], partition: [iid, 'classes:3,1', 'classes:3,2']}\nreport:\n"


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("  tables: [{rows: methd}]\n", "4:13: report.tables.0.rows: unknown name 'methd'. Did you mean 'method'?"),
        (
            "  tables: [{value: best_taaa, columns: partition}]\n",
            "4:13: report.tables.0.value: unknown name 'best_taaa'. Did you mean 'best_taa'?",
        ),
        ("  tables: [{rows: method}]\n", "4:12: report.tables.0: runs that differ in partition fall together"),
        (
            "  tables: [{rows: method, columns: partition.avg, where: {partition.avg: 3}}]\n",
            "4:12: report.tables.0: runs that differ in partition fall together",
        ),
        (
            "  tables: [{where: {partition: dirichlet}}]\n",
            "4:13: report.tables.0.where: expected values that some run has",
        ),
        ("  figures: [{x: rond}]\n", "4:14: report.figures.0.x: unknown name 'rond'. Did you mean 'round'?"),
        ("  figures: [{y: best_taa}]\n", "4:14: report.figures.0.y: unknown name 'best_taa'"),
        ("  figures: [{panels: method}]\n", "4:13: report.figures.0: runs that differ in partition fall together"),
        ("  target: 90\n", "4:3: report.target: expected accuracies of more than 0 and at most 1 (got 90)"),
        (
            "  tables: [{target: [0.5, 0.5], columns: partition}]\n",
            "4:13: report.tables.0.target: given twice: 0.5, 0.5",
        ),
        (
            "  tables: [{value: taa_at_seconds, columns: partition}]\n",
            "4:13: report.tables.0.value: expected `seconds` beside taa_at_seconds",
        ),
        (
            "  tables: [{seconds: 5, columns: partition}]\n",
            "4:13: report.tables.0.seconds: expected one of taa_at_seconds, best_taa_at_seconds",
        ),
        (
            "  figures: [{x: partition, y: taa_at_seconds}]\n",
            "4:28: report.figures.0.y: unknown name 'taa_at_seconds'",
        ),
        ("  figures: [{embedding: umap}]\n", "4:14: report.figures.0.embedding: expected 'tsne' or 'pca' (got 'umap')"),
        (
            "  figures: [{embedding: pca, lines: method}]\n",
            "4:30: report.figures.0.lines: unknown key. Did you mean 'clients'?",
        ),
        ("  figures: [{pannels: method}]\n", "4:14: report.figures.0.pannels: unknown key. Did you mean 'panels'?"),
        (
            "  figures: [{embedding: pca, panels: methd}]\n",
            "4:30: report.figures.0.panels: unknown name 'methd'. Did you mean 'method'?",
        ),
        ("  figures: [{embedding: pca}]\n", "4:13: report.figures.0: runs that differ in partition fall together"),
        (
            "  figures: [{embedding: pca, where: {partition: dirichlet}}]\n",
            "4:30: report.figures.0.where: expected values that some run has",
        ),
    ],
)
def test_a_report_that_cannot_be_laid_out_is_refused_before_anything_runs(
    tmp_path: Path, section: str, problem: str
) -> None:
    (got,) = refuse(tmp_path, REPORT + section)
    assert got.startswith(problem)


def test_axes_may_be_laid_out_by_what_follows_from_them(tmp_path: Path) -> None:
    section = "  tables: [{rows: [method, partition.avg], columns: partition.std}]\n"
    experiment = make_experiment(tmp_path, REPORT + section)
    table = make_table(experiment, (get_report(experiment).tables or ())[0], {})
    assert table.columns == (("–",), ("1",), ("2",))
    assert table.rows == (("local", "–"), ("local", "3"), ("dfpl", "–"), ("dfpl", "3"))


def test_options_override_the_file_and_are_named_when_wrong(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, SMALL, "base.rounds=1", "sweep.seed=[7]", "sweep.method.lr=[0.1, 0.2]")
    assert len(experiment.runs) == 8
    assert {run.num_rounds for run in experiment.runs.values()} == {1}
    with pytest.raises(ConfigError) as caught:
        make_experiment(tmp_path, SMALL, "base.round=1")
    assert caught.value.problems == ("--set base.round: unknown key. Did you mean 'rounds'?",)


def test_a_file_that_asks_for_too_much_is_refused_at_once(tmp_path: Path) -> None:
    seeds = ", ".join(map(str, range(400)))
    text = f"name: x\nsweep: {{method: [local], seed: [{seeds}], rounds: [{seeds.removeprefix('0, ')}]}}\n"
    (problem,) = refuse(tmp_path, text)
    assert "expected at most 100000 combinations (got 159600)" in problem


# ---- the files that come with it


READY_POINTS = {
    "attacks-digits": 3 * 16 * 13 * 9,
    "dfpl-table1": 4 * 2 * 16 * 9 * 3,
    "dfpl-table1-digits": 8 * 6 * 3,
    "dfpl-dirichlet-digits": 9 * 3 * 9,
    "dfpl-pull-digits": 6 * 4 * 9,
    "dfpl-table2": 2 * 8,
    "dfpl-table2-digits": 8,
    "dfpl-table3": 3 * 10 * 3 * 4 * 4 * 3,
    "dfpl-table3-digits": 10 * 3 * 4 * 3,
    "dfpl-table4": 3 * 10 * 3 * 4 * 4 * 3,
    "dfpl-table4-digits": 10 * 3 * 4 * 3,
    "dfpl-fig1": 2 * 2 * 3,
    "dfpl-fig1-digits": 2 * 9,
    "dfpl-fig7": 4 * 3 * 6 * 3,
    "dfpl-fig7-digits": 3 * 6 * 3,
    "dfpl-fig8": 3 * 3 * 5 * 5 * 3,
    "dfpl-fig8-digits": 2 * 5 * 5 * 3,
    "dfpl-fig9": 4 * 7 * 2 * 3 * 3,
    "dfpl-fig9-digits": 7 * 2 * 2 * 3,
    "dfpl-fig10": 4 * 2 * 2 * 10,
    "dfpl-fig10-digits": 2 * 2 * 10,
    "dfpl-fig11": 3 * 8 * 3,
    "dfpl-fig11-digits": 8 * 3,
    "mpfedcl-table2": 4,
    "mpfedcl-table2-digits": 3,
    "mpfedcl-fig1": 2,
    "mpfedcl-fig1-digits": 2,
    "mpfedcl-fig5": 4 * 3 * 3,
    "mpfedcl-fig5-digits": 3 * 9,
    "mpfedcl-fig8": 2 * 6 * 7 * 3,
    "mpfedcl-fig8-digits": 6 * 7 * 9,
    "mpfedcl-fig9": 2 * 4 * 7 * 3,
    "mpfedcl-fig9-digits": 4 * 7 * 3,
    "mpfedcl-fig10": 2 * 2 * 7 * 3,
    "mpfedcl-fig10-digits": 2 * 7 * 3,
    "pfl-fmnist": 2 * 12 * 3,
    "uapdfl-fig4": 2 * 2 * 5,
    "uapdfl-fig4-digits": 2 * 5,
    "uapdfl-fig11": 3 * 3 * 2 * 7 * 3,
    "uapdfl-fig11-digits": 2 * 7 * 3,
    "uapdfl-fig12": 3 * 2 * 3,
    "uapdfl-fig12-digits": 2 * 3,
    "uapdfl-fig13": 3 * 2 * 4 * 3,
    "uapdfl-fig13-digits": 2 * 4 * 3,
    "fededs-table1": 3 * 6 * 3 * 3,
    "fededs-table1-digits": 3 * 6 * 3 * 9,
    "fededs-table2": 3 * 6 * 3 * 3,
    "fededs-network": 3 * 4 * 3,
    "fededs-network-digits": 3 * 4 * 9,
    "fededs-table6": 3 * 4 * 3,
    "fededs-table6-digits": 3 * 4 * 9,
    "fededs-ablation-digits": 16 * 2 * 9,
    "mpfedcl-table5": 5 * 3,
    "mpfedcl-table5-digits": 5 * 3,
    "mpfedcl-table6": 4 * 6 * 3,
    "mpfedcl-table6-digits": 7 * 4 * 9,
    "mpfedcl-table7": 4 * 6 * 3,
    "mpfedcl-table7-digits": 6 * 2 * 3,
    "mpfedcl-table8": 4 * 5 * 3,
    "mpfedcl-table8-digits": 5 * 2 * 3,
    "mpfedcl-ablation-digits": 11 * 2 * 9,
    "mpfedcl-prior-digits": 6 * 9,
    "personalised-digits": 6 * 3,
    "privacy-digits": 5 * 4 * 9,
    "uapdfl-table1": 3 * 3 * 8 * 3,
    "uapdfl-table1-digits": 8 * 3,
    "uapdfl-table2": 3 * 3 * 8 * 3,
    "uapdfl-table2-digits": 8 * 3,
    "uapdfl-table3": 3 * 3 * 4 * 3,
    "uapdfl-table3-digits": 2 * 4 * 3,
    "uapdfl-table4": 3 * 3 * 4 * 3,
    "uapdfl-table5": 2 * 2 * 7 * 3,
    "uapdfl-table5-digits": 2 * 8 * 3,
    "outer-attacks-digits": 3 * 20 * 8 * 3,
    "uapdfl-ablation-digits": 10 * 3 * 9,
    "uapdfl-staleness-digits": 5 * 4 * 2 * 9,
}

# Attacks on prototypes and on sets are for methods that send such.
READY_MISFITS = {
    "attacks-digits": 3 * (5 * 4 + 5 * 2 + 2 * 2 + 2 * 2 + 2 * 4) * 9,
}


@pytest.mark.parametrize(("name", "points"), READY_POINTS.items())
def test_ready_files_can_be_run_and_reported(name: str, points: int) -> None:
    experiment = load_experiment(READY / f"{name}.yaml")
    assert experiment.file.name == name
    assert len(experiment.points) == points
    assert sum(point.misfit is not None for point in experiment.points) == READY_MISFITS.get(name, 0)
    for section in get_report(experiment).tables or ():
        assert make_table(experiment, section, {}).cells


@pytest.mark.parametrize(
    ("name", "other", "common"),
    [
        ("fededs-table1", "fededs-table6", 2 * 3 * 3),  # FedAvg and FedEDS at Dir(0.1)
        ("fededs-table1-digits", "fededs-table6-digits", 2 * 3 * 9),
        ("fededs-network", "fededs-table6", 3 * 4 * 3),  # all
        ("fededs-network-digits", "fededs-table6-digits", 3 * 4 * 9),
        ("fededs-ablation-digits", "fededs-table1-digits", 2 * 2 * 9),
        ("fededs-ablation-digits", "fededs-table6-digits", 3 * 9),
        ("uapdfl-fig11", "uapdfl-table1", 3 * 3 * 7 * 3),
        ("uapdfl-fig11", "uapdfl-table2", 3 * 3 * 7 * 3),
    ],
)
def test_ready_files_run_nothing_that_another_has(name: str, other: str, common: int) -> None:
    experiment, there = (load_experiment(READY / f"{one}.yaml") for one in (name, other))
    assert len(experiment.runs.keys() & there.runs.keys()) == common
    assert other in experiment.file.reuse


def test_fededs_files_have_its_papers_profile() -> None:
    for name in ("fededs-table1", "fededs-table2", "fededs-table6"):
        for run in load_experiment(READY / f"{name}.yaml").runs.values():
            method, clients = run.config["method"], run.config["clients"]
            assert (method["lr"], method["momentum"], method["weight_decay"]) == (0.01, 0.9, 1e-4)
            assert run.config["model"]["name"] == "resnet18_nobn"
            assert run.num_rounds == (30 if name == "fededs-table2" else 400 if clients == 20 else 100)
            assert method["local_epochs"] == method.get("min_epochs", 1) == 1 or (
                [method[key] for key in ("local_epochs", "min_epochs", "anneal_from", "anneal_to")] == [5, 1, 1, 3]
            )


def test_the_documented_example_can_be_run(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "experiments.md").read_text(), re.DOTALL)
    assert example is not None
    experiment = make_experiment(tmp_path, example[1])
    assert (len(experiment.points), len(experiment.runs)) == (48, 30)  # local has no lambda


def test_the_table_of_the_papers_names_every_ready_file_and_no_other() -> None:
    text = (ROOT / "docs" / "methods" / "papers.md").read_text(encoding="utf-8")
    assert {Path(name).stem for name in re.findall(r"[\w-]+\.yaml", text)} == READY_POINTS.keys()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {4}
    statuses = {row[3].strip() for row in rows if row[0].strip() != "in the paper"}
    assert all(re.match(r"digits|code|open: \w", status) for status in statuses)


def test_every_ready_file_is_tested() -> None:
    assert {path.stem for path in READY.glob("*.yaml")} == READY_POINTS.keys()


def test_what_is_measured_is_a_setting_of_the_runs_and_stands_in_their_names_only_where_it_is_set(
    tmp_path: Path,
) -> None:
    usual = next(iter(make_experiment(tmp_path, SMALL).runs.values())).config
    text = SMALL.replace("rounds: 3", "rounds: 3, eval_every: 2, test_samples: 100")
    experiment = make_experiment(tmp_path, text)
    assert next(iter(experiment.runs.values())).config == {**usual, "eval_every": 2, "test_samples": 100}
    assert experiment.points[0].facts["test_samples"] == 100
    assert make_experiment(tmp_path, SMALL.replace("rounds: 3", "rounds: 3, eval_every: 1")).runs.keys() == (
        make_experiment(tmp_path, SMALL).runs.keys()
    )
