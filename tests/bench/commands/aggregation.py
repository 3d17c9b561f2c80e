"""`make bench-aggregation`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import RepeatsOption, print_figures, report, show_ratio
from node.cli.options import AsJson
from node.cli.output import print_facts, print_table
from node.cli.trial.testnet import ModelOption, SeedOption
from node.errors import ConfigError

MAX_MEMBERS = 100  # whose models are all held at once


def bench_aggregation(
    model: ModelOption = "resnet18",
    members: Annotated[
        str, typer.Option("--members", metavar="N,…", help="How many models are combined; one or several.")
    ] = "4,10",
    seed: SeedOption = 1,
    repeats: RepeatsOption = 5,
    as_json: AsJson = False,
) -> None:
    """Aggregation rules on whole models, against the mean. CPU time and memory; the baseline is the papers' weighted
    mean.

    Example: make bench-aggregation ARGS="--model resnet18 --members 4,10,30 --json"
    """
    from bench.aggregation import run_aggregation_bench
    from ml.data import get_default_input
    from ml.specs import Task
    from node.config.settings import make_model

    counts = [int(word) if word.isascii() and word.isdecimal() else 0 for word in members.split(",")]
    if not all(1 <= count <= MAX_MEMBERS for count in counts):
        raise ConfigError(f"--members: expected whole numbers from 1 to {MAX_MEMBERS}, as in 4,10 (got {members!r})")
    made = make_model(model)
    task = Task(made, tuple(get_default_input({"format": "digits"}, made)["shape"]), 10)
    figures = run_aggregation_bench(task, members=counts, repeats=repeats, seed=seed, report=report)
    print_figures(figures, _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print_facts([("job", f"{job['model']['name']}, {job['elements']:,} elements, one thread")])
    for count, rules in figures["members"].items():
        print()
        print_table(
            (f"{count} members", ">s", ">times as long", ">MB beside the models"),
            [
                (name.replace("_", " "), f"{found['s']:.3f}", show_ratio(found["ratio"]), f"{found['peak_mb']:.0f}")
                for name, found in rules.items()
            ],
        )
    print("\nby CPU time, against the weighted mean of the same models; the memory has the result in it")
