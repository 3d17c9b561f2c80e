"""The options that commands on an experiment's file share, and how these open it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from node.experiments.plan import Experiment
    from node.experiments.stock import Stock

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The experiment: deploy/experiments has ready ones.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="By default results/NAME, NAME the file's."),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", min=1, help="Runs at a time; by default one per core, or per GPU."),
]
GpusOption = Annotated[
    int | None, typer.Option("--gpus", metavar="N", min=1, help="Train on N GPUs, each process on one of them.")
]
JobsPerGpuOption = Annotated[
    int | None, typer.Option("--jobs-per-gpu", metavar="M", min=1, help="Runs at a time on a GPU; by default one.")
]
RepeatsOption = Annotated[
    int, typer.Option("--repeats", metavar="N", min=1, help="Each with another seed, from --seed on.")
]
DataRootOption = Annotated[
    Path | None, typer.Option("--data-root", metavar="DIR", help="Where data paths begin; by default beside FILE.")
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the file, as in base.rounds=2."),
]


def open_experiment(file: Path, overrides: Sequence[str] | None, out: Path | None) -> tuple[Experiment, Path, Stock]:
    """Opens the experiment, the directory of its results, and the results there are. Raises ConfigError."""
    from node.experiments.loading import load_experiment
    from node.experiments.stock import take_stock

    experiment = load_experiment(file, overrides or ())
    directory = out or Path("results") / experiment.file.name
    return experiment, directory, take_stock(experiment, directory)
