"""The comparison of two chains of one genesis: finds the first height where they differ. Final blocks never do; if both
are certified at that height, at least 2q - n members lied.

Every block names its parent, so two chains that agree at one height agree below it: usually it is enough to compare the
height where the shorter one ends, and a bisection finds the first difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

from chain.block import Block, Certificate
from chain.codec import decode_block, decode_certificate
from chain.errors import ChainError
from chain.genesis import Genesis
from chain.schema import format_time
from chain.signing import encode_id
from chain.state import State
from chain.validation import validate_certificate
from node.errors import VerificationFailed
from node.ledger.names import get_name
from node.pb import admin_pb2 as pb

StoredBytes = tuple[bytes, bytes]  # a block and its certificate, canonical
Pair = tuple[StoredBytes, StoredBytes, State]  # our block and the other's at one height, and the state that judges both
Comparison = Generator[int, Pair, pb.ChainComparison]


def compare_chains(genesis: Genesis, height: int, other_height: int) -> Comparison:
    """Yields heights, and is sent the pair of blocks at each, until it knows where the chains part. Raises
    VerificationFailed."""
    agreed, parted = 0, min(height, other_height) + 1
    pair: Pair | None = None
    look = parted - 1
    while parted - agreed > 1:
        found = yield look
        if _decode(genesis, look, found[0]).id == _decode(genesis, look, found[1]).id:
            agreed = look
        else:
            parted, pair = look, found
        look = (agreed + parted) // 2
    shown = pb.ChainComparison(height=height, other_height=other_height, common=agreed)
    if pair is not None:
        _show_parting(genesis, parted, pair, shown)
    return shown


def run_comparison(comparison: Comparison, get_pair: Callable[[int], Pair]) -> pb.ChainComparison:
    try:
        height = next(comparison)
        while True:
            height = comparison.send(get_pair(height))
    except StopIteration as end:
        result: pb.ChainComparison = end.value
        return result


async def await_comparison(comparison: Comparison, get_pair: Callable[[int], Awaitable[Pair]]) -> pb.ChainComparison:
    try:
        height = next(comparison)
        while True:
            height = comparison.send(await get_pair(height))
    except StopIteration as end:
        result: pb.ChainComparison = end.value
        return result


def _show_parting(genesis: Genesis, height: int, pair: Pair, shown: pb.ChainComparison) -> None:
    voters = []
    *both, state = pair
    for stored, place in zip(both, (shown.ours, shown.theirs), strict=True):
        block = _decode(genesis, height, stored)
        certificate = _find_certificate(state, block, stored[1])
        place.height, place.id, place.time = height, block.id.hex(), format_time(block.header.time_ms)
        place.miner = encode_id(block.header.miner)
        place.miner_name = get_name(state, block.header.miner)
        if certificate is not None:
            place.certified, place.votes = True, len(certificate.signatures)
            voters.append({index for index, _ in certificate.signatures})
    if len(voters) == 2:
        for index in sorted(voters[0] & voters[1]):
            shown.guilty.add(id=encode_id(state.members[index].key), name=state.members[index].name)


def _decode(genesis: Genesis, height: int, stored: StoredBytes) -> Block:
    try:
        block = decode_block(genesis.chain_id, stored[0])
    except ChainError as error:
        raise VerificationFailed(f"block {height}: {error}") from error
    if block.height != height:
        raise VerificationFailed(f"block {height}: expected one of that height, got one of {block.height}")
    return block


def _find_certificate(state: State, block: Block, data: bytes) -> Certificate | None:
    """Returns the certificate, if it proves that the block is final, else None."""
    try:
        certificate = decode_certificate(data)
        validate_certificate(state, block.id, block.height, certificate)
    except ChainError:
        return None
    return certificate
