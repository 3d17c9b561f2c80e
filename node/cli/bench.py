"""`fednode bench`: what things cost on this machine, as ratios to a baseline measured in the same run."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from node.cli.options import AsJson, make_group
from node.cli.testnet import MethodSettings, ModelOption, PartitionOption, SeedOption


def register(app: typer.Typer) -> None:
    group = make_group("Measure what things cost on this machine.")
    group.command("round")(bench_round)
    group.callback()(lambda: None)
    app.add_typer(group, name="bench")


def bench_round(
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=2, max=32, help="How many processes.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=5, help="How many rounds.")] = 60,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="local, fedavg or dfpl.")] = "fedavg",
    model: ModelOption = "mlp",
    partition: PartitionOption = "iid",
    seed: SeedOption = 1,
    settings: MethodSettings = None,
    cold_starts: Annotated[
        int, typer.Option("--cold-starts", metavar="N", min=0, help="Also start the federation N times on one core.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """A federated round, start-up and memory: real processes against the same arithmetic in one."""
    from node.bench import DIFFICULTY, run_round_bench
    from node.testnet import TestnetSpec

    spec = TestnetSpec(
        num_nodes=nodes,
        method=method,
        model=model,
        partition=partition,
        rounds=rounds,
        seed=seed,
        settings=tuple(settings or ()),
        difficulty=DIFFICULTY,
        base_port=0,
    )
    figures = run_round_bench(
        spec, cold_starts=cold_starts, report=lambda what: print(f"measuring {what} …", file=sys.stderr, flush=True)
    )
    if as_json:
        print(json.dumps(figures))
    else:
        _show(figures)


def _show(figures: dict[str, Any]) -> None:
    machine, cluster, bare = figures["machine"], figures["cluster"], figures["bare"]
    print(f"machine        {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB")
    print(f"bare round     {_show_spread(bare['round_s'])}   the same arithmetic in one process, one thread")
    print(f"round          {_show_spread(cluster['round_s'])}   {figures['job']['nodes']} processes, all included")
    print(f"ratio          {figures['ratio']:.2f}")
    phases = "  ".join(f"{phase} {1000 * took:.0f}" for phase, took in cluster["phases_s"].items() if phase != "wall")
    print(f"phases, ms     {phases}")
    print(
        f"sent           {cluster['sent_bytes'] / 1000:.1f} kB a node and round; "
        f"its payload weighs {cluster['payload_bytes'] / 1000:.1f} kB"
    )
    print(f"start          {figures['start']['first_step_s']:.2f} s from start to the first training step")
    memory = figures["memory"]
    print(
        f"memory         daemon {memory['daemon_mb']:.0f} MB, worker {memory['worker_mb']:.0f} MB, torch alone "
        f"{memory['torch_alone_mb']:.0f} MB: {memory['daemon_and_worker_over_torch_mb']:.0f} MB over it"
    )
    kill = figures["kill"]
    print(
        f"kill -9        round {1000 * kill['before_s']:.0f} ms before, once {kill['slowest_after_s']:.2f} s "
        f"(collect_s {kill['collect_s']:g}), then {1000 * kill['others_after_s']:.0f} ms"
    )
    if "cold_starts" in figures:
        cold = figures["cold_starts"]
        print(
            f"cold starts    {cold['succeeded']} of {cold['tried']} on one core, first block after "
            f"{cold['seconds']['median']:.1f} s (median), {cold['seconds']['max']:.1f} s (longest)"
        )


def _show_spread(seconds: dict[str, float]) -> str:
    return f"{1000 * seconds['median']:6.1f} ms ({1000 * seconds['min']:.1f} to {1000 * seconds['max']:.1f})"
