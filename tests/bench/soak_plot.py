"""The curves of a soak run as a picture: memory, open files, disk and height, a line for each node. By matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from node.errors import ConfigError

DPI = 150
INCHES = (10.0, 6.0)

_Get = Callable[[Mapping[str, Any]], float]
PANELS: Mapping[str, _Get] = {
    "daemon, PSS in MB": lambda one: one["daemon"]["pss_mb"],
    "worker, PSS in MB": lambda one: one["worker"]["pss_mb"],
    "open files of the daemon": lambda one: one["daemon"]["fds"],
    "threads of the daemon": lambda one: one["daemon"]["threads"],
    "data directory, MB": lambda one: one["disk_mb"],
    "seconds since the start": lambda one: one["seconds"],
}


def draw_curves(path: Path, figures: Mapping[str, Any]) -> None:
    """Write a PNG of what `run_soak_bench` has found. Raises ConfigError where it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(canvas)  # no window, whatever matplotlib is set up for
    grid = canvas.subplots(2, len(PANELS) // 2, sharex=True)
    for axes, (label, get_value) in zip(grid.flat, PANELS.items(), strict=True):
        for name in figures["slopes"]:
            samples = [sample for sample in figures["samples"] if sample["node"] == name]
            values = [get_value(one) for one in samples]
            axes.plot([one["height"] for one in samples], values, label=name, linewidth=1)
        axes.set_title(label, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.set_ylim(0, 1.1 * max(map(get_value, figures["samples"]), default=1.0))
    for axes in grid[-1]:
        axes.set_xlabel("height", fontsize=8)
    for fault in figures["faults"]:
        for axes in grid.flat:
            axes.axvline(fault["height"], color="0.85", linewidth=0.6, zorder=0)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
    job = figures["job"]
    title = f"{job['nodes']} nodes, {job['rounds']} rounds of {job['method']}, {len(figures['faults'])} faults (grey)"
    canvas.suptitle(title, fontsize=10)
    try:
        canvas.savefig(path, format="png", metadata={"Title": title, "Software": None})
    except OSError as error:
        raise ConfigError(f"--plot: {path}: cannot be written ({error.strerror})") from error
