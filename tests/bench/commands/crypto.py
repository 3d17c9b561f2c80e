"""`make bench-crypto`: the options, and the figures as people read them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.bench.figures import RepeatsOption, print_figures, report, show_ratio
from node.cli.options import AsJson
from node.cli.output import print_facts, print_table
from node.cli.trial.testnet import SeedOption

BASELINES = {
    "signatures": "the library's Ed25519 over the same bytes",
    "digests": "one SHA-256 over the same bytes in memory",
    "codec": "pickle, which checks nothing",
    "validation": "the library's verification of as many signatures, and numpy's mean",
    "envelopes": "protobuf alone",
}


def bench_crypto(
    members: Annotated[
        int, typer.Option("--members", metavar="N", min=1, max=100, help="Who contribute to the block and certify it.")
    ] = 4,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.0001, help="For each call in one repetition.")
    ] = 0.03,
    repeats: RepeatsOption = 7,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """Signatures, digests and block checks, against the library. Each is set against the bare library call for the same
    bytes.

    Example: make bench-crypto ARGS="--members 16 --json"
    """
    from bench.crypto import run_crypto_bench

    figures = run_crypto_bench(members=members, seconds=seconds, repeats=repeats, seed=seed, report=report)
    print_figures(figures, show_figures, as_json)


def show_figures(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print_facts([("job", f"a block of {job['members']} members, certified by {job['quorum']}, seed {job['seed']}")])
    for group, baseline in BASELINES.items():
        print()
        rows = [
            (
                name.replace("_", " "),
                f"{found['bytes']:,}",
                f"{found['per_s']['median']:,.0f}",
                f"{found['bare_per_s']['median']:,.0f}",
                f"{found['mb_per_s']:,.1f}",
                show_ratio(found["ratio"]),
            )
            for name, found in figures[group].items()
        ]
        print_table((group, ">bytes", ">a second", ">bare", ">MB/s", ">times as long"), rows)
        print(f"bare is {baseline}")
