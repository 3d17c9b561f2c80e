"""`make bench-link`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report, show_spread
from node.cli.options import AsJson
from node.cli.output import print_facts, show_bytes

RESNET = ("input.shape=[3,32,32]", "local_epochs=1")  # digits, drawn larger


def bench_link(
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=2, max=8, help="Real nodes.")] = 4,
    model: Annotated[str, typer.Option("--model", help="What is averaged.")] = "resnet18",
    mbit: Annotated[
        float, typer.Option("--mbit", metavar="M", min=1, help="What a node's link carries, each way.")
    ] = 100,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=1, help="Measured, after the first.")] = 3,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Of genesis; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rounds of a large model over slow links, in network namespaces: the exchange against a bare transfer. As root.

    Example: make bench-link ARGS="--model resnet18 --mbit 100"
    """
    from bench.link import run_link_bench

    figures = run_link_bench(
        num_nodes=nodes, model=model, mbit=mbit, rounds=rounds, settings=(*RESNET, *(settings or ())), report=report
    )
    print_figures(figures, _show, as_json)


def _show(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print_facts(
        [
            ("job", f"{job['nodes']} nodes, {job['model']}, {job['mbit']:g} Mbit/s each way, {job['rounds']} rounds"),
            ("payload", f"{show_bytes(figures['payload_bytes'])} of each node, to each other one"),
            (
                "sent",
                f"{show_bytes(figures['sent_bytes'])} a node and round, {figures['overhead']:.1%} over the payloads",
            ),
            ("bare transfer", f"{figures['bare_s']:.2f} s"),
            ("exchange", f"{show_spread(figures['exchange_s'])}, {figures['ratio']:.2f} times that"),
            ("training", show_spread(figures["train_s"])),
            ("round", show_spread(figures["round_s"])),
            ("contributions", f"{figures['contributions']:.1f} a round"),
        ]
    )
