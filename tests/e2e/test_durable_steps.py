"""A real node ends itself with SIGKILL at every durable step there is, and is started again without that.

What it had sent is what its directory holds, what it had finalised is there, and it contributes again; over all its
lives nobody has heard it say two things for one slot, and in the end every directory's chain verifies. How long it
takes from the restart until a block with its contribution is finalised is a property of each test: `contributes_s`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from chain.block import ZERO, Phase
from chain.store.interface import FILE_STEPS, STEPS
from chain.store.signed_slots import read_signed
from chain.store.sqlite import SqliteStore
from support.faults.doomed_node import CHECKPOINT_STEPS, SPENT
from support.faults.killed_nodes import Killable
from support.federation.real_nodes import WAIT_S, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

VICTIM = "node3"
OTHERS = ("node0", "node1", "node2")

Record = Callable[[str, object], None]


class Step(NamedTuple):
    """The step to die at: the n-th `name` after the first `after`."""

    name: str
    times: int = 1
    after: str | None = None

    def __str__(self) -> str:
        return (
            self.name + (f" x{self.times}" if self.times > 1 else "") + (f" after {self.after}" if self.after else "")
        )


def list_steps(*transactions: str, times: int = 1, after: str | None = None) -> list[Step]:
    return [Step(step, times, after) for step in STEPS if step.split(".")[0] in transactions]


IN_A_ROUND = [
    *list_steps("contribution", "candidate"),
    *list_steps("vote"),  # a prevote
    *list_steps("justification"),  # with the precommit that rests on it
    *list_steps("append", "round", after="justification.committed"),
    *list_steps("blob", times=3),  # the first is the initial model
    *(Step(name, times=2) for name in CHECKPOINT_STEPS),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Killable]:
    directory = tmp_path_factory.mktemp("steps") / "net"
    settings = ("model.hidden=[300]", "local_epochs=1")  # a model so large is a file, where a small one is a row
    spec = {"method": "fedavg", "model": "mlp", "partition": "iid", "settings": settings}
    async with Killable(make_federation(directory, rounds=0, difficulty=4096, **spec)) as net:
        yield net
        for name in net.running:
            assert await net.stop(name) == 0
        assert net.check_nothing_contradicted() > 0
        for name in net.names:
            net.check_dead(name)
            verified = await asyncio.to_thread(
                run_command, "chain", "verify", "--deep", "--data-dir", net.get_data_dir(name)
            )
            assert verified.code == 0, verified.err


@pytest.mark.long
@pytest.mark.parametrize("step", IN_A_ROUND, ids=str)
async def test_killed_at_a_durable_step_it_contradicts_nothing_and_contributes_again(
    net: Killable, step: Step, record_property: Record
) -> None:
    await net.stop_one(VICTIM)
    await net.start_doomed(VICTIM, step.name, times=step.times, after=step.after)
    await net.wait_until_killed(VICTIM, str(step))
    record_property("contributes_s", await net.bring_back(VICTIM))


@pytest.mark.long
@pytest.mark.parametrize("step", list_steps("append"), ids=str)
async def test_killed_in_a_batch_of_blocks_it_has_missed_it_keeps_all_of_it_or_nothing(
    net: Killable, step: Step, record_property: Record
) -> None:
    await net.start()
    await net.wait_for_height(1)
    behind = await net.stop_one(VICTIM)
    await net.wait_for_height(behind + 6, *OTHERS)
    before = net.check_dead(VICTIM)
    await net.start_doomed(VICTIM, step.name, times=step.times)
    await net.wait_until_killed(VICTIM, str(step))
    kept = net.check_dead(VICTIM) - before
    assert kept > 1 if step.name.endswith("committed") else kept == 0
    record_property("contributes_s", await net.bring_back(VICTIM))


@pytest.mark.long
@pytest.mark.parametrize("step", CHECKPOINT_STEPS)
async def test_a_worker_killed_at_a_checkpoint_is_replaced_and_its_node_goes_on(
    net: Killable, step: str, record_property: Record
) -> None:
    await net.stop_one(VICTIM)
    await net.start_doomed(VICTIM, step, times=2, is_alone=True)
    await net.wait_for(lambda now: VICTIM in now, f"an answer of {VICTIM}")
    spent = net.get_data_dir(VICTIM) / SPENT
    await net.wait_for(lambda now: spent.exists(), f"the worker to come to {step}")
    spent.unlink()
    began_s = time.monotonic()
    await net.wait_for_contribution(VICTIM, (await net.get_status(VICTIM))["height"] + 1)
    record_property("contributes_s", round(time.monotonic() - began_s, 1))
    assert await net.check_agreement() > 0


@pytest.mark.long
async def test_all_killed_with_their_precommits_on_disk_finalise_that_height_when_they_are_back(net: Killable) -> None:
    for _ in range(5):
        await asyncio.gather(*(net.stop(name) for name in net.running))
        await asyncio.gather(*(net.start_doomed(name, "justification.committed") for name in net.names))
        locked = await lock_and_kill_all(net)
        if (
            len(locked) >= net.genesis.state.q
        ):  # otherwise some died before the others had heard of them: nothing is decided
            break
        await net.start()
        await net.wait_until_ready()
    else:
        raise AssertionError("in five attempts no quorum came to precommit")
    ((height, block_id),) = set(locked.values())
    for name in net.names:
        assert net.check_dead(name) == height - 1
    began_s = time.monotonic()
    await net.start()
    await net.wait_for_height(height)
    print(f"height {height} is final {time.monotonic() - began_s:.1f} s after the restart of all")
    for name in net.names:
        assert (await net.read_chain(name))[height]["id"] == block_id.hex()
    net.check_nothing_contradicted()


async def lock_and_kill_all(net: Killable) -> dict[str, tuple[int, bytes]]:
    """Until a quorum has died with precommits that nobody has heard of, or no more will; then the rest are killed too.
    By name, the height and the block they are locked on."""
    deadline_s = time.monotonic() + WAIT_S
    alone_since_s = None
    while net.running and time.monotonic() < deadline_s:
        if (
            len(net.running) < net.genesis.state.q
        ):  # they can finalise nothing, but may still come to their own precommits
            alone_since_s = alone_since_s or time.monotonic()
            if time.monotonic() - alone_since_s > 5:
                break
        await asyncio.sleep(0.05)
    for name in net.running:
        await net.kill(name)
    locked = {}
    for name in net.names:
        await net.wait_until_unlocked(name)
        with SqliteStore.open(net.get_data_dir(name), net.genesis, readonly=True) as store:
            height = store.head_height + 1
            own = [vote for vote in store.get_votes(height) if vote.phase is Phase.PRECOMMIT and vote.block_id != ZERO]
            if own:
                locked[name] = (height, own[-1].block_id)
    return locked


# ---- a federation of one, which has nobody to ask for what it lost

LONE = [*list_steps("create", "blob"), *list_steps("append", after="vote.committed")]
SHORT = Step("append.written", after="vote.committed")


@pytest.mark.parametrize(
    "step", [pytest.param(step, id=str(step), marks=() if step == SHORT else pytest.mark.long) for step in LONE]
)
@pytest.mark.slow
async def test_a_lone_member_killed_at_a_durable_step_goes_on_with_the_chain_it_had(
    tmp_path: Path, step: Step, record_property: Record
) -> None:
    directory = make_federation(tmp_path / "net", num_nodes=1, rounds=0, difficulty=4096)
    async with Killable(directory) as net:
        await net.start_doomed("node0", step.name, times=step.times, after=step.after)
        await net.wait_until_killed("node0", str(step))
        made = SqliteStore.stored_genesis(net.get_data_dir("node0")) is not None
        assert made == (step.name not in ("create.begin", "create.written"))
        height = net.check_dead("node0") if made else 0
        signed = read_signed_rows(net) if made else {}
        began_s = time.monotonic()
        await net.start_plain("node0")
        await net.wait_for_height(height + 2)
        record_property("contributes_s", round(time.monotonic() - began_s, 1))
        assert await net.stop("node0") == 0
        assert net.check_dead("node0") >= height + 2
        assert signed.items() <= read_signed_rows(net).items()


def read_signed_rows(net: Killable) -> dict[tuple[int, int, int, int], bytes]:
    """What the lone member signed, by slot."""
    with SqliteStore.open(net.get_data_dir("node0"), net.genesis, readonly=True) as store:
        return {row[:4]: row[4] for row in read_signed(store.rows, 0)}


# ---- files that are not written by the daemon, or not at once

SHARING = ("unet_width=4", "warmup_epochs=1", "encryptor_epochs=1", "local_epochs=1")


@pytest.mark.long
async def test_killed_at_every_step_of_its_own_set_and_of_those_it_takes_it_is_in_the_sharing_block(
    tmp_path: Path, record_property: Record
) -> None:
    """All of it in one round, the first of fededs, for which the others wait."""
    spec = {"method": "fededs", "partition": "iid", "settings": SHARING, "i_understand": True}
    async with Killable(make_federation(tmp_path / "net", rounds=0, difficulty=4096, **spec)) as net:
        await net.start("node0")
        await die(net, "node2", "adopt.durable")  # its set is held, and not adopted again
        await net.start("node2")
        for step in FILE_STEPS:
            if step.startswith("fetch."):  # of two sets that are there: each is fetched once
                await die(net, "node1", step)
        await net.start("node1")
        for step in FILE_STEPS:
            if step.startswith("adopt.") and step != "adopt.durable":
                await die(net, VICTIM, step)
        record_property("contributes_s", await net.bring_back(VICTIM))
        assert sorted(await net.read_contributors(VICTIM, 1)) == list(net.names)
        await net.wait_for_height(3)
        await net.stop_and_check_all()


async def die(net: Killable, name: str, step: str) -> None:
    """In the first round, of which nothing is final."""
    await net.start_doomed(name, step)
    await net.wait_until_killed(name, step)
    assert net.check_dead(name) == 0
