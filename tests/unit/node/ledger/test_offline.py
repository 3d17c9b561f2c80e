"""The directory of a stopped node: read and audited from it alone, and one flipped byte is found."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from chain.block import ZERO, PayloadRef
from chain.genesis import Genesis
from chain.signing import decode_id
from chain.store.rows import DATABASE
from chain.store.sqlite import SqliteStore
from ml.payload import kind_code
from node.admin.offline import OfflineNode, verify_data_dir
from node.errors import InvalidRequest, NodeError, NotFound, VerificationFailed
from node.pb import admin_pb2 as pb
from support.data.blobs import spoil_blob
from support.data.chains import make_candidate, make_certificate, make_contribution, make_genesis, make_keys
from support.federation.cluster import DIM, make_prototypes
from support.federation.ledgers import flip_byte, make_ledgers, read_cell

ROUNDS = 5


@pytest.fixture(scope="module")
def genesis_and_original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Genesis, Path]:
    path = tmp_path_factory.mktemp("ledger")
    return make_ledgers(path, ROUNDS), path / "node0"


@pytest.fixture
def genesis(genesis_and_original: tuple[Genesis, Path]) -> Genesis:
    return genesis_and_original[0]


@pytest.fixture
def data_dir(genesis_and_original: tuple[Genesis, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(genesis_and_original[1], tmp_path / "node0"))


def get_fault(data_dir: Path, *, deep: bool = True) -> pb.Fault:
    report = verify_data_dir(data_dir, deep=deep)
    assert not report.ok
    return report.fault


def test_an_untouched_directory_holds_in_every_respect(data_dir: Path, genesis: Genesis) -> None:
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    report = verify_data_dir(data_dir, deep=True, require_all=True)
    assert report.ok
    assert not report.HasField("fault")
    assert (report.first, report.last, report.blocks) == (0, ROUNDS, ROUNDS + 1)
    assert (report.recomputed, list(report.not_held)) == (ROUNDS, [])
    assert report.signatures >= ROUNDS * (1 + 2 * genesis.state.q)
    with OfflineNode(data_dir) as node:
        assert report.head == node.get_head().summary.id
    assert {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()} == before


def test_a_walk_may_begin_above_the_first_block(data_dir: Path) -> None:
    report = verify_data_dir(data_dir, 3)
    assert (report.ok, report.first, report.last, report.blocks) == (True, 3, ROUNDS, ROUNDS - 2)
    with pytest.raises(NotFound, match="the chain ends at height 5"):
        verify_data_dir(data_dir, ROUNDS + 1)


@pytest.mark.parametrize("at", [0, 9, 50, -1])
def test_a_flipped_byte_of_a_block_is_named(data_dir: Path, at: int) -> None:
    block = read_cell(data_dir, "SELECT block FROM blocks WHERE height = 3")
    flip_byte(data_dir / DATABASE, block, at % len(block))
    fault = get_fault(data_dir, deep=False)
    assert fault.height == 3
    assert fault.what == "block 3: stored bytes do not match their digest"


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_flipped_byte_of_a_certificate_is_named(data_dir: Path, at: int) -> None:
    certificate = read_cell(data_dir, "SELECT certificate FROM blocks WHERE height = 2")
    flip_byte(data_dir / DATABASE, certificate, at % len(certificate))
    fault = get_fault(data_dir, deep=False)
    assert fault.height == 2
    assert "certificate: stored bytes do not match" in fault.what


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("what", ["payload", "aggregate"])
def test_a_flipped_byte_of_a_blob_is_named(data_dir: Path, genesis: Genesis, what: str, deep: bool) -> None:
    with SqliteStore.open(data_dir, genesis, readonly=True) as store:
        stored = store.get_block(4)
        assert stored is not None
        payload = stored.block.contributions[1].payloads[0].digest
        digest = payload if what == "payload" else stored.block.header.aggregate
    spoil_blob(data_dir, digest)
    fault = get_fault(data_dir, deep=deep)
    assert digest.hex() in fault.what
    assert (fault.height, fault.expected) == ((4 if deep else 0), digest.hex() if deep else "")


@pytest.mark.parametrize("column", ["data", "digest"])
def test_a_flipped_byte_of_what_this_node_signed_is_named(data_dir: Path, column: str) -> None:
    row = read_cell(data_dir, f"SELECT {column} FROM signed WHERE height = 3 AND kind = 3")
    flip_byte(data_dir / DATABASE, row, 5)
    fault = get_fault(data_dir, deep=False)
    assert fault.height == 3
    assert "own vote of height 3" in fault.what


def test_a_flipped_byte_of_genesis_is_named_though_nothing_can_be_opened(data_dir: Path) -> None:
    canonical = read_cell(data_dir, "SELECT value FROM meta WHERE key = X'67656e65736973'")
    flip_byte(data_dir / DATABASE, canonical[:200], 100)
    report = verify_data_dir(data_dir)
    assert (report.ok, report.blocks, report.head) == (False, 0, ZERO.hex())
    assert "genesis: stored bytes do not match" in report.fault.what
    with pytest.raises(VerificationFailed, match="genesis"):
        OfflineNode(data_dir)


@pytest.mark.parametrize(
    ("payload", "what"),
    [(make_prototypes(0, 1), "aggregate of height 1"), (b"not arrays", "block 1: cannot be recomputed: ")],
    ids=["another aggregate", "no payload"],
)
def test_what_a_quorum_certified_is_still_recomputed(tmp_path: Path, payload: bytes, what: str) -> None:
    """Every byte is as it was written, work and signatures are good, and the block is wrong."""
    keys = make_keys(4)
    genesis = make_genesis(keys, model={"name": "mlp", "hidden": [DIM]})
    with SqliteStore.open(tmp_path, genesis) as store:
        ref = PayloadRef(kind_code("prototypes"), store.put_blob(payload), len(payload))
        contributions = [make_contribution(genesis, key, payloads=[ref]) for key in keys]
        block = make_candidate(genesis, genesis.block0, keys, contributions=contributions)
        store.append(block, make_certificate(genesis, block, keys))
    assert verify_data_dir(tmp_path).ok
    fault = get_fault(tmp_path)
    assert fault.height == 1
    assert what in fault.what


def test_heights_whose_blobs_are_gone_are_listed_and_may_be_required(data_dir: Path, genesis: Genesis) -> None:
    with SqliteStore.open(data_dir, genesis) as store:
        for height in (2, 4):
            stored = store.get_block(height)
            assert stored is not None
            assert store.delete_blob(stored.block.contributions[0].payloads[0].digest)
    report = verify_data_dir(data_dir, deep=True)
    assert (report.ok, list(report.not_held), report.recomputed) == (True, [2, 4], ROUNDS - 2)
    report = verify_data_dir(data_dir, deep=True, require_all=True)
    assert not report.ok
    assert report.fault.height == 2
    assert "a blob it takes is not held" in report.fault.what


def test_a_missing_block_is_a_fault(data_dir: Path) -> None:
    connection = sqlite3.connect(data_dir / DATABASE)
    with connection:
        connection.execute("DELETE FROM blocks WHERE height = 3")
    connection.close()
    fault = get_fault(data_dir)
    assert (fault.height, fault.what) == (3, "block 3: missing from the store")
    with OfflineNode(data_dir) as node, pytest.raises(VerificationFailed, match="block 3: missing"):
        node.list_blocks(None, 20, reverse=False)


def test_a_running_node_keeps_others_out_and_the_message_says_whom_to_ask(data_dir: Path, genesis: Genesis) -> None:
    with SqliteStore.open(data_dir, genesis), pytest.raises(NodeError, match=r"a node is running on it.*--socket"):
        OfflineNode(data_dir)


def test_a_directory_without_a_node_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no node has run there"):
        OfflineNode(tmp_path / "nothing")


def test_blocks_are_listed_newest_first_and_in_pages(data_dir: Path) -> None:
    with OfflineNode(data_dir) as node:
        page = node.list_blocks(None, 2, reverse=False)
        assert ([block.height for block in page.blocks], page.next) == ([5, 4], 3)
        page = node.list_blocks(page.next, 20, reverse=False)
        assert [block.height for block in page.blocks] == [3, 2, 1, 0]
        assert not page.HasField("next")
        page = node.list_blocks(None, 4, reverse=True)
        assert ([block.height for block in page.blocks], page.next) == ([0, 1, 2, 3], 4)
        assert not page.blocks[0].HasField("miner")
        with pytest.raises(NotFound):
            node.list_blocks(ROUNDS + 1, 1, reverse=False)


def test_a_block_is_found_by_height_and_by_id_with_its_payloads(data_dir: Path, genesis: Genesis) -> None:
    with OfflineNode(data_dir) as node:
        block = node.get_block(3, include_payloads=True)
        assert node.find_block(block.summary.id, include_payloads=True) == block
        assert block.aggregate_held
        voters = [decode_id(voter.id) for voter in block.votes]
        assert voters == [key for key in genesis.state.member_ids if key in voters]
        assert len(block.votes) >= genesis.state.q
        payload = block.contributions[0].payloads[0]
        assert (payload.kind, payload.held) == ("prototypes", True)
        assert [(array.name, array.dtype, list(array.shape)) for array in payload.arrays] == [
            ("classes", "int64", [2]),
            ("prototypes", "float32", [2, 4]),
        ]
        with pytest.raises(NotFound):
            node.find_block("00" * 32)
        with pytest.raises(InvalidRequest):
            node.find_block("0000f1c7")


def test_a_round_says_who_took_part_and_what_it_took(data_dir: Path, genesis: Genesis) -> None:
    with OfflineNode(data_dir) as node:
        entry = node.get_round(2)
        assert entry.measured
        assert set(entry.contributor_names) <= {member.name for member in genesis.state.members}
        assert len(entry.contributors) >= genesis.state.min_contributions
        assert {"train", "exchange", "mine", "vote", "apply", "wall"} <= set(entry.seconds)
        assert (entry.accuracy, entry.local_accuracy) == (0.5, 0.5)
        assert [entry.round for entry in node.list_rounds(None, 20, reverse=True).rounds] == [1, 2, 3, 4, 5]
        for number in (0, ROUNDS + 1):
            with pytest.raises(NotFound):
                node.get_round(number)
