"""Mines this node's candidate: seals the header, searches a while, and seals it again with a fresh time (PROTOCOL §3).

The header's time of mining is only as exact as a search is short. If difficulty follows it (PROTOCOL §6), each search
is a fraction of the time that mining should take: a block found in the first one says nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from chain import codec
from chain.block import Block, Body, Digest, Header, Id
from chain.tip import Tip
from node.clock import Clock
from node.consensus.mining.miner import Miner

RESEAL_S = 0.2  # between two seals, at most
SLICES = 16  # searches in the time that mining should take, if difficulty follows it
FIRST_COUNT = 1 << 12  # hashes in the first search; later ones are sized to last until the next seal
MAX_COUNT = 1 << 32

Sign = Callable[[Header, int, Body], Awaitable[Block]]  # signs a block of a header, the nonce found, and a body


async def mine_block(
    tip: Tip,
    body: Body,
    aggregate: Digest,
    *,
    miner: Miner,
    me: Id,
    sign: Sign,
    clock: Clock,
    random: Random,
) -> Block:
    """Returns a signed block on `tip` that meets the next difficulty, however long that takes; cancel it to stop.
    `random` draws the nonce that the search begins with."""
    state = tip.state
    state_next = tip.compute_state(body)
    body_digest = codec.compute_body_digest(body)
    start_ms = max(clock.now_ms(), tip.header.time_ms + 1)
    slice_s = RESEAL_S
    if state.rules.pow.min < state.rules.pow.max:
        slice_s = min(RESEAL_S, state.rules.pow.target_ms / 1000 / SLICES)
    nonce = random.getrandbits(63)
    count = FIRST_COUNT
    while True:
        header = Header(
            version=state.protocol,
            height=tip.height + 1,
            prev=tip.id,
            body=body_digest,
            aggregate=aggregate,
            state_next=state_next.digest,
            miner=me,
            start_ms=start_ms,
            time_ms=max(clock.now_ms(), start_ms),
            difficulty=tip.next_difficulty,
        )
        began_s = clock.monotonic()
        found = await miner.mine(codec.compute_seal(state.chain_id, header), header.difficulty, nonce, count)
        if found is not None:
            return await sign(header, found, body)
        nonce = (nonce + count) % (1 << 63)
        elapsed_s = clock.monotonic() - began_s
        if elapsed_s > 0:
            count = max(1024, min(MAX_COUNT, int(count / elapsed_s * slice_s)))
