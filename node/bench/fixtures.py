"""Fixtures of benchmarks: a directory of their own, and federations of real nodes on digits, gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from node.testnet.layout import Testnet, TestnetSpec, make_testnet

DIFFICULTY = 16  # trivial: mining costs its messages and nothing else


@contextmanager
def temporary_directory(parent: Path | None = None) -> Iterator[Path]:
    """Below `parent`, by default where temporary files go."""
    with tempfile.TemporaryDirectory(prefix="fednode-bench-", dir=parent) as directory:
        yield Path(directory)


@contextmanager
def temporary_testnet(spec: TestnetSpec) -> Iterator[Testnet]:
    """On ports that are free now; its directory goes when the context is left."""
    with temporary_directory() as directory:
        yield make_testnet(directory / "cluster", replace(spec, base_port=0, i_understand=True))
