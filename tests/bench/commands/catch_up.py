"""`make bench-catch-up`: how a node that comes late, or comes back with less than it had, reaches the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson
from node.cli.trial.testnet import SeedOption

TOLD = {
    "joined": "with nothing",
    "killed": "killed half-way",
    "observer": "the observer",
    "served_by_observer": "from it alone",
}
LOST = {"without_newest_checkpoint": "no checkpoint", "without_model": "no model"}


def bench_catch_up(
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="R", min=16, help="How many rounds the node that comes late has missed.")
    ] = 1000,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """How fast a late node catches up with the others. The others are real processes and go on; it starts from nothing,
    after kill -9, from an observer alone, and without its model.

    Example: make bench-catch-up ARGS="--rounds 1000"
    """
    from bench.catch_up import run_catch_up_bench

    print_figures(run_catch_up_bench(rounds=rounds, seed=seed, report=report), _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print(f"job            {job['nodes']} nodes and an observer, dfpl on digits, {job['rounds']} rounds missed")
    print(f"{'':16} blocks  seconds  a second  CPU, s     MB  answers, ms  contributes")
    for key, told in TOLD.items():
        _show_joined(told, figures[key])
    killed = figures["killed"]
    print(f"kill -9        at height {killed['killed_at']} or later; went on from {killed['resumed_at']}")
    for key, told in LOST.items():
        back = figures[key]
        print(f"{told:14} ready after {back['ready_s']:.1f} s, contributes after {back['contributes_s']:.1f} s")


def _show_joined(told: str, found: Mapping[str, Any]) -> None:
    contributes = f"{found['contributes_s']:.1f} s" if "contributes_s" in found else "never"
    print(
        f"{told:16}{found['blocks']:7}{found['seconds']:9.2f}{found['blocks_per_s']:10.0f}{found['cpu_s']:8.2f}"
        f"{found['received_bytes'] / 1e6:7.1f}{1000 * found['slowest_answer_s']:13.0f}{contributes:>13}"
    )
