"""A node whose disk is full, or has lost or changed what was written, stops with the file and a way out, which works.

Three others go on meanwhile, and listen: whatever happens to the fourth, it never says two things for one slot.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest
import pytest_asyncio

from chain.codec import encode_block
from chain.store.sqlite import SqliteStore
from chain.store.watermark import WATERMARK
from support.data.blobs import is_held, spoil_blob
from support.faults.killed_nodes import Killable
from support.federation.real_nodes import WAIT_S, flip_byte, make_federation, run_command, run_process

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

VICTIM = "node3"
OTHERS = ("node0", "node1", "node2")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Killable]:
    directory = tmp_path_factory.mktemp("damage") / "net"
    async with Killable(make_federation(directory, rounds=0, difficulty=4096)) as net:
        yield net
        await net.stop_and_check_all()


async def run_all(net: Killable) -> None:
    """All four up, and the fourth at work."""
    await net.start(*OTHERS)
    await net.start(VICTIM)
    height = await net.get_greatest_height()
    await net.wait_for_contribution(VICTIM, height)


async def start_in_vain(net: Killable) -> str:
    """The line with which the victim does not start. It gives up by itself."""
    config = net.nodes[VICTIM].node.config_file
    done = await asyncio.to_thread(run_process, "--config", config)
    assert done.code == 1, done.err
    assert "Traceback" not in done.err
    return done.err.splitlines()[-1]


async def reset(net: Killable) -> None:
    config = net.nodes[VICTIM].node.config_file
    done = await asyncio.to_thread(run_command, "unsafe-reset", "--yes", "--config", config)
    assert done.code == 0, done.err


async def test_a_write_ahead_log_cut_short_costs_no_contradiction(tmp_path: Path) -> None:
    """The node is killed, and of what it had signed and finalised since its last start the second half is lost."""
    async with Killable(make_federation(tmp_path / "net", rounds=0, difficulty=4096)) as net:
        await cut_a_log_short(net)


async def cut_a_log_short(net: Killable) -> None:
    await run_all(net)
    before = (await net.get_status(VICTIM))["height"]
    await net.wait_for_height(before + 10, VICTIM)
    await net.kill(VICTIM)
    await net.wait_until_unlocked(VICTIM)
    data = net.get_data_dir(VICTIM)
    height = net.check_dead(VICTIM)
    log = data / "chain.db-wal"
    os.truncate(log, log.stat().st_size // 2)
    with SqliteStore.open(data, net.genesis, readonly=True) as store:
        assert store.head_height < height
    verified = await asyncio.to_thread(run_command, "chain", "verify", "--deep", "--data-dir", data)
    assert verified.code == 5
    assert "the end of its write-ahead log is gone" in verified.err
    await net.start_plain(VICTIM)
    await net.wait_for_height(height, VICTIM)
    again = await net.wait_for_contribution(VICTIM, height)
    said = net.nodes[VICTIM].log_file.read_text()
    assert f"Where no quorum of others is left, delete {data / WATERMARK} to sign regardless" in said
    await net.wait_for_height(again)
    await net.check_agreement()
    net.check_nothing_contradicted()


async def test_a_damaged_block_keeps_a_node_down_until_a_reset_gets_the_chain_anew(net: Killable) -> None:
    await run_all(net)
    assert await net.stop(VICTIM) == 0
    data = net.get_data_dir(VICTIM)
    with SqliteStore.open(data, net.genesis, readonly=True) as store:
        height = store.head_height - 1
        stored = store.get_block(height)
    assert stored is not None
    flip_byte(data / "chain.db", encode_block(stored.block))
    said = await start_in_vain(net)
    assert f"{data / 'chain.db'}: block {height}: stored bytes do not match their digest" in said
    assert "fednode unsafe-reset" in said
    await reset(net)
    await net.start_plain(VICTIM)
    running = await net.get_greatest_height()
    await net.wait_for_contribution(VICTIM, running)
    assert await net.check_agreement() >= height
    net.check_nothing_contradicted()


async def test_a_damaged_aggregate_ends_a_node_once_and_is_had_from_the_others(net: Killable) -> None:
    await run_all(net)
    for name in net.running:
        assert await net.stop(name) == 0
    data = net.get_data_dir(VICTIM)
    with SqliteStore.open(data, net.genesis, readonly=True) as store:
        digest = store.head().block.header.aggregate
    spoil_blob(data, digest)
    verified = await asyncio.to_thread(run_command, "chain", "verify", "--deep", "--data-dir", data)
    assert verified.code == 5
    assert digest.hex() in verified.err
    shutil.rmtree(data / "checkpoints")  # or it would have no need of it, being past that already
    said = await start_in_vain(net)  # with nobody there, it cannot go on to another head first
    assert f"blob {digest.hex()}: sha256 of the bytes" in said
    assert "it was deleted: start again" in said
    assert not is_held(data, digest)
    await net.start(*OTHERS)
    await net.bring_back(VICTIM)


class SmallDisk:
    """A tmpfs in the place of a stopped node's directory, with `room_kb` more than it takes."""

    def __init__(self, data: Path, room_kb: int) -> None:
        self._data = data
        self._aside = data.with_name(f"{data.name}.aside")
        self._room_kb = room_kb

    def __enter__(self) -> Self:
        used_kb = int(run("du", "-sk", self._data).split()[0])
        self._data.rename(self._aside)
        self._data.mkdir()
        try:
            run("mount", "-t", "tmpfs", "-o", f"size={used_kb + self._room_kb}k", "tmpfs", self._data)
        except subprocess.CalledProcessError as error:
            self._data.rmdir()
            self._aside.rename(self._data)
            pytest.skip(f"expected to be allowed to mount a tmpfs: {error.stderr}")
        run("cp", "-a", f"{self._aside}/.", self._data)
        return self

    def make_room(self) -> None:
        run("mount", "-o", "remount,size=1g", self._data)

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self._aside)
        run("cp", "-a", self._data, self._aside)
        run("umount", self._data)
        self._data.rmdir()
        self._aside.rename(self._data)


def run(*command: object) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


async def test_a_full_disk_stops_one_node_and_with_room_it_comes_back(net: Killable) -> None:
    await run_all(net)
    assert await net.stop(VICTIM) == 0
    data = net.get_data_dir(VICTIM)
    with SmallDisk(data, room_kb=512) as disk:
        await net.start_plain(VICTIM)
        process = net.nodes[VICTIM].process
        assert process is not None
        assert await asyncio.wait_for(process.wait(), WAIT_S) == 1
        said = net.read_log(VICTIM).splitlines()[-1]
        assert said.startswith(f"fednode: {data}/")
        assert said.endswith("; make room and start again: what was signed and finalised is kept")
        assert "Traceback" not in net.read_log(VICTIM)
        height = await net.get_greatest_height()
        await net.wait_for_height(height + 2, *OTHERS)
        assert "make room and start again" in await start_in_vain(net)
        disk.make_room()
        await net.bring_back(VICTIM)
        assert await net.stop(VICTIM) == 0
