"""The commands of `python -m tests.bench`, one for each benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import typer

from bench.commands.aggregation import bench_aggregation
from bench.commands.beside import bench_beside
from bench.commands.catch_up import bench_catch_up
from bench.commands.chain import bench_chain
from bench.commands.crypto import bench_crypto
from bench.commands.defaults import bench_defaults
from bench.commands.defaults_images import bench_defaults_images
from bench.commands.flood import bench_flood
from bench.commands.images import bench_images
from bench.commands.join import bench_join
from bench.commands.ledger import bench_ledger
from bench.commands.link import bench_link
from bench.commands.lying_val import bench_lying_val
from bench.commands.masked import bench_masked
from bench.commands.methods import bench_methods
from bench.commands.net import bench_net
from bench.commands.page import bench_page
from bench.commands.pow import bench_pow
from bench.commands.share import bench_share
from bench.commands.simulate import bench_simulate
from bench.commands.soak import bench_soak
from bench.commands.transfer import bench_transfer
from bench.commands.verdict import bench_verdict
from bench.commands.virtual_ledger import bench_virtual_ledger
from node.cli.app import run
from node.cli.options import make_group

COMMANDS: Mapping[str, Callable[..., None]] = {
    "aggregation": bench_aggregation,
    "beside": bench_beside,
    "catch-up": bench_catch_up,
    "chain": bench_chain,
    "crypto": bench_crypto,
    "defaults": bench_defaults,
    "defaults-images": bench_defaults_images,
    "flood": bench_flood,
    "images": bench_images,
    "join": bench_join,
    "ledger": bench_ledger,
    "link": bench_link,
    "lying-val": bench_lying_val,
    "masked": bench_masked,
    "methods": bench_methods,
    "net": bench_net,
    "page": bench_page,
    "pow": bench_pow,
    "share": bench_share,
    "simulate": bench_simulate,
    "soak": bench_soak,
    "transfer": bench_transfer,
    "verdict": bench_verdict,
    "virtual-ledger": bench_virtual_ledger,
}


def make_app() -> typer.Typer:
    """The application; `make bench-NAME` calls its commands by name."""
    app = make_group("Measure what methods, ledgers, transfers and floods cost, and nodes under faults.")
    for name, command in COMMANDS.items():
        app.command(name)(command)
    return app


def main(arguments: list[str]) -> int:
    """Runs one benchmark, and returns its exit code as `fednode` does."""
    return run(arguments, make_app, "python -m tests.bench")
