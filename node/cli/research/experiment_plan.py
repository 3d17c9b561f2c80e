"""`fednode experiment plan`: what a sweep would cost, before anything is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from node.cli.options import AsJson
from node.cli.output import print_json, print_table, show_seconds
from node.cli.research.experiment_options import (
    DataRootOption,
    FileArgument,
    GpusOption,
    JobsOption,
    OutputOption,
    OverridesOption,
    open_experiment,
)

if TYPE_CHECKING:
    from node.experiments.estimate import Estimate

HOUR_S = 3600.0


def plan(
    file: FileArgument,
    out: OutputOption = None,
    jobs: JobsOption = None,
    gpus: GpusOption = None,
    data_root: DataRootOption = None,
    overrides: OverridesOption = None,
    as_json: AsJson = False,
) -> None:
    """Say what is left to run of FILE, and for how long.

    That is runs, rounds, steps, and hours on this machine's CPU and GPUs. Steps are counted. Hours go by finished
    runs of the same kind; where there are none, by timing steps of each model here for a second, which leaves out what
    a method does beside them. Runs on one GPU share it: --jobs-per-gpu M makes them no slower than this says.

    Example: fednode experiment plan deploy/experiments/dfpl-table1-digits.yaml
    """
    from ml.data import open_once
    from node.experiments.estimate import estimate
    from node.experiments.gpus import count_gpus, find_gpus

    experiment, _, stock = open_experiment(file, overrides, out)
    pending = stock.list_pending(experiment)
    shares = {"cpu": jobs or len(os.sched_getaffinity(0))}
    if count := count_gpus() if gpus is None else len(find_gpus(gpus)):
        shares["cuda"] = count
    with open_once():
        root = (data_root or file.parent).absolute()
        found = estimate(pending, stock.finished.values(), tuple(shares), root, partial(print, file=sys.stderr))
    hours = {device: _add_hours(found, device, share) for device, share in shares.items()}
    if as_json:
        print_json(
            {
                "runs": len(experiment.runs),
                "left": len(pending),
                "processes": shares,
                "hours": hours,
                "kinds": [_to_json(own, shares) for own in found],
            }
        )
        return
    _print(found, shares, hours)
    for reason in dict.fromkeys(own.reason for own in found if own.reason is not None):
        print(f"unknown: {reason}", file=sys.stderr)
    print(f"{len(pending)} of {len(experiment.runs)} runs are left")


def _add_hours(found: Sequence[Estimate], device: str, share: int) -> float | None:
    """Adds the hours of all estimates; None where one is unknown."""
    seconds = [own.seconds[device] for own in found]
    known = [value for value in seconds if value is not None]
    return sum(known) / share / HOUR_S if len(known) == len(seconds) else None


def _to_json(own: Estimate, shares: dict[str, int]) -> dict[str, object]:
    return {
        "kind": own.label,
        "runs": own.runs,
        "rounds": own.heights,
        "steps": own.steps,
        "hours": {device: _add_hours([own], device, share) for device, share in shares.items()},
        "from": _name_source(own),
        "unknown": own.reason,
    }


def _print(found: Sequence[Estimate], shares: dict[str, int], hours: dict[str, float | None]) -> None:
    headings = [f">TIME ON {'CPU' if device == 'cpu' else 'GPUS'} x {share}" for device, share in shares.items()]
    rows = [
        (
            own.label,
            f"{own.runs:,}",
            f"{own.heights:,}",
            "–" if own.steps is None else f"{own.steps:,}",
            *(_show(_add_hours([own], device, share)) for device, share in shares.items()),
            _name_source(own) or "–",
        )
        for own in found
    ]
    known = [own.steps for own in found if own.steps is not None]
    total = f"{sum(known):,}" if len(known) == len(found) else "–"
    runs, heights = (f"{sum(getattr(own, name) for own in found):,}" for name in ("runs", "heights"))
    rows.append(("all", runs, heights, total, *map(_show, hours.values()), ""))
    print_table(("DATA, MODEL, METHOD", ">RUNS", ">ROUNDS", ">STEPS", *headings, "FROM"), rows)


def _name_source(own: Estimate) -> str | None:
    """Returns the source of the times, one for each device where they differ; None where there is none."""
    known = [device for device, seconds in own.seconds.items() if seconds is not None]
    names = dict.fromkeys("finished runs" if device in own.measured else "timed steps" for device in known)
    return ", ".join(names) or None


def _show(hours: float | None) -> str:
    return "–" if hours is None else show_seconds(hours * HOUR_S)
