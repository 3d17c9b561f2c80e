"""Options that several commands share, under one spelling each, and the helper that makes a group of commands."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from node.errors import ConfigError

T = TypeVar("T")


class LogFormat(StrEnum):
    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


ConfigFile = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The node's configuration.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in training.seed=5. May be repeated."),
]
MAX_HEIGHT = (1 << 63) - 1  # the most that a request can ask for
RoundOption = Annotated[
    str,
    typer.Option(
        "--round",
        metavar="newest|best|own-best|N",
        help="Whose model: the newest round's, the best's, this site's own best's, or that of a round that is kept. "
        "Default: the best of a run that selects one and is over, else the newest.",
    ),
]
CalibratedOption = Annotated[
    bool,
    typer.Option("--calibrated", help="Probabilities by one temperature, which this site's val samples give."),
]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.1, max=3600, help="How long the node may train on first."),
]
PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", metavar="FILE", help="Its first line opens the key.")
]
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
DropOption = Annotated[
    str | None,
    typer.Option("--drop", metavar="A,B,…", help="Columns of a table that become no feature, as identifiers are none."),
]
SiteOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--site",
        metavar="FILE",
        help="A site's own data, a table or what --data takes, in the place of --data and --partition. Once for each.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout; its keys are stable.")]


def add_drop(settings: list[str] | None, drop: str | None) -> tuple[str, ...]:
    """Returns the settings, with `--drop` as the one that it stands for."""
    return (*(settings or ()), *([] if drop is None else [f"input.drop={json.dumps(drop.split(','))}"]))


def read_sites(context: typer.Context, sites: list[Path] | None, others: Sequence[str]) -> list[str] | None:
    """Returns the paths of `--site`; None where there is none. Raises ConfigError where one of the `others` that they
    replace is given too."""
    if not sites:
        return None
    given = [name for name in others if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if given:
        raise ConfigError(f"--site: expected no --{given[0]} beside it: each site has the data of one file")
    return [str(site) for site in sites]


def read_counts(option: str, text: str, example: str, *, are_different: bool = False) -> tuple[int, ...]:
    """Reads the numbers of a comma-separated list, in its order. Raises ConfigError."""
    counts = tuple(int(word) if word.isdecimal() else 0 for word in text.split(","))
    if not all(counts) or (are_different and len(set(counts)) < len(counts)):
        which = "different whole numbers" if are_different else "whole numbers"
        raise ConfigError(f"{option}: expected {which} from 1 on, as in {example} (got {text!r})")
    return counts


def join_options(draft: Callable[..., T], run: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that passes to `run` what `draft` makes from its own options: it has the options of both, and
    the help of `draft`. Options that both have are passed to both."""
    own = inspect.signature(draft, eval_str=True).parameters
    first, *shared = inspect.signature(run, eval_str=True).parameters.values()
    names = {parameter.name for parameter in shared}

    def command(**given: Any) -> None:
        made = draft(**{name: given[name] for name in own})
        run(**{first.name: made}, **{name: given[name] for name in names})

    joined = [*(parameter for name, parameter in own.items() if name not in names), *shared]
    command.__doc__ = draft.__doc__
    give_signature(command, joined)
    return command


def give_signature(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Sets the parameters of a function that typer turns into options."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def make_group(summary: str) -> typer.Typer:
    """Makes a group of commands; `-h` and `--help` both work, and help is plain text that survives a pipe."""
    return typer.Typer(
        help=summary,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
