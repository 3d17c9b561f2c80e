"""`make bench-lying-val`: the options, and the table as people read it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson


def bench_lying_val(
    folds: Annotated[int, typer.Option("--folds", metavar="F", min=1, max=5, help="So many of the five.")] = 5,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=2, help="At most.")] = 60,
    patience: Annotated[int, typer.Option("--patience", metavar="N", min=0, help="As `select` has it.")] = 5,
    as_json: AsJson = False,
) -> None:
    """One of the four hospitals of the heart data lies about its val samples in every round: the honest ones' test loss
    and accuracy in the round that is selected, against that which is selected when nobody lies.

    Example: make bench-lying-val ARGS="--folds 1"
    """
    from bench.defaults.lying_val import run_lying_val_bench
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    figures = run_lying_val_bench(folds=folds, rounds=rounds, patience=patience, report=report)
    print_figures(figures, _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    for name, own in figures["lies"].items():
        print(
            f"{name:26s} loss {own['loss']:+.4f} (at most {own['worst_loss']:+.4f})  accuracy {own['accuracy']:+.4f} "
            f"(at least {own['worst_accuracy']:+.4f})  another round in {100 * own['moved']:.0f} %, on average "
            f"{own['chosen']:.1f} for {own['honest']:.1f}"
        )
