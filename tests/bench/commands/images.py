"""`make bench-images`: the options, and the figures as people read them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli.bench.figures import RepeatsOption, ThreadsOption, print_figures, report, show_ratio
from node.cli.options import AsJson
from node.cli.trial.testnet import ModelOption


def bench_images(
    images: Annotated[int, typer.Option("--images", "-n", metavar="N", min=10, help="How many lie in a file.")] = 2000,
    held: Annotated[int, typer.Option("--held", metavar="N", min=0, help="How many are in memory beside.")] = 500,
    side: Annotated[int, typer.Option("--side", metavar="PIXELS", min=8, help="Their height and width.")] = 224,
    model: ModelOption = "resnet18",
    batch_size: Annotated[int, typer.Option("--batch-size", metavar="N", min=1, help="Images of a step.")] = 8,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Steps of a phase.")] = 4,
    repeats: RepeatsOption = 7,
    threads: ThreadsOption = 1,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where images and file lie meanwhile.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Training on images that stay in their file, against training on images in memory.

    Example: make bench-images ARGS="--images 20000 --held 0", in a control group of 1 GiB
    """
    from bench.images import run_images_bench
    from node.config.settings import make_model
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        figures = run_images_bench(
            Path(folder),
            num=images,
            held=held,
            side=side,
            model=make_model(model),
            batch_size=batch_size,
            steps=steps,
            repeats=repeats,
            threads=threads,
            report=report,
        )
    print_figures(figures, _show_images, as_json)


def _show_images(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print(f"job            {job['images']} images of {job['side']}x{job['side']} in a file, {job['held']} in memory")
    print(f"model          {job['model']['name']}, {job['batch_size']} images a step")
    print(f"file           {figures['kept_bytes'] / 1e9:.2f} GB, decoded in {figures['decode_s']:.1f} s")
    for name, spread in figures["cpu_s"].items():
        clock_s = figures["clock_s"][name]["median"]
        print(f"step ({name})  {1000 * spread['median']:.1f} ms of a processor, {1000 * clock_s:.1f} ms by the clock")
    if figures["speed"] is not None:
        print(f"speed          {show_ratio(figures['speed'])} of that in memory, by the processor")
    print(f"memory         {figures['peak_mb']:.0f} MB at most")
