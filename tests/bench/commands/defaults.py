"""`make bench-defaults`: the options, and the table as people read it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson


def bench_defaults(
    tables: Annotated[
        str | None, typer.Option("--tables", metavar="A,B,…", help="These alone; by default all that are here.")
    ] = None,
    arms: Annotated[
        str | None, typer.Option("--arms", metavar="A,B,…", help="These beside together; by default all.")
    ] = None,
    folds: Annotated[int, typer.Option("--folds", metavar="F", min=1, max=5, help="So many of the five.")] = 5,
    repeats: Annotated[int, typer.Option("--repeats", metavar="R", min=1, help="Draw the folds so often.")] = 3,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=1, help="In which sites train.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Clinical tables at their sites: what `genesis new` writes, beside each site alone, all rows pooled, other methods
    and scikit-learn's logistic regression and boosting. AUC, or of numbers R2, on each site's own test rows.

    Example: make bench-defaults ARGS="--tables heart --arms alone,pooled"
    """
    from bench.defaults.arms import ARMS
    from bench.defaults.run import run_defaults_bench
    from bench.defaults.tables import TABLES
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    figures = run_defaults_bench(
        _choose("--tables", tables, TABLES),
        _choose("--arms", arms, ARMS),
        folds=folds,
        repeats=repeats,
        rounds=rounds,
        report=report,
    )
    print_figures(figures, _show, as_json)


def _choose(option: str, asked: str | None, known: Any) -> list[str]:
    names = list(known) if asked is None else asked.split(",")
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"{option}: expected {', '.join(known)} (got {unknown[0]})")
    return names


def _show(figures: dict[str, Any]) -> None:
    from bench.defaults.run import list_rows

    for first, *cells in list_rows(figures, lambda value: "-" if value is None else f"{value:.3f}"):
        print(f"{first:24s}" + "".join(f"{cell:>14s}" for cell in cells))
