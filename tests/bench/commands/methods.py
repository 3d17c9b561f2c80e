"""`make bench-methods`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import RepeatsOption, ThreadsOption, print_figures, report, show_ratio
from node.cli.options import AsJson
from node.cli.trial.testnet import (
    ModelOption,
    PartitionOption,
    SeedOption,
    SizeOption,
)


def bench_methods(
    clients: Annotated[int, typer.Option("--clients", "-n", metavar="N", min=1, help="How many take part.")] = 5,
    model: ModelOption = "mlp",
    size: SizeOption = None,
    partition: PartitionOption = "dirichlet:0.3",
    seed: SeedOption = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of all methods that have it (local_epochs=1, num_prototypes=4), or of the model "
            "(model.hidden=[32]).",
        ),
    ] = None,
    repeats: RepeatsOption = 7,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, auto, cuda or cuda:N.")] = "cpu",
    threads: ThreadsOption = 1,
    as_json: AsJson = False,
) -> None:
    """A local phase of each method against plain training, FedAvg's: what contrasts, prototypes and their clusters
    cost on top of it. Digits, all clients one after the other.

    Example: make bench-methods ARGS="--model mlp_mnist --size 28 --set local_epochs=1"
    """
    from bench.methods import run_methods_bench
    from ml.simulation.run import SimulationConfig
    from node.config.genesis_file import translate_errors
    from node.config.settings import apply_settings, make_input, make_model
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    data = {"format": "digits"}
    sections: dict[str, Any] = {"method": {}, "model": make_model(model)}
    source = apply_settings(sections, settings or (), tuple(sections))
    with translate_errors(source):
        config = SimulationConfig(
            method=source.value["method"],
            data=data,
            model=source.value["model"],
            input=make_input(data, source.value["model"], size),
            partition=partition,
            clients=clients,
            seed=seed,
            device=device,
            threads=threads,
        )
        figures = run_methods_bench(config, repeats=repeats, report=report)
    print_figures(figures, _show_methods, as_json)


def _show_methods(figures: dict[str, Any]) -> None:
    machine, job = figures["machine"], figures["job"]
    steps = next(iter(figures["methods"].values()))["steps"]
    print(f"torch          {machine['torch']} on {machine['device']}, {machine['threads']} threads")
    print(
        f"job            {job['clients']} clients with {min(job['samples'])} to {max(job['samples'])} samples, "
        f"{job['model']['name']}, {job['partition']}; {steps} steps of all in a phase"
    )
    print("phase          in ms and times fedavg's; then where it goes: preparing, steps, what is sent, the rest")
    for name, found in figures["methods"].items():
        parts = "  ".join(f"{1000 * seconds:7.1f}" for seconds in found["parts_s"].values())
        print(f"{name:22} {1000 * found['phase_s']['median']:8.1f}  {show_ratio(found['ratio']):22} {parts}")
