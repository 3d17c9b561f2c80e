"""Beacons: openings alone feed them, of what was committed to in the parent block; under protocol 2 the block's id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

import pytest

from chain.beacon import NO_REVEAL, Reveal, commit, compute_beacon, list_commitments, make_reveal
from chain.block import ZERO, Block, Body, Contribution
from chain.codec import decode_contribution, encode_contribution, sign_contribution
from chain.errors import InvalidContribution
from chain.signing import SigningKey
from chain.tip import Tip
from chain.validation import validate_candidate, validate_contribution
from support.data.chains import make_genesis, make_keys
from support.data.changes import LivingChain, extend_with, make_round

KEYS = make_keys(4)
EASY = {"difficulty": 1, "min": 1, "max": 2**32, "target_ms": 100}


@pytest.fixture
def chain() -> LivingChain:
    return LivingChain(make_genesis(KEYS, protocol=3, pow=EASY), KEYS)


def grow(chain: LivingChain, authors: Sequence[SigningKey]) -> Block:
    return chain.add(extend_with(chain.tip, make_round(chain.tip, authors), authors[0]))


def contribute(key: SigningKey, tip: Tip, reveal: Reveal) -> Contribution:
    return sign_contribution(
        key, tip.state.chain_id, height=tip.height + 1, prev=tip.id, weight=1, payloads=(), reveal=reveal
    )


def check(tip: Tip, contribution: Contribution) -> None:
    committed = list_commitments(tip.block)
    validate_contribution(tip.state, contribution, height=tip.height + 1, prev=tip.id, committed=committed)


def test_a_secret_opens_in_the_next_block_and_the_beacon_after_it_has_it(chain: LivingChain) -> None:
    assert compute_beacon(chain.tip.block) != chain.tip.id
    first = grow(chain, KEYS[:3])
    assert [c.opened for c in first.contributions] == [ZERO] * 3
    second = grow(chain, KEYS)
    opened = {c.author: c.opened for c in second.contributions}
    assert [commit(opened[c.author]) for c in first.contributions] == [c.commitment for c in first.contributions]
    assert opened[KEYS[3].id] == ZERO  # which was not in the block before, and has no part in the beacon
    without = replace(second, body=Body(second.contributions[:3]))
    assert KEYS[3].id == second.contributions[3].author
    assert compute_beacon(without) == compute_beacon(second)
    assert compute_beacon(replace(second, body=Body(second.contributions[1:]))) != compute_beacon(second)


def test_no_nonce_time_or_signature_moves_a_beacon(chain: LivingChain) -> None:
    grow(chain, KEYS)
    block = grow(chain, KEYS)
    beacon = compute_beacon(block)
    for nonce in range(4096):
        assert compute_beacon(replace(block, nonce=nonce, id=nonce.to_bytes(32, "big"))) == beacon
    later = replace(block.header, time_ms=block.header.time_ms + 1, miner=KEYS[2].id, difficulty=99)
    signed = tuple(replace(c, signature=bytes(64), weight=7) for c in block.contributions)
    assert compute_beacon(replace(block, header=later, body=Body(signed), signature=bytes(64))) == beacon


def test_a_member_cannot_open_anything_else(chain: LivingChain) -> None:
    grow(chain, KEYS[:3])
    tip, key = chain.tip, KEYS[0]
    good = make_reveal(key, tip.state.chain_id, tip.block, 3)
    check(tip, contribute(key, tip, good))
    for opened in (ZERO, bytes([1]) * 32):
        with pytest.raises(InvalidContribution, match="opens"):
            check(tip, contribute(key, tip, Reveal(opened, good.commitment)))
    with pytest.raises(InvalidContribution, match="opens"):  # nothing was committed to
        check(tip, contribute(KEYS[3], tip, good))
    with pytest.raises(InvalidContribution, match="commits"):
        check(tip, contribute(key, tip, NO_REVEAL))
    body = Body(tuple(contribute(each, tip, good) for each in KEYS[:3]))
    with pytest.raises(InvalidContribution, match="opens"):
        validate_candidate(tip, extend_with(tip, body, KEYS[0]))


def test_under_protocol_2_the_beacon_is_the_block_and_nobody_commits() -> None:
    chain = LivingChain(make_genesis(KEYS, protocol=2, pow=EASY), KEYS)
    block: Block = grow(chain, KEYS)
    assert [(c.opened, c.commitment) for c in block.contributions] == [NO_REVEAL] * 4
    assert compute_beacon(block) == block.id
    with pytest.raises(InvalidContribution, match="commits"):
        check(chain.tip, contribute(KEYS[0], chain.tip, Reveal(ZERO, bytes([1]) * 32)))


def test_a_contribution_that_commits_has_one_encoding(chain: LivingChain) -> None:
    contribution = make_round(chain.tip, KEYS[:1]).contributions[0]
    data = encode_contribution(contribution)
    assert decode_contribution(data) == contribution
    assert len(data) == 64 + len(encode_contribution(replace(contribution, opened=b"", commitment=b"")))


def test_secrets_are_the_keys_own_by_chain_and_height(chain: LivingChain) -> None:
    block = chain.tip.block
    reveals = [
        make_reveal(key, chain_id, replace(block, header=replace(block.header, height=height)), 3).commitment
        for key in KEYS[:2]
        for chain_id in (bytes(32), bytes([1]) * 32)
        for height in (1, 2)
    ]
    assert len({*reveals}) == len(reveals)


def test_the_bytes_are_these() -> None:
    """Golden: another value is a fork of every chain under protocol 3."""
    key, genesis = KEYS[0], make_genesis(KEYS, protocol=3)
    reveal = make_reveal(key, bytes(32), genesis.block0, 3)
    assert reveal.opened == ZERO
    assert reveal.commitment.hex() == "21d9e590dea01442821c269281ca3858c214e9e77cc361ee6467da693f622254"
    contribution = sign_contribution(
        key, bytes(32), height=1, prev=ZERO, weight=1, payloads=(), reveal=Reveal(bytes(range(32)), reveal.commitment)
    )
    body = Body((contribution,))
    parent = replace(genesis.block0, header=replace(genesis.block0.header, height=7), body=body)
    assert (
        sha256(encode_contribution(contribution)).hexdigest()
        == "100fe1334e2677d325a993f5a0d3e2c20e2713e57db6314f9fe4a658e7a90378"
    )
    assert compute_beacon(genesis.block0).hex() == "7174782e387b1e01a36a83139ef5aa1a2811ead2d479e0f148c441da8325e93e"
    assert compute_beacon(parent).hex() == "4e5f9689205a6e9a266386364a3ca83f9a5f0c30b5ae8269d80afff0b8407fab"
