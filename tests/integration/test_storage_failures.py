"""The operator's message when the data directory cannot be used: which file, what to do, and an exit code to go by.

The node is the real daemon, which ends while it opens its store; e2e has the same with real disks and workers.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from chain.codec import encode_block
from chain.genesis import Genesis
from chain.signing import SigningKey
from chain.store.interface import Faults
from chain.store.sqlite import SqliteStore
from ml.payload import encode_arrays
from ml.specs.architectures import parameter_shapes
from node.cli import main
from node.config.genesis_file import write_genesis
from node.config.node_config import load_config
from node.daemon import run_daemon
from node.errors import NodeError
from support.data.chains import make_chain, make_genesis_mapping
from support.data.run_schemas import with_schema
from support.federation.real_nodes import flip_byte

MODEL = {"name": "mlp", "hidden": [3]}
INITIAL = encode_arrays(
    {f"model/{name}": np.zeros(shape, np.float32) for name, shape in parameter_shapes(MODEL, (1, 8, 8), 10).items()}
)
KEY = SigningKey.from_private_bytes(bytes([7]) * 32)
GENESIS = Genesis.from_mapping(
    with_schema(make_genesis_mapping([KEY], model=MODEL, initial_model=hashlib.sha256(INITIAL).hexdigest(), rounds=0))
)
CHAIN = make_chain(GENESIS, [KEY], 40)
CONFIG = """\
version: 1
node: {name: node0, identity_key_file: node0.key, data_dir: data}
genesis_file: genesis.yaml
network: {listen: '127.0.0.1:0', tls: mutual, peers: []}
training: {seed: 1}
data: {format: digits}
admin: {socket: null}
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lone member with forty blocks, which has stopped."""
    directory = tmp_path_factory.mktemp("stopped")
    write_genesis(directory / "genesis.yaml", GENESIS, INITIAL)
    (directory / "node0.yaml").write_text(CONFIG, encoding="utf-8")
    (directory / "node0.key").write_bytes(KEY.to_pem())
    (directory / "node0.key").chmod(0o600)
    with SqliteStore.open(directory / "data", GENESIS) as store:
        store.put_blob(INITIAL)
        for pair in CHAIN:
            store.append(*pair)
    return directory


@pytest.fixture
def directory(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "node")


def start(directory: Path, faults: Faults | None = None) -> tuple[int, str]:
    """How a start ends that fails: the exit code, and the one line that is said of it."""
    with pytest.raises(NodeError) as caught:
        run_daemon(load_config(directory / "node0.yaml"), faults)
    said = caught.value.describe()
    assert len(said.splitlines()) == 1
    return caught.value.exit_code, said


def damage_page(data: Path) -> str:
    """One of SQLite's own pages: the first of those that hold what this site answered."""
    file = data / "chain.db"
    with closing(sqlite3.connect(file)) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'consent'").fetchall()
    content = bytearray(file.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = bytes(range(256)) * 16
    file.write_bytes(content)
    return str(file)


def cut_database(data: Path) -> str:
    os.truncate(data / "chain.db", 12_288)
    return str(data / "chain.db")


def damage_head(data: Path) -> str:
    flip_byte(data / "chain.db", encode_block(CHAIN[-1][0]))
    return f"{data / 'chain.db'}: block 40: stored bytes do not match their digest"


def damage_block_below(data: Path) -> str:
    """One that is not looked at when the store is opened, but when the next height begins."""
    flip_byte(data / "chain.db", encode_block(CHAIN[-5][0]))
    return f"{data / 'chain.db'}: block 36: stored bytes do not match their digest"


@pytest.mark.parametrize("damage", [damage_page, cut_database, damage_head, damage_block_below])
def test_a_damaged_database_is_named_with_a_way_out_that_works(
    directory: Path, damage: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = directory / "data"
    place = damage(data)
    code, said = start(directory)
    assert code == 1
    assert place in said
    assert f"restore {data} from a copy, or take the chain from the other members again: fednode unsafe-reset" in said
    assert main(["chain", "verify", "--data-dir", str(data)]) == 5
    if damage is cut_database:
        return  # what was signed is damaged too, so only the copy is left
    assert main(["unsafe-reset", "--yes", "--config", str(directory / "node0.yaml")]) == 0
    assert ("approve again" in capsys.readouterr().err) == (damage is damage_page)
    with SqliteStore.open(data, GENESIS) as store:
        assert (store.head_height, store.silent_until) == (0, 0)


def test_a_block_long_past_is_found_by_the_audit(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = directory / "data"
    flip_byte(data / "chain.db", encode_block(CHAIN[2][0]))
    assert main(["chain", "verify", "--data-dir", str(data)]) == 5
    assert "block 3: stored bytes do not match their digest" in capsys.readouterr().err


def test_a_database_that_is_gone_is_not_taken_for_a_new_one(directory: Path) -> None:
    data = directory / "data"
    (data / "chain.db").unlink()
    code, said = start(directory)
    assert code == 1
    assert f"{data / 'chain.db'}: expected the chain this directory was used for, got an empty database" in said


def test_an_initial_model_that_is_gone_is_named(directory: Path) -> None:
    (directory / "initial_model.safetensors").unlink()
    code, said = start(directory)
    assert code == 78
    assert f"{directory / 'initial_model.safetensors'}: no such file (genesis.yaml needs its initial model" in said


def fail_at(step: str, number: int) -> Faults:
    def reach(reached: str) -> None:
        if reached == step:
            raise OSError(number, os.strerror(number))

    return reach


def test_a_disk_that_is_full_before_there_is_a_blob_is_named(directory: Path) -> None:
    data = directory / "data"
    shutil.rmtree(data)
    code, said = start(directory, fail_at("blob.written", errno.ENOSPC))
    assert code == 1
    assert f"{data}/blobs/" in said
    assert "No space left on device; make room and start again: what was signed and finalised is kept" in said
    assert [path for path in (data / "blobs").rglob("*") if path.is_file()] == []


def test_a_directory_that_cannot_be_written_is_named(directory: Path) -> None:
    shutil.rmtree(directory / "data")
    code, said = start(directory, fail_at("blob.written", errno.EACCES))
    assert code == 77
    assert f"{directory / 'data'}/blobs/" in said
    assert "Permission denied (node.data_dir: expected a directory that this node can write)" in said


def mount(*arguments: object) -> bool:
    """Whether this process may mount, and has."""
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "used"])
def test_a_directory_on_a_read_only_file_system_is_named(directory: Path, is_new: bool) -> None:
    data = directory / "data"
    if is_new:
        shutil.rmtree(data)
        data.mkdir()
    if not (mount("--bind", data, data) and mount("-o", "remount,bind,ro", data)):
        pytest.skip("expected to be allowed to mount a directory read-only")
    try:
        code, said = start(directory)
        assert code == 77
        assert (
            said
            == f"fednode: {data}: Read-only file system (node.data_dir: expected a directory that this node can write)"
        )
        if not is_new:
            assert main(["chain", "verify", "--data-dir", str(data)]) == 0  # it stays readable
    finally:
        subprocess.run(["umount", data], check=True)
