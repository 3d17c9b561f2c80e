"""Backups as an operator takes them, of a node that runs, and puts them back."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from chain.store.interface import RESTORED
from chain.store.sqlite import SqliteStore
from node.admin import client as admin_client
from node.admin.backups import SNAPSHOT
from node.cli import main
from support.federation.asked import running
from support.federation.recording import PATIENCE_S

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


async def run(capsys: Captured, *arguments: object) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main, [str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


async def test_a_running_node_is_backed_up_and_restored(tmp_path: Path, capsys: Captured) -> None:
    file, target = tmp_path / "backup.tar", tmp_path / "new"
    async with running(tmp_path / "net") as one:
        await one.net.wait_for_height(3)
        code, out, err = await run(capsys, "backup", file, "--socket", one.path, "--json")
        assert (code, err) == (0, "")
        told = json.loads(out)
        assert told["height"] >= 3
        assert told["chain_id"] == one.net.genesis.chain_id.hex()
        store = one.net["node0"].store
        assert store is not None
        assert not (store.path / SNAPSHOT).exists()
        height = one.net["node0"].height
        await one.net.wait_for_height(height + 2)  # its rounds went on
        code, _, err = await run(capsys, "backup", file, "--socket", one.path)
        assert code == 1
        assert "nothing is written over" in err
        genesis = one.net.genesis
    code, out, _ = await run(capsys, "restore", file, "--data-dir", target)
    assert code == 0
    assert "signs nothing until it has caught up" in out
    with SqliteStore.open(target, genesis) as store:
        assert (store.head_height, store.get_meta(RESTORED)) == (told["height"], {"until": None})
    code, _, err = await run(capsys, "restore", file, "--data-dir", target)
    assert code == 1
    assert "expected an empty directory" in err
    code, out, _ = await run(capsys, "backup", tmp_path / "stopped.tar", "--data-dir", target)
    assert code == 0
    assert out.startswith(f"{tmp_path / 'stopped.tar'}: ")
    file.write_bytes(file.read_bytes()[:-700])
    code, _, err = await run(capsys, "restore", file, "--data-dir", tmp_path / "other")
    assert code == 5
    assert "not a whole backup" in err
    assert not (tmp_path / "other").exists()
    assert sorted(os.listdir(tmp_path)) == ["backup.tar", "net", "new", "stopped.tar"]


async def test_who_goes_away_leaves_nothing_in_the_node(tmp_path: Path) -> None:
    async with running(tmp_path / "net") as one:
        await one.net.wait_for_height(2)
        chunks = one.view.backups.backup()
        assert (await anext(chunks)).manifest
        await chunks.aclose()
        store = one.net["node0"].store
        assert store is not None
        assert not (store.path / SNAPSHOT).exists()
        taking = asyncio.create_task(anext(one.view.backups.backup()))
        await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
