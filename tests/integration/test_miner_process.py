"""Miner processes: what they find, how they stop, and that killing them changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chain.pow import compute_highest_id, search
from node.consensus.mining import miner as miner_module
from node.consensus.mining import miner_child
from node.consensus.mining.miner import SHORT_SEARCH, Miner, MinerFailed, MinerProcess
from support.federation.inline import InlineMiner
from support.federation.processes import is_alive, kill
from support.federation.recording import wait_until

SEAL = hashlib.sha256(b"a seal").digest()
IMPOSSIBLE = 2**255
EASY = SHORT_SEARCH + 1  # and no easier, so that a child is asked
DEADLINE_S = 60.0


async def ask_child(miner: Miner) -> None:
    """One hash, which is known to do."""
    nonce = search(SEAL, EASY, 0, 20_000)
    assert nonce is not None
    assert await miner.mine(SEAL, EASY, nonce, 1) == nonce


@asynccontextmanager
async def mining(workers: int = 1) -> AsyncIterator[MinerProcess]:
    miner = MinerProcess(workers)
    await miner.start()
    try:
        yield miner
    finally:
        await miner.close()


def get_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(params=["process", "inline"])
async def miner(request: pytest.FixtureRequest) -> AsyncIterator[Miner]:
    made: Miner = MinerProcess() if request.param == "process" else InlineMiner()
    yield made
    await made.close()


@pytest.mark.parametrize("start", [0, 1, 255, 256, 1000, 2**63 + 77])
async def test_finds_the_lowest_nonce_of_the_range(miner: Miner, start: int) -> None:
    nonce = search(SEAL, 1000, start, 20_000)
    assert nonce is not None
    assert await miner.mine(SEAL, 1000, start, 20_000) == nonce
    assert await miner.mine(SEAL, 1000, start, nonce - start) is None
    assert await miner.mine(SEAL, 1000, nonce, 1) == nonce


@pytest.mark.parametrize("start", [0, 77, 2**63 + 77])
async def test_what_a_few_hashes_find_is_the_lowest_nonce_too_and_so_is_what_they_do_not(
    miner: Miner, start: int
) -> None:
    for difficulty in (1, 16, 100, SHORT_SEARCH, SHORT_SEARCH + 1):
        nonce = search(SEAL, difficulty, start, 20_000)
        assert nonce is not None
        assert await miner.mine(SEAL, difficulty, start, 20_000) == nonce
        before = miner.hashes
        assert await miner.mine(SEAL, difficulty, start, nonce - start) is None
        assert miner.hashes - before == nonce - start


async def test_counts_the_hashes_it_did(miner: Miner) -> None:
    assert await miner.mine(SEAL, IMPOSSIBLE, 100, 3000) is None
    assert await miner.mine(SEAL, 1, 7, 10) == 7
    assert miner.hashes == 3001


async def test_the_last_nonces_of_all_can_be_searched(miner: Miner) -> None:
    assert await miner.mine(SEAL, IMPOSSIBLE, 2**64 - 300, 300) is None
    assert await miner.mine(SEAL, 1, 2**64 - 1, 1) == 2**64 - 1


async def test_an_empty_range_holds_nothing(miner: Miner) -> None:
    assert await miner.mine(SEAL, 1, 5, 0) is None


@pytest.mark.parametrize(("difficulty", "start", "count"), [(0, 0, 1), (1, -1, 1), (1, 2**64 - 1, 2), (1, 0, -1)])
async def test_impossible_ranges_are_refused(miner: Miner, difficulty: int, start: int, count: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        await miner.mine(SEAL, difficulty, start, count)


@pytest.mark.parametrize("difficulty", [1, 2, 3, 7, 10, 255, 256, 257])
def test_the_search_agrees_with_the_rule_at_every_nonce(difficulty: int) -> None:
    limit = compute_highest_id(difficulty)
    for nonce in range(200, 600):
        outcome, found, hashes = miner_child.search(SEAL, limit, nonce, 1, lambda: False)
        is_good = int.from_bytes(hashlib.sha256(SEAL + nonce.to_bytes(8, "big")).digest(), "big") * difficulty < 2**256
        expected = (miner_child.FOUND, nonce, 1) if is_good else (miner_child.EXHAUSTED, 0, 1)
        assert (outcome, found, hashes) == expected


def test_an_id_that_is_exactly_the_limit_is_good_and_one_less_is_not() -> None:
    block_id = hashlib.sha256(SEAL + (9).to_bytes(8, "big")).digest()
    assert miner_child.search(SEAL, block_id, 9, 1, lambda: False)[0] == miner_child.FOUND
    below = (int.from_bytes(block_id, "big") - 1).to_bytes(32, "big")
    assert miner_child.search(SEAL, below, 9, 1, lambda: False)[0] == miner_child.EXHAUSTED


async def test_workers_share_a_range_out_without_a_gap() -> None:
    async with mining(workers=3) as miner:
        assert await miner.mine(SEAL, IMPOSSIBLE, 50, 10_000) is None
        assert miner.hashes == 10_000
        for nonce in (50, 3383, 3384, 6715, 6716, 10_049):
            assert await miner.mine(SEAL, 1, nonce, 1) == nonce
        found = await miner.mine(SEAL, 1000, 0, 30_000)
        assert found is not None
        assert search(SEAL, 1000, found, 1) == found
        assert await miner.mine(SEAL, 1, 8, 2) in (8, 9)


async def test_cancelling_returns_at_once_and_the_next_search_begins_at_once() -> None:
    async with mining() as miner:
        await ask_child(miner)
        pids = miner.pids
        for _ in range(5):
            hopeless = asyncio.create_task(miner.mine(SEAL, IMPOSSIBLE, 0, 2**60))
            before = miner.hashes
            await asyncio.sleep(0)
            hopeless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hopeless
            await asyncio.wait_for(ask_child(miner), DEADLINE_S)
            assert miner.hashes - before < 2**28  # of 2**60
        assert miner.pids == pids


async def test_a_cancelled_search_stops_burning_the_processor() -> None:
    async with mining() as miner:
        await ask_child(miner)
        hopeless = asyncio.create_task(miner.mine(SEAL, IMPOSSIBLE, 0, 2**60))
        (pid,) = miner.pids
        await wait_until(lambda: get_cpu_seconds(pid) > 0.05, "the miner works", DEADLINE_S)
        before = miner.hashes
        hopeless.cancel()
        await wait_until(lambda: miner.hashes > before, "the miner says how far it came", DEADLINE_S)
        at_rest = get_cpu_seconds(pid)
        await asyncio.sleep(0.5)
        assert get_cpu_seconds(pid) - at_rest <= 0.05
        await ask_child(miner)
        assert miner.pids == (pid,)


async def test_a_killed_miner_is_replaced_and_its_range_begun_again() -> None:
    async with mining(workers=2) as miner:
        await wait_until(lambda: len(miner.pids) == 2, "two miners run", DEADLINE_S)
        nonce = search(SEAL, 200_000, 0, 10**7)
        searching = asyncio.create_task(miner.mine(SEAL, 200_000, 0, 10**7))
        await asyncio.sleep(0)
        for pid in miner.pids:
            kill(pid)
        found = await asyncio.wait_for(searching, DEADLINE_S)
        assert found is not None
        assert search(SEAL, 200_000, found, 1) == found
        assert nonce is not None


async def test_a_miner_killed_at_rest_is_replaced() -> None:
    async with mining() as miner:
        for _ in range(3):
            await wait_until(lambda: len(miner.pids) == 1, "a miner runs", DEADLINE_S)
            (pid,) = miner.pids
            await ask_child(miner)
            kill(pid)
            await asyncio.wait_for(ask_child(miner), DEADLINE_S)
            await wait_until(lambda: not is_alive(pid), "the killed one is gone", DEADLINE_S)  # noqa: B023


@pytest.fixture
def liar(tmp_path: Path) -> Path:
    """A miner child that gives the nonce beside the one it found."""
    source = Path(miner_child.__file__).read_text(encoding="utf-8")
    changed = source.replace("return FOUND, found, found - start + 1", "return FOUND, found ^ 1, 1")
    assert changed != source
    path = tmp_path / "liar.py"
    path.write_text(changed, encoding="utf-8")
    return path


async def test_a_miner_that_gives_a_wrong_nonce_is_not_believed(monkeypatch: pytest.MonkeyPatch, liar: Path) -> None:
    monkeypatch.setattr(miner_module, "MINER_MAIN", liar)
    monkeypatch.setattr(miner_module, "BACKOFF_S", 0.001)
    async with mining() as miner:
        with pytest.raises(MinerFailed):
            await asyncio.wait_for(miner.mine(SEAL, 1000, 0, 10**6), DEADLINE_S)


async def test_a_miner_that_cannot_start_fails_the_search_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(miner_module, "BACKOFF_S", 0.001)
    for python in ("/bin/false", "/nonexistent/python"):
        miner = MinerProcess(python=python)
        with pytest.raises(MinerFailed, match=f"{python} .*miner_child.py died 5 times"):
            await asyncio.wait_for(ask_child(miner), DEADLINE_S)
        with pytest.raises(MinerFailed):
            await ask_child(miner)
        await miner.close()


async def test_closing_ends_the_processes() -> None:
    async with mining(workers=2) as miner:
        await wait_until(lambda: len(miner.pids) == 2, "two miners run", DEADLINE_S)
        pids = miner.pids
    assert not any(is_alive(pid) for pid in pids)


DAEMON = """
import asyncio, sys
from node.consensus.mining.miner import MinerProcess
async def main():
    miner = MinerProcess(2)
    await miner.start()
    while len(miner.pids) < 2:
        await asyncio.sleep(0.01)
    print(*miner.pids, flush=True)
    await miner.mine(bytes(32), 2**255, 0, 2**60)
asyncio.run(main())
"""


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


async def test_miners_die_with_the_daemon(daemon: subprocess.Popen[str]) -> None:
    assert daemon.stdout is not None
    pids = [int(pid) for pid in (await asyncio.to_thread(daemon.stdout.readline)).split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    daemon.send_signal(signal.SIGKILL)
    await wait_until(lambda: not any(is_alive(pid) for pid in pids), "the miners are gone", DEADLINE_S)


def test_the_child_imports_nothing_of_fednode() -> None:
    command = "import sys, runpy; runpy.run_path(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", command, miner_child.__file__], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"node", "chain", "ml", "numpy", "torch", "asyncio", "socket", "subprocess", "logging"}


async def test_whoever_mines_hears_of_what_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise ValueError("nobody foresaw this")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    async with mining() as miner:
        for _ in range(2):
            with pytest.raises(ValueError, match="nobody foresaw this"):
                await asyncio.wait_for(miner.mine(SEAL, IMPOSSIBLE, 0, 1 << 20), DEADLINE_S)
