"""`fednode simulate`: a method with all its clients in one process and no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.federation.evaluations import describe_lack
from node.cli.options import AsJson, DropOption, SiteOption, TaskOption, add_drop, read_sites
from node.cli.output import print_json, print_table, show_bytes
from node.cli.trial.testnet import (
    DataOption,
    MethodOption,
    ModelOption,
    PartitionOption,
    PretrainedOption,
    SeedOption,
    ShotsOption,
    SizeOption,
)
from node.ledger.measure_titles import MAIN, TITLES, show_with_interval

if TYPE_CHECKING:
    from ml.simulation.results import RoundResult
    from ml.simulation.run import SimulationResult
    from node.experiments.simulation import Outcome, SimulationSpec

NAMES = {"classification": "accuracy", "multilabel": "samples with all labels right", "regression": "R2"}
COLUMNS: Mapping[str, Callable[[RoundResult], str | None]] = {  # one without a value is left out; 80 characters wide
    "round": lambda row: str(row.round),
    "before": lambda row: None if row.peers is None else f"{row.taa_local:.4f}",
    "matched": lambda row: f"{row.taa:.4f}",
    "global": lambda row: f"{row.global_:.4f}",
    "sent numbers": lambda row: f"{row.sent_params:,}" if row.peers is None and row.left_out is None else None,
    "sent": lambda row: show_bytes(row.sent_bytes) if row.left_out is None else None,
    "received": lambda row: show_bytes(row.received_bytes),
    "peers": lambda row: None if row.peers is None or row.dropout is not None else f"{row.peers:.1f}",
    "dropout": lambda row: None if row.dropout is None else f"{row.dropout:.2f}",
    "div": lambda row: None if row.divergence is None else f"{row.divergence:.3f}",
    "left out": lambda row: None if row.left_out is None else str(row.left_out),
    "spoiled": lambda row: None if row.spoiled is None else str(row.spoiled),
}


def register(app: typer.Typer) -> None:
    app.command("simulate")(run)


def run(
    context: typer.Context,
    method: MethodOption = "dfpl",
    data: DataOption = "digits",
    partition: PartitionOption = "classes:3,1",
    site: SiteOption = None,
    shots: ShotsOption = None,
    model: ModelOption = "mlp",
    size: SizeOption = None,
    drop: DropOption = None,
    clients: Annotated[int, typer.Option("--clients", "-n", metavar="N", min=1, help="How many take part.")] = 10,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=1, help="How many rounds.")] = 10,
    seed: SeedOption = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the method (lr=0.05), of model, data or input (model.hidden=[32], data.test_split=val, "
            "input.normalize=auto).",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, auto, cuda or cuda:N.")] = "cpu",
    pretrained: PretrainedOption = None,
    batched: Annotated[
        str,
        typer.Option(
            "--batched",
            metavar="WHEN",
            help="All clients in one pass: on, off or auto (on a GPU). On a CPU only off is the nodes' own bytes.",
        ),
    ] = "auto",
    max_loss_ratio: Annotated[
        float | None,
        typer.Option(
            "--max-loss-ratio",
            metavar="R",
            help="Take no peer's model that makes the own test loss R times as large (nodes: 4).",
        ),
    ] = None,
    attack: Annotated[
        str | None,
        typer.Option(
            "--attack",
            metavar="NAME:COUNT[,KEY=VALUE...]",
            help="So many clients lie: label_flip, sign_flip, scaled_update, noise, huge, little, inner_product, "
            "shifted_prototypes, mislabelled_prototypes, poisoned_set or silent; accuracies are the others'. weight=W "
            "is how many samples they claim to have; other settings are the attack's own, as in sign_flip:1,scale=4.",
        ),
    ] = None,
    participation: Annotated[
        float,
        typer.Option(
            "--participation",
            metavar="P",
            help="The share of clients that take part in a round, drawn anew each time; the others sit it out.",
        ),
    ] = 1.0,
    task: TaskOption = "classification",
    as_json: AsJson = False,
) -> None:
    """Run a method with all its clients in one process. Prints how well the clients do.

    With --set select.by=loss the best round is chosen by val samples, with select.patience it may end the run, and with
    select.evaluate=true all clients measure that round's model, as at the end of such a run of nodes.

    Example: fednode simulate --method fedavg --data cifar:cifar-10-batches-py --model cnn_cifar --partition
    dirichlet:0.3 --clients 10 --rounds 20
    """
    from node.experiments.simulation import SimulationSpec

    sites = read_sites(context, site, ("data", "partition", "clients"))
    spec = SimulationSpec(
        method=method,
        data=data,
        partition="domains" if sites else partition,
        sites=tuple(sites or ()),
        shots=shots,
        model=model,
        size=size,
        clients=len(sites) if sites else clients,
        rounds=rounds,
        seed=seed,
        settings=add_drop(settings, drop),
        device=device,
        pretrained=pretrained,
        batched=batched,
        max_loss_ratio=max_loss_ratio,
        attack=attack,
        participation=participation,
        task=task,
    )
    result, classes = _simulate(spec, has_bar=not as_json)
    if as_json:
        from node.admin.simulated_evaluation import make_record

        print_json(make_record(result, classes))
    else:
        _print_result(result)
        _print_evaluation(result, classes)


def _simulate(spec: SimulationSpec, *, has_bar: bool) -> tuple[SimulationResult, Sequence[str]]:
    """Runs the simulation, with a bar of its rounds on a terminal if asked for."""
    from rich.console import Console
    from rich.progress import Progress

    from node.experiments.simulation import run_simulation
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (has_bar and console.is_terminal)) as progress:
        task = progress.add_task("rounds", total=spec.rounds)
        ends: list[Outcome] = []
        result = run_simulation(spec, on_round=lambda _: progress.advance(task), on_end=ends.append)
        return result, ends[0].classes


def _print_result(result: SimulationResult) -> None:
    from rich.console import Console
    from rich.table import Table

    config = result.config
    table = Table(
        title=f"{result.method['name']} on {config.data['format']}, {config.partition}, {config.clients} clients"
    )
    columns = {name: show for name, show in COLUMNS.items() if all(show(row) is not None for row in result.rounds)}
    for heading in columns:
        table.add_column(heading, justify="right")
    for row in result.rounds:
        table.add_row(*(show(row) for show in columns.values()))
    console = Console()
    if result.rounds:
        console.print(table)
    if result.pretrained is not None:
        console.print(result.pretrained, highlight=False, markup=False)
    before = [row.taa_local for row in result.rounds if row.peers is not None]
    if before:
        said = f"before the exchange, on matched test sets: best {max(before):.4f}, final {before[-1]:.4f}"
        console.print(said, highlight=False, soft_wrap=True)
    if result.epsilon is not None:
        told = f"of any sample others can tell, with delta {result.delta:g}, no more than epsilon {result.epsilon:.2f}"
        console.print(told, highlight=False, soft_wrap=True)
    if result.best_round is not None:
        said = f"best round by val samples: {result.best_round} of {len(result.rounds)}"
        console.print(said, highlight=False, soft_wrap=True)
    for said in _describe_attack(result):
        console.print(said, highlight=False, soft_wrap=True)
    if not result.rounds:
        return
    console.print(
        f"{NAMES[config.task]} on matched test sets: best {result.best_taa:.4f}, final {result.final_taa:.4f}; "
        f"on everyone's: {result.final_global:.4f}; {result.seconds:.1f} s",
        highlight=False,
        soft_wrap=True,
    )


def _print_evaluation(result: SimulationResult, classes: Sequence[str]) -> None:
    """Prints a row for each client, with its measures of the best round's model at the end of the run."""
    from node.admin.simulated_evaluation import show_evaluation

    if (shown := show_evaluation(result, classes)) is None:
        return
    told = [(site.name, site.measures) for site in shown.sites if site.HasField("measures")]
    names = [name for name in MAIN if any(name in measures.summary for _, measures in told)]
    rows = [
        (
            name,
            str(measures.num_samples),
            *(show_with_interval(measures.summary, measures.intervals, each) for each in names),
        )
        for name, measures in told
    ]
    print(f"\nthe model of round {shown.of_round} on the test samples of each client:")
    if rows:
        print_table(("CLIENT", ">SAMPLES", *(f">{TITLES[name].upper()}" for name in names)), rows)
    if lack := describe_lack(shown):
        print(lack)


def _describe_attack(result: SimulationResult) -> Iterator[str]:
    """Yields sentences about who lied and the effect."""
    if result.config.attack is None:
        return
    told = f"{len(result.liars)} of {result.config.clients} lied ({result.config.attack['name']})"
    yield f"{told}, and no accuracy is theirs: {', '.join(f'client {i}' for i in result.liars)}"
    left_out, spoiled = (sum(getattr(row, name) or 0 for row in result.rounds) for name in ("left_out", "spoiled"))
    if left_out:
        yield f"contributions left out, refused or never made: {left_out}"
    if spoiled:
        yield f"times that an honest client did not take the aggregate, which gave it no finite loss: {spoiled}"
    if result.halted_at is not None:
        yield f"round {result.halted_at} was never made: fewer contributed than a block needs"
