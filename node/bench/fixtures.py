"""Fixtures of benchmarks: a directory of their own, and federations of real nodes on digits, gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from node.testnet.layout import Testnet, TestnetSpec, make_testnet

DIFFICULTY = 16  # trivial: mining costs only its messages


@contextmanager
def temporary_directory(parent: Path | None = None) -> Iterator[Path]:
    """Makes a directory below `parent`, by default among temporary files, and removes it at the end."""
    with tempfile.TemporaryDirectory(prefix="fednode-bench-", dir=parent) as directory:
        yield Path(directory)


@contextmanager
def temporary_testnet(spec: TestnetSpec) -> Iterator[Testnet]:
    """Makes a test network on ports that are free now; its directory is removed when the context is left."""
    with temporary_directory() as directory:
        yield make_testnet(directory / "cluster", replace(spec, base_port=0, i_understand=True))
