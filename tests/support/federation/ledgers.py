"""Data directories of nodes that have really run: a federation of four, over memory, in virtual time."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from chain.genesis import Genesis
from chain.store.rows import DATABASE
from support.federation.cluster import cluster
from support.federation.virtual_time import run_virtual


def make_ledgers(path: Path, rounds: int, n: int = 4, **settings: Any) -> Genesis:
    """Makes `path/node0` …, which each hold the same chain of `rounds` blocks, with every blob, stopped cleanly.
    `settings` are `cluster`'s."""

    async def federate() -> Genesis:
        async with cluster(path, n, rounds=rounds, **settings) as net:
            await net.wait_for_height(rounds)
            await net.wait_for(
                lambda: all(node.store is not None and node.store.get_round(rounds) for node in net.nodes.values()),
                "records of the last round",
            )
            return net.genesis

    return run_virtual(federate())


def read_cell(data_dir: Path, query: str) -> bytes:
    """Returns the only value of a query's result."""
    connection = sqlite3.connect(data_dir / DATABASE)
    try:
        value: bytes = connection.execute(query).fetchone()[0]
    finally:
        connection.close()
    return value


def flip_byte(path: Path, needle: bytes, at: int) -> None:
    """Changes one bit of `needle`, at its byte `at`, wherever the file holds it."""
    data = bytearray(path.read_bytes())
    where = data.find(needle)
    assert where >= 0, f"{path}: does not hold these {len(needle)} bytes"
    data[where + at] ^= 0x10
    path.write_bytes(data)
