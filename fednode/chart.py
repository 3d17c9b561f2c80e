"""The chart of a simulation, drawn by matplotlib: accuracies on the left, the loss on the right, over the rounds."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from node.report.drawing import COLOURS, applied_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fednode.simulation import Simulation

_INCHES = (8.0, 3.2)
_DPI = 110
_ACCURACIES = {
    "accuracy": ("after the exchange", "o-"),
    "accuracy_before": ("before the exchange", "s--"),
    "global_accuracy": ("on everyone's samples", "^:"),
}


def draw(run: Simulation) -> Figure:
    """Returns the figure. Raises NodeError where matplotlib is missing."""
    with applied_style():
        figure = _make_figure()
        left, right = figure.subplots(1, 2)
        lines = [(left, name, *looks) for name, looks in _ACCURACIES.items()]
        for i, (axes, name, label, look) in enumerate([*lines, (right, "loss", "loss", "o-")]):
            _draw_line(axes, run, name, look, COLOURS[i], label)
        left.set_ylabel("accuracy, mean over nodes")
        left.legend()
        right.set_ylabel("loss, mean over nodes")
        figure.suptitle(run.method)
    return figure


def _draw_line(axes: Axes, run: Simulation, name: str, look: str, colour: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = [round_.number for round_ in run.rounds]
    values = [getattr(round_, name) for round_ in run.rounds]
    axes.plot(numbers, values, look, color=colour, label=label, markersize=3.8, markevery=max(1, len(numbers) // 10))
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _make_figure() -> Figure:
    """Returns a figure that belongs to no window and that a notebook shows without pyplot."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png", dpi=_DPI)
            return out.getvalue()

    return Shown(figsize=_INCHES, layout="constrained")
