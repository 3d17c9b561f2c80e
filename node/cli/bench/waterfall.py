"""The output of `fednode bench round --waterfall`: a line for each step of a round, with a bar."""

from __future__ import annotations

from typing import Any

from node.cli.bench.figures import show_spread

BAR_CHARS = 40


def show_waterfall(figures: dict[str, Any]) -> None:
    nodes, steps = figures["job"]["nodes"], figures["steps"]
    print(f"bare round     {show_spread(figures['bare']['round_s'])}   the same arithmetic in one process, one thread")
    print(f"round          {show_spread(figures['round_s'])}   {nodes} processes, all included")
    print(f"ratio          {figures['ratio']:.2f}")
    cpu = "  ".join(f"{process} {1000 * cpu_s:.1f}" for process, cpu_s in figures["cpu_s"].items())
    print(f"CPU, ms        {cpu}   a node and round")
    print(f"messages       {figures['messages']:.1f} a node and round, in {figures['batches']:.1f} batches")
    whole_s = max(step["at_s"] for step in steps)
    for step in steps:
        bar = draw_bar(step["at_s"] - step["took_s"], step["at_s"], whole_s)
        times = f"{1000 * step['at_s']:7.1f} ms {1000 * step['took_s']:+7.1f}"
        print(f"{step['step']:14} {times}  {bar}  {step['what']}")


def draw_bar(from_s: float, to_s: float, whole_s: float) -> str:
    """Returns a bar that shows where a step lies within the whole: at least one character, however short it was."""
    begin = min(BAR_CHARS - 1, max(0, int(BAR_CHARS * from_s / whole_s)))
    end = min(BAR_CHARS, max(begin + 1, round(BAR_CHARS * to_s / whole_s)))
    return f"{'.' * begin}{'#' * (end - begin)}{'.' * (BAR_CHARS - end)}"
