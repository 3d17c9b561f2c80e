"""`make bench-masked`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson
from node.cli.trial.testnet import SeedOption

LABELS = {"round_s": ("round", 1000, "ms"), "sent_bytes": ("sent", 1e-3, "kB"), "cpu_s": ("CPU", 1000, "ms")}
IN_MEMORY = {
    "round_s": (" of virtual time a round", 1, "s"),
    "messages": (" a member and round", 1, "messages"),
    "cpu_s": (" of CPU a member and round", 1000, "ms"),
}


def bench_masked(
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=4, max=16, help="How many processes.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=4, help="How many, of each federation.")] = 20,
    pairs: Annotated[int, typer.Option("--pairs", metavar="N", min=1, help="How often both are run, in turn.")] = 3,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """A round of masked sums against one in the open, of real processes, and what masks alone take.

    Example: make bench-masked ARGS="--pairs 5"
    """
    from bench.masked import run_masked_bench

    figures = run_masked_bench(nodes=nodes, rounds=rounds, pairs=pairs, seed=seed, report=report)
    print_figures(figures, _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print(f"job            {job['nodes']} nodes, fedavg on digits, {job['rounds']} rounds, {job['pairs']} pairs")
    for size, found in figures["sizes"].items():
        for figure, (label, factor, unit) in LABELS.items():
            plain, masked = (factor * found[name][figure]["median"] for name in ("mean", "masked_sum"))
            ratio = found["ratio"][figure]
            print(
                f"{size + ' ' + label:14} {plain:.1f} and {masked:.1f} {unit} a node and round, "
                f"{ratio['median']:.2f} times ({ratio['min']:.2f} to {ratio['max']:.2f})"
            )
    plain, masked = (figures["in_memory"][name] for name in ("mean", "masked_sum"))
    for figure, (label, factor, unit) in IN_MEMORY.items():
        print(
            f"{'16 members':14} {factor * plain[figure]:.2f} and {factor * masked[figure]:.2f} {unit}{label}, "
            f"{masked[figure] / plain[figure]:.2f} times"
        )
    for found in figures["masks"]:
        print(
            f"{found['members']:<3} members    a model of 5 MB is masked in {found['mask_s']:.2f} s, and the masks are "
            f"off its sum in {found['unmask_s']:.2f} s"
        )
    for found in figures["lies"]:
        accuracies = ", ".join(f"{100 * value:.1f} % after {number}" for number, value in found["after"].items())
        clipped = ", ".join(f"{100 * share:.2f} % in round {number}" for number, share in found["clipped"].items())
        print(
            f"radius {found['radius'] or 'none':<7} {100 * found['before']:.1f} % before one lies, {accuracies}; "
            f"{100 * found['guessed']:.1f} % after a guess; without lies {100 * found['without']:.1f} % at last, "
            f"and at the side of the box {clipped or 'nothing'}"
        )
