"""`fednode unsafe-reset`: it deletes some things, keeps others, and asks first."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from chain.block import Phase
from chain.codec import sign_vote
from chain.errors import SlotTaken
from chain.store.sqlite import SqliteStore
from node.cli import main
from support.data.chains import make_chain, make_genesis, make_keys

Captured = pytest.CaptureFixture[str]

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)
CHAIN = make_chain(GENESIS, KEYS, 3)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    block = CHAIN[0][0]
    with SqliteStore.open(path, GENESIS) as store:
        store.put_vote(sign_vote(KEYS[0], GENESIS.chain_id, phase=Phase.PREVOTE, height=1, view=0, block_id=block.id))
        for finalised in CHAIN:
            store.append(*finalised)
        store.put_blob(b"old")
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / "applied.safetensors").write_bytes(b"model")
    (path / "bans.json").write_text("{}")
    (path / "tokens.json").write_text("{}")
    return path


def get_height(data_dir: Path) -> int:
    with SqliteStore.open(data_dir, GENESIS, readonly=True) as store:
        return store.head_height


def test_the_chain_goes_and_what_was_signed_stays(capsys: Captured, data_dir: Path) -> None:
    assert main(["unsafe-reset", "--data-dir", str(data_dir), "--yes", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"data_dir": str(data_dir), "kept_answers": True, "kept_model": False, "signed_height": 1}
    assert sorted(path.name for path in data_dir.iterdir()) == [
        "bans.json",
        "blobs",
        "chain.db",
        "lock",
        "tokens.json",
        "watermark",
    ]
    with SqliteStore.open(data_dir, GENESIS) as store:
        assert store.head_height == 0
        assert not list((data_dir / "blobs").glob("*/*"))
        other = sign_vote(KEYS[0], GENESIS.chain_id, phase=Phase.PREVOTE, height=1, view=0, block_id=bytes(32))
        with pytest.raises(SlotTaken):
            store.put_vote(other)


def test_the_model_is_kept_when_asked_for(capsys: Captured, data_dir: Path) -> None:
    assert main(["unsafe-reset", "--data-dir", str(data_dir), "--keep-model", "-y"]) == 0
    assert "the model is kept" in capsys.readouterr().out
    assert (data_dir / "checkpoints" / "applied.safetensors").read_bytes() == b"model"
    assert get_height(data_dir) == 0


class _Typist(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


def test_nobody_is_asked_in_a_pipe_and_a_no_is_a_no(
    capsys: Captured, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["unsafe-reset", "--data-dir", str(data_dir)]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(command) == 2
    assert "expected --yes" in capsys.readouterr().err
    for answer, code, height in (("\n", 1, 3), ("n\n", 1, 3), ("y\n", 0, 0)):
        monkeypatch.setattr("sys.stdin", _Typist(answer))
        assert main(command) == code
        assert get_height(data_dir) == height
    assert "Delete chain, state and model in" in capsys.readouterr().err


def test_a_running_node_is_not_reset(capsys: Captured, data_dir: Path) -> None:
    with SqliteStore.open(data_dir, GENESIS):
        assert main(["unsafe-reset", "--data-dir", str(data_dir), "--yes"]) == 1
    assert "stop it first" in capsys.readouterr().err
    assert get_height(data_dir) == 3
    assert (data_dir / "checkpoints").exists()


def test_without_what_was_signed_nothing_is_reset(capsys: Captured, data_dir: Path, tmp_path: Path) -> None:
    with SqliteStore.open(data_dir, GENESIS, readonly=True) as store:
        (vote,) = store.get_votes(1)
    database = data_dir / "chain.db"
    data = bytearray(database.read_bytes())
    data[data.index(vote.signature)] ^= 1
    database.write_bytes(data)
    assert main(["unsafe-reset", "--data-dir", str(data_dir), "--yes"]) == 5
    assert "nothing was reset" in capsys.readouterr().err
    assert get_height(data_dir) == 3
    assert main(["unsafe-reset", "--data-dir", str(tmp_path / "none"), "--yes"]) == 3
    assert main(["unsafe-reset", "--yes"]) == 2
