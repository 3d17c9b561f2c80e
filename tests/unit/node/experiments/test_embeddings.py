"""Figures of embeddings: whose they are, when they are kept, and what is drawn of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from node.errors import ConfigError
from node.experiments import runner
from node.experiments.charts import get_colours
from node.experiments.embeddings import EmbeddingFigure, list_snapshot_runs, make_embedding_figures
from node.experiments.piece import Outcome, Piece
from node.experiments.plan import Experiment
from node.experiments.pool import Died, Event, Finished
from node.experiments.report import write_report
from node.experiments.results import (
    EXPERIMENT,
    BrokenResult,
    Kept,
    copy_result,
    get_snapshot_path,
    read_result,
    read_snapshot,
    write_result,
)
from node.experiments.runner import run_experiment
from node.experiments.sections import EmbeddingSection
from node.experiments.stock import take_stock
from support.data.experiments import get_run, make_document, make_experiment, make_kept

SWEEP = """\
name: maps
base: {clients: 2, rounds: 2}
sweep:
  method: [fedavg, {name: dfpl, label: DFPL}]
  partition: ["classes:3,1", iid]
  seed: [3, 1]
"""
FIGURE = "report: {figures: [{embedding: pca, panels: method, where: {partition: iid}}]}\n"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return make_experiment(tmp_path, SWEEP + FIGURE)


def write_all(directory: Path, experiment: Experiment, **kept: Any) -> None:
    """A result of every run, with a snapshot of those that are shown."""
    shown = list_snapshot_runs(experiment)
    for run in experiment.runs.values():
        write_result(directory, run, make_document([0.25, 0.5]), {0: make_kept(**kept)} if run.id in shown else None)


def draw(experiment: Experiment, directory: Path, **section: object) -> list[EmbeddingFigure]:
    snapshots = take_stock(experiment, directory).snapshots
    return make_embedding_figures(experiment, EmbeddingSection.model_validate(section), snapshots)


# ---- which runs are shown


@pytest.mark.parametrize(
    ("figure", "labels"),
    [
        ("panels: method, where: {partition: iid}", ["fedavg, iid, seed 3", "DFPL, iid, seed 3"]),
        ("panels: method, where: {partition: iid, seed: 1}", ["fedavg, iid, seed 1", "DFPL, iid, seed 1"]),
        ("panels: [method, seed], where: {partition: iid, method: DFPL}", ["DFPL, iid, seed 3", "DFPL, iid, seed 1"]),
        (
            "panels: partition, each: method, where: {method: DFPL}",
            ["DFPL, classes:3,1, seed 3", "DFPL, iid, seed 3"],
        ),
    ],
)
def test_a_panel_shows_one_run_of_the_first_seed_asked_for(tmp_path: Path, figure: str, labels: list[str]) -> None:
    made = make_experiment(tmp_path, f"{SWEEP}report: {{figures: [{{embedding: tsne, {figure}}}]}}\n")
    assert list_snapshot_runs(made) == {get_run(made, label).id: (0,) for label in labels}


def test_who_shows_no_embeddings_keeps_none(tmp_path: Path) -> None:
    assert list_snapshot_runs(make_experiment(tmp_path, SWEEP)) == {}


def test_runs_are_named_as_if_nobody_looked_at_their_embeddings(experiment: Experiment, tmp_path: Path) -> None:
    assert list(experiment.runs) == list(make_experiment(tmp_path, SWEEP).runs)


# ---- what is kept


def test_a_snapshot_is_read_back_whole(experiment: Experiment, tmp_path: Path) -> None:
    run, kept = get_run(experiment, "DFPL, iid, seed 3"), make_kept(authors=[0, 1])
    write_result(tmp_path, run, make_document([0.25, 0.5]), {0: kept})
    result = read_result(tmp_path, run)
    assert result is not None
    again = read_snapshot(tmp_path, run, result)
    assert again is not None
    assert again.names == ("a", "b", "c")
    assert again.snapshot.encode() == kept.snapshot.encode()
    assert {path.suffix for path in (tmp_path / "runs").iterdir()} == {".json", ".safetensors"}


def test_a_finished_run_without_the_snapshot_that_is_shown_is_to_be_run_again(
    experiment: Experiment, tmp_path: Path
) -> None:
    for run in experiment.runs.values():
        write_result(tmp_path, run, make_document([0.25, 0.5]))
    stock = take_stock(experiment, tmp_path)
    assert len(stock.finished) == 8  # their numbers count all the same
    assert {run.label for run in stock.list_pending(experiment)} == {"fedavg, iid, seed 3", "DFPL, iid, seed 3"}
    plain = make_experiment(tmp_path, SWEEP)
    assert take_stock(plain, tmp_path).list_pending(plain) == []
    write_all(tmp_path, experiment)
    assert take_stock(experiment, tmp_path).list_pending(experiment) == []


@pytest.mark.parametrize(
    "report",
    [
        "tables: [{value: train_seconds, columns: partition}]",
        "tables: [{value: taa_at_seconds, seconds: 3, columns: partition}]",
        "figures: [{x: seconds}]",
        "figures: [{x: partition, y: train_seconds, panels: []}]",
    ],
)
def test_a_finished_run_without_the_times_that_are_shown_is_to_be_run_again(tmp_path: Path, report: str) -> None:
    made = make_experiment(tmp_path, f"{SWEEP}report: {{{report}}}\n")
    for i, run in enumerate(made.runs.values()):
        write_result(tmp_path, run, make_document([0.25, 0.5], train_s=[1.0, 1.0] if i else None))
    assert take_stock(made, tmp_path).list_pending(made) == [next(iter(made.runs.values()))]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "expected the snapshot "),
        (lambda path: path.write_bytes(make_kept(3).snapshot.encode()), "expected the snapshot "),
    ],
)
def test_a_broken_snapshot_is_named_and_its_numbers_still_count(
    experiment: Experiment, tmp_path: Path, damage: Any, message: str
) -> None:
    write_all(tmp_path, experiment)
    run = get_run(experiment, "DFPL, iid, seed 3")
    path = get_snapshot_path(tmp_path, run.id)
    damage(path)
    stock = take_stock(experiment, tmp_path)
    assert stock.broken[run.id].startswith(f"{path}: {message}")
    assert run.id in stock.finished
    assert stock.list_pending(experiment) == [run]
    assert [panel.label for panel in draw(experiment, tmp_path, embedding="pca", where={"partition": "iid"})[0].panels]


def test_classes_without_a_name_are_refused(experiment: Experiment, tmp_path: Path) -> None:
    run, kept = get_run(experiment, "DFPL, iid, seed 3"), make_kept()
    write_result(tmp_path, run, make_document([0.25, 0.5]), {0: Kept(kept.snapshot, ("a", "b"))})
    result = read_result(tmp_path, run)
    assert result is not None
    with pytest.raises(BrokenResult, match="labels: expected less than 2, got 2"):
        read_snapshot(tmp_path, run, result)


@pytest.mark.parametrize("event", [Died(0, "it fell"), Finished(0, Outcome({"error": "it fell", "seconds": 0.0}))])
def test_a_failure_does_not_take_the_place_of_a_result(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: Event
) -> None:
    run = get_run(experiment, "DFPL, iid, seed 3")
    write_result(tmp_path, run, make_document([0.25, 0.5]))

    def fail(pieces: Sequence[Piece], *_: Any) -> Iterator[Event]:
        assert [piece.snapshots for piece in pieces] == [(0,)]
        yield event

    monkeypatch.setattr(runner, "work_through", fail)
    (news,) = run_experiment(experiment, tmp_path, [run], jobs=1, data_root=tmp_path, should_stop=lambda: False)
    assert (news.done, news.error) == (True, "it fell")
    result = read_result(tmp_path, run)
    assert result is not None
    assert result.error is None


# ---- what is drawn


def test_a_panel_counts_before_it_lays_flat(experiment: Experiment, tmp_path: Path) -> None:
    write_all(tmp_path, experiment)
    (figure,) = draw(experiment, tmp_path, embedding="tsne", where={"partition": "iid"})
    assert figure.title == "Embeddings by t-SNE"
    assert [(panel.label, panel.seed) for panel in figure.panels] == [("fedavg", "3"), ("DFPL", "3")]
    panel = figure.panels[0]
    assert (panel.samples.shape, panel.prototypes.shape) == ((12, 2), (3, 2))
    assert (panel.num_right, panel.num_nearest) == (4, 12)
    assert panel.said == [
        "12 samples",
        "33.3 % classified rightly",
        "100.0 % nearest to a prototype of their class",
        "3 prototypes",
    ]


def test_each_client_that_is_asked_for_has_a_panel(tmp_path: Path) -> None:
    figures = "report: {figures: [{embedding: pca, panels: method, where: {partition: iid}, clients: [0, 1]}]}\n"
    made = make_experiment(tmp_path, SWEEP + figures)
    (shown,) = set(list_snapshot_runs(made).values())
    assert shown == (0, 1)
    for run in made.runs.values():
        wanted = {0: make_kept(), 1: make_kept(9)} if run.id in list_snapshot_runs(made) else None
        write_result(tmp_path, run, make_document([0.25, 0.5]), wanted)
    stock = take_stock(made, tmp_path)
    assert stock.list_pending(made) == []
    (section,) = made.file.report.figures or ()
    assert isinstance(section, EmbeddingSection)
    (figure,) = make_embedding_figures(made, section, stock.snapshots)
    assert [panel.label for panel in figure.panels[:2]] == ["fedavg, client 0", "fedavg, client 1"]
    assert [len(panel.samples) for panel in figure.panels[:2]] == [12, 9]
    run = next(run for run in made.runs.values() if run.id in list_snapshot_runs(made))
    copy_result(tmp_path, tmp_path / "there", run)
    result = read_result(tmp_path / "there", run)
    assert result is not None
    there = [read_snapshot(tmp_path / "there", run, result, client) for client in (0, 1, 2)]
    assert [kept is not None for kept in there] == [True, True, False]
    get_snapshot_path(tmp_path, run.id, 1).write_bytes(b"")
    assert [one.id for one in take_stock(made, tmp_path).list_pending(made)] == [run.id]


def test_a_client_that_no_run_has_is_refused(tmp_path: Path) -> None:
    figures = "report: {figures: [{embedding: pca, panels: method, where: {partition: iid}, clients: [0, 7]}]}\n"
    with pytest.raises(ConfigError) as caught:
        make_experiment(tmp_path, SWEEP + figures)
    assert "report.figures.0.clients: expected clients from 0 to 1 (got 7)" in caught.value.describe()


def test_runs_without_a_snapshot_leave_no_panel_and_no_figure(experiment: Experiment, tmp_path: Path) -> None:
    assert draw(experiment, tmp_path, embedding="pca", where={"partition": "iid"}) == []
    write_result(tmp_path, get_run(experiment, "DFPL, iid, seed 3"), make_document([0.2, 0.5]), {0: make_kept()})
    (figure,) = draw(experiment, tmp_path, embedding="pca", where={"partition": "iid"})
    assert [panel.label for panel in figure.panels] == ["DFPL"]
    titles = [figure.title for figure in draw(experiment, tmp_path, embedding="pca", each="method", panels="partition")]
    assert titles == ["Embeddings by PCA, DFPL"]


def test_classes_of_different_names_go_by_their_numbers(experiment: Experiment, tmp_path: Path) -> None:
    for label, names in (("fedavg, iid, seed 3", ("cat", "dog")), ("DFPL, iid, seed 3", ("cat", "dog", "owl"))):
        write_result(tmp_path, get_run(experiment, label), make_document([0.2, 0.5]), {0: make_kept(names=names)})
    (figure,) = draw(experiment, tmp_path, embedding="pca", where={"partition": "iid"})
    assert figure.names == ("cat", "dog", "owl")
    kept = make_kept(names=("owl", "cat"))
    write_result(tmp_path, get_run(experiment, "fedavg, iid, seed 3"), make_document([0.2, 0.5]), {0: kept})
    (figure,) = draw(experiment, tmp_path, embedding="pca", where={"partition": "iid"})
    assert figure.names == ("0", "1", "2")


def test_every_class_has_a_colour_of_its_own() -> None:
    for count in (2, 10, 62):
        colours = get_colours(count)
        assert len(set(colours)) == count
        assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


@pytest.mark.parametrize(
    "kept",
    [{}, {"authors": [0, 4]}, {"authors": range(40)}, {"names": [str(i) for i in range(40)], "num_samples": 80}],
)
def test_a_figure_is_on_the_page_and_beside_it(experiment: Experiment, tmp_path: Path, kept: dict[str, Any]) -> None:
    (tmp_path / EXPERIMENT).write_text(SWEEP + FIGURE, encoding="utf-8")
    write_all(tmp_path, experiment, **kept)
    written = write_report(tmp_path)
    text = written.page.read_text(encoding="utf-8")
    assert [path.name for path in written.figures] == ["01-embeddings-by-pca.svg", "01-embeddings-by-pca.png"]
    assert 'role="img" aria-label="Embeddings by PCA. fedavg: ' in text
    assert "nearest to a prototype of their class" in text
    assert "seed 3." in text
    before = [path.read_bytes() for path in (written.page, *written.figures)]
    assert [path.read_bytes() for path in (write_report(tmp_path).page, *written.figures)] == before


def test_names_of_classes_are_text_and_dots_are_short(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / EXPERIMENT).write_text(SWEEP + FIGURE, encoding="utf-8")
    names = ("<b>$x^2$</b>", 'a "b" & c', "–")
    write_all(tmp_path, experiment, names=names, num_samples=600)
    text = write_report(tmp_path).page.read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "&lt;b&gt;$x^2$&lt;/b&gt;: 200 samples" in text
    (svg,) = re.findall("<svg.*?</svg>", text, re.DOTALL)
    root = ElementTree.fromstring(svg)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert {(use.get("href") or "").removeprefix("#") for use in root.iter("use")} <= set(ids)
    assert svg.count("<use ") > 2 * 600
    assert len(svg) < 2 * 600 * 80
