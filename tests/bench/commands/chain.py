"""`make bench-chain`: the options, and the figures as people read them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli.bench.figures import print_figures, report, show_ratio
from node.cli.options import AsJson
from node.cli.output import print_facts, print_table, show_bytes
from node.cli.trial.testnet import SeedOption
from node.errors import ConfigError


def bench_chain(
    blocks: Annotated[int, typer.Option("--blocks", metavar="N", min=1, help="How long the chain is.")] = 500,
    members: Annotated[
        int, typer.Option("--members", metavar="N", min=1, max=100, help="Who contribute to each block.")
    ] = 4,
    one_by_one: Annotated[
        int, typer.Option("--one-by-one", metavar="N", min=1, help="Of the blocks, appended each for itself.")
    ] = 200,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="On whose disk; by default that of temporary files."),
    ] = None,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """A node's store: append, read, verify, export, import. The chain is of real blocks, the baselines are plain SQLite
    and bare signatures.

    Example: make bench-chain ARGS="--blocks 2000 --dir /var/lib/fednode --json"
    """
    from bench.chain import run_chain_bench

    if directory is not None and not directory.is_dir():
        raise ConfigError(f"--dir: expected a directory (got {directory})")
    figures = run_chain_bench(
        blocks=blocks,
        members=members,
        one_by_one=min(one_by_one, blocks),
        parent=directory,
        seed=seed,
        report=report,
    )
    print_figures(figures, show_figures, as_json)


def show_figures(figures: dict[str, Any]) -> None:
    job, disk, fsync = figures["job"], figures["disk"], figures["fsync_s"]
    print_facts(
        [
            (
                "job",
                f"{job['blocks']} blocks of {job['members']} members, made at {figures['made']['blocks_per_s']:.0f}/s",
            ),
            (
                "a block",
                f"{disk['block_bytes']:.0f} B and a certificate of {disk['certificate_bytes']:.0f} B; "
                f"{disk['database_bytes_per_block']:.0f} B in the database, {disk['bare_bytes_per_block']:.0f} B in a "
                f"bare table",
            ),
            ("blobs", f"{disk['blobs']} with {show_bytes(disk['blob_bytes'])} in all"),
            ("fsync", f"{1000 * fsync['median']:.2f} ms, 99 % within {1000 * fsync['p99']:.2f} ms"),
        ]
    )
    print()
    append, verify = figures["append"], figures["verify"]
    rows = {
        "append, one by one": append["one_by_one"],
        f"append, {job['batch']} at once": append["batched"],
        "verify": verify["shallow"],
        "verify --deep": verify["deep"],
        "export": figures["export"],
        "import": figures["import"],
    }
    print_table(
        ("", ">blocks", ">seconds", ">blocks/s", ">MB/s", ">bare blocks/s", ">times as long"),
        [(name, *_make_row(found)) for name, found in rows.items()],
    )
    print()
    read = figures["read"]
    names = {"height": "the head's height", "block": "a block", "range": "all blocks"}
    print_table(
        ("reading, by CPU time", ">a second", ">bare", ">times as long"),
        [
            (
                label,
                f"{read[name]['per_s']['median']:,.0f}",
                f"{read[name]['bare_per_s']['median']:,.0f}",
                show_ratio(read[name]["ratio"]),
            )
            for name, label in names.items()
        ],
    )
    print(f"opening and closing the store takes {1000 * read['open_s']['median']:.1f} ms")
    print("bare is SQLite with the same bytes and durability; of verify the library's signatures, both by CPU time;")
    print("of import both, of export a copy of the file")


def _make_row(found: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(found["blocks"]),
        f"{found['seconds']:.3f}",
        f"{found['blocks_per_s']:,.0f}",
        f"{found['mb_per_s']:.2f}",
        f"{found['bare_blocks_per_s']:,.0f}",
        f"{found['ratio']:.2f}",
    )
