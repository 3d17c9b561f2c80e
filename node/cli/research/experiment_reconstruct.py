"""`fednode experiment reconstruct`: what can be recovered of what fededs shares, in figures and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli.bench.figures import ThreadsOption, print_figures, report
from node.cli.options import AsJson, read_counts
from node.cli.research.experiment_options import RepeatsOption
from node.cli.trial.testnet import (
    DataOption,
    MethodSettings,
    ModelOption,
    PartitionOption,
    SeedOption,
    ShotsOption,
    SizeOption,
)


def reconstruct(
    layers: Annotated[
        str,
        typer.Option("--layers", metavar="NAMES", help="Some of gaussian, orthogonal, diag, conv1x1 and identity."),
    ] = "gaussian,identity",
    pairs: Annotated[
        str,
        typer.Option(
            "--pairs", metavar="N,…", help="How many of the site's samples the attacker knows, beside half of them."
        ),
    ] = "16,64,256",
    encryptors: Annotated[
        int,
        typer.Option("--encryptors", metavar="N", min=1, help="How many the attacker without pairs trains of its own."),
    ] = 2,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Of the attacker's each decoder.")] = 400,
    unet_width: Annotated[
        int, typer.Option("--unet-width", metavar="N", min=1, help="Of encryptors and decoders; the paper's is 64.")
    ] = 8,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", min=1, help="An encryptor is trained for, as in the paper.")
    ] = 20,
    data: DataOption = "digits",
    model: ModelOption = "cnn_cifar",
    size: SizeOption = 32,
    partition: PartitionOption = "iid",
    clients: Annotated[
        int, typer.Option("--clients", "-n", metavar="N", min=2, help="Sites; the first is attacked by the second.")
    ] = 2,
    shots: ShotsOption = None,
    seed: SeedOption = 1,
    repeats: RepeatsOption = 1,
    settings: MethodSettings = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw what is recovered, too.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, auto, cuda or cuda:N.")] = "cpu",
    threads: ThreadsOption = 1,
    as_json: AsJson = False,
) -> None:
    """Measure what an attacker recovers from fededs's shared sets.

    A learned transformation of samples leaves a node; this trains a decoder that undoes it, from known pairs and from
    none.

    Example: fednode experiment reconstruct --data cifar:cifar-10-batches-py --model resnet18_nobn --clients 5
    --unet-width 64 --device cuda --png recovered.png
    """
    from ml.data import open_once
    from ml.simulation.run import SimulationConfig
    from node.config.genesis_file import translate_errors
    from node.config.settings import apply_settings, complete_data, make_data, make_input, make_model
    from node.experiments.reconstruct import Attack, run_reconstruct_bench
    from node.experiments.reconstruct_plot import draw_panels
    from node.host.allocator import keep_freed_memory
    from node.report.drawing import check_picture

    keep_freed_memory()
    if png is not None:
        check_picture(png)
    method = {"name": "fededs", "unet_width": unet_width, "encryptor_epochs": epochs}
    asked: dict[str, Any] = {"method": method, "model": make_model(model), "data": make_data(data), "input": {}}
    source = apply_settings(asked, settings or (), tuple(asked))
    own = complete_data(source.value["data"])
    with translate_errors(source), open_once():
        config = SimulationConfig(
            method=source.value["method"],
            data=own,
            model=source.value["model"],
            input=make_input(own, source.value["model"], size, source.value["input"]),
            partition=partition,
            shots=shots,
            clients=clients,
            seed=seed,
            device=device,
            threads=threads,
        )
        attack = Attack(
            pairs=read_counts("--pairs", pairs, "16,64"), encryptors=encryptors, steps=steps, width=unet_width
        )
        made = run_reconstruct_bench(config, attack, layers=layers.split(","), repeats=repeats, report=report)
    if png is not None:
        job = made.figures["job"]
        shared = f"fededs on {own['format']}: what is shared of samples, and what comes back"
        draw_panels(png, made.panels, f"{shared} ({job['model']['name']}, encryptor of width {unet_width})")
    print_figures(made.figures, _show_reconstruct, as_json)


def _show_reconstruct(figures: dict[str, Any]) -> None:
    machine, job, layers = figures["machine"], figures["job"], figures["layers"]
    samples, method, attack = job["samples"], job["method"], job["attack"]
    print(f"torch          {machine['torch']} on {machine['device']}, {machine['threads']} threads")
    print(
        f"set            {samples['victim']} samples of {'x'.join(map(str, job['shape']))}, {job['model']['name']}, "
        f"encryptor of width {method['unet_width']}, {method['encryptor_epochs']} epochs; "
        f"{len(job['seeds'])} run{'s' * (len(job['seeds']) > 1)} with each layer"
    )
    print(
        f"attacker       {samples['attacker']} samples of its own, encryptors: {attack['encryptors']}, "
        f"{attack['steps']} steps for a decoder of width {attack['width']}"
    )
    print(
        f"recovered      of {samples['held_out']} samples it does not know: PSNR in dB, SSIM, and how many are told "
        "apart,\n               nearer to their own original than to any other"
    )
    print(f"{'layer':18}" + "".join(f"{layer:>24}" for layer in layers))
    for name in next(iter(layers.values()))["attacks"]:
        scores = [found["attacks"][name] for found in layers.values()]
        print(f"{name:18}" + "".join(f"{_show_scores(score):>24}" for score in scores))
    labels = "".join(f"{found['labels_shown']:>24.0%}" for found in layers.values())
    print(f"{'classes shown':18}{labels}   by the soft labels, to everyone")
    print(f"It means: {figures['meaning']}.")


def _show_scores(scores: dict[str, dict[str, float]]) -> str:
    psnr, ssim, told_apart = (scores[name]["median"] for name in ("psnr", "ssim", "told_apart"))
    return f"{psnr:.1f}  {ssim:.2f}  {told_apart:4.0%}"
