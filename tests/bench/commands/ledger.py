"""`make bench-ledger`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report
from node.cli.options import AsJson
from node.cli.output import print_facts, print_table, show_bytes
from node.errors import ConfigError

MOST_MEMBERS = 100  # in one process; a full mesh is for 30 to 50
MOST_PROCESSES = 32

HEADINGS = (
    *(">s a round", ">min", ">max", ">CPU ms a node", ">messages a node", ">kB a node", ">busy"),
    *(">exchange s", ">mine s", ">vote s", ">later views"),
)


def bench_ledger(
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="N,…", help="Members that share one process, over memory. '' for none.")
    ] = "4,16,32,50",
    processes: Annotated[
        str, typer.Option("--processes", metavar="N,…", help="Members that are processes of their own. '' for none.")
    ] = "4,8,16",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="R", min=2, help="Measured of each size, after the first three.")
    ] = 20,
    difficulty: Annotated[
        int,
        typer.Option(
            "--difficulty",
            metavar="D",
            min=1,
            help="Hashes to a block. So few that all find one at once, as with 16, split the vote and cost a view.",
        ),
    ] = 65_536,
    as_json: AsJson = False,
) -> None:
    """Finality alone, with nothing trained, by members. Seconds, messages and CPU time of a round, and how they grow
    with the number of members.

    Example: make bench-ledger ARGS="--sizes 4,16 --processes '' --rounds 10"
    """
    from bench.ledger import run_ledger_bench

    figures = run_ledger_bench(
        sizes=read_sizes("--sizes", sizes, MOST_MEMBERS),
        processes=read_sizes("--processes", processes, MOST_PROCESSES),
        rounds=rounds,
        difficulty=difficulty,
        report=report,
    )
    print_figures(figures, _show, as_json)


def read_sizes(option: str, text: str, most: int) -> tuple[int, ...]:
    """Numbers of members, from 2 to `most`. Raises ConfigError."""
    sizes = [int(word) if word.isdecimal() else 0 for word in text.split(",")] if text else []
    if any(not 2 <= size <= most for size in sizes):
        raise ConfigError(f"{option}: expected numbers from 2 to {most}, as in 4,16 (got {text!r})")
    return tuple(sorted(set(sizes)))


def _show(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print_facts([("job", f"{job['rounds']} rounds after {job['warm_up']}, difficulty {job['difficulty']:,}")])
    titles = {"memory": "members in one process", "processes": "processes"}
    for half, title in titles.items():
        if not figures[half]:
            continue
        print()
        print_table((title, *HEADINGS), [_make_row(n, found) for n, found in figures[half].items()])
        for n, found in figures[half].items():
            print(f"{n:>3} sent a round, all members: {_show_kinds(found)}")
        for step in figures["growth"][half]:
            print(f"from {step['from']} to {step['to']}, n to the power of: {_show_growth(step)}")
    if figures["memory"]:
        print("busy is the share of the time in which the process computed; for the rest it waited, or for the disk.")


def _make_row(n: str, found: dict[str, Any]) -> tuple[str, ...]:
    took_s, phases_s = found["round_s"], found["phases_s"]
    return (
        n,
        *(f"{took_s[key]:.3f}" for key in ("median", "min", "max")),
        f"{1000 * found['cpu_s_per_node']['median']:.1f}",
        f"{found['messages_per_node']:.1f}",
        f"{found['bytes_per_node'] / 1000:.1f}",
        f"{found['busy']:.0%}" if "busy" in found else "-",
        *(f"{phases_s[phase]:.3f}" for phase in ("exchange", "mine", "vote")),
        f"{found['later_views']:.0%}",
    )


def _show_kinds(found: dict[str, Any]) -> str:
    messages = found.get("messages", {})
    counts = {kind: f"{messages[kind]:.0f} of " if kind in messages else "" for kind in found["bytes"]}
    return ", ".join(f"{kind} {counts[kind]}{show_bytes(size)}" for kind, size in found["bytes"].items() if size)


def _show_growth(step: dict[str, Any]) -> str:
    names = {
        "round_s": "seconds",
        "messages_per_node": "messages a node",
        "bytes_per_node": "bytes a node",
        "cpu_s_per_node": "CPU a node",
    }
    return ", ".join(f"{name} {step[key]:.2f}" for key, name in names.items() if step[key] is not None)
