"""`make bench-share`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson
from node.cli.trial.testnet import (
    SeedOption,
)


def bench_share(
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=2, max=16, help="How many share.")] = 2,
    set_mb: Annotated[float, typer.Option("--mb", metavar="MB", min=0.01, help="What each one's set weighs.")] = 100.0,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """Memory, speed and delays of real processes that share large encrypted sets with fededs, and train on them.

    Example: make bench-share ARGS="--json"
    """
    from bench.share import run_share_bench

    print_figures(run_share_bench(nodes=nodes, set_mb=set_mb, seed=seed, report=report), _show_share, as_json)


def _show_share(figures: dict[str, Any]) -> None:
    job, sizes = figures["job"], figures["set_mb"].values()
    shape = "x".join(map(str, job["shape"]))
    print(f"job            {job['nodes']} nodes, seed {job['seed']}, {job['samples']} digits of {shape} each")
    used = ", ".join(f"{name} {count} times" for name, count in figures["sets_trained_on"].items())
    print(f"set            {min(sizes):.1f} to {max(sizes):.1f} MB; others' were trained on by {used}")
    print("memory         in MB: when its worker was ready, most while sharing, most in training; growth in sets, and")
    print("               of what is anonymous")
    for name, found in figures["processes"].items():
        phases = "  ".join(f"{found[key]:8.1f}" for key in ("before_mb", "sharing_mb", "training_mb"))
        sampled = "" if found["is_exact"] else "   sampled"
        print(f"{name:14} {phases}   {found['growth_sets']:5.2f}  {found['anonymous_sets']:5.2f}{sampled}")
    verdict = {True: "below", False: "NOT below", None: "sets too small to hold it against"}[figures["is_within"]]
    print(f"growth         {verdict} {figures['most_sets']:g} sets in every process")
    for pull in figures["transfers"]:
        way = f"set of {pull['set']} from {pull['from']} to {pull['to']}"
        print(f"transfer       {way}: {pull['seconds']:.2f} s, {pull['mb_per_s']:.0f} MB/s")
    for name, answers in figures["answers_s"].items():
        median, longest, sharing = (1000 * answers[key] for key in ("median", "longest", "longest_while_sharing"))
        print(
            f"{name + ' answers':14} {median:.1f} ms, at most {longest:.0f} ms, {sharing:.0f} ms with sets on their way"
        )
