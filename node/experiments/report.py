"""A directory of results as a page, with its tables as CSV and its figures as SVG and PNG beside it.

report.html      everything
runs.csv         one line for each combination of the sweep
tables/, figures/     made anew each time; figures of answers and heat maps have their numbers as CSV beside them
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.errors import NodeError, NotFound
from node.experiments.answers import AnswersFigure, make_answers_figures
from node.experiments.charts import AnyFigure, make_draw, number_lines
from node.experiments.contents import get_report
from node.experiments.embeddings import make_embedding_figures
from node.experiments.figures import Figure, make_figures
from node.experiments.loading import load_experiment
from node.experiments.page import count_runs, get_state, list_columns, render_page
from node.experiments.plan import Experiment, show_fact
from node.experiments.results import EXPERIMENT
from node.experiments.sections import AnswersSection, AnyFigureSection, EmbeddingSection
from node.experiments.stock import Stock, take_stock
from node.experiments.tables import Reading, Table, list_readings, make_table
from node.experiments.values import VALUES
from node.report.drawing import write_files

PAGE = "report.html"
RUNS_CSV = "runs.csv"


@dataclass(frozen=True, slots=True)
class Written:
    """The files that a report has written."""

    page: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    summary: str


def write_report(directory: Path) -> Written:
    """Writes a report of what `directory` holds, also where runs are missing. Raises NotFound where no experiment was
    run, and NodeError where matplotlib is missing or a file cannot be written."""
    source = directory / EXPERIMENT
    if not source.is_file():
        raise NotFound(f"{directory}: expected a directory that `fednode experiment run` has written ({EXPERIMENT})")
    experiment = load_experiment(source)
    stock = take_stock(experiment, directory)
    sections = get_report(experiment)
    tables = [make_table(experiment, section, stock.finished) for section in sections.tables or ()]
    figures = [figure for section in sections.figures or () for figure in _make_figures(experiment, section, stock)]
    numbers = number_lines(figures)
    try:
        page = render_page(experiment, stock, tables, figures, numbers)
        (directory / PAGE).write_text(page, encoding="utf-8")
        _write_csv(directory / RUNS_CSV, _list_runs(experiment, stock))
        table_paths = _write_tables(directory / "tables", tables)
        figure_paths = _write_figures(directory / "figures", figures, numbers)
    except OSError as error:
        raise NodeError(f"{directory}: the report cannot be written ({error.strerror})") from error
    summary = count_runs(experiment, stock)
    return Written(directory / PAGE, (directory / RUNS_CSV, *table_paths), tuple(figure_paths), summary)


def _make_figures(experiment: Experiment, section: AnyFigureSection, stock: Stock) -> Sequence[AnyFigure]:
    if isinstance(section, EmbeddingSection):
        return make_embedding_figures(experiment, section, stock.snapshots)
    if isinstance(section, AnswersSection):
        return make_answers_figures(experiment, section, stock.snapshots)
    return make_figures(experiment, section, stock.finished)


# ---- the files beside the page


def _write_tables(directory: Path, tables: Sequence[Table]) -> list[Path]:
    _empty(directory)
    paths = [directory / f"{i:02}-{_make_slug(table.title)}.csv" for i, table in enumerate(tables, start=1)]
    for path, table in zip(paths, tables, strict=True):
        _write_csv(path, table.list_numbers())
    return paths


def _write_figures(directory: Path, figures: Sequence[AnyFigure], numbers: Mapping[str, int]) -> list[Path]:
    _empty(directory)
    paths = []
    for i, figure in enumerate(figures, start=1):
        stem = directory / f"{i:02}-{_make_slug(figure.title)}"
        paths += write_files(make_draw(figure, numbers), stem)
        if isinstance(figure, AnswersFigure) or (isinstance(figure, Figure) and figure.draw == "grid"):
            paths.append(stem.with_name(f"{stem.name}.csv"))
            _write_csv(paths[-1], figure.list_numbers())
    return paths


def _empty(directory: Path) -> None:
    """Removes the files of an earlier report that this one does not write."""
    directory.mkdir(exist_ok=True)
    for path in directory.glob("[0-9][0-9]-*.*"):
        path.unlink()


def _make_slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "untitled"


def _write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _list_runs(experiment: Experiment, stock: Stock) -> Iterator[Sequence[object]]:
    """Yields headings, and a line for each combination; accuracies in 0..1."""
    axes = list_columns(experiment)
    readings: dict[str, Reading] = {}
    for name in (name for name, value in VALUES.items() if not (value.needs_seconds or value.needs_network)):
        own = list_readings((name,), experiment.file.report.target)
        readings |= {name if len(own) == 1 else f"{name} {r.limits.target:g}": r for r in own}
    budget = ["local_iterations", "available_s", "used_s"] if experiment.file.budget is not None else []
    yield "run", *axes, "state", *budget, *readings
    for point in experiment.points:
        result = stock.finished.get(point.run.id) if point.run is not None else None
        numbers = [result and r.value.compute(result, r.limits) for r in readings.values()]
        plan = [getattr(point.budget, name, "") for name in budget]
        facts = [show_fact(point.facts.get(axis)) for axis in axes]
        yield point.run.id if point.run else "", *facts, get_state(point, stock), *plan, *numbers
