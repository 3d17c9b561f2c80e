"""Heat maps of two axes, box plots, and lines of pairs of clients: their numbers, and that they stand in a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import ConfigError
from node.experiments.charts import summarise
from node.experiments.figures import make_figures
from node.experiments.plan import Experiment
from node.experiments.report import write_report
from node.experiments.results import EXPERIMENT, write_result
from node.experiments.sections import FigureSection, GridSection, PairsSection
from node.experiments.stock import take_stock
from support.data.experiments import make_document, make_experiment, write_results

SWEEP = "sweep: {method: [dfpl], method.lambda: [0, 1], method.lr: [0.1, 0.2], seed: [1, 2, 3]}\n"
SMALL = "name: x\nbase: {clients: 2, rounds: 1}\n" + SWEEP
PAIRS = """\
name: x
base: {clients: 3, rounds: 2, partition: "owned:0+1,0+1,2+3"}
sweep: {method: [uapdfl], seed: [1, 2]}
report: {figures: [{pairs: divergence}]}
"""


def write_lambda_times_lr(directory: Path, text: str = SMALL) -> Experiment:
    made = make_experiment(directory, text)
    taa = {
        f"dfpl, lambda {x}, lr {lr}, seed {seed}": [0.1 * x + lr + 0.01 * seed]
        for x in (0, 1)
        for lr in (0.1, 0.2)
        for seed in (1, 2, 3)
    }
    write_results(directory, made, taa)
    return made


def test_a_heat_map_has_the_mean_over_seeds_where_two_values_meet(tmp_path: Path) -> None:
    made = write_lambda_times_lr(tmp_path)
    section = GridSection(grid="best_taa", x="method.lr", y="method.lambda")
    (figure,) = make_figures(made, section, take_stock(made, tmp_path).finished)
    (panel,) = figure.panels
    assert (figure.title, figure.x_label, figure.line_label) == ("Best TAA by lr and lambda", "lr", "lambda")
    assert (figure.ticks, [row.label for row in panel.lines]) == (("0.1", "0.2"), ["lambda 0", "lambda 1"])
    assert [row.mean for row in panel.lines] == [pytest.approx((0.12, 0.22)), pytest.approx((0.22, 0.32))]
    assert figure.say_ends(panel) == ["highest 32.00 at lr 0.2, lambda 1", "lowest 12.00 at lr 0.1, lambda 0"]
    headings, first, *others = figure.list_numbers()
    assert headings == ("panel", "lr", "lambda", "mean", "std", "seeds")
    assert len(others) == 3
    assert first[:4] == ("classes:3,1", "0.1", "0", pytest.approx(0.12))
    assert first[5] == 3


def test_runs_without_what_a_grid_shows_are_made_again(tmp_path: Path) -> None:
    text = "report: {{figures: [{{grid: {}, x: method.lr, y: method.lambda}}]}}\n"
    experiment = make_experiment(tmp_path, f"name: x\n{SWEEP}{text.format('train_seconds')}")
    for run in experiment.runs.values():
        write_result(tmp_path, run, make_document([0.5] * run.num_rounds))
    assert take_stock(experiment, tmp_path).lacking == experiment.runs.keys()
    other = make_experiment(tmp_path, f"name: x\n{SWEEP}{text.format('best_taa')}")
    assert not take_stock(other, tmp_path).lacking


def test_a_box_holds_each_seeds_own_value(tmp_path: Path) -> None:
    made = write_lambda_times_lr(tmp_path)
    section = FigureSection(x="method.lr", y="best_taa", lines=("method.lambda",), draw="box")
    (figure,) = make_figures(made, section, take_stock(made, tmp_path).finished)
    first, second = figure.panels[0].lines
    assert list(first.values) == [pytest.approx((0.11, 0.12, 0.13)), pytest.approx((0.21, 0.22, 0.23))]
    assert list(second.values) == [pytest.approx((0.21, 0.22, 0.23)), pytest.approx((0.31, 0.32, 0.33))]


def write_pairs(directory: Path) -> Experiment:
    made = make_experiment(directory, PAIRS)
    for i, run in enumerate(made.runs.values()):
        far = [[[0.0, 0.1 + i, 2.0], [0.1 + i, 0.0, 3.0], [2.0, 3.0, 0.0]], [[0, 0.2, 4], [0.2, 0, 6], [4, 6, 0]]]
        rounds = {"divergence": [1.0, 1.0], "divergences": far}
        write_result(directory, run, make_document([0.1, 0.2], by_round=rounds, num_clients=3))  # type: ignore[arg-type]
    return made


def test_each_pair_of_clients_has_a_line(tmp_path: Path) -> None:
    made = write_pairs(tmp_path)
    stock = take_stock(made, tmp_path)
    assert stock.list_pending(made) == []
    (figure,) = make_figures(made, PairsSection(pairs="divergence"), stock.finished)
    lines = figure.panels[0].lines
    assert [line.label for line in lines] == ["0 and 1", "0 and 2", "1 and 2"]
    assert lines[0].mean == pytest.approx((0.6, 0.2))
    assert lines[0].std == pytest.approx((0.5, 0.0))
    assert (lines[2].mean, lines[2].x, lines[2].seeds) == ((3.0, 6.0), (1, 2), 2)


def test_runs_that_do_not_say_how_far_pairs_are_apart_are_run_again(tmp_path: Path) -> None:
    made = make_experiment(tmp_path, PAIRS)
    for run in made.runs.values():
        document = make_document([0.1, 0.2], by_round={"divergence": [1.0, 1.0]}, num_clients=3)
        write_result(tmp_path, run, document)
    stock = take_stock(made, tmp_path)
    assert len(stock.list_pending(made)) == 2
    assert make_figures(made, PairsSection(pairs="divergence"), stock.finished) == []


def test_they_stand_in_the_report_with_their_numbers_beside(tmp_path: Path) -> None:
    figures = """[
      {grid: best_taa, x: method.lr, y: method.lambda},
      {x: method.lr, y: best_taa, lines: method.lambda, draw: box},
    ]"""
    write_lambda_times_lr(tmp_path, SMALL + f"report: {{figures: {figures}}}\n")
    (tmp_path / "try.yaml").rename(tmp_path / EXPERIMENT)
    written = write_report(tmp_path)
    names = sorted(path.name for path in written.figures)
    assert [name.rpartition(".")[2] for name in names] == ["csv", "png", "svg", "png", "svg"]
    page = written.page.read_text()
    assert "highest 32.00 at lr 0.2, lambda 1" in page
    assert "Mean over 3 seeds. The darker the better." in page
    assert "Boxes are quartiles and median of the seeds" in page


@pytest.mark.parametrize(
    ("figure", "problem"),
    [
        ("{grid: best_tata, x: method.lr, y: method.lambda}", "unknown name 'best_tata'. Did you mean 'best_taa'?"),
        ("{grid: best_taa, x: method.lt, y: method.lambda}", "unknown name 'method.lt'. Did you mean 'method.lr'?"),
        ("{grid: best_taa, x: method.lr, y: method.lr}", "expected another axis than x (got method.lr)"),
        ("{grid: best_taa, x: method.lr, y: seed}", "runs that differ in method.lambda fall together"),
        ("{x: round, draw: box}", "expected line over round, or an axis as x"),
        ("{pairs: divergence}", "runs that differ in method.lr fall together"),
    ],
)
def test_what_cannot_be_laid_out_is_refused_before_anything_runs(tmp_path: Path, figure: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_experiment(tmp_path, SMALL + f"report: {{figures: [{figure}]}}\n")
    assert problem in caught.value.describe()


def test_a_box_is_of_quartiles_and_its_whiskers_of_the_ends() -> None:
    assert summarise([4.0, 1.0, 3.0, 2.0, 10.0]) == (1.0, 2.0, 3.0, 4.0, 10.0)
    assert summarise([1.0, 2.0]) == (1.0, 1.25, 1.5, 1.75, 2.0)
    assert summarise([7.0]) == (7.0,) * 5
