"""Figures of two axes as numbers: a value where each two of their values meet, mean and spread over seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from node.experiments.axes import capitalise, list_keys, name_axis, name_figure, name_key, select, split
from node.experiments.plan import Experiment, Point
from node.experiments.sections import GridSection
from node.experiments.tables import Cell, Results, average
from node.experiments.values import VALUES, Better, Kind, Limits, show_number


@dataclass(frozen=True, slots=True)
class Grid:
    """One panel: `cells[y][x]`, None where nothing has run."""

    label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]

    @property
    def means(self) -> list[float]:
        """All there are."""
        return [cell.mean for row in self.cells for cell in row if cell is not None and cell.mean is not None]


@dataclass(frozen=True, slots=True)
class GridFigure:
    """Panels of one value, which share their colours."""

    title: str
    x_label: str
    y_label: str
    value_label: str
    kind: Kind
    better: Better
    panels: tuple[Grid, ...]


def make_grid_figures(experiment: Experiment, section: GridSection, results: Results) -> list[GridFigure]:
    """One figure for each value of `each`, those without a finished run left out."""
    points = select(experiment.points, section.where)
    value = VALUES[section.grid]
    figures = []
    for key, own in split(points, section.each):
        panels = tuple(panel for panel in _make_panels(experiment, section, own, results) if panel.means)
        if panels:
            by = f"{capitalise(value.label)} by {name_axis(section.x)} and {name_axis(section.y)}"
            figures.append(
                GridFigure(
                    title=name_figure(section.title or by, section.each, key),
                    x_label=name_axis(section.x),
                    y_label=name_axis(section.y),
                    value_label=value.label,
                    kind=value.kind,
                    better=value.better,
                    panels=panels,
                )
            )
    return figures


def _make_panels(
    experiment: Experiment, section: GridSection, points: Sequence[Point], results: Results
) -> Iterator[Grid]:
    limits = Limits(*experiment.file.report.target[:1])
    for key, own in split(points, section.panels):
        columns = [column for (column,) in list_keys(own, (section.x,))]
        rows = [row for (row,) in list_keys(own, (section.y,))]
        groups = split(own, (section.y, section.x))
        cells = {place: average(VALUES[section.grid], group, results, limits) for place, group in groups}
        label = name_key(section.panels, key)
        yield Grid(label, tuple(columns), tuple(rows), tuple(tuple(cells.get((y, x)) for x in columns) for y in rows))


def say_figures(figure: GridFigure, panel: Grid) -> list[str]:
    """A panel in words: where its value is best, and where it is worst."""
    known = {
        (y, x): cell.mean
        for y, row in zip(panel.rows, panel.cells, strict=True)
        for x, cell in zip(panel.columns, row, strict=True)
        if cell is not None and cell.mean is not None
    }
    said = []
    words = ("lowest", "highest") if figure.better == "lower" else ("highest", "lowest")
    for word in words:
        (y, x), mean = (max if word == "highest" else min)(known.items(), key=lambda item: item[1])
        said.append(f"{word} {show_number(figure.kind, mean)} at {figure.x_label} {x}, {figure.y_label} {y}")
    return said


def format_grid_csv(figure: GridFigure) -> str:
    """A line for each cell, numbers unrounded."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["panel", figure.x_label, figure.y_label, "mean", "std", "seeds"])
    for panel in figure.panels:
        for y, row in zip(panel.rows, panel.cells, strict=True):
            for x, cell in zip(panel.columns, row, strict=True):
                if cell is not None and cell.mean is not None:
                    writer.writerow([panel.label, x, y, repr(cell.mean), repr(cell.std), cell.num])
    return out.getvalue()
