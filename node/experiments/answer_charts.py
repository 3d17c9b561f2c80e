"""Charts of answers, drawn by matplotlib: confusion matrices, ROC curves and reliability diagrams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.experiments import drawing_style
from node.experiments.answers import Answers, AnswersFigure, Kind, say_figures
from node.experiments.drawing_style import COLOURS, GRID, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_WRITTEN = 12  # classes whose counts and names have room
_DASHES = ("-", "--", ":", "-.")
_INCHES = 3.4  # of a panel


def render_inline(figure: AnswersFigure, prefix: str) -> str:
    """The figure as part of a page."""
    return drawing_style.render_inline(lambda: _draw(figure), describe(figure), prefix)


def write_files(figure: AnswersFigure, stem: Path) -> list[Path]:
    """`stem`.svg and `stem`.png, on white."""
    return drawing_style.write_files(lambda: _draw(figure), stem)


def describe(figure: AnswersFigure) -> str:
    """The figure in words."""
    panels = "; ".join(f"{panel.label}: {', '.join(say_figures(figure.kind, panel))}" for panel in figure.panels)
    return f"{figure.title}. {panels}"


def _draw(figure: AnswersFigure) -> tuple[Canvas, dict[str, str]]:
    canvas, grid = drawing_style.lay_out_panels(len(figure.panels), (_INCHES, _INCHES))
    for axes, panel in zip(grid, figure.panels, strict=True):
        axes.set_title(panel.label)
        axes.set_aspect("equal")
        _DRAW[figure.kind](axes, panel)
    return canvas, {}


def _draw_confusion(axes: Axes, panel: Answers) -> None:
    """The darker, the more of a class's samples were given that class."""
    num = len(panel.names)
    sizes = panel.confusion.sum(axis=1)
    axes.grid(visible=False)
    for c in range(num):
        for k in range(num):
            count = int(panel.confusion[c, k])
            share = count / sizes[c] if sizes[c] else 0.0
            axes.fill([k, k + 1, k + 1, k], [c, c, c + 1, c + 1], color=COLOURS[0], alpha=0.75 * share, linewidth=0)
            if num <= MOST_WRITTEN and count:
                axes.text(k + 0.5, c + 0.5, str(count), ha="center", va="center", fontsize=7)
    axes.set_xlim(0, num)
    axes.set_ylim(num, 0)
    shown = range(0, num, -(-num // MOST_WRITTEN))
    places, names = [i + 0.5 for i in shown], [panel.names[i] for i in shown]
    is_long = max(map(len, names)) > 3
    axes.set_xticks(places, names, rotation=45 if is_long else 0, ha="right" if is_long else "center")
    axes.set_yticks(places, names)
    axes.tick_params(length=0, labelsize=7)
    axes.set_xlabel("given")
    axes.set_ylabel("class")


def _draw_roc(axes: Axes, panel: Answers) -> None:
    axes.plot([0, 1], [0, 1], color=GRID, linewidth=1)
    for i, (name, (roc, area)) in enumerate(panel.rocs.items()):
        style: Any = {"color": COLOURS[i % len(COLOURS)], "linestyle": _DASHES[i // len(COLOURS) % len(_DASHES)]}
        axes.plot(roc.false_rate, roc.true_rate, linewidth=1.2, label=f"{name}, AUC {area:.3f}", **style)
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    if 0 < len(panel.rocs) <= MOST_WRITTEN:
        axes.legend(loc="lower right", fontsize=6, handlelength=1.8)
    axes.set_xlabel("1 - specificity")
    axes.set_ylabel("sensitivity")


def _draw_calibration(axes: Axes, panel: Answers) -> None:
    """A dot for each bin, the larger the more samples it has."""
    axes.plot([0, 1], [0, 1], color=GRID, linewidth=1)
    told = panel.reliability
    sizes = 12 + 120 * told.counts / max(1, int(told.counts.max()))
    axes.plot(told.confidence, told.accuracy, color=COLOURS[0], linewidth=1.0)
    axes.scatter(told.confidence, told.accuracy, s=sizes, color=COLOURS[0], linewidths=0)
    axes.text(0.03, 0.95, f"calibration error {panel.reliability.error:.3f}", color=INK, fontsize=7, va="top")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")


_DRAW: Mapping[Kind, Callable[[Any, Answers], None]] = {
    "confusion": _draw_confusion,
    "roc": _draw_roc,
    "calibration": _draw_calibration,
}
