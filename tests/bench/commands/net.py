"""`make bench-net`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import RepeatsOption, print_figures, report, show_ratio
from node.cli.options import AsJson
from node.cli.output import print_facts, print_table
from node.cli.trial.testnet import SeedOption


def bench_net(
    messages: Annotated[
        int, typer.Option("--messages", metavar="N", min=1, help="There and back, in each repetition.")
    ] = 500,
    mb: Annotated[float, typer.Option("--mb", metavar="MB", min=0.001, help="What the blob weighs.")] = 64.0,
    connections: Annotated[
        int, typer.Option("--connections", metavar="N", min=1, help="Made anew, in each repetition.")
    ] = 10,
    repeats: RepeatsOption = 5,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """Messages between two processes, against bare gRPC. Both run over loopback with the same mutual TLS: round trips
    of a vote, votes a second, a blob, and setting up a connection.

    Example: make bench-net ARGS="--messages 2000 --mb 256 --json"
    """
    from bench.net import run_net_bench

    figures = run_net_bench(
        messages=messages, mb=mb, connections=connections, repeats=repeats, seed=seed, report=report
    )
    print_figures(figures, show_figures, as_json)


def show_figures(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print_facts(
        [
            (
                "job",
                f"votes of {job['message_bytes']} B, checked at both ends, and a blob of {job['mb']:g} MB",
            ),
            ("a peer may send", f"{job['messages_per_s_allowed']:,.0f} messages a second, which is lifted here"),
        ]
    )
    print()
    delays = {"round trip": figures["round_trip_s"], "connection": figures["connect_s"]}
    print_table(
        ("ms", ">median", ">99 %", ">longest", ">bare median", ">99 %", ">longest", ">times: median", ">99 %"),
        [
            (
                name,
                *(f"{1000 * found[end][key]:.2f}" for end in ("ours", "bare") for key in ("median", "p99", "max")),
                *(f"{found['ratio'][key]:.2f}" for key in ("median", "p99")),
            )
            for name, found in delays.items()
        ],
    )
    print()
    rates = {
        f"messages, {job['window']} under way": figures["messages_per_s"],
        "MB of a blob": figures["blob_mb_per_s"],
    }
    print_table(
        ("a second", ">median", ">least", ">bare", ">times as long"),
        [
            (
                name,
                f"{found['ours']['median']:,.0f}",
                f"{found['ours']['min']:,.0f}",
                f"{found['bare']['median']:,.0f}",
                show_ratio(found["ratio"]),
            )
            for name, found in rates.items()
        ],
    )
    print("bare is gRPC between the same processes, with the same bytes and the same TLS, and nothing checked")
