"""A sponsor that lies: its join file names a block that is on no honest chain, or lies on a second history of old keys,
or all that the joiner reaches is the liar's. The joiner says what it sees, halts, or is served by the first honest
member that it reaches. On virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chain.block import Block, Certificate
from chain.changes.members import AddMember, RemoveMember
from chain.changes.rules import SetRules
from chain.checkpoint import Checkpoint
from chain.codec import encode_block, encode_certificate
from chain.signing import SigningKey
from node.consensus.gossip.sync import ANSWER_S
from node.consensus.height.halted import Halted
from support.data.chains import make_digest, make_keys
from support.data.changes import LivingChain
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster
from support.federation.joining import growing, make_checkpoint, start_joiner
from support.federation.proposing import check_chains, get_service
from support.federation.virtual_time import run_virtual

HONEST = ("node0", "node1", "node2")
LIAR, JOINER = "node3", "node4"
ALL_BUT_HONEST = (LIAR, JOINER)
COMMON = 4  # height up to which a second history is the true one

Reply = list[tuple[bytes, bytes]]


async def wait_until_said(net: Cluster, text: str, since_s: float) -> float:
    """Until the joiner's status says this; for how long that took."""
    service = get_service(net, JOINER)
    await net.wait_for(lambda: service.stall is not None and text in service.stall, f"the joiner to say {text!r}")
    return net[JOINER].clock.monotonic() - since_s


@asynccontextmanager
async def serving(net: Cluster, blocks: Reply, head: Block) -> AsyncIterator[Liar]:
    """A liar is all that the joiner reaches: it gives these blocks, which follow block 0, and says that `head` is its
    last."""

    async def tell() -> None:
        while True:
            liar.send(liar.make_status(head_height=head.height, head_id=head.id, height=head.height + 1), JOINER)
            await asyncio.sleep(net.genesis.rules.waits.status_s)

    async with lying(net, LIAR) as liar:
        net.partition(ALL_BUT_HONEST, HONEST)
        liar.blocks = lambda first, count: blocks[first - 1 :][:count]
        telling = asyncio.create_task(tell(), name="the liar's statuses")
        try:
            yield liar
        finally:
            telling.cancel()


def read_honest(net: Cluster, last: int) -> Reply:
    store = net["node0"].store
    assert store is not None
    return [(row.block, row.certificate) for row in store.read_rows(1, last)]


def begin_second_history(net: Cluster) -> LivingChain:
    """The true chain up to COMMON. Whoever has a quorum of its keys of that time can go on from there as it likes."""
    chain = LivingChain(net.genesis, [net[name].key for name in (*HONEST, LIAR)])
    for height in range(1, COMMON + 1):
        chain.add(net["node0"].get_block(height))
    return chain


def go_on(chain: LivingChain, num_blocks: int) -> None:
    """Blocks that hold nothing to train on: a rule is changed, and changed back."""
    for _ in range(num_blocks):
        old = chain.state.rules.keep_heights
        chain.add_change(SetRules({"keep_heights": (old, 5 - old)}))


def take_over(chain: LivingChain, keys: list[SigningKey]) -> None:
    """The second history has members of the liar's in the place of the honest."""
    seats = [member.seat for member in chain.state.members]
    for number, key in enumerate(keys):
        chain.keys.append(key)
        chain.add_change(AddMember(key.id, f"other{number}"))
        chain.add_change(RemoveMember(seats[number]))


def make_blocks(chain: LivingChain) -> Reply:
    return [(encode_block(block), encode_certificate(certificate)) for block, certificate in chain.blocks]


# ---- a checkpoint that is none


def test_a_checkpoint_that_no_member_knows_is_said_with_how_to_check_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path, 4, [JOINER]) as net:
            await net.wait_for_height(8, *HONEST)
            false = Checkpoint(5, make_digest("what a liar wrote"))
            began_s = net["node0"].clock.monotonic()
            start_joiner(net, JOINER, false)
            said_s = await wait_until_said(net, "does not lead to block 5 of the join file", began_s)
            print(f"said after {said_s:.1f} s")
            stall = get_service(net, JOINER).stall
            assert stall is not None
            assert all(name in stall for name in (*HONEST, LIAR))
            assert false.id.hex() in stall  # which another member can look up
            assert net[JOINER].height == 0
            assert net[JOINER].failure is None
            await net.crash(JOINER)
            start_joiner(net, JOINER, make_checkpoint(net, "node0", 5))
            await net.wait_for_height(net["node0"].height, JOINER)
            await net.wait_for(lambda: get_service(net, JOINER).stall is None, "the joiner to be content")
            check_chains(net)

    run_virtual(story())


def test_one_member_off_the_way_is_no_reason_to_doubt_the_join_file(tmp_path: Path) -> None:
    """The others lead there."""

    async def story() -> None:
        async with growing(tmp_path, 4, [JOINER]) as net:
            await net.wait_for_height(8, *HONEST)
            await net.crash(LIAR)
            chain = begin_second_history(net)
            go_on(chain, 10)
            checkpoint = make_checkpoint(net, "node0", 8)
            async with serving(net, make_blocks(chain), chain.tip.block):
                start_joiner(net, JOINER, checkpoint)
                await wait_until_said(net, "does not lead to block 8 of the join file", 0.0)
                assert net[JOINER].height == 0
                net.heal()
                await net.wait_for_height(net["node0"].height, JOINER)
                await net.wait_for(lambda: get_service(net, JOINER).stall is None, "the joiner to be content")
            check_chains(net)

    run_virtual(story())


def test_a_checkpoint_that_is_beyond_every_head_is_said(tmp_path: Path) -> None:
    async def story() -> None:
        async with growing(tmp_path, 4, [JOINER]) as net:
            await net.wait_for_height(4, *HONEST)
            began_s = net["node0"].clock.monotonic()
            start_joiner(net, JOINER, Checkpoint(300, make_digest("far ahead"), (make_digest("mark"),) * 2))
            said_s = await wait_until_said(net, "block 300 of the join file", began_s)
            print(f"said after {said_s:.1f} s")
            assert "the highest head in sight is" in (get_service(net, JOINER).stall or "")
            assert net[JOINER].height == 0

    run_virtual(story())


# ---- an eclipse


def test_a_joiner_whose_addresses_are_all_the_liars_is_served_by_the_first_honest_member(tmp_path: Path) -> None:
    """The liar has the key of one member: it gives true blocks that are old, and then none. It cannot make any."""

    async def story() -> None:
        async with growing(tmp_path, 4, [JOINER]) as net:
            await net.wait_for_height(8, *HONEST)
            await net.crash(LIAR)
            checkpoint = make_checkpoint(net, "node0", 6)
            async with serving(net, read_honest(net, 8), net["node0"].get_block(8)):
                began_s = net["node0"].clock.monotonic()
                start_joiner(net, JOINER, checkpoint)
                await net.wait_for_height(8, JOINER)
                said_s = await wait_until_said(net, "1 of 4 members in sight, 3 needed", began_s)
                assert "node0, node1, node2" in (get_service(net, JOINER).stall or "")
                await net.wait_for_height(30, *HONEST)
                assert net[JOINER].height == 8
                net.heal()
                net.partition([LIAR, JOINER, "node0"], ["node1", "node2"])  # one honest member alone
                healed_s, height = net["node0"].clock.monotonic(), net["node0"].height
                await net.wait_for_height(height, JOINER)
                served_s = net["node0"].clock.monotonic() - healed_s
                print(f"said after {said_s:.1f} s; {height - 8} blocks {served_s:.1f} s after one honest member")
            check_chains(net)

    run_virtual(story())


# ---- a second history of old keys


def test_a_joiner_on_a_second_history_of_the_same_members_halts_at_the_first_honest_one(tmp_path: Path) -> None:
    """It cannot know before: a quorum of those keys has signed every block that it was shown."""

    async def story() -> None:
        async with growing(tmp_path, 4, [JOINER]) as net:
            net.may_fail = True
            await net.wait_for_height(8, *HONEST)
            await net.crash(LIAR)
            chain = begin_second_history(net)
            go_on(chain, 10)
            head = chain.tip.block
            async with serving(net, make_blocks(chain), head):
                start_joiner(net, JOINER, Checkpoint(head.height, head.id))
                await net.wait_for_height(head.height, JOINER)
                await net.wait_for_height(head.height + 5, *HONEST)
                net.heal()
                healed_s = net["node0"].clock.monotonic()
                await net.wait_for(lambda: net[JOINER].failure is not None, "the joiner to halt")
                print(f"halted {net['node0'].clock.monotonic() - healed_s:.1f} s after an honest member was there")
            failure = net[JOINER].failure
            assert isinstance(failure, BaseExceptionGroup)
            assert failure.subgroup(Halted) is not None

    run_virtual(story())


@pytest.mark.parametrize("honest_height", [9, 30])
def test_a_second_history_with_other_members_is_told_at_the_first_honest_one(
    tmp_path: Path, honest_height: int
) -> None:
    """Its members are the liar's by now, who certify nothing of the honest: where the two part, old keys did both."""

    async def story() -> None:
        async with growing(tmp_path, 4, [JOINER]) as net:
            await net.wait_for_height(8, *HONEST)
            await net.crash(LIAR)
            chain = begin_second_history(net)
            take_over(chain, make_keys(3, "other"))
            go_on(chain, 10)
            head = chain.tip.block
            async with serving(net, make_blocks(chain), head):
                start_joiner(net, JOINER, Checkpoint(head.height, head.id))
                await net.wait_for_height(head.height, JOINER)
                await net.wait_for_height(honest_height, *HONEST)
                net.heal()
                healed_s = net["node0"].clock.monotonic()
                events = get_service(net, JOINER).events
                await net.wait_for(
                    lambda: any(event.kind == "divergence" for event in events.kept), "the joiner to tell"
                )
                print(f"told {net['node0'].clock.monotonic() - healed_s:.1f} s after an honest member was there")
                (event,) = [event for event in events.kept if event.kind == "divergence"]
                assert event.data["height"] == COMMON + 1
                assert event.data["block"] == net["node0"].get_block(COMMON + 1).id.hex()
                assert net[JOINER].failure is None

    run_virtual(story())


def test_who_shows_no_certificate_and_then_says_nothing_holds_up_one_answer_s_time(tmp_path: Path) -> None:
    """Where a chain parts from the joiner's is asked for block by block: all of that together takes no longer."""

    async def story() -> None:
        async with growing(tmp_path, 4, [JOINER]) as net:
            await net.wait_for_height(8, *HONEST)
            await net.crash(LIAR)
            chain = begin_second_history(net)
            go_on(chain, 4)
            head = chain.tip.block
            asked: list[int] = []
            checkpoint = make_checkpoint(net, "node0", 8)
            start_joiner(net, JOINER, checkpoint)
            await net.wait_for_height(8, JOINER)
            height = net[JOINER].height
            go_on(chain, height - head.height)
            head = chain.tip.block
            forged = encode_block(head), encode_certificate(Certificate(0, chain.blocks[-1][1].signatures[:1]))

            async def answer(peer: bytes, first: int, count: int) -> Reply:
                asked.append(first)
                if len(asked) > 2:
                    await asyncio.sleep(1e6)
                return [forged]

            async with serving(net, [], head) as liar:
                liar.on_blocks_request = answer  # type: ignore[method-assign]
                await net.wait_for(lambda: len(asked) == 3, "the joiner to look for where the two part")
                net.heal()
                healed_s = net[JOINER].clock.monotonic()
                await net.wait_for_height(net["node0"].height, JOINER)
                assert net[JOINER].clock.monotonic() - healed_s < ANSWER_S + 5.0
            check_chains(net)

    run_virtual(story())
