"""The output of every `fednode bench`: what is measured, on stderr, then the figures under the machine's name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from node.cli.output import print_json

RepeatsOption = Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="How often each is measured.")]
ThreadsOption = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Torch's threads on a CPU.")]


def report(what: str) -> None:
    print(f"measuring {what} …", file=sys.stderr, flush=True)


def print_figures(figures: dict[str, Any], show: Callable[[dict[str, Any]], None], as_json: bool) -> None:
    if as_json:
        print_json(figures)
    else:
        show_machine(figures["machine"])
        show(figures)


def show_machine(machine: dict[str, Any]) -> None:
    print(f"machine        {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB")


def show_ratio(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def show_spread(seconds: dict[str, float]) -> str:
    return f"{1000 * seconds['median']:6.1f} ms ({1000 * seconds['min']:.1f} to {1000 * seconds['max']:.1f})"
