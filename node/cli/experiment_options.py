"""The options that commands on an experiment's file have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
DataRootOption = Annotated[
    Path | None, typer.Option("--data-root", metavar="DIR", help="Where data paths begin; by default beside FILE.")
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the file, as in base.rounds=2."),
]
