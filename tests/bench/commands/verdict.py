"""`make bench-verdict`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import RepeatsOption, print_figures, report, show_spread
from node.cli.options import AsJson

SIZES = ((61, 2), (300, 2), (300, 10), (2000, 10), (10_000, 2), (10_000, 10))


def bench_verdict(
    repeats: RepeatsOption = 9,
    samples: Annotated[
        int | None, typer.Option("--samples", metavar="N", min=10, help="So many of ten classes, and no others.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What the verdict on federating costs a worker, which computes it for each round that both models have done.

    Example: make bench-verdict ARGS="--samples 5000"
    """
    from bench.verdict import run_verdict_bench

    sizes = SIZES if samples is None else ((samples, 10),)
    print_figures(run_verdict_bench(sizes, repeats=repeats, report=report), _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    for one in figures["verdicts"]:
        print(f"{one['samples']:>6} samples of {one['classes']:>2} classes  {show_spread(one['cpu_s'])} of CPU")
