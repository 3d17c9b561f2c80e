"""`make bench-pow`: the options, and the figures as people read them."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson
from node.cli.output import print_facts, print_table
from node.cli.trial.testnet import SeedOption
from node.errors import ConfigError

MOST_WORKERS = 256


def bench_pow(
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="N,…",
            help="Of the miner, each number for itself. By default 1 and what there are cores.",
        ),
    ] = None,
    difficulty: Annotated[
        int, typer.Option("--difficulty", metavar="D", min=1, help="Hashes to a block, in the mean.")
    ] = 65_536,
    blocks: Annotated[int, typer.Option("--blocks", metavar="N", min=1, help="How many are mined.")] = 32,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=0.05, help="Hashes are counted for.")] = 2.0,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """Hashes a second of the miner, against a hashlib loop. By number of workers; also seconds to a block, against what
    its difficulty lets one expect, and the event loop's lag meanwhile.

    Example: make bench-pow ARGS="--workers 1,2,4 --difficulty 1048576 --json"
    """
    from bench.pow import run_pow_bench

    figures = run_pow_bench(
        workers=_read_workers(workers),
        difficulty=difficulty,
        blocks=blocks,
        seconds=seconds,
        seed=seed,
        report=report,
    )
    print_figures(figures, show_figures, as_json)


def _read_workers(text: str | None) -> tuple[int, ...]:
    cores = len(os.sched_getaffinity(0))
    counts = [1, cores] if text is None else [int(word) if word.isdecimal() else 0 for word in text.split(",")]
    if any(not 1 <= count <= MOST_WORKERS for count in counts):
        raise ConfigError(f"--workers: expected numbers from 1 to {MOST_WORKERS}, as in 1,2,4 (got {text!r})")
    return tuple(sorted(set(counts)))


def show_figures(figures: dict[str, Any]) -> None:
    job, idle = figures["job"], figures["idle"]["lag_s"]
    print_facts([("job", f"{job['blocks']} blocks at difficulty {job['difficulty']:,}, seed {job['seed']}")])
    print()
    rows = [
        (
            count,
            f"{found['hashes_per_s'] / 1e6:.2f}",
            f"{found['bare_hashes_per_s'] / 1e6:.2f}",
            f"{found['ratio']:.2f}",
            f"{found['solve_s']['mean']:.3f}",
            f"{found['solve_s']['max']:.3f}",
            f"{found['expected_s']:.3f}",
            f"{found['solve_ratio']:.2f}",
            f"{found['hashes_ratio']:.2f} ± {found['standard_error']:.2f}",
            _show_lag(found["lag_s"]),
        )
        for count, found in figures["workers"].items()
    ]
    headings = (
        *("workers", ">million hashes/s", ">bare loop", ">times", ">s to a block", ">longest"),
        *(">expected", ">times", ">hashes over difficulty", ">lag, ms: median, 99 %"),
    )
    print_table(headings, [*rows, ("none", *("-",) * 8, _show_lag(idle))])
    print("bare loop is hashlib on one thread; expected is the difficulty over the hashes a second of that row")


def _show_lag(found: dict[str, float]) -> str:
    return f"{1000 * found['median']:.2f}  {1000 * found['p99']:.2f}"
