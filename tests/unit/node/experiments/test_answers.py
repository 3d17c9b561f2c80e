"""Figures of answers: confusion, ROC and calibration of runs' models after the last round, as pictures and CSV."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn import calibration, metrics

from node.experiments.answers import AnswersFigure, compute_answers, make_answers_figures, say_figures
from node.experiments.embeddings import list_snapshot_runs
from node.experiments.plan import Experiment
from node.experiments.report import write_report
from node.experiments.results import EXPERIMENT, Kept, write_result
from node.experiments.sections import AnswersSection
from node.experiments.stock import take_stock
from support.data.experiments import get_run, make_document, make_experiment, make_kept

SWEEP = """\
name: answers
base: {clients: 2, rounds: 2}
sweep:
  method: [fedavg, {name: dfpl, label: DFPL}]
  partition: ["classes:3,1", iid]
"""
FIGURES = """\
report:
  figures:
    - {answers: confusion, panels: method, where: {partition: iid}}
    - {answers: roc, panels: method, where: {partition: iid}}
    - {answers: calibration, panels: method, each: partition, where: {method: DFPL}, title: Sure}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    (tmp_path / EXPERIMENT).write_text(SWEEP + FIGURES)
    return make_experiment(tmp_path, SWEEP + FIGURES)


def write_all(directory: Path, experiment: Experiment, kept: Kept) -> None:
    shown = list_snapshot_runs(experiment)
    for run in experiment.runs.values():
        write_result(directory, run, make_document([0.25, 0.5]), {0: kept} if run.id in shown else None)


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_runs_that_are_shown_keep_their_answers(experiment: Experiment) -> None:
    labels = ["fedavg, iid, seed 1", "DFPL, iid, seed 1", "DFPL, classes:3,1, seed 1"]
    assert list_snapshot_runs(experiment) == {get_run(experiment, label).id: (0,) for label in labels}


def test_a_report_has_each_figure_and_its_numbers(experiment: Experiment, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    kept = make_kept(60)
    write_all(tmp_path, experiment, kept)
    written = write_report(tmp_path)
    stems = ["01-confusion-of-classes", "02-roc-each-class-against-all-others"]
    stems += ["03-sure-classes-3-1", "04-sure-iid"]
    expected = {f"{stem}.{ending}" for stem in stems for ending in ("svg", "png", "csv")}
    assert {path.name for path in written.figures} == expected
    assert all(path.stat().st_size > 100 for path in written.figures)
    text = written.page.read_text()
    assert "Answers of a client, 0 where none is named, after the last round" in text
    assert text.count("<svg") >= 4
    figures, labels = tmp_path / "figures", kept.snapshot.labels
    counts = {
        (row["class"], row["given"]): int(row["samples"])
        for row in read(figures / f"{stems[0]}.csv")
        if row["panel"] == "DFPL"
    }
    assert sum(counts.values()) == 60
    assert Counter("abc"[label] for label in labels) == {name: counts[name, "a"] for name in "abc"}  # all called a
    rocs = [row for row in read(figures / f"{stems[1]}.csv") if (row["panel"], row["class"]) == ("DFPL", "b")]
    false_rate, true_rate, _ = metrics.roc_curve(
        labels == 1, kept.snapshot.probabilities[:, 1], drop_intermediate=False
    )
    assert [float(row["false_positive_rate"]) for row in rocs] == pytest.approx(false_rate.tolist())
    assert [float(row["true_positive_rate"]) for row in rocs] == pytest.approx(true_rate.tolist())
    bins = read(figures / f"{stems[3]}.csv")
    probabilities = kept.snapshot.probabilities.astype(np.float64)
    accuracy, confidence = calibration.calibration_curve(
        probabilities.argmax(1) == labels, probabilities.max(1), n_bins=15
    )
    assert [float(row["accuracy"]) for row in bins] == pytest.approx(accuracy.tolist())
    assert [float(row["confidence"]) for row in bins] == pytest.approx(confidence.tolist())


def test_two_classes_have_one_curve_and_what_is_said_of_it() -> None:
    kept = make_kept(40, names=("benign", "malignant"))
    answers = compute_answers("fedavg", "1", kept)
    assert list(answers.rocs) == ["malignant"]
    area = metrics.roc_auc_score(kept.snapshot.labels, kept.snapshot.probabilities[:, 1])
    assert answers.rocs["malignant"][1] == pytest.approx(area)
    assert say_figures("roc", answers) == ["40 samples", f"AUC of malignant {answers.rocs['malignant'][1]:.3f}"]
    assert say_figures("confusion", answers) == ["40 samples", "50.0 % classified rightly"]


def test_runs_without_a_snapshot_are_left_out(experiment: Experiment, tmp_path: Path) -> None:
    section = AnswersSection(answers="roc", where={"partition": "iid"})
    assert make_answers_figures(experiment, section, {}) == []
    run = get_run(experiment, "DFPL, iid, seed 1")
    write_result(tmp_path, run, make_document([0.25, 0.5]), {0: make_kept()})
    made = make_answers_figures(experiment, section, take_stock(experiment, tmp_path).snapshots)
    assert [[panel.label for panel in figure.panels] for figure in made] == [["DFPL"]]
    assert isinstance(made[0], AnswersFigure)
