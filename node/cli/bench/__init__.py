"""`fednode bench`: what things cost on this machine, as ratios to a baseline measured in the same run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import RepeatsOption, ThreadsOption, print_figures, report, show_ratio, show_spread
from node.cli.bench.waterfall import show_waterfall
from node.cli.options import AsJson, make_group
from node.cli.trial.testnet import (
    MethodOption,
    MethodSettings,
    ModelOption,
    PartitionOption,
    SeedOption,
)
from node.errors import ConfigError, NodeError

PRECISIONS = ("fp32", "bf16", "auto")


def register(app: typer.Typer) -> None:
    group = make_group("Measure what things cost on this machine.")
    group.command("round")(bench_round)
    group.command("train")(bench_train)
    group.callback()(lambda: None)
    app.add_typer(group, name="bench")


def bench_round(
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=2, max=32, help="How many processes.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=5, help="How many rounds.")] = 60,
    method: MethodOption = "fedavg",
    model: ModelOption = "mlp",
    partition: PartitionOption = "iid",
    seed: SeedOption = 1,
    settings: MethodSettings = None,
    cold_starts: Annotated[
        int,
        typer.Option(
            "--cold-starts", metavar="N", min=0, help="Also start the federation N times on one core, in both ways."
        ),
    ] = 0,
    waterfall: Annotated[
        bool, typer.Option("--waterfall", help="Only where the time of a round goes, step by step.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """A round, start-up and memory of real processes. The baseline is the same arithmetic in one process.

    Example: fednode bench round -n 4 --rounds 60 --json
    """
    from node.bench.fixtures import DIFFICULTY
    from node.bench.round import run_round_bench
    from node.bench.waterfall import run_waterfall
    from node.testnet.layout import TestnetSpec

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
    if waterfall:
        print_figures(run_waterfall(spec, report=report), show_waterfall, as_json)
        return
    print_figures(run_round_bench(spec, cold_starts=cold_starts, report=report), _show_round, as_json)


def bench_train(
    models: Annotated[
        str, typer.Option("--models", metavar="NAMES", help="Some of mlp, cnn_mnist, cnn_cifar, resnet18 and head_256.")
    ] = "mlp,cnn_mnist,cnn_cifar,resnet18,head_256",
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Of one repetition; by default each model's own.")
    ] = None,
    repeats: RepeatsOption = 7,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, auto, cuda or cuda:N.")] = "cpu",
    threads: ThreadsOption = 1,
    precision: Annotated[
        str, typer.Option("--precision", metavar="P", help="The engine's: fp32, bf16 or auto.")
    ] = "fp32",
    channels_last: Annotated[bool, typer.Option("--channels-last", help="The engine's layout of images.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="The engine's loss through torch.compile.")] = False,
    as_json: AsJson = False,
) -> None:
    """Training samples a second, against a plain PyTorch loop. The loop uses a DataLoader. For head_256, training on
    the features of the frozen encoder is set against running the encoder in each step.

    Example: fednode bench train --json
    """
    from ml.errors import MlError
    from node.bench.train import run_train_bench
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()  # for both, as the engine does not cause its gain
    if precision not in PRECISIONS:
        raise ConfigError(f"--precision: expected fp32, bf16 or auto (got {precision!r})")
    engine = {"precision": precision, "channels_last": channels_last, "compiled": compiled}
    try:
        figures = run_train_bench(
            models.split(","),
            steps=steps,
            repeats=repeats,
            device=device,
            threads=threads,
            engine=engine,
            report=report,
        )
    except MlError as error:
        raise NodeError(str(error)) from error
    print_figures(figures, _show_train, as_json)


def _show_train(figures: dict[str, Any]) -> None:
    machine, engine = figures["machine"], figures["engine"]
    settings = "  ".join(f"{key} {str(value).lower()}" for key, value in engine.items())
    print(f"torch          {machine['torch']} on {machine['device']}, {machine['threads']} threads")
    print(f"engine         {settings}, batches of {figures['batch_size']}")
    if figures["models"]:
        print("samples/s      engine, loader without workers, loader with 2; ratios are the engine's speed over theirs")
    for name, found in figures["models"].items():
        ratios = "  ".join(show_ratio(ratio) for ratio in found["ratio"].values())
        print(f"{name:14} {_show_speeds(found)}   {ratios}")
    if figures["frozen"]:
        print("samples/s      engine on features computed once, on images with the encoder in each step; the ratio")
    for name, found in figures["frozen"].items():
        print(f"{name:14} {_show_speeds(found)}   {show_ratio(found['ratio'])}")
        print(
            f"{'':14} computing the features of {found['samples']:,} samples takes {found['pass_s']['median']:.2f} s, "
            f"which pays for itself in {found['paid_after_epochs']['median']:.1f} epochs"
        )


def _show_speeds(found: dict[str, Any]) -> str:
    return "  ".join(f"{speed['median']:9,.0f}" for speed in found["samples_per_s"].values())


def _show_round(figures: dict[str, Any]) -> None:
    cluster, bare = figures["cluster"], figures["bare"]
    print(f"bare round     {show_spread(bare['round_s'])}   the same arithmetic in one process, one thread")
    print(f"round          {show_spread(cluster['round_s'])}   {figures['job']['nodes']} processes, all included")
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
            f"cold starts    {cold['succeeded']} of {cold['tried']} on one core: first block after "
            f"{cold['first_block_s']['median']:.1f} s, round 3 after {cold['seconds']['median']:.1f} s "
            f"({cold['seconds']['max']:.1f} s the longest)"
        )
        print(
            f"               that share their imports, as the demo's: {cold['shared_first_block_s']['median']:.1f} s, "
            f"{cold['shared_seconds']['median']:.1f} s ({cold['shared_seconds']['max']:.1f} s)"
        )
