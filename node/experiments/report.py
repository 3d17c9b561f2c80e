"""A directory of results as a page, with its tables as CSV and its figures as SVG and PNG beside it.

report.html      everything
runs.csv         one line for each combination of the sweep
tables/, figures/     made anew each time; figures of answers have their numbers as CSV beside them
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.training.metrics import compute_mean
from node.errors import NodeError, NotFound
from node.experiments import answer_charts, answers, charts, grid_charts, map_charts, page
from node.experiments.answers import AnswersFigure, format_answers_csv, make_answers_figures
from node.experiments.axes import name_axis
from node.experiments.contents import get_report
from node.experiments.embeddings import EmbeddingFigure, make_embedding_figures
from node.experiments.figures import Figure, make_figures, make_pair_figures
from node.experiments.grids import GridFigure, format_grid_csv, make_grid_figures, say_figures
from node.experiments.loading import load_experiment
from node.experiments.network import describe_network
from node.experiments.plan import MEASURED, VERSION, Experiment, Point, show_fact
from node.experiments.results import EXPERIMENT, Result
from node.experiments.sections import AnswersSection, AnyFigureSection, EmbeddingSection, GridSection, PairsSection
from node.experiments.stock import Stock, take_stock
from node.experiments.tables import Reading, Table, format_table_csv, list_readings, make_table
from node.experiments.values import VALUES, Limits, show_number

AnyFigure = Figure | GridFigure | EmbeddingFigure | AnswersFigure

PAGE = "report.html"
RUNS_CSV = "runs.csv"
_BUDGET_AXES = ("budget.t_sum", "budget.beta", "rounds", "budget.alpha")


@dataclass(frozen=True, slots=True)
class Written:
    """The files that a report has written."""

    page: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    summary: str


def write_report(directory: Path) -> Written:
    """Report what `directory` holds, however much is missing. Raises NotFound where no experiment was run, and
    NodeError where matplotlib is missing or a file cannot be written."""
    source = directory / EXPERIMENT
    if not source.is_file():
        raise NotFound(f"{directory}: expected a directory that `fednode experiment run` has written ({EXPERIMENT})")
    experiment = load_experiment(source)
    stock = take_stock(experiment, directory)
    sections = get_report(experiment)
    tables = [make_table(experiment, section, stock.finished) for section in sections.tables or ()]
    figures = [figure for section in sections.figures or () for figure in _make_figures(experiment, section, stock)]
    colours = charts.assign_colours([figure for figure in figures if isinstance(figure, Figure)])
    try:
        (directory / PAGE).write_text(_render(experiment, stock, tables, figures, colours), encoding="utf-8")
        (directory / RUNS_CSV).write_text(_format_runs_csv(experiment, stock), encoding="utf-8")
        table_paths = _write_tables(directory / "tables", tables)
        figure_paths = _write_figures(directory / "figures", figures, colours)
    except OSError as error:
        raise NodeError(f"{directory}: the report cannot be written ({error.strerror})") from error
    return Written(
        directory / PAGE, (directory / RUNS_CSV, *table_paths), tuple(figure_paths), _count_runs(experiment, stock)
    )


def _make_figures(experiment: Experiment, section: AnyFigureSection, stock: Stock) -> Sequence[AnyFigure]:
    if isinstance(section, EmbeddingSection):
        return make_embedding_figures(experiment, section, stock.snapshots)
    if isinstance(section, AnswersSection):
        return make_answers_figures(experiment, section, stock.snapshots)
    if isinstance(section, GridSection):
        return make_grid_figures(experiment, section, stock.finished)
    if isinstance(section, PairsSection):
        return make_pair_figures(experiment, section, stock.finished)
    return make_figures(experiment, section, stock.finished)


# ---- the files beside the page


def _write_tables(directory: Path, tables: Sequence[Table]) -> list[Path]:
    _empty(directory, ("csv",))
    paths = []
    for i, table in enumerate(tables, start=1):
        paths.append(directory / f"{i:02}-{_make_slug(table.title)}.csv")
        paths[-1].write_text(format_table_csv(table), encoding="utf-8")
    return paths


def _write_figures(directory: Path, figures: Sequence[AnyFigure], colours: Mapping[str, int]) -> list[Path]:
    _empty(directory, ("svg", "png", "csv"))
    paths = []
    for i, figure in enumerate(figures, start=1):
        stem = directory / f"{i:02}-{_make_slug(figure.title)}"
        if isinstance(figure, EmbeddingFigure):
            paths += map_charts.write_files(figure, stem)
        elif isinstance(figure, AnswersFigure):
            paths += answer_charts.write_files(figure, stem)
            paths.append(stem.with_name(f"{stem.name}.csv"))
            paths[-1].write_text(format_answers_csv(figure), encoding="utf-8")
        elif isinstance(figure, GridFigure):
            paths += grid_charts.write_files(figure, stem)
            paths.append(stem.with_name(f"{stem.name}.csv"))
            paths[-1].write_text(format_grid_csv(figure), encoding="utf-8")
        else:
            paths += charts.write_files(figure, colours, stem)
    return paths


def _empty(directory: Path, endings: Iterable[str]) -> None:
    """Leave nothing of an earlier report that this one does not write."""
    directory.mkdir(exist_ok=True)
    for ending in endings:
        for path in directory.glob(f"[0-9][0-9]-*.{ending}"):
            path.unlink()


def _make_slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "untitled"


def _format_runs_csv(experiment: Experiment, stock: Stock) -> str:
    """One line for each combination; accuracies in 0..1."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    axes = _list_columns(experiment)
    readings: dict[str, Reading] = {}
    for name in (name for name, value in VALUES.items() if not (value.needs_seconds or value.needs_network)):
        own = list_readings((name,), experiment.file.report.target)
        readings |= {name if len(own) == 1 else f"{name} {r.limits.target:g}": r for r in own}
    budget = ["local_iterations", "available_s", "used_s"] if experiment.file.budget is not None else []
    writer.writerow(["run", *axes, "state", *budget, *readings])
    for point in experiment.points:
        result = stock.finished.get(point.run.id) if point.run is not None else None
        numbers = [r.value.compute(result, r.limits) if result is not None else None for r in readings.values()]
        plan = [getattr(point.budget, name) if point.budget is not None else "" for name in budget]
        facts = [show_fact(point.facts.get(axis)) for axis in axes]
        shown = ["" if number is None else repr(number) for number in numbers]
        writer.writerow([point.run.id if point.run else "", *facts, _get_state(point, stock), *plan, *shown])
    return out.getvalue()


def _list_columns(experiment: Experiment) -> list[str]:
    always = ["data", "model", "partition", "clients", "rounds", "method", "seed"]
    return [*always, *(axis for axis in experiment.axes if axis not in always)]


def _get_state(point: Point, stock: Stock) -> str:
    if point.run is None:
        return "does not fit"
    if point.run.id in stock.finished:
        return "done"
    return "failed" if point.run.id in stock.failed else "broken" if point.run.id in stock.broken else "missing"


# ---- the page


def _render(
    experiment: Experiment,
    stock: Stock,
    tables: Sequence[Table],
    figures: Sequence[AnyFigure],
    colours: Mapping[str, int],
) -> str:
    parts = [page.Part("tables", "Tables", page.render_tables(tables))]
    if figures:
        drawn = (_render_figure(figure, colours, f"f{i}") for i, figure in enumerate(figures))
        parts.append(page.Part("figures", "Figures", "\n".join(drawn)))
    if experiment.file.budget is not None:
        parts.append(page.Part("budget", "Time budget", _render_budget(experiment)))
    parts.append(page.Part("configuration", "Configuration", _render_configuration(experiment)))
    parts.append(page.Part("runs", "Runs", _render_runs(experiment, stock)))
    missing = _count_missing(experiment, stock)
    notice = f"{_count_runs(experiment, stock)}. What follows is from the runs that are there." if missing else ""
    return page.render_page(
        experiment.title, experiment.file.description, _list_tiles(experiment, stock), notice, parts
    )


def _render_figure(figure: AnyFigure, colours: Mapping[str, int], prefix: str) -> str:
    if isinstance(figure, EmbeddingFigure):
        return _render_maps(figure, prefix)
    if isinstance(figure, AnswersFigure):
        return _render_answers(figure, prefix)
    if isinstance(figure, GridFigure):
        return _render_grid(figure, prefix)
    seeds = sorted({line.seeds for panel in figure.panels for line in panel.lines})
    note = "One seed." if seeds == [1] else f"Mean over {seeds[-1]} seeds; the band is one standard deviation."
    if figure.boxes:
        note = "Boxes are quartiles and median of the seeds, whiskers reach to the lowest and the highest."
    if any(line.flat for panel in figure.panels for line in panel.lines):
        note += " A dotted line sends nothing: it is drawn at its best."
    rows = []
    for panel in figure.panels:
        for line in panel.lines:
            numbers = (
                f"{_show_x(figure, x)}: {show_number(figure.kind, mean)}"
                + (f" ± {show_number(figure.kind, std, spread=True)}" if line.seeds > 1 else "")
                for x, mean, std in zip(line.x, line.mean, line.std, strict=True)
            )
            rows.append((panel.label, line.label, "; ".join(numbers)))
    table = page.render_plain_table(
        figure.title, ("panel", "line", f"{figure.x_label}: {figure.y_label}"), rows, heads=2
    )
    more = page.render_details("The same in numbers", table)
    return page.render_figure(charts.render_inline(figure, colours, prefix), figure.title + ".", note, more)


def _render_maps(figure: EmbeddingFigure, prefix: str) -> str:
    seeds = list(dict.fromkeys(panel.seed for panel in figure.panels))
    note = (
        "Samples of the global test set as a client, 0 where none is named, embeds them after the last round, laid "
        f"flat by {figure.method}, with the prototypes it holds. Each panel is a map of its own, of one run: seed "
        f"{', '.join(seeds)}."
    )
    if len(figure.names) > map_charts.MOST_NAMED:
        note += " Of so many classes no legend is drawn: a sample says its class while the pointer rests on it."
    rows = [(panel.label, "; ".join(map_charts.say_counts(panel))) for panel in figure.panels]
    table = page.render_plain_table(figure.title, ("panel", "counted"), rows)
    more = page.render_details("The same in numbers", table)
    return page.render_figure(map_charts.render_inline(figure, prefix), figure.title + ".", note, more)


def _render_answers(figure: AnswersFigure, prefix: str) -> str:
    seeds = list(dict.fromkeys(panel.seed for panel in figure.panels))
    note = (
        "Answers of a client, 0 where none is named, after the last round to samples of the global test set. Each "
        f"panel is of one run: seed {', '.join(seeds)}. The CSV of the same name has every number."
    )
    rows = [(panel.label, "; ".join(answers.say_figures(figure.kind, panel))) for panel in figure.panels]
    table = page.render_plain_table(figure.title, ("panel", "counted"), rows)
    more = page.render_details("The same in numbers", table)
    return page.render_figure(answer_charts.render_inline(figure, prefix), figure.title + ".", note, more)


def _render_grid(figure: GridFigure, prefix: str) -> str:
    seeds = sorted({cell.num for panel in figure.panels for row in panel.cells for cell in row if cell is not None})
    note = "One seed." if seeds[-1] <= 1 else f"Mean over {seeds[-1]} seeds."
    note += " The darker the better. The CSV of the same name has every number and its spread."
    rows = [(panel.label, "; ".join(say_figures(figure, panel))) for panel in figure.panels]
    more = page.render_details(
        "The same in numbers", page.render_plain_table(figure.title, ("panel", "read off"), rows)
    )
    return page.render_figure(grid_charts.render_inline(figure, prefix), figure.title + ".", note, more)


def _show_x(figure: Figure, x: float) -> str:
    return figure.ticks[int(x)] if figure.ticks else show_number("bytes", x) if figure.log_x else f"{x:g}"


def _render_budget(experiment: Experiment) -> str:
    """What Eq. (11) makes of each budget: both the time there is and the time that is used."""
    plans = {tuple(show_fact(point.facts[axis]) for axis in _BUDGET_AXES): point.budget for point in experiment.points}
    alphas = list(dict.fromkeys(key[-1] for key in plans))
    rows = []
    for key in dict.fromkeys(key[:-1] for key in plans):
        spent = [plans[(*key, alpha)] for alpha in alphas]
        available = next((f"{plan.available_s:g}" for plan in spent if plan is not None), "")
        shown = [f"{plan.local_iterations} ({plan.used_s:g})" if plan is not None else "does not fit" for plan in spent]
        rows.append((*key, available, *shown))
    headings = ("t_sum, s", "β, s", "R", "t_sum − R·β, s", *(f"α {alpha} s: E (E·α·R, s)" for alpha in alphas))
    return page.render_plain_table("Local iterations that fit: E = ⌊(t_sum / R − β) / α⌋", headings, rows, heads=3)


def _render_configuration(experiment: Experiment) -> str:
    points = experiment.points
    names = ("data", "model", "partition", "clients", "shots", "rounds", "seed", "device", *MEASURED)
    names = tuple(name for name in names if name in experiment.known_axes)
    settings = [(name, _list_values(points, name)) for name in names]
    swept = [axis for axis in experiment.axes if axis not in (*names, "method")]
    settings += [(name_axis(axis), _list_values(points, axis)) for axis in swept]
    common = page.render_plain_table("Settings of all runs", ("setting", "values"), settings)
    methods = list(dict.fromkeys(show_fact(point.facts["method"]) for point in points))
    keys = list(dict.fromkeys(key for point in points for key in point.facts if key.startswith("method.")))
    rows = []
    for key in keys:
        values = [
            _list_values([point for point in points if show_fact(point.facts["method"]) == method], key)
            for method in methods
        ]
        rows.append((key.removeprefix("method."), *values))
    title = "Settings of the methods, defaults written out"
    return common + page.render_plain_table(title, ("setting", *methods), rows) + _render_networks(experiment)


def _render_networks(experiment: Experiment) -> str:
    networks = [describe_network(network) for network in experiment.file.report.network]
    headings = ("network", "server", "peers", "local work")
    return page.render_plain_table("Networks that seconds are reckoned by", headings, networks) if networks else ""


def _list_values(points: Sequence[Point], axis: str) -> str:
    return ", ".join(dict.fromkeys(show_fact(point.facts.get(axis)) for point in points))


def _render_runs(experiment: Experiment, stock: Stock) -> str:
    out = []
    failures = [f"{experiment.runs[run_id].label}: {result.error}" for run_id, result in stock.failed.items()]
    for title, items in (
        ("Failed", failures),
        ("Not the result of their run", list(stock.broken.values())),
        ("Do not fit", list(dict.fromkeys(p.misfit for p in experiment.points if p.misfit))),
        ("Came to a halt", _list_halted(experiment, stock)),
        ("Missing", _list_missing(experiment, stock)),
    ):
        if items:
            out.append(page.render_details(f"{title}: {len(items)}", page.render_list(items)))
    machines = dict.fromkeys(_describe_machine(result) for result in stock.finished.values())
    out.append(page.render_plain_table("Machines", ("machine", "runs"), _count_by_machine(machines, stock)))
    axes = _list_columns(experiment)
    rows = [_describe_point(point, axes, stock) for point in experiment.points]
    headings = (*map(name_axis, axes), "state", "best TAA", "final TAA", "final on all classes", "seconds", "run")
    table = page.render_plain_table("All combinations", headings, rows, heads=0)
    out.append(page.render_details(f"All combinations: {len(rows)}", table))
    return "\n".join(out)


def _describe_point(point: Point, axes: Sequence[str], stock: Stock) -> tuple[str, ...]:
    result = stock.finished.get(point.run.id) if point.run is not None else None
    numbers = ["", "", "", ""]
    if result is not None:
        chosen = [VALUES[name] for name in ("best_taa", "final_taa", "final_global", "seconds")]
        numbers = [show_number(value.kind, value.compute(result, Limits()) or 0.0) for value in chosen]
    facts = [show_fact(point.facts.get(axis)) for axis in axes]
    return (*facts, _get_state(point, stock), *numbers, point.run.id if point.run is not None else "")


def _describe_machine(result: Result) -> str:
    machine = result.machine
    device = machine.get("device", "cpu")
    named: list[Any] = [machine.get("cpu"), f"{machine.get('cores')} cores", f"{machine.get('memory_gib')} GiB"]
    named += [machine.get("system"), f"Python {machine.get('python')}", f"torch {machine.get('torch')}"]
    named += [f"fednode {result.fednode}"]
    return ", ".join(map(str, named)) + (f", on {device}" if device != "cpu" else "")


def _count_by_machine(machines: Iterable[str], stock: Stock) -> list[tuple[str, str]]:
    described = [_describe_machine(result) for result in stock.finished.values()]
    return [(machine, str(described.count(machine))) for machine in machines]


def _list_missing(experiment: Experiment, stock: Stock) -> list[str]:
    known = {*stock.finished, *stock.failed, *stock.broken}
    return [run.label for run in experiment.runs.values() if run.id not in known]


def _list_halted(experiment: Experiment, stock: Stock) -> list[str]:
    halted = {run_id: result.halted_at for run_id, result in stock.finished.items() if result.halted_at is not None}
    return [f"{experiment.runs[run_id].label}: height {height} was never made" for run_id, height in halted.items()]


def _count_missing(experiment: Experiment, stock: Stock) -> int:
    return len(experiment.runs) - len(stock.finished)


def _count_runs(experiment: Experiment, stock: Stock) -> str:
    text = f"{len(stock.finished)} of {len(experiment.runs)} runs are done"
    return f"{text}, {len(stock.failed)} failed" if stock.failed else text


def _list_tiles(experiment: Experiment, stock: Stock) -> dict[str, str]:
    points = experiment.points
    tiles = {"runs": f"{len(stock.finished)} of {len(experiment.runs)}"}
    for name in ("data", "clients", "rounds", "seed"):
        tiles[f"{name}s" if name == "seed" else name] = _list_values(points, name)
    tiles["methods"] = str(len({show_fact(point.facts["method"]) for point in points}))
    seconds = [result.seconds for result in stock.finished.values()]
    if seconds:
        tiles["computing time"] = f"{_show_duration(sum(seconds))} in all, {compute_mean(seconds):.1f} s a run"
        tiles["last run"] = max(result.finished for result in stock.finished.values()).replace("T", " ").rstrip("Z")
    tiles["fednode"] = VERSION
    return tiles


def _show_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
