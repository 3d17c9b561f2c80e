"""`make bench-join`: how long a new site takes to stand ready and to contribute, on a chain that is long."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson
from node.cli.trial.testnet import SeedOption


def bench_join(
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="R", min=16, help="How many rounds the federation has made.")
    ] = 1000,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """How fast a new site joins three others: from its start until it stands ready, and from the block that admits it
    until it contributes. All are real processes, and the three go on meanwhile.

    Example: make bench-join ARGS="--rounds 1000"
    """
    from bench.join import run_join_bench

    print_figures(run_join_bench(rounds=rounds, seed=seed, report=report), _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print(f"job            {job['founders']} founders, dfpl on digits, {job['rounds']} rounds; one site joins")
    print(f"stands ready   {figures['ready_s']:.1f} s after its start, with {figures['blocks']} blocks")
    print(
        f"admitted       {figures['admitted_s']:.1f} s after the others were asked, by block {figures['admitted_at']}"
    )
    heights, later_s, round_s = (figures[key] for key in ("heights_to_contribution", "contributes_s", "round_s"))
    print(f"contributes    {heights} heights above that, {later_s:.1f} s later; a round takes {round_s:.2f} s")
