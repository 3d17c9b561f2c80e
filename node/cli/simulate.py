"""`fednode simulate`: a method with all its clients in one process and no network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson
from node.cli.testnet import (
    DataOption,
    MethodOption,
    ModelOption,
    PartitionOption,
    SeedOption,
    ShotsOption,
    SizeOption,
)
from node.errors import ConfigError, NodeError

if TYPE_CHECKING:
    from ml.simulation import SimulationResult


def register(app: typer.Typer) -> None:
    app.command("simulate")(run)


def run(
    method: MethodOption = "dfpl",
    data: DataOption = "digits",
    partition: PartitionOption = "classes:3,1",
    shots: ShotsOption = None,
    model: ModelOption = "mlp",
    size: SizeOption = None,
    clients: Annotated[int, typer.Option("--clients", "-n", metavar="N", min=1, help="How many take part.")] = 10,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=1, help="How many rounds.")] = 10,
    seed: SeedOption = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the method (lr=0.05) or model (model.hidden=[32])."
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, auto, cuda or cuda:N.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run a method in one process and print how well its clients come to do."""
    from rich.console import Console
    from rich.progress import Progress

    from ml.errors import DataError, MlError, SpecError
    from ml.simulation import SimulationConfig, simulate
    from node.genesis_file import place_error
    from node.settings import apply_settings, make_input, make_model

    source = apply_settings(
        {"method": {"name": method}, "model": make_model(model)}, settings or (), ("method", "model")
    )
    try:
        config = SimulationConfig(
            method=source.value["method"],
            data={"format": data},
            model=source.value["model"],
            input=make_input(data, source.value["model"], size),
            partition=partition,
            shots=shots,
            clients=clients,
            rounds=rounds,
            seed=seed,
            device=device,
        )
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
            task = progress.add_task("rounds", total=rounds)
            result = simulate(config, on_round=lambda _: progress.advance(task))
    except SpecError as error:
        raise ConfigError(place_error(source, error).text) from error
    except DataError as error:
        raise ConfigError(str(error)) from error
    except MlError as error:
        raise NodeError(str(error)) from error
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        _print_result(result)


def _print_result(result: SimulationResult) -> None:
    from rich.console import Console
    from rich.table import Table

    config = result.config
    table = Table(
        title=f"{result.method['name']} on {config.data['format']}, {config.partition}, {config.clients} clients"
    )
    for heading in ("round", "matched", "global", "sent numbers", "sent bytes"):
        table.add_column(heading, justify="right")
    for row in result.rounds:
        table.add_row(
            str(row.round), f"{row.taa:.4f}", f"{row.global_:.4f}", f"{row.sent_params:,}", f"{row.sent_bytes:,}"
        )
    console = Console()
    console.print(table)
    console.print(
        f"accuracy on matched test sets: best {result.best_taa:.4f}, final {result.final_taa:.4f}; "
        f"on everyone's: {result.final_global:.4f}; {result.seconds:.1f} s",
        highlight=False,
    )
