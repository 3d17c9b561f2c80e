"""`make bench-soak`: real nodes for hundreds of rounds under faults, and the curves of what they take."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures
from node.cli.options import AsJson
from node.cli.trial.testnet import MethodOption, MethodSettings, ModelOption, PartitionOption, SeedOption
from node.errors import NodeError


def bench_soak(
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=1, max=32, help="How many nodes.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=10, help="How many rounds.")] = 200,
    method: MethodOption = "dfpl",
    model: ModelOption = "mlp",
    partition: PartitionOption = "classes:3,1",
    seed: SeedOption = 1,
    settings: MethodSettings = None,
    faults: Annotated[bool, typer.Option("--faults/--no-faults", help="Kill and freeze nodes all along.")] = True,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the curves into a PNG, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Growth over hundreds of rounds with kills and freezes. It records memory, open files, threads and disk of real
    nodes.

    Exit 1 if in the end not all nodes have the same head, or a chain cannot be verified.

    Example: make bench-soak ARGS="--rounds 200 --plot soak.png"
    """
    from bench.soak import run_soak_bench
    from bench.soak_plot import draw_curves
    from node.report.drawing import check_picture
    from node.testnet.layout import TestnetSpec

    if plot is not None:
        check_picture(plot, "--plot")
    spec = TestnetSpec(
        num_nodes=nodes,
        method=method,
        model=model,
        partition=partition,
        rounds=rounds,
        seed=seed,
        settings=tuple(settings or ()),
    )
    figures = run_soak_bench(spec, faults=faults, report=lambda what: print(what, file=sys.stderr, flush=True))
    if plot is not None:
        draw_curves(plot, figures)
    print_figures(figures, _show, as_json)
    faulty = [f"{name}: {found['fault']}" for name, found in figures["verified"].items() if not found["ok"]]
    if faulty or not figures["heads_agree"]:
        raise NodeError("; ".join(faulty) or f"the nodes have different heads: {figures['heads']}")


def _show(figures: dict[str, Any]) -> None:
    job = figures["job"]
    kinds = ", ".join(f"{count} times {kind}" for kind, count in sorted(figures["num_faults"].items())) or "no faults"
    print(
        f"job            {job['nodes']} nodes, {job['rounds']} rounds of {job['method']}, seed {job['seed']}: "
        f"{figures['seconds']:.0f} s; {kinds}"
    )
    print("node    height  daemon MB  worker MB  miner MB    fds  threads  files  disk MB")
    for name in figures["slopes"]:
        samples = [sample for sample in figures["samples"] if sample["node"] == name]
        for what, one in (("first", samples[0]), ("last", samples[-1])) if samples else ():
            fds, threads = (f"{one['daemon'][key]}+{one['worker'][key]}" for key in ("fds", "threads"))
            print(
                f"{name:7} {one['height']:6}  {one['daemon']['pss_mb']:9.1f}  {one['worker']['pss_mb']:9.1f}"
                f"  {one['miners_mb']:8.1f}  {fds:>5}  {threads:>7}  {one['files']:5}  {one['disk_mb']:7.2f}  {what}"
            )
    print("more each 100 rounds, of the longest life of each process after the first fifth of all rounds")
    for name, slopes in figures["slopes"].items():
        told = "  ".join(f"{curve} {_show_slope(slope)}" for curve, slope in slopes.items())
        print(f"{name:7} {told}")
    verified = figures["verified"].values()
    print(
        f"verified       {sum(found['ok'] for found in verified)} of {len(verified)} chains, every aggregate recomputed"
    )
    print(f"heads          {'agree' if figures['heads_agree'] else 'DIFFER'}")


def _show_slope(slope: float | None) -> str:
    return "-" if slope is None else f"{slope:+.2f}"
