"""Chains of protocols 2 to 4, as the last release that spoke nothing newer left each: a data directory and genesis.

`vectors/protocol2.tar.xz` has six rounds of four members and a change of their number in between, `protocol3.tar.xz`
four rounds of four on a table with a category, the first of which agrees on statistics, `protocol4.tar.xz` as many on a
table with empty cells, which are filled and flagged, and labels of classes.
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

VECTORS = Path(__file__).parents[1] / "vectors"
HEIGHTS = {2: 7, 3: 4, 4: 4}


@pytest.fixture(params=HEIGHTS)
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def data_dir(tmp_path: Path, protocol: int) -> Path:
    with tarfile.open(VECTORS / f"protocol{protocol}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_it_verifies_deeply(data_dir: Path, protocol: int) -> None:
    done = run_command("chain", "verify", "--deep", "--require-all", "--data-dir", data_dir)
    assert done.code == 0, done.err
    assert f"{HEIGHTS[protocol]}" in done.out


def test_beacons_are_blocks_under_the_first_alone(data_dir: Path, protocol: int) -> None:
    genesis = Genesis.from_mapping(json.loads((data_dir / "genesis.json").read_bytes()))
    assert genesis.protocol == protocol
    with SqliteStore.open(data_dir, genesis, readonly=True) as store:
        assert store.head_height == HEIGHTS[protocol]
        for height in range(1, HEIGHTS[protocol] + 1):
            stored = store.get_block(height)
            assert stored is not None
            assert (compute_beacon(stored.block) == stored.block.id) is (protocol == 2)
