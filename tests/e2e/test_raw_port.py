"""Bytes on the peer port of a real node that gRPC and TLS have to deal with alone, while its federation goes on.

One of four members is down, so that nothing is finalised without the node under attack. It runs with 1,024 file
descriptors, as a shell gives them. What was measured is printed: `pytest -rP -m slow tests/e2e/test_raw_port.py`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from node.config.identity import open_identity
from node.config.node_config import load_config
from support.faults.raw_port import INSIDE, OUTSIDE, Attack, Target, make_target
from support.federation.real_nodes import Federation, make_federation

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.outer, pytest.mark.asyncio(loop_scope="module")]

VICTIM, ATTACKER = "node0", "node3"
NUM_BLOCKS = 3  # that must come while an attack goes on
ATTACK_S = 4.0  # at least
MAX_FILES = 1024
MAX_GROWTH_MIB = 256.0
UNBOUNDED = {"send_endless_headers"}  # gRPC keeps what it reads of such headers, and has no setting for it: SECURITY.md
SPARE_FILES = 24  # more than before, which is none of the attack's: connections that are being made anew


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a process holds."""

    files: int
    memory_mib: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        resident_kib = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
        assert resident_kib, "the process has ended"
        return cls(len(list(Path(f"/proc/{pid}/fd").iterdir())), resident_kib[0] / 1024)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Federation]:
    directory = make_federation(tmp_path_factory.mktemp("raw") / "net", rounds=0, difficulty=4096)
    async with Federation(directory, {VICTIM: ("prlimit", f"--nofile={MAX_FILES}")}) as federation:
        await federation.start(*(name for name in federation.names if name != ATTACKER))
        await federation.wait_for_height(1)
        yield federation


@pytest.fixture
def target(net: Federation, tmp_path: Path) -> Target:
    victim, attacker = (load_config(net.nodes[name].node.config_file) for name in (VICTIM, ATTACKER))
    port = int(victim.network.listen.rpartition(":")[2])
    return make_target(port, open_identity(attacker), tmp_path)


@pytest.mark.parametrize("attack", [*OUTSIDE, *INSIDE], ids=lambda attack: attack.__name__)
async def test_blocks_go_on_and_nothing_stays_behind(net: Federation, target: Target, attack: Attack) -> None:
    pid = net.get_pid(VICTIM)
    before = Usage.of(pid)
    height = (await net.get_status(VICTIM))["height"]
    ended, peak, began_s = threading.Event(), [before], time.monotonic()
    attacking = asyncio.create_task(asyncio.to_thread(repeat, attack, target, ended))
    watching = asyncio.create_task(watch(pid, peak))
    try:
        await net.wait_for_height(height + NUM_BLOCKS)
        await asyncio.sleep(ATTACK_S - (time.monotonic() - began_s))
        seconds = time.monotonic() - began_s
        reached = (await net.get_status(VICTIM))["height"]
    finally:
        ended.set()
        count = await attacking
        target.release()
        watching.cancel()
        await asyncio.wait({watching})
    most = Usage(max(one.files for one in peak), max(one.memory_mib for one in peak))
    assert count > 0, "nothing was attacked"
    if attack.__name__ not in UNBOUNDED:
        assert most.memory_mib - before.memory_mib < MAX_GROWTH_MIB, f"{before} grew to {most}"
    await net.wait_for(
        lambda _: Usage.of(pid).files <= before.files + SPARE_FILES, f"the files of {VICTIM} back at {before.files}"
    )
    await net.wait_for_height(reached + 1)
    after = Usage.of(pid)
    print(
        f"{attack.__name__}: {count} in {seconds:.1f} s; {reached - height} blocks; "
        f"files {before.files}, {most.files}, {after.files}; "
        f"MiB {before.memory_mib:.0f}, {most.memory_mib:.0f}, {after.memory_mib:.0f}"
    )


async def test_in_the_end_they_agree_and_the_member_whose_key_was_used_takes_part_again(net: Federation) -> None:
    await net.start(ATTACKER)
    height = (await net.get_status(VICTIM))["height"]
    await net.wait_for_contribution(ATTACKER, height)
    await net.check_agreement()
    assert "Traceback" not in net.nodes[VICTIM].log_file.read_text()


def repeat(attack: Attack, target: Target, ended: threading.Event) -> int:
    """Until told to end. An attacker that is not let in tries again a little later."""
    count = 0
    while not ended.is_set():
        try:
            count += attack(target)
        except OSError:
            ended.wait(0.05)
    return count


async def watch(pid: int, seen: list[Usage]) -> None:
    while True:
        with suppress(OSError):  # one of its files has just been closed
            seen.append(Usage.of(pid))
        await asyncio.sleep(0.1)
