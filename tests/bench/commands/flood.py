"""`make bench-flood`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson
from node.cli.trial.testnet import SeedOption
from node.errors import ConfigError


def bench_flood(
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=1.0, help="How long each is watched.")] = 30.0,
    members: Annotated[
        str, typer.Option("--members", metavar="NAMES", help="What the fourth member is, one after the other.")
    ] = "silent,honest,valid,invalid",
    nice: Annotated[int, typer.Option("--nice", metavar="N", min=0, max=19, help="Of the attacker's process.")] = 19,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """Finality beside a member that floods the others. Three real processes, beside a fourth that is silent, honest, or
    floods them.

    Example: make bench-flood ARGS="--seconds 30 --members silent,valid"
    """
    from bench.flood import SCENARIOS, run_flood_bench

    scenarios = tuple(members.split(","))
    if unknown := [name for name in scenarios if name not in SCENARIOS]:
        raise ConfigError(f"--members: expected some of {', '.join(SCENARIOS)} (got {unknown[0]!r})")
    figures = run_flood_bench(seconds=seconds, nice=nice, seed=seed, scenarios=scenarios, report=report)
    print_figures(figures, _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print(
        f"job            {job['honest']} honest members of {job['honest'] + 1}, {job['method']} on digits, "
        f"{job['seconds']:g} s each, the attacker at nice {job['nice']}"
    )
    print("fourth member  blocks/s; s a round: median, p95, max; a daemon's CPU and growth in MB, most of the three")
    for name, found in figures["members"].items():
        took = "  ".join(f"{found['round_s'][key]:6.3f}" for key in ("median", "p95", "max"))
        daemons = [node["daemon"] for node in found["nodes"].values()]
        cpu = max(daemon["cpu_share"] for daemon in daemons)
        growth = max(daemon["growth_mb"] for daemon in daemons)
        print(f"{name:14} {found['blocks_per_s']:7.2f}   {took}   {cpu:5.0%}  {growth:6.1f}")
    for name, found in figures["members"].items():
        if "attacker" in found:
            _show_attacker(name, found)


def _show_attacker(name: str, found: dict[str, Any]) -> None:
    attacker = found["attacker"]
    print(
        f"{name:14} {attacker['messages_per_s']:,.0f} messages/s and {attacker['mb_per_s']:.1f} MB/s were sent, with "
        f"{attacker['cpu_share']:.0%} of a core"
    )
    ends = "  ".join(f"{end} {rate:,.0f}" for end, rate in attacker["ends_per_s"].items())
    print(f"{'':14} calls that ended, a second: {ends}")
    for node, told in found["told_of_fourth"].items():
        counts = "  ".join(f"{reason} {count:,}" for reason, count in sorted(told["not_taken"].items()))
        refused = "" if told["banned_s"] is None else f", refused for {told['banned_s']:.0f} s more"
        print(
            f"{'':14} {node}: {told['messages_received']:,} taken, {told['waits']:,} waits{refused}; "
            f"not taken: {counts}"
        )
