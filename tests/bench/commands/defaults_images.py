"""`make bench-defaults-images`: the options, and the table as people read it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson


def bench_defaults_images(
    data: Annotated[str, typer.Option("--data", metavar="A,B", help="digits, fashion.")] = "digits,fashion",
    partitions: Annotated[
        str, typer.Option("--partitions", metavar="P P …", help="Apart by blanks.")
    ] = "dirichlet:0.1 dirichlet:0.5 classes:3,2",
    sites: Annotated[str, typer.Option("--sites", metavar="N,N,…", help="How many take part.")] = "4,10",
    seeds: Annotated[int, typer.Option("--seeds", metavar="S", min=1, help="From 1 on.")] = 3,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=100, max=20_000, help="Of Fashion-MNIST, to train on.")
    ] = 4000,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=1, help="Of 20 steps.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Images whose classes are dealt unevenly: what `testnet` writes, beside each site alone, all pooled, and others.
    Digits take four minutes on two cores, Fashion-MNIST an hour.

    Example: make bench-defaults-images ARGS="--data digits --seeds 1"
    """
    from bench.defaults.images import DATA, run_images_bench
    from node.host.allocator import keep_freed_memory

    names = data.split(",")
    if unknown := [name for name in names if name not in DATA]:
        raise typer.BadParameter(f"--data: expected {', '.join(DATA)} (got {unknown[0]})")
    keep_freed_memory()
    figures = run_images_bench(
        names,
        partitions.split(),
        [int(number) for number in sites.split(",")],
        seeds=seeds,
        samples=samples,
        rounds=rounds,
        report=report,
    )
    print_figures(figures, _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    for row in figures["rows"]:
        print(f"{row['data']}, {row['sites']} sites, {row['partition']}")
        for name, one in row["arms"].items():
            kept = f"not behind alone at {100 * one['not_behind']:.0f} % of sites" if "not_behind" in one else ""
            print(f"  {name:10s} own {one['own']:.3f}  all {one['all']:.3f}  {kept}")
