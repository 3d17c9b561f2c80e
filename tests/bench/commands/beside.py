"""`make bench-beside`: the wall time of a round with `training.compare_local`, against the same without it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report, show_spread
from node.cli.options import AsJson
from node.cli.trial.testnet import MethodSettings, SeedOption


def bench_beside(
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=2, max=32, help="How many processes.")] = 2,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=2, help="Measured rounds of each run.")] = 20,
    pairs: Annotated[int, typer.Option("--pairs", metavar="P", min=1, help="Runs with it and without it.")] = 5,
    settings: MethodSettings = None,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """What training alone beside the federation's adds to a round of real nodes, which all share this machine.

    Example: make bench-beside ARGS="--nodes 2 --pairs 5 --set local_iterations=200"
    """
    from bench.beside import run_beside_bench

    figures = run_beside_bench(
        nodes=nodes, rounds=rounds, pairs=pairs, settings=tuple(settings or ()), seed=seed, report=report
    )
    print_figures(figures, _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    job, ratio = figures["job"], figures["ratio"]
    print(f"job            {job['nodes']} nodes, fedavg on digits, {job['rounds']} rounds, {job['pairs']} pairs")
    print(f"without        {show_spread(figures['without_s'])}   a round")
    print(f"with           {show_spread(figures['with_s'])}")
    print(f"ratio          {ratio['median']:.3f}   from {ratio['min']:.3f} to {ratio['max']:.3f}")
    print(f"lag            {figures['owed_steps']} steps at most, after the last round")
