"""`fednode chain verify --deep` on what a stopped node has left: whole, and with one byte flipped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chain.codec import encode_block, encode_certificate
from chain.genesis import Genesis
from chain.store.interface import StoredBlock
from chain.store.sqlite import SqliteStore
from support.data.blobs import spoil_blob
from support.federation.real_nodes import DemoRun, flip_byte, run_command, run_process
from support.slow_rest import slow_after

pytestmark = pytest.mark.e2e

KEYS = ["ok", "from", "to", "blocks", "signatures", "recomputed", "not_held", "head", "seconds"]


@pytest.fixture
def data_dir(demo: DemoRun, tmp_path: Path) -> Path:
    """A copy of a stopped node's data directory."""
    return shutil.copytree(demo.directory / "data/node0", tmp_path / "node0")


def read_block(data_dir: Path, height: int) -> StoredBlock:
    mapping = SqliteStore.stored_genesis(data_dir)
    assert mapping is not None
    with SqliteStore.open(data_dir, Genesis.from_mapping(mapping), readonly=True) as store:
        stored = store.get_block(height)
    assert stored is not None
    return stored


def flip_block(data_dir: Path, height: int) -> str:
    flip_byte(data_dir / "chain.db", encode_block(read_block(data_dir, height).block))
    return f"block {height}: stored bytes do not match their digest"


def flip_certificate(data_dir: Path, height: int) -> str:
    certificate = read_block(data_dir, height).certificate
    assert certificate is not None
    flip_byte(data_dir / "chain.db", encode_certificate(certificate))
    return f"block {height}: certificate: stored bytes do not match their digest"


def flip_payload(data_dir: Path, height: int) -> str:
    return flip_blob(data_dir, read_block(data_dir, height).block.contributions[1].payloads[0].digest)


def flip_aggregate(data_dir: Path, height: int) -> str:
    return flip_blob(data_dir, read_block(data_dir, height).block.header.aggregate)


def flip_blob(data_dir: Path, digest: bytes) -> str:
    spoil_blob(data_dir, digest, at=0)
    return digest.hex()


def test_what_a_node_left_is_recomputed_from_the_first_block_to_the_last(demo: DemoRun, data_dir: Path) -> None:
    for i in range(4):
        done = run_command(
            "chain", "verify", "--deep", "--require-all", "--json", "--data-dir", demo.directory / f"data/node{i}"
        )
        assert done.code == 0, done.err
        report = json.loads(done.out)
        assert list(report) == KEYS
        del report["seconds"]
        signatures = report.pop("signatures")
        assert report == {
            "ok": True,
            "from": 0,
            "to": demo.rounds,
            "blocks": demo.rounds + 1,
            "recomputed": demo.rounds,
            "not_held": [],
            "head": demo.result["nodes"][i]["head"],
        }
        assert signatures >= demo.rounds * (1 + 4 + 3)  # the miner's, the contributions', a quorum's


@pytest.mark.parametrize(
    ("flip", "height"),
    slow_after(2, [(flip_block, 4), (flip_certificate, 4), (flip_payload, 4), (flip_aggregate, 4), (flip_block, 10)]),
)
def test_one_flipped_byte_is_found_and_its_place_named(
    data_dir: Path, flip: Callable[[Path, int], str], height: int
) -> None:
    place = flip(data_dir, height)
    done = run_command("chain", "verify", "--deep", "--json", "--data-dir", data_dir)
    assert done.code == 5
    report = json.loads(done.out)
    assert report["ok"] is False
    assert place in report["fault"]["what"]
    assert len(done.err.splitlines()) == 1
    assert place in done.err


@pytest.mark.slow
def test_a_node_does_not_start_on_a_damaged_head(demo: DemoRun, tmp_path: Path) -> None:
    directory = tmp_path / "net"
    shutil.copytree(demo.directory, directory, ignore=shutil.ignore_patterns("run"))
    place = flip_block(directory / "data/node0", demo.rounds)
    done = run_process("--config", directory / "node0.yaml")
    assert done.code == 1
    assert place in done.err
    assert "Traceback" not in done.err
