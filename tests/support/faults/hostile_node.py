"""A real daemon with a valid key that lies in one thing: `hostile_node.py TRICK python -m node.cli --config FILE`.

It is put before a node's own command (`via`). All that the trick does not change is the honest program's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from chain import codec
from chain.block import ZERO, Block, Contribution, Digest, PayloadRef, Phase, Vote
from chain.signing import SigningKey
from ml.payload import Array, decode_arrays, encode_arrays
from node import cli
from node.clock import SystemClock
from node.consensus import wiring
from node.consensus.gossip.gossip import Gossip
from node.consensus.handler import PeerHandler
from node.consensus.height import actions
from node.consensus.height.candidates import EARLY_MS
from node.consensus.height.collecting import Collecting
from node.consensus.learning.contributor import Contributor
from node.consensus.mining import mining
from node.consensus.round_tasks import RoundTasks
from node.consensus.service import RoundService
from node.consensus.signing.signer import Signer
from node.p2p.status import Status
from node.p2p.transport.base import BlobNotFound, Message, MessageKind
from node.training.trainer import Trained

Trick = Callable[[], None]
Spoil = Callable[[Array], Array]

TRICKS: dict[str, Trick] = {}


def trick(install: Trick) -> Trick:
    TRICKS[install.__name__] = install
    return install


def put(owner: object, **attributes: object) -> None:
    """Replaces attributes of the honest program."""
    for name, value in attributes.items():
        setattr(owner, name, value)


# ---- what it learned


def spoil_payloads(spoil: Spoil, weight: int | None = None) -> None:
    """Passes every number that the node contributes through `spoil`."""
    honest = Contributor.on_trained

    async def on_trained(self: Contributor, height: int, trained: Trained) -> None:
        payloads = {kind: _spoil(data, spoil) for kind, data in trained.payloads.items()}
        await honest(self, height, replace(trained, payloads=payloads, weight=weight or trained.weight))

    put(Contributor, on_trained=on_trained)


def _spoil(data: bytes, spoil: Spoil) -> bytes:
    arrays = decode_arrays(data, len(data))
    return encode_arrays({name: spoil(array) if array.dtype == np.float32 else array for name, array in arrays.items()})


@trick
def sends_what_overflows() -> None:
    spoil_payloads(lambda array: np.full_like(array, 1e38))


@trick
def sends_the_greatest_numbers_there_may_be() -> None:
    spoil_payloads(lambda array: np.full_like(array, 1e6))


@trick
def turns_its_model_round() -> None:
    spoil_payloads(lambda array: -10 * array)


@trick
def claims_a_million_samples() -> None:
    spoil_payloads(lambda array: -array, weight=1_000_000)


@trick
def sends_what_is_no_number() -> None:
    spoil_payloads(lambda array: np.full_like(array, np.nan))


@trick
def sends_a_payload_of_a_kind_that_there_is_not() -> None:
    honest = codec.sign_contribution

    def sign(*given: Any, payloads: tuple[PayloadRef, ...], **named: Any) -> Any:
        return honest(*given, payloads=tuple(replace(ref, kind=200 + ref.kind) for ref in payloads), **named)

    put(codec, sign_contribution=sign)


# ---- the time


class OffClock(SystemClock):
    """A clock ahead of the host's."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@trick
def has_a_clock_that_is_five_minutes_fast() -> None:
    from node import daemon

    OffClock.ahead_ms = 300_000
    put(daemon, SystemClock=OffClock)


def seal_ahead(ahead_ms: int) -> None:
    """Seals blocks with times ahead of the clock, and sends each to one peer 25 ms before the others."""
    honest = mining.mine_block

    async def mine_block(*given: Any, clock: Any, **named: Any) -> Block:
        OffClock.ahead_ms = ahead_ms
        return await honest(*given, clock=OffClock(), **named)

    def push_block(self: Gossip, block: Block) -> None:
        message = Message(MessageKind.BLOCK, codec.encode_block(block))
        first, *others = sorted(self._transport.connected()) or [b""]
        if first:
            self._transport.post(first, message)
        loop = asyncio.get_running_loop()
        for peer in others:
            loop.call_later(0.025, self._transport.post, peer, message)

    put(wiring, mine_block=mine_block)
    put(Gossip, push_block=push_block)


@trick
def seals_at_the_edge_of_what_clocks_allow() -> None:
    seal_ahead(EARLY_MS + 20)


@trick
def seals_an_hour_ahead() -> None:
    seal_ahead(3_540_000)


@trick
def says_that_its_mining_takes_no_time() -> None:
    honest = mining.Header  # type: ignore[attr-defined]

    def seal(**fields: Any) -> Any:
        return honest(**(fields | {"start_ms": fields["time_ms"]}))

    put(mining, Header=seal)


# ---- promises


@trick
def promises_and_says_nothing() -> None:
    async def on_trained(self: Contributor, height: int, trained: Trained) -> None:
        pass

    put(Contributor, on_trained=on_trained)


@trick
def keeps_its_payloads_to_itself() -> None:
    async def on_blob_request(self: PeerHandler, peer: bytes, digest: Digest, offset: int) -> Any:
        raise BlobNotFound(digest.hex())
        yield b""

    put(PeerHandler, on_blob_request=on_blob_request)


@trick
def gives_its_payloads_to_one() -> None:
    honest = PeerHandler.on_blob_request

    async def on_blob_request(self: PeerHandler, peer: bytes, digest: Digest, offset: int) -> Any:
        if peer != min(key for key in self._current.tip.state.member_ids if key != _services[0].signer.id):
            raise BlobNotFound(digest.hex())
        async for chunk in honest(self, peer, digest, offset):
            yield chunk

    _remember_services()
    put(PeerHandler, on_blob_request=on_blob_request)


@trick
def contributes_too_late() -> None:
    honest = Contributor.on_trained

    async def on_trained(self: Contributor, height: int, trained: Trained) -> None:
        await asyncio.sleep(1.05 * self._current.tip.state.rules.waits.collect_s)
        await honest(self, height, trained)

    put(Contributor, on_trained=on_trained)


# ---- votes and blocks


@trick
def votes_for_one_thing_here_and_for_another_there() -> None:
    honest = Gossip.push_vote

    def push_vote(self: Gossip, vote: Any) -> None:
        service = _services[0]
        if vote.voter != service.signer.id:
            honest(self, vote)
            return
        other = codec.sign_vote(
            _keys[0],
            service.tip.state.chain_id,
            phase=vote.phase,
            height=vote.height,
            view=vote.view,
            block_id=ZERO if vote.block_id != ZERO else b"\7" * 32,
        )
        for i, peer in enumerate(sorted(self._transport.connected())):
            data = codec.encode_vote(other if i % 2 else vote)
            self._transport.post(peer, Message(MessageKind.VOTE, data))

    _remember_services()
    put(Gossip, push_vote=push_vote)


@trick
def votes_for_nothing_ever() -> None:
    honest = Signer.sign_vote

    async def sign_vote(self: Signer, height: int, action: actions.CastVote) -> Vote:
        nothing = replace(action, cast=replace(action.cast, block_id=ZERO, justification=()), block=None)
        return await honest(self, height, nothing)

    put(Signer, sign_vote=sign_vote)


@trick
def mines_with_an_aggregate_of_its_own() -> None:
    honest = RoundTasks.start_mining

    def start_mining(self: RoundTasks, tip: Any, contributions: Any, aggregate: Digest) -> None:
        honest(self, tip, contributions, bytes(reversed(aggregate)))

    put(RoundTasks, start_mining=start_mining)


@trick
def leaves_somebody_out_of_its_blocks() -> None:
    honest = Collecting.fix_body

    def fix_body(self: Collecting, now: actions.Now) -> tuple[Contribution, ...] | None:
        body, service = honest(self, now), _services[0]
        if body is None:
            return None
        least = sorted(body, key=lambda each: each.author != service.signer.id)[: service.tip.state.q]
        return tuple(sorted(least, key=lambda each: each.author))

    _remember_services()
    put(Collecting, fix_body=fix_body)


# ---- what it says of itself


@trick
def says_that_it_is_a_million_blocks_ahead() -> None:
    honest = Gossip.get_status

    def get_status(self: Gossip) -> Status:
        status = honest(self)
        return replace(status, head_height=status.head_height + 1_000_000, head_id=b"\7" * 32)

    put(Gossip, get_status=get_status)


@trick
def sends_garbage_and_forged_votes() -> None:
    """Sends garbage and a forged vote with every status; peers then refuse its connection for a while."""
    _remember_services()
    honest = Gossip.get_status

    def get_status(self: Gossip) -> Status:
        service = _services[0]
        forged = codec.sign_vote(
            _keys[0],
            service.tip.state.chain_id,
            phase=Phase.PREVOTE,
            height=service.tip.height + 1,
            view=0,
            block_id=ZERO,
        )
        bad = replace(forged, signature=bytes(64))
        for peer in self._transport.connected():
            self._transport.post(peer, Message(MessageKind.VOTE, codec.encode_vote(bad)))
            self._transport.post(peer, Message(MessageKind.CONTRIBUTION, b"garbage"))
        return honest(self)

    put(Gossip, get_status=get_status)


_services: list[RoundService] = []
_keys: list[SigningKey] = []


def _remember_services() -> None:
    honest = RoundService.__init__

    def init(self: RoundService, parts: Any) -> None:
        honest(self, parts)
        _services.append(self)

    honest_signer = Signer.__init__

    def init_signer(self: Signer, key: SigningKey, *given: Any, **named: Any) -> None:
        honest_signer(self, key, *given, **named)
        _keys.append(key)

    put(RoundService, __init__=init)
    put(Signer, __init__=init_signer)


def main() -> None:
    name, *command = sys.argv[1:]
    TRICKS[name]()
    sys.argv = ["fednode", *command[command.index("node.cli") + 1 :]]
    cli.main()


if __name__ == "__main__":
    main()
