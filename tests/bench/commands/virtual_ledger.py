"""`make bench-virtual-ledger`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bench.commands.ledger import read_sizes
from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson
from node.cli.output import print_facts, print_table, show_bytes
from node.errors import ConfigError
from node.p2p.overlay import MESH_MAX

MOST_MEMBERS = 300
HEADINGS = (
    "members",
    ">s a round",
    ">min",
    ">max",
    ">CPU ms",
    ">a check, ms",
    ">messages",
    ">writes",
    ">bytes",
    ">contributions",
)


def bench_virtual_ledger(
    sizes: Annotated[str, typer.Option("--sizes", metavar="N,…", help="Numbers of members.")] = "4,16,32",
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=2, help="Measured, after the first two.")] = 5,
    profile: Annotated[str, typer.Option("--profile", help="The waits: local, site or wide.")] = "wide",
    one_way: Annotated[float, typer.Option("--one-way", metavar="MS", min=0, help="A message's delay.")] = 25.0,
    jitter: Annotated[float, typer.Option("--jitter", metavar="MS", min=0, help="More or less.")] = 10.0,
    loss: Annotated[float, typer.Option("--loss", min=0, max=0.5, help="The share of messages that is lost.")] = 0.01,
    silent: Annotated[int, typer.Option("--silent", metavar="N", min=0, help="Members that are away.")] = 0,
    mesh_max: Annotated[
        int, typer.Option("--mesh-max", metavar="N", min=1, help="Members that all connect.")
    ] = MESH_MAX,
    seed: Annotated[int, typer.Option("--seed", help="Of delays and losses.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Rounds of many members in virtual time. No member is overloaded: seconds tell of waits and messages alone.

    Example: make bench-virtual-ledger ARGS="--sizes 4,16,32,100 --rounds 3"
    """
    from bench.virtual_ledger import Weather, run_virtual_ledger_bench

    numbers = read_sizes("--sizes", sizes, MOST_MEMBERS)
    if jitter > one_way:
        raise ConfigError(f"--jitter: expected at most --one-way, {one_way:g} ms (got {jitter:g})")
    if any(3 * silent >= n for n in numbers):
        raise ConfigError(f"--silent: expected fewer than a third of {min(numbers)} members (got {silent})")
    figures = run_virtual_ledger_bench(
        sizes=numbers,
        rounds=rounds,
        weather=Weather(profile, one_way / 1000, jitter / 1000, loss, silent, mesh_max),
        seed=seed,
        report=report,
    )
    print_figures(figures, _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    job = figures["job"]
    wires = f"{1000 * job['one_way_s']:g} ± {1000 * job['jitter_s']:g} ms one way, {job['loss']:.1%} lost"
    away = f", {job['silent']} silent" if job["silent"] else ""
    print_facts([("job", f"{job['rounds']} rounds after {job['warm_up']}, profile {job['profile']}, {wires}{away}")])
    print_facts(
        [("time", f"virtual, of which training {job['train_s']:g} s; CPU, messages and bytes of a member's round")]
    )
    print()
    print_table(HEADINGS, [_make_row(n, found) for n, found in figures["members"].items()])
    for n, found in figures["members"].items():
        kinds = ", ".join(f"{kind} {count:.1f}" for kind, count in found["kinds"].items() if count)
        print(f"{n:>3} sent: {kinds}")


def _make_row(n: str, found: dict[str, Any]) -> tuple[str, ...]:
    contributions = found["contributions"]
    return (
        n,
        *(f"{found['round_s'][key]:.2f}" for key in ("median", "min", "max")),
        f"{1000 * found['cpu_s']:.1f}",
        f"{1000 * found['check_s']:.3f}",
        f"{found['messages']:.1f}",
        f"{found['writes']:.1f}",
        show_bytes(found["bytes"]),
        "-" if contributions is None else f"{contributions:.1f}",
    )
