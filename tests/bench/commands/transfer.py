"""`make bench-transfer`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson
from node.cli.trial.testnet import SeedOption

LABELS = {
    "vote_s": "vote phase",
    "round_s": "round",
    "answer_s": "answer",
    "heartbeat_s": "heartbeat",
    "spread_s": "votes' spread",
    "lag_s": "receiver's lag",
}


def bench_transfer(
    mb: Annotated[float, typer.Option("--mb", metavar="MB", min=0.1, help="What the blob weighs.")] = 500.0,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=1.0, help="How long each is watched.")] = 30.0,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """Votes and heartbeats beside the transfer of a large blob. Of real processes, with the transfer and without.

    Example: make bench-transfer ARGS="--mb 500 --seconds 60"
    """
    from bench.transfer import run_transfer_bench

    print_figures(run_transfer_bench(mb=mb, seconds=seconds, seed=seed, report=report), _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    job, transfers = figures["job"], figures["transfers"]
    print(
        f"job            {job['voters']} members that vote, {job['method']} on digits; a fourth pulls {job['mb']:g} MB"
    )
    speed = transfers["mb_per_s"]
    print(f"transfers      {transfers['count']}, {speed['median']:.0f} MB/s (the slowest {speed['min']:.0f}), checked")
    print("ms             without: median, 99 %, longest; beside it; how many times as much, median and 99 %")
    for name, label in LABELS.items():
        spreads = "   ".join(_show_spread(figures[when][name]) for when in ("alone", "beside"))
        ratio = figures["ratio"][name]
        print(f"{label:14} {spreads}   {ratio['median']:.1f}  {ratio['p99']:.1f}")


def _show_spread(found: dict[str, float]) -> str:
    return "  ".join(f"{1000 * found[key]:7.1f}" for key in ("median", "p99", "max"))
