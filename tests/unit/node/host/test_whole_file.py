"""Files that are there whole or not at all, and whose fault it is where they are not."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from chain.store import blob_files
from node.errors import NodeError
from node.host.private_file import write_private
from node.host.whole_file import writing_whole

FULL = Path("/dev/full")  # takes nothing


def write(path: Path, data: bytes) -> None:
    with writing_whole(path, over=True) as file:
        file.write(data)


@pytest.mark.parametrize("put", [write, write_private])
def test_the_name_is_durable_once_the_file_is_there(
    put: Callable[[Path, bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, bytes]] = []
    monkeypatch.setattr(blob_files, "sync_directory", lambda path: synced.append((path, (path / "x").read_bytes())))
    put(tmp_path / "x", b"one")
    put(tmp_path / "x", b"two")
    assert synced == [(tmp_path, b"one"), (tmp_path, b"two")]
    assert os.listdir(tmp_path) == ["x"]


def test_a_private_file_is_its_owners_alone_and_another_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "plain", b"")
        write_private(tmp_path / "private", b"")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"plain": 0o640, "private": 0o600}


def test_what_goes_wrong_elsewhere_is_not_said_of_this_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), writing_whole(tmp_path / "x", over=True) as file:
        file.write((tmp_path / "source").read_bytes())
    assert not os.listdir(tmp_path)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("size", [1, 1 << 20], ids=["at the end", "on the way"])
def test_a_full_disk_is_said_of_the_file_and_leaves_none(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def open_full(path: Path, flags: int, mode: int = 0o777) -> int:
        os.close(real(path, flags, mode))
        return real(FULL, os.O_WRONLY)

    monkeypatch.setattr(os, "open", open_full)
    with pytest.raises(NodeError, match=r"x: cannot be written \(No space left on device\)"):
        write(tmp_path / "x", bytes(size))
    assert not os.listdir(tmp_path)


def test_a_file_of_others_beside_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0")
    (tmp_path / ".x.0").write_bytes(b"another's")
    with pytest.raises(NodeError, match="x: cannot be written"):
        write(tmp_path / "x", b"")
    assert (tmp_path / ".x.0").read_bytes() == b"another's"


def test_a_file_that_is_there_is_not_replaced_unless_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(NodeError, match="x: expected no such file"), writing_whole(tmp_path / "x", over=False):
        pass
    with pytest.raises(NodeError, match="y: cannot be written"), writing_whole(tmp_path / "y", over=False):
        (tmp_path / "y").write_bytes(b"another's")
    assert (tmp_path / "y").read_bytes() == b"another's"
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]
