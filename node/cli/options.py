"""Options that several commands share, under one spelling each, and the helper that makes a group of commands."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class LogFormat(StrEnum):
    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


ConfigFile = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The node's configuration.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in training.seed=5. May be repeated."),
]
MAX_HEIGHT = (1 << 63) - 1  # what a request can ask for
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="COLUMN",
        help="The labels in a .csv; of several labels or targets, each time one. Default: as the node is configured, "
        "or label.",
    ),
]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="TASK",
        help="classification: a class for each sample; multilabel: any of several labels; regression: numbers.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout; its keys are stable.")]


def make_group(summary: str) -> typer.Typer:
    """A group of commands; `-h` and `--help` both work, and help is plain text that survives a pipe."""
    return typer.Typer(
        help=summary,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
