"""`make bench-page`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson


def bench_page(
    tabs: Annotated[int, typer.Option("--tabs", metavar="N", min=1, max=24, help="That look at one node.")] = 10,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=2, help="Of each window of time.")] = 30,
    pairs: Annotated[int, typer.Option("--pairs", metavar="N", min=1, help="Windows with tabs, and without.")] = 3,
    speed: Annotated[
        float, typer.Option("--speed", metavar="X", min=1, help="Of the clock of the tab that is left open.")
    ] = 60,
    as_json: AsJson = False,
) -> None:
    """What tabs of Chromium at a node's page cost it, and whether a page that is left open grows. Needs what
    `make test-web` installs.

    Example: make bench-page ARGS="--tabs 10 --seconds 20"
    """
    from bench.page import run_page_bench

    print_figures(
        run_page_bench(tabs=tabs, seconds=seconds, pairs=pairs, speed=speed, report=report), _show_page, as_json
    )


def _show_page(figures: dict[str, Any]) -> None:
    job, growth = figures["job"], figures["growth"]
    each = ", ".join(f"{share:.1f}" for share in figures["tabs_percent_of_each"])
    print(f"{job['tabs']} tabs          {figures['tabs_percent']:.1f} % of a core, by window {each}")
    print(f"daemon in all    {figures['alone_percent']:.1f} % alone, {figures['looked_at_percent']:.1f} % looked at")
    print(f"rounds           {figures['rounds']['alone']} alone, {figures['rounds']['looked_at']} looked at")
    print(f"left open        {growth['questions']} questions, as in {growth['hours']:.1f} h; {growth['rounds']} rounds")
    for name, text in (("heap_mb", "its heap, MB"), ("daemon_mb", "the daemon, MB")):
        print(f"{text:16} " + " -> ".join(f"{value:.1f}" for value in growth[name]))
    print(f"{'elements':16} " + " -> ".join(map(str, growth["elements"])))
