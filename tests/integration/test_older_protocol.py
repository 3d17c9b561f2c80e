"""A chain of protocol 2, as the last release that spoke nothing newer has left it: its data directory and genesis.

`vectors/protocol2.tar.xz` has six rounds of four members and a change of their number in between.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from chain.beacon import compute_beacon
from chain.genesis import Genesis
from chain.store.sqlite import SqliteStore
from support.federation.real_nodes import run_command

VECTOR = Path(__file__).parents[1] / "vectors" / "protocol2.tar.xz"
HEIGHT = 7


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    with tarfile.open(VECTOR) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_it_verifies_deeply(data_dir: Path) -> None:
    done = run_command("chain", "verify", "--deep", "--require-all", "--data-dir", data_dir)
    assert done.code == 0, done.err
    assert f"{HEIGHT}" in done.out


def test_its_beacons_are_its_blocks(data_dir: Path) -> None:
    genesis = Genesis.from_mapping(json.loads((data_dir / "genesis.json").read_bytes()))
    assert genesis.protocol == 2
    with SqliteStore.open(data_dir, genesis, readonly=True) as store:
        assert store.head_height == HEIGHT
        for height in range(HEIGHT + 1):
            stored = store.get_block(height)
            assert stored is not None
            assert compute_beacon(stored.block) == stored.block.id
