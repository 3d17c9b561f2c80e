"""`make bench-simulate`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import RepeatsOption, ThreadsOption, print_figures, report, show_spread
from node.cli.options import AsJson
from node.cli.trial.testnet import (
    MethodOption,
    MethodSettings,
    ModelOption,
    PartitionOption,
    SeedOption,
)


def bench_simulate(
    clients: Annotated[int, typer.Option("--clients", "-n", metavar="N", min=2, help="How many take part.")] = 10,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=2, help="Of each simulation.")] = 6,
    method: MethodOption = "dfpl",
    model: ModelOption = "mlp",
    partition: PartitionOption = "iid",
    seed: SeedOption = 1,
    settings: MethodSettings = None,
    repeats: RepeatsOption = 7,
    device: Annotated[
        str,
        typer.Option("--device", metavar="NAME", help="cpu, cuda, cuda:N, or all: the CPU and a GPU if there is one."),
    ] = "all",
    threads: ThreadsOption = 1,
    as_json: AsJson = False,
) -> None:
    """All clients of a simulation in one batched pass against one after the other.

    Example: make bench-simulate ARGS="--json"
    """
    from bench.simulate import run_simulate_bench
    from ml.simulation.run import SimulationConfig
    from node.config.genesis_file import translate_errors
    from node.config.settings import apply_settings, make_model
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    sections = {"method": {"name": method}, "model": make_model(model)}
    source = apply_settings(sections, settings or (), tuple(sections))
    with translate_errors(source):
        config = SimulationConfig(
            method=source.value["method"],
            model=source.value["model"],
            partition=partition,
            clients=clients,
            rounds=rounds,
            seed=seed,
            device=device,
            threads=threads,
        )
        figures = run_simulate_bench(config, repeats=repeats, report=report)
    print_figures(figures, _show_simulate, as_json)


def _show_simulate(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print(
        f"job            {job['clients']} clients, {job['method']['name']}, {job['model']['name']}, {job['partition']}"
    )
    for device, found in figures["devices"].items():
        machine = found["machine"]
        threads = f"{machine['threads']} threads, {found['precision']}"
        print(f"{device:14} torch {machine['torch']} on {machine['device']}, {threads}")
        for what, key in (("local phases", "phase_s"), ("whole rounds", "round_s")):
            apart, together = found[key]["apart"], found[key]["together"]
            print(f"{what:14} one after the other {show_spread(apart)}, together {show_spread(together)}")
            print(f"{'':14} {apart['median'] / together['median']:.2f} times as fast")
        per_s = found["steps"] / found["phase_s"]["together"]["median"]
        print(f"{'steps':14} {found['steps']:.0f} of all clients in a phase: {per_s:,.0f} a second together")
        print(f"{'difference':14} {found['largest_difference']:.1e} between weights after a phase, at most")
