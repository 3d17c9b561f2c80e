"""Figures of results as numbers: the lines of each panel, with means and spreads over seeds. Nothing is drawn here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from ml.training.metrics import compute_mean, compute_std
from node.experiments.axes import capitalise, list_keys, name_axis, name_figure, name_key, select, split
from node.experiments.contents import OWN_X
from node.experiments.local_work import compute_epochs
from node.experiments.network import NETWORK, at_networks, compute_network_seconds
from node.experiments.plan import Experiment, Point
from node.experiments.results import Result
from node.experiments.sections import FigureSection, GridSection, NetworkSection, PairsSection
from node.experiments.tables import Results, average, list_runs
from node.experiments.values import (
    SERIES,
    VALUES,
    Better,
    Kind,
    Limits,
    Series,
    Value,
    compute_sent_bytes,
    compute_train_seconds,
    needs_network,
    show_number,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel: x, mean and spread at each; a flat one, of runs that send nothing, has no x of its own.
    `values` are those of single seeds at each x, where x is an axis."""

    label: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seeds: int
    flat: bool = False
    values: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    label: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels that share their axes. `ticks` are the labels of x = 0, 1, … where x is an axis of the sweep; otherwise
    `log_x` marks an x in bytes and `whole_x` one in rounds. In a heat map each line is a row, under `line_label`."""

    title: str
    x_label: str
    y_label: str
    kind: Kind
    panels: tuple[Panel, ...]
    log_x: bool = False
    whole_x: bool = True
    ticks: tuple[str, ...] = ()
    draw: Literal["line", "box", "grid"] = "line"
    better: Better = "neither"
    line_label: str = ""

    @property
    def note(self) -> str:
        lines = [line for panel in self.panels for line in panel.lines]
        seeds = {line.seeds for line in lines}
        note = "One seed." if seeds == {1} else f"Mean over {max(seeds)} seeds; the band is one standard deviation."
        if self.draw == "grid":
            mean = note.partition(";")[0].rstrip(".")
            return f"{mean}. The darker the better. The CSV of the same name has every number and its spread."
        if self.draw == "box":
            note = "Boxes are quartiles and median of the seeds, whiskers reach to the lowest and the highest."
        return note + " A dotted line sends nothing: it is drawn at its best." * any(line.flat for line in lines)

    @property
    def said(self) -> list[tuple[str, str]]:
        """Returns each line in numbers, with its panel; for a heat map its best and its worst field."""
        if self.draw == "grid":
            return [(panel.label, "; ".join(self.say_ends(panel))) for panel in self.panels]
        return [
            (
                ", ".join(filter(None, (panel.label, line.label))),
                "; ".join(f"{self.show_x(x)}: {self.show_mean(line, i)}" for i, x in enumerate(line.x)),
            )
            for panel in self.panels
            for line in panel.lines
        ]

    def say_ends(self, panel: Panel) -> list[str]:
        """Returns the places of the best value and of the worst, in words."""
        known = [
            (mean, self.ticks[int(x)], line.label)
            for line in panel.lines
            for x, mean in zip(line.x, line.mean, strict=True)
        ]
        highest, lowest = (choose(known, key=lambda one: one[0]) for choose in (max, min))
        ends = [("highest", highest), ("lowest", lowest)]
        return [
            f"{word} {show_number(self.kind, mean)} at {self.x_label} {x}, {row}"
            for word, (mean, x, row) in (ends[::-1] if self.better == "lower" else ends)
        ]

    def list_numbers(self) -> Iterator[Sequence[object]]:
        """Yields headings, and a row for each point of a line, numbers unrounded."""
        yield "panel", self.x_label, self.line_label, "mean", "std", "seeds"
        for panel in self.panels:
            for line in panel.lines:
                row = line.label.removeprefix(f"{self.line_label} ")
                for x, mean, std, values in zip(line.x, line.mean, line.std, line.values, strict=True):
                    yield panel.label, self.ticks[int(x)], row, mean, std, len(values)

    def show_x(self, x: float) -> str:
        return self.ticks[int(x)] if self.ticks else show_number("bytes", x) if self.log_x else f"{x:g}"

    def show_mean(self, line: Line, i: int) -> str:
        spread = f" ± {show_number(self.kind, line.std[i], spread=True)}" if line.seeds > 1 else ""
        return show_number(self.kind, line.mean[i]) + spread


_X_LABELS = {  # labels of each x: on the axis, and in a title
    "round": ("round", "round"),
    "bytes": ("sent by one client so far", "bytes sent"),
    "seconds": ("seconds of local training so far, mean over clients", "training time"),
    "epochs": ("local epochs so far, mean over clients", "local epochs"),
    "network_seconds": ("seconds so far, reckoned over the network", "time over the network"),
}


def make_figures(
    experiment: Experiment, section: FigureSection | GridSection | PairsSection, results: Results
) -> list[Figure]:
    """Returns one figure for each value of `each`, those without a finished run left out."""
    if isinstance(section, GridSection):  # figures in which each line is a row
        value, common = (
            VALUES[section.grid],
            {name: getattr(section, name) for name in ("panels", "each", "where", "over")},
        )
        row, title = (
            name_axis(section.y),
            f"{capitalise(value.label)} by {name_axis(section.x)} and {name_axis(section.y)}",
        )
        rows = FigureSection(title=section.title or title, x=section.x, y=section.grid, lines=(section.y,), **common)
        made = make_figures(experiment, rows, results)
        return [replace(figure, draw="grid", better=value.better, line_label=row) for figure in made]
    x, y = ("round", section.pairs) if isinstance(section, PairsSection) else (section.x, section.y)
    shown: Series | Value = SERIES[y] if x in OWN_X else VALUES[y]
    label = f"{y} of each pair" if isinstance(section, PairsSection) else shown.label
    title = f"{capitalise(label)} by {_X_LABELS.get(x, ('', name_axis(x)))[1]}"
    if needs_network((x, y)):
        experiment = at_networks(experiment)
    figures = []
    for key, own in split(select(experiment.points, section.where), section.each):
        ticks = () if x in OWN_X else tuple(tick for (tick,) in list_keys(own, (x,)))
        panels = []
        for panel_key, inside in split(own, section.panels):
            if isinstance(section, PairsSection):
                lines = list(_make_pair_lines(inside, results))
            else:
                limits = Limits(*experiment.file.report.target[:1])
                lines = list(_make_lines(section, inside, results, limits, ticks))
            panels.append(Panel(name_key(section.panels, panel_key), tuple(lines)))
        if any(panel.lines for panel in panels):
            figures.append(
                Figure(
                    title=name_figure(section.title or title, section.each, key),
                    x_label=_X_LABELS.get(x, (name_axis(x),))[0],
                    y_label=y if isinstance(section, PairsSection) else shown.label,
                    kind=shown.kind,
                    panels=tuple(panels),
                    log_x=x == "bytes",
                    whole_x=x == "round",
                    ticks=ticks,
                    draw=section.draw if isinstance(section, FigureSection) else "line",
                )
            )
    return figures


def _make_lines(
    section: FigureSection, points: Sequence[Point], results: Results, limits: Limits, ticks: Sequence[str]
) -> Iterator[Line]:
    for key, own in split(points, section.lines):
        label = name_key(section.lines, key)
        if section.x in OWN_X:
            line = _make_line(section, label, own, results)
        else:
            line = _make_axis_line(section, label, own, results, limits, ticks)
        if line is not None:
            yield line


def _make_line(section: FigureSection, label: str, points: Sequence[Point], results: Results) -> Line | None:
    """Makes a line of per-round values, mean and spread over the seeds, as many rounds as all its runs have. A round
    that some of them have not measured is left out."""
    runs = list_runs(points, results)
    take, network = SERIES[section.y].compute, points[0].facts.get(NETWORK)  # the same for all points of a line
    across = [_list_x(section.x, run, network) for run in runs]
    places = []
    for r in range(min(map(len, across), default=0)):
        known = [value for run in runs if (value := take(run.rounds[r])) is not None]
        if len(known) == len(runs):
            places.append((compute_mean(x[r] for x in across), compute_mean(known), compute_std(known)))
    if not places:
        return None
    xs, means, stds = zip(*places, strict=True)
    return Line(label, xs, means, stds, len(runs), flat=section.x == "bytes" and not xs[-1])


def _list_x(x: str, result: Result, network: NetworkSection | None) -> Sequence[float]:
    """Lists the x of each round of a run; empty where that is not known."""
    if x == "network_seconds":
        return () if network is None else compute_network_seconds(result, network)
    if x == "epochs":
        return compute_epochs(result)
    if x == "seconds":
        return compute_train_seconds(result)
    if x == "bytes":
        return compute_sent_bytes(result)
    return [row.round for row in result.rounds]


def _make_axis_line(
    section: FigureSection,
    label: str,
    points: Sequence[Point],
    results: Results,
    limits: Limits,
    ticks: Sequence[str],
) -> Line | None:
    """Makes a line of a value over an axis; for boxes, with the values of single seeds at each x."""
    places = []
    for (tick,), own in split(points, (section.x,)):
        cell = average(VALUES[section.y], own, results, limits)
        if cell.mean is not None:
            seeds = [average(VALUES[section.y], one, results, limits).mean for _, one in split(own, ("seed",))]
            values = tuple(mean for mean in seeds if mean is not None)
            places.append((float(ticks.index(tick)), cell.mean, cell.std, cell.num, values))
    if not places:
        return None
    xs, means, stds, nums, values_by_x = zip(*places, strict=True)
    return Line(label, xs, means, stds, max(nums), values=values_by_x)


def _make_pair_lines(points: Sequence[Point], results: Results) -> Iterator[Line]:
    """Yields a line for each pair of clients, over runs that all have the same clients, for the rounds of which all of
    them know the distance."""
    runs = list_runs(points, results)
    if len({run.num_clients for run in runs}) != 1:
        return
    rounds = [[row.divergences for row in run.rounds] for run in runs]
    length = min(next((r for r, known in enumerate(own) if known is None), len(own)) for own in rounds)
    for one, other in combinations(range(runs[0].num_clients), 2):
        values = [[known[one][other] for own in rounds if (known := own[r]) is not None] for r in range(length)]
        if values:
            means, stds = map(compute_mean, values), map(compute_std, values)
            yield Line(f"{one} and {other}", tuple(range(1, length + 1)), tuple(means), tuple(stds), len(runs))
