"""Tables, figures and the page, on results made by hand."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from node.errors import NotFound
from node.experiments.contents import get_report
from node.experiments.figures import Figure, make_figures
from node.experiments.plan import Experiment
from node.experiments.report import write_report
from node.experiments.results import EXPERIMENT, get_result_path, write_result
from node.experiments.sections import FigureSection, TableSection
from node.experiments.stock import take_stock
from node.experiments.tables import Cell, Table, make_table
from node.experiments.values import show_number
from node.report.elements import show_bytes
from support.data.experiments import make_document, make_experiment, write_results

TEXT = """\
name: hand
base: {clients: 2, rounds: 3}
sweep:
  method: [local, {name: dfpl, label: DFPL}]
  partition: ["classes:3,1", "classes:4,1"]
  seed: [1, 2]
report: {target: 0.5}
"""
TAA = {
    "local, classes:3,1, seed 1": (0.2, 0.6, 0.4),
    "local, classes:3,1, seed 2": (0.2, 0.4, 0.8),
    "DFPL, classes:3,1, seed 1": (0.5, 0.9, 0.7),
    "DFPL, classes:3,1, seed 2": (0.1, 0.5, 0.7),
    "local, classes:4,1, seed 1": (0.1, 0.2, 0.3),
    "local, classes:4,1, seed 2": (0.1, 0.2, 0.5),
    "DFPL, classes:4,1, seed 1": (0.1, 0.2, 0.3),
}


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    made = make_experiment(tmp_path, TEXT)
    write_results(tmp_path, made, TAA)
    return made


def lay_out(experiment: Experiment, directory: Path, **section: object) -> Table:
    return make_table(experiment, TableSection.model_validate(section), take_stock(experiment, directory).finished)


def get_texts(table: Table) -> list[list[str]]:
    return [[table.cells[row, column].text for column in table.columns] for row in table.rows]


# ---- tables


def test_a_cell_is_the_mean_and_population_deviation_over_seeds(experiment: Experiment, tmp_path: Path) -> None:
    table = lay_out(experiment, tmp_path, value="best_taa", rows="method", columns="partition")
    cell = table.cells[("local",), ("classes:3,1",)]
    assert cell.mean == pytest.approx(0.7)  # of 0.6 and 0.8
    assert cell.std == pytest.approx(0.1)
    assert (cell.num, cell.finished, cell.expected) == (2, 2, 2)
    assert get_texts(table) == [["70.00 ± 10.00", "40.00 ± 10.00"], ["80.00 ± 10.00", "30.00"]]
    assert table.rows == (("local",), ("DFPL",))
    assert table.note == "Percent. Mean ± standard deviation over 2 seeds."


def test_the_best_is_marked_where_all_compared_have_the_same_seeds(experiment: Experiment, tmp_path: Path) -> None:
    table = lay_out(experiment, tmp_path, value="best_taa", rows="method", columns="partition")
    assert [place for place, cell in table.cells.items() if cell.best] == [(("DFPL",), ("classes:3,1",))]
    lowest = lay_out(experiment, tmp_path, value="best_tal", rows="method", columns="partition")
    assert [place for place, cell in lowest.cells.items() if cell.best] == [(("DFPL",), ("classes:3,1",))]
    across = lay_out(experiment, tmp_path, rows="method", columns="partition", compare="partition")
    assert [place for place, cell in across.cells.items() if cell.best] == [(("local",), ("classes:3,1",))]


def test_numbers_that_look_the_same_are_both_best(tmp_path: Path) -> None:
    made = make_experiment(tmp_path, "name: x\nbase: {rounds: 1}\nsweep: {method: [local, fedavg, dfpl]}\n")
    taa = {"local, seed 1": [0.98001], "fedavg, seed 1": [0.98004], "dfpl, seed 1": [0.9799]}
    write_results(tmp_path, made, taa, num_clients=10)
    table = lay_out(made, tmp_path)
    assert [table.cells[row, ()].best for row in table.rows] == [True, True, False]
    write_results(tmp_path, made, {"dfpl, seed 1": [0.98003]}, num_clients=10)
    assert not any(cell.best for cell in lay_out(made, tmp_path).cells.values())


def test_rounds_to_target_are_of_the_seeds_that_reach_it(experiment: Experiment, tmp_path: Path) -> None:
    table = lay_out(experiment, tmp_path, value="rounds_to", rows="method", columns="partition")
    local, dfpl = (table.cells[(method,), ("classes:3,1",)] for method in ("local", "DFPL"))
    assert (local.mean, local.std) == (2.5, 0.5)  # rounds 2 and 3
    assert (dfpl.mean, dfpl.text, dfpl.best) == (1.5, "1.5 ± 0.5", True)
    rare = table.cells[("local",), ("classes:4,1",)]
    assert (rare.num, rare.finished, rare.text) == (1, 2, "3")
    assert table.cells[("DFPL",), ("classes:4,1",)].text == "never"


def test_rounds_that_were_not_measured_are_passed_over(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path, "name: x\nbase: {rounds: 4, eval_every: 2}\nsweep: {method: [local]}\n")
    (run,) = experiment.runs.values()
    document = make_document([0.1, 0.5, 0.2, 0.9], by_round={"received_bytes": [2, 4, 6, 8]})
    for row in document["rounds"][::2]:
        row |= dict.fromkeys(("taa", "tal", "taa_local", "global", "tal_global"), math.nan)
    write_result(tmp_path, run, document)
    finished = take_stock(experiment, tmp_path).finished
    value = ["best_taa", "rounds_to", "total_received_bytes_per_client"]
    assert get_texts(lay_out(experiment, tmp_path, value=value, target=0.8)) == [["90.00", "4", "2 B"]]
    (figure,) = make_figures(experiment, FigureSection(), finished)
    assert (figure.panels[0].lines[0].x, figure.panels[0].lines[0].mean) == ((2.0, 4.0), (0.5, 0.9))


def test_of_several_targets_each_has_a_column(experiment: Experiment, tmp_path: Path) -> None:
    where = {"partition": "classes:3,1"}
    table = lay_out(experiment, tmp_path, value="rounds_to", rows="method", target=[0.5, 0.9], where=where)
    assert table.columns == (("50 %",), ("90 %",))
    assert get_texts(table) == [["2.5 ± 0.5", "never"], ["1.5 ± 0.5", "2"]]
    assert [place for place, cell in table.cells.items() if cell.best] == [(("DFPL",), ("50 %",))]
    assert table.title == "Rounds until TAA reaches 50 or 90 %"
    assert "The first round whose TAA is at least what the column says." in table.note
    headings, *lines = table.list_numbers()
    assert headings[:3] == ("method", "value", "mean")
    assert [line[:3] for line in lines[2:]] == [("DFPL", "50 %", 1.5), ("DFPL", "90 %", 2.0)]

    values = ["best_taa", "rounds_to", "rounds_to_global"]
    mixed = lay_out(experiment, tmp_path, value=values, rows="method", target=[0.1, 0.2], where=where)
    assert [column[-1] for column in mixed.columns] == [
        "best TAA",
        "rounds to 10 %",
        "rounds to 20 %",
        "rounds to 10 % on all classes",
        "rounds to 20 % on all classes",
    ]
    assert get_texts(mixed)[1] == ["80.00 ± 10.00", "1.0 ± 0.0", "1.5 ± 0.5", "1.5 ± 0.5", "2"]


def test_rounds_may_be_counted_to_an_accuracy_on_all_classes(experiment: Experiment, tmp_path: Path) -> None:
    where = {"partition": "classes:3,1"}
    table = lay_out(experiment, tmp_path, value="rounds_to_global", rows="method", target=0.15, where=where)
    assert get_texts(table) == [["2.5 ± 0.5"], ["2.5 ± 0.5"]]  # a quarter of the TAA
    assert table.title == "Rounds until accuracy on all classes reaches 15 %"
    assert table.note.startswith(
        "Mean ± standard deviation over 2 seeds. The first round whose accuracy on all classes"
    )


def test_a_reports_targets_are_its_tables_and_its_figures(tmp_path: Path) -> None:
    text = TEXT.replace("target: 0.5", "target: [0.5, 0.6], figures: []").replace(", 2]", "]")
    made, _ = make_report(tmp_path, text)
    write_results(tmp_path, made, {label: taa for label, taa in TAA.items() if label.endswith("seed 1")})
    table = make_table(made, (get_report(made).tables or ())[2], take_stock(made, tmp_path).finished)
    assert (table.title, len(table.columns)) == ("Rounds until TAA reaches 50 or 60 %", 4)
    write_report(tmp_path)
    with (tmp_path / "runs.csv").open(newline="", encoding="utf-8") as file:
        first, second, *_ = csv.DictReader(file)
    assert [(row["rounds_to 0.5"], row["rounds_to 0.6"]) for row in (first, second)] == [("2", "2"), ("1", "2")]
    (figure,) = draw(made, tmp_path, x="partition", y="rounds_to", panels=[])
    assert [(line.label, line.mean) for line in figure.panels[0].lines] == [("local", (2.0,)), ("DFPL", (1.0,))]


@pytest.fixture
def shared(tmp_path: Path) -> Experiment:
    """FedAvg, and FedEDS, which takes longer and sends more before its first round than in any other."""
    made = make_experiment(tmp_path, "name: x\nbase: {clients: 2, rounds: 3}\nsweep: {method: [fedavg, fededs]}\n")
    fedavg, fededs = made.runs.values()
    plain = {"sent_bytes": [100, 100, 100], "received_bytes": [100, 100, 100]}
    write_result(tmp_path, fedavg, make_document([0.1, 0.5, 0.9], train_s=[1.0, 1.0, 1.0], by_round=plain))
    by_round = {"sent_bytes": [5000, *plain["sent_bytes"]], "received_bytes": [8000, *plain["received_bytes"]]}
    document = make_document([0.95, 0.3, 0.9, 0.8], train_s=[20.0, 2.0, 1.0, 1.0], by_round=by_round, sharing_heights=1)
    write_result(tmp_path, fededs, document)
    return made


def test_what_comes_before_round_1_is_no_round_and_yet_takes_time_and_bytes(shared: Experiment, tmp_path: Path) -> None:
    values = ["best_taa", "rounds_to", "sent_bytes_per_client", "train_seconds"]
    values += ["sharing_sent_bytes_per_client", "sharing_received_bytes_per_client", "sharing_seconds"]
    table = lay_out(shared, tmp_path, value=values, target=0.9)
    assert get_texts(table) == [
        ["90.00", "3", "50 B", "3.00", "–", "–", "–"],
        ["90.00", "2", "50 B", "24.0", "2.5 kB", "4.0 kB", "20.0"],
    ]
    by_itself = (get_report(shared).tables or ())[-1]
    assert (by_itself.title, by_itself.value[-1]) == (
        "What is sent in a round, and before the first",
        "sharing_sent_bytes_per_client",
    )
    timed = lay_out(shared, tmp_path, value="best_taa_at_seconds", seconds=22.5)
    assert get_texts(timed) == [["90.00"], ["30.00"]]
    for x, places in (("round", (1, 2, 3)), ("bytes", (2550, 2600, 2650)), ("seconds", (22, 23, 24))):
        (figure,) = draw(shared, tmp_path, x=x)
        line = figure.panels[0].lines[1]
        assert (line.label, line.x, line.mean) == ("fededs", places, (0.3, 0.9, 0.8))


def test_over_averages_within_a_seed_before_the_spread_over_seeds(experiment: Experiment, tmp_path: Path) -> None:
    table = lay_out(experiment, tmp_path, value="best_taa", rows="method", over="partition")
    cell = table.cells[("local",), ()]
    assert cell.mean == pytest.approx(((0.6 + 0.3) / 2 + (0.8 + 0.5) / 2) / 2)
    assert cell.std == pytest.approx(0.1)
    half = table.cells[("DFPL",), ()]  # of its second seed a run is missing
    assert half.mean == pytest.approx((0.9 + 0.3) / 2)
    assert (half.num, half.finished, half.expected) == (1, 1, 2)


def test_several_values_stand_side_by_side(experiment: Experiment, tmp_path: Path) -> None:
    values = ["best_taa", "final_taa", "final_global", "best_taa_local", "final_tal"]
    table = lay_out(experiment, tmp_path, value=values, rows="method", where={"partition": "classes:3,1"})
    assert [column[-1] for column in table.columns][:2] == ["best TAA", "final TAA"]
    assert get_texts(table)[1] == [
        "80.00 ± 10.00",
        "70.00 ± 0.00",
        "17.50 ± 0.00",
        "40.00 ± 5.00",
        "0.300 ± 0.000",
    ]
    assert table.cells[("DFPL",), ("best TAA",)].best


def test_what_is_missing_failed_or_never_reached_is_told_apart(tmp_path: Path) -> None:
    text = "name: x\nbudget: {t_sum: 30, alpha: 1, beta: 4}\nsweep: {method: [dfpl], rounds: [2, 3, 7]}\n"
    made = make_experiment(tmp_path, text)
    write_results(tmp_path, made, {"dfpl, R 2, seed 1": [0.1, 0.2]}, num_clients=10)
    table = lay_out(made, tmp_path, value="rounds_to", columns="rounds", target=0.5)
    assert get_texts(table) == [["never", "not run", "does not fit"]]


def test_a_table_of_bests_names_the_rounds_and_both_times(tmp_path: Path) -> None:
    text = """\
name: x
budget: {t_sum: 100, alpha: 1, beta: [4, 5]}
sweep: {method: [dfpl], rounds: [5, 6], seed: [1, 2]}
"""
    made = make_experiment(tmp_path, text)
    taa = {
        f"dfpl, R {rounds}, beta {beta}, seed {seed}": [0.0] * (rounds - 1) + [value]
        for rounds, beta, seed, value in (
            (5, 4, 1, 0.7),
            (5, 4, 2, 0.9),
            (6, 4, 1, 0.9),
            (6, 4, 2, 0.8),
            (5, 5, 1, 0.6),
            (5, 5, 2, 0.6),
            (6, 5, 1, 0.5),
        )
    }
    write_results(tmp_path, made, taa, num_clients=10)
    table = lay_out(made, tmp_path, columns="budget.beta", best_of="rounds")
    four, five = (table.cells[("dfpl",), (beta,)] for beta in ("4", "5"))
    assert (four.choice, four.detail, four.text) == ("(76, 6)", "E 12, 72 s used", "85.00 ± 5.00")
    assert (five.choice, five.detail, five.text) == ("(75, 5)", "E 15, 75 s used; 1 run missing", "60.00 ± 0.00")


def test_csv_has_a_line_for_each_cell_unrounded(experiment: Experiment, tmp_path: Path) -> None:
    table = lay_out(experiment, tmp_path, value="best_taa", rows="method", columns="partition")
    header, *rows = table.list_numbers()
    assert header == ("method", "partition", "mean", "std", "seeds", "best", "choice")
    assert [row[:2] for row in rows] == [
        (method, partition) for method in ("local", "DFPL") for partition in ("classes:3,1", "classes:4,1")
    ]
    assert rows[0][2] == pytest.approx(0.7)
    assert rows[2][4:6] == (2, 1)


def test_a_file_without_a_report_gets_tables_that_suit_it(experiment: Experiment, tmp_path: Path) -> None:
    report = get_report(experiment)
    assert [(table.value[0], table.rows, table.columns) for table in report.tables or ()] == [
        ("best_taa", ("method",), ("partition",)),
        ("final_global", ("method",), ("partition",)),
        ("rounds_to", ("method",), ("partition",)),  # since there is a target
        ("sent_params_per_client", ("method",), ()),
    ]
    figures = [figure for figure in report.figures or () if isinstance(figure, FigureSection)]
    assert [(figure.x, figure.lines, figure.panels) for figure in figures] == [
        ("round", ("method",), ("partition",)),
        ("bytes", ("method",), ("partition",)),
    ]


TIMED = "name: x\nbase: {clients: 2, rounds: 3}\nsweep: {method: [local, fedavg, dfpl]}\n"


@pytest.fixture
def timed(tmp_path: Path) -> Experiment:
    """Rounds of 1, 2 and 4 s; of twice as much; and of nobody knows how much."""
    made = make_experiment(tmp_path, TIMED)
    local, fedavg, dfpl = made.runs.values()
    write_result(tmp_path, local, make_document([0.2, 0.6, 0.4], train_s=[1.0, 2.0, 4.0]))
    write_result(tmp_path, fedavg, make_document([0.1, 0.8, 0.9], train_s=[2.0, 4.0, 8.0]))
    write_result(tmp_path, dfpl, make_document([0.1, 0.5, 0.7]))
    return made


@pytest.mark.parametrize(
    ("value", "seconds", "texts"),
    [
        ("taa_at_seconds", 7, ["40.00", "80.00", "not timed"]),
        ("taa_at_seconds", 6.5, ["60.00", "80.00", "not timed"]),
        ("taa_at_seconds", 1.5, ["20.00", "no round in time", "not timed"]),
        ("best_taa_at_seconds", 7, ["60.00", "80.00", "not timed"]),
        ("global_at_seconds", 3, ["15.00", "2.50", "not timed"]),
        ("best_global_at_seconds", 14, ["15.00", "22.50", "not timed"]),
    ],
)
def test_equal_time_is_read_at_the_last_round_that_ended_in_it(
    timed: Experiment, tmp_path: Path, value: str, seconds: float, texts: list[str]
) -> None:
    table = lay_out(timed, tmp_path, value=value, seconds=seconds)
    assert [row[0] for row in get_texts(table)] == texts
    assert table.note.endswith(f"Within {seconds:g} s of local training, by the clock of the machine.")


def test_runs_that_end_before_the_time_say_so(timed: Experiment, tmp_path: Path) -> None:
    table = lay_out(timed, tmp_path, value="taa_at_seconds", seconds=10)
    assert [cell.detail for cell in table.cells.values()] == ["runs end at 7.00 s", "", ""]


def test_training_time_is_a_value_of_its_own(timed: Experiment, tmp_path: Path) -> None:
    assert get_texts(lay_out(timed, tmp_path, value="train_seconds")) == [["7.00"], ["14.0"], ["not timed"]]


PEERS: dict[str, list[float]] = {
    "received_params": [100, 200, 300],
    "received_bytes": [1000, 1000, 4000],
    "peers": [5.0, 5.0, 5.0],
    "similar": [0.5, 1.0, 1.5],
    "dropout": [0.0, 0.5, 1.0],
    "divergence": [0.8, 0.25, 0.0312],
}


@pytest.fixture
def pulled(tmp_path: Path) -> Experiment:
    """A run that lacks what was not measured once; one with nothing on demand; and one with both branches."""
    made = make_experiment(tmp_path, TIMED)
    local, fedavg, dfpl = made.runs.values()
    write_result(tmp_path, local, make_document([0.2, 0.6, 0.4]))
    plain = {name: PEERS[name] for name in ("received_params", "received_bytes")}
    write_result(tmp_path, fedavg, make_document([0.1, 0.8, 0.9], by_round=plain))
    write_result(tmp_path, dfpl, make_document([0.1, 0.5, 0.7], by_round=PEERS))
    return made


def test_what_is_received_is_a_clients_mean_over_rounds(pulled: Experiment, tmp_path: Path) -> None:
    values = ["received_params_per_client", "received_bytes_per_client", "dropout_share"]
    table = lay_out(pulled, tmp_path, value=values)
    assert get_texts(table) == [["not counted", "not counted", "–"], ["100", "1.0 kB", "–"], ["100", "1.0 kB", "50.0"]]
    assert table.note == "Shares in percent. One seed."
    assert not any(cell.best for cell in table.cells.values())
    mixed = lay_out(pulled, tmp_path, value=["final_taa", "dropout_share"])
    assert mixed.note == "Accuracies and shares in percent. One seed."


def test_runs_that_do_not_say_what_they_received_are_run_again_where_it_is_asked_for(tmp_path: Path) -> None:
    asked = TIMED + "report: {tables: [{value: received_bytes_per_client}]}\n"
    for text, again in ((TIMED, 0), (asked, 1)):
        made = make_experiment(tmp_path, text)
        for i, run in enumerate(made.runs.values()):
            by_round = {"received_bytes": [1, 2, 3]} if i else None
            write_result(tmp_path, run, make_document([0.1, 0.2, 0.3], by_round=by_round))
        assert len(take_stock(made, tmp_path).list_pending(made)) == again


def test_runs_that_were_not_timed_are_run_again_where_it_is_asked_for(tmp_path: Path) -> None:
    asked = TIMED + "report: {tables: [{value: [train_seconds_per_round, aggregate_seconds_per_round]}]}\n"
    for text, again in ((TIMED, 0), (asked, 1)):
        made = make_experiment(tmp_path, text)
        for i, run in enumerate(made.runs.values()):
            by_round = {"aggregate_s": [0.5, 0.25, 0.75]} if i else None
            write_result(tmp_path, run, make_document([0.1, 0.2, 0.3], train_s=[1.0, 2.0, 6.0], by_round=by_round))
        assert len(take_stock(made, tmp_path).list_pending(made)) == again
    table = lay_out(made, tmp_path, value=["train_seconds_per_round", "aggregate_seconds_per_round"])
    assert get_texts(table) == [["3.00", "not timed"], ["3.00", "0.500"], ["3.00", "0.500"]]


@pytest.mark.parametrize(
    ("y", "title", "mean"),
    [
        ("dropout", "Clients in the dropout branch by round", (0.0, 0.5, 1.0)),
        ("divergence", "Divergence from the peers by round", (0.8, 0.25, 0.0312)),
        ("peers", "Peers by round", (5.0, 5.0, 5.0)),
    ],
)
def test_what_only_some_methods_have_is_drawn_for_those(
    pulled: Experiment, tmp_path: Path, y: str, title: str, mean: tuple[float, ...]
) -> None:
    (figure,) = draw(pulled, tmp_path, y=y)
    (line,) = figure.panels[0].lines
    assert (line.label, line.mean, figure.title) == ("dfpl", mean, title)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (show_number("share", 0.715), "71.5"),
        (show_number("number", 0.03121), "0.0312"),
        (show_number("number", 5.0), "5"),
        (show_number("seconds", 0.0321), "0.032"),
        (show_number("seconds", 3.21), "3.21"),
        (show_number("seconds", 32.1), "32.1"),
        (show_number("accuracy", 0.98164), "98.16"),
        (show_number("loss", 0.12345), "0.123"),
        (show_number("rounds", 7.0), "7"),
        (show_number("rounds", 0.5, spread=True), "0.5"),
        (show_number("count", 436_800.0), "436,800"),
        (show_bytes(87_360), "87.4 kB"),
        (show_bytes(999), "999 B"),
    ],
)
def test_numbers_are_shown_as_papers_show_them(shown: str, expected: str) -> None:
    assert shown == expected


# ---- figures


def draw(experiment: Experiment, directory: Path, **section: object) -> list[Figure]:
    return make_figures(experiment, FigureSection.model_validate(section), take_stock(experiment, directory).finished)


def test_a_line_is_the_mean_of_the_seeds_and_their_spread(experiment: Experiment, tmp_path: Path) -> None:
    (figure,) = draw(experiment, tmp_path)
    assert [panel.label for panel in figure.panels] == ["classes:3,1", "classes:4,1"]
    line = figure.panels[0].lines[0]
    assert (line.label, line.x, line.seeds) == ("local", (1.0, 2.0, 3.0), 2)
    assert line.mean == pytest.approx((0.2, 0.5, 0.6))
    assert line.std == pytest.approx((0.0, 0.1, 0.2))
    assert figure.panels[1].lines[1].seeds == 1


def test_bytes_add_up_over_rounds_and_are_one_clients(tmp_path: Path) -> None:
    made = make_experiment(tmp_path, "name: x\nbase: {clients: 2, rounds: 3}\nsweep: {method: [local, dfpl]}\n")
    run_local, run_dfpl = made.runs.values()
    write_result(tmp_path, run_local, make_document([0.1, 0.3, 0.2]))
    write_result(tmp_path, run_dfpl, make_document([0.1, 0.2, 0.3], sent_params=50))
    (figure,) = draw(made, tmp_path, x="bytes")
    local, dfpl = figure.panels[0].lines
    assert dfpl.x == (100.0, 200.0, 300.0)  # 50 numbers, 4 bytes each, of 2 clients
    assert not dfpl.flat
    assert local.flat
    assert figure.log_x


def test_seconds_add_up_over_rounds_where_they_were_measured(timed: Experiment, tmp_path: Path) -> None:
    (figure,) = draw(timed, tmp_path, x="seconds")
    assert [(line.label, line.x) for line in figure.panels[0].lines] == [
        ("local", (1.0, 3.0, 7.0)),
        ("fedavg", (2.0, 6.0, 14.0)),
    ]
    assert figure.title == "TAA by training time"
    assert not figure.whole_x


def test_a_figure_against_an_axis_has_its_values_as_ticks(tmp_path: Path) -> None:
    text = "name: x\nbase: {rounds: 1}\nsweep: {method: [dfpl], method.lambda: [0, 1, 4], seed: [1, 2]}\n"
    made = make_experiment(tmp_path, text)
    taa = {f"dfpl, lambda {x}, seed {seed}": [0.1 * x + 0.2 * seed] for x in (0, 1, 4) for seed in (1, 2)}
    write_results(tmp_path, made, taa, num_clients=10)
    (figure,) = draw(made, tmp_path, x="method.lambda", y="best_taa")
    (line,) = figure.panels[0].lines
    assert figure.ticks == ("0", "1", "4")
    assert line.x == (0.0, 1.0, 2.0)
    assert line.mean == pytest.approx((0.3, 0.4, 0.7))
    assert figure.x_label == "lambda"


def test_each_makes_a_figure_of_each_value_and_none_without_results(tmp_path: Path) -> None:
    text = "name: x\nbase: {rounds: 1}\nsweep: {method: [local], partition: [iid], clients: [2, 3, 4]}\n"
    made = make_experiment(tmp_path, text)
    write_results(tmp_path, made, {"local, 2 clients, seed 1": [0.5], "local, 4 clients, seed 1": [0.5]})
    figures = draw(made, tmp_path, each="clients")
    assert [figure.title for figure in figures] == ["TAA by round, clients 2", "TAA by round, clients 4"]


# ---- the page


class Page(HTMLParser):
    """Checks that elements nest, and keeps what a reader and a browser would get."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def references(self) -> Iterator[str]:
        for name, value in self.attributes:
            if name in ("href", "src", "xlink:href", "action", "data"):
                yield value
            yield from re.findall(r"url\(([^)]*)\)", value)


NASTY = '<script>alert("x")</script> & <b>'


def make_report(directory: Path, text: str = TEXT) -> tuple[Experiment, str]:
    made = make_experiment(directory, text)
    (directory / EXPERIMENT).write_text(text, encoding="utf-8")
    return made, text


def test_the_page_is_well_formed_and_refers_to_nothing_outside(experiment: Experiment, tmp_path: Path) -> None:
    make_report(tmp_path)
    written = write_report(tmp_path)
    text = written.page.read_text(encoding="utf-8")
    page = Page(text)
    assert all(reference.startswith("#") for reference in page.references())
    assert {reference.removeprefix("#") for reference in page.references()} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags
    assert not re.search(r"https?://|@import|//cdn", text)
    assert page.tags.count("svg") == 2
    assert page.tags.count("caption") == page.tags.count("table")
    assert "70.00 ± 10.00" in page.text
    assert written.summary == "7 of 8 runs are done"


def test_the_page_says_what_failed_what_broke_and_what_is_missing(experiment: Experiment, tmp_path: Path) -> None:
    make_report(tmp_path)
    by_label = {run.label: run for run in experiment.runs.values()}
    failed = by_label["local, classes:3,1, seed 2"]
    ending = {key: value for key, value in make_document([0.5]).items() if key not in ("rounds", "clients")}
    write_result(tmp_path, failed, {"error": NASTY, **ending})
    get_result_path(tmp_path, by_label["DFPL, classes:3,1, seed 2"].id).write_text("{")
    page = Page(write_report(tmp_path).page.read_text(encoding="utf-8"))
    assert "5 of 8 runs are done, 1 failed" in page.text
    assert f"local, classes:3,1, seed 2: {NASTY}" in page.text
    assert "not a result: Invalid JSON" in page.text
    assert "Missing: 1" in page.text
    assert "DFPL, classes:4,1, seed 2" in page.text


def test_whatever_stands_in_the_file_is_text_on_the_page(tmp_path: Path) -> None:
    text = f"""\
name: nasty
title: '{NASTY}'
description: '{NASTY}'
base: {{clients: 2, rounds: 1}}
sweep: {{method: [local, {{name: dfpl, label: '{NASTY}'}}]}}
report: {{tables: [{{title: '{NASTY}'}}], figures: [{{title: '{NASTY}'}}]}}
"""
    made, _ = make_report(tmp_path, text)
    write_results(tmp_path, made, {"local, seed 1": [0.5], f"{NASTY}, seed 1": [0.25]})
    written = write_report(tmp_path)
    whole = written.page.read_text(encoding="utf-8")
    page = Page(whole)
    assert "<script" not in whole
    assert "<b>" not in whole
    assert page.text.count(NASTY) >= 6
    assert all(re.fullmatch(r"[a-z0-9.-]+", path.name) for path in (*written.tables, *written.figures))


@pytest.mark.outer
def test_the_report_repeats_itself_byte_for_byte_and_leaves_nothing_stale(
    experiment: Experiment, tmp_path: Path
) -> None:
    make_report(tmp_path)
    stale = tmp_path / "tables" / "99-of-yesterday.csv"
    stale.parent.mkdir()
    stale.write_text("old")
    first = write_report(tmp_path)
    paths = [first.page, *first.tables, *first.figures]
    before = [path.read_bytes() for path in paths]
    second = write_report(tmp_path)
    assert [path.read_bytes() for path in [second.page, *second.tables, *second.figures]] == before
    assert not stale.exists()
    assert {path.suffix for path in first.figures} == {".svg", ".png"}


def test_the_csv_of_all_runs_has_every_combination(experiment: Experiment, tmp_path: Path) -> None:
    make_report(tmp_path)
    write_report(tmp_path)
    with (tmp_path / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert [row["state"] for row in rows].count("done") == 7
    first = rows[0]
    assert (first["method"], first["partition"], first["seed"]) == ("local", "classes:3,1", "1")
    assert math.isclose(float(first["best_taa"]), 0.6)
    assert (first["rounds_to"], first["final_taa"]) == ("2", "0.4")


def test_a_report_of_nothing_at_all_still_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="expected a directory that `fednode experiment run` has written"):
        write_report(tmp_path)
    make_report(tmp_path)
    written = write_report(tmp_path)
    assert written.figures == ()
    assert "0 of 8 runs are done" in Page(written.page.read_text(encoding="utf-8")).text


def test_cells_without_a_spread_show_none() -> None:
    assert Cell("accuracy", 0.5, 0.0, 1, 1, 3).text == "50.00"
    assert Cell("count", 10.0, 0.0, 3, 3, 3).text == "10"
    assert Cell("count", 10.0, 2.0, 3, 3, 3).text == "10 ± 2"
