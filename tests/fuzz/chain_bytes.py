"""Bytes of the chain that are signed or kept: the objects of `chain.codec`, and the exported form."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace

from chain import calendar, codec
from chain.approvals import sign_approval, sign_readiness
from chain.audit import read_export, write_export
from chain.block import ZERO, Approval, ApprovedChange, Block, Body, EvidenceKind, PayloadRef, Phase, Readiness
from chain.changes.base import Place
from chain.changes.change import Change
from chain.changes.execution import execute_change
from chain.changes.members import AddMember
from chain.errors import DecodeError, InvalidEvidence, ValidationError
from chain.evidence import decode_evidence, encode_evidence, make_evidence, validate_evidence
from chain.hints import MAX_ADDRESS_BYTES, encode_hint, sign_hint
from chain.layout import MAX_HEIGHT
from chain.published import MAX_SAMPLES, MEASURES, ONE, encode_published, sign_published
from fuzz.claims import Seeds, attempt, passes, takes_only_its_own
from fuzz.federation import CANDIDATE, GENESIS, KEYS, NEWCOMER, PARENT, believing, sign_vote
from support.data.chains import make_candidate, make_certificate, make_chain, make_contribution


def make_contributions() -> Seeds:
    kinds = [PayloadRef(kind, bytes([kind]) * 32, 1000 * kind) for kind in range(1, 4)]
    return {
        "plain": codec.encode_contribution(make_contribution(GENESIS, KEYS[1])),
        "bare": codec.encode_contribution(make_contribution(GENESIS, KEYS[1], payloads=())),
        "three": codec.encode_contribution(make_contribution(GENESIS, KEYS[1], payloads=kinds, weight=2**29 - 1)),
    }


def make_blocks() -> Seeds:
    alone = make_candidate(GENESIS, PARENT, KEYS, authors=[2])
    return {
        "genesis": codec.encode_block(PARENT),
        "candidate": codec.encode_block(CANDIDATE),
        "alone": codec.encode_block(alone),
        "change": codec.encode_block(make_change_block()),
    }


def make_consent() -> tuple[Change, list[Approval], Readiness]:
    """A fifth member is to be added in block 1: all four approve, and the newcomer is ready."""
    change = Change(AddMember(NEWCOMER.id, "node4"), by=0, made=0, first=1, expires=100, note="ethics vote 2026-11")
    change_id = change.compute_id(GENESIS.chain_id)
    approvals = [sign_approval(key, GENESIS.chain_id, change_id) for key in KEYS]
    return change, approvals, sign_readiness(NEWCOMER, GENESIS.chain_id, change_id, height=0, block_id=PARENT.id)


def make_change_block() -> Block:
    """Block 1, in which the fifth member is added."""
    change, approvals, ready = make_consent()
    body = Body(
        change=ApprovedChange(
            change.data,
            tuple((i, approval.answer, approval.signature) for i, approval in enumerate(approvals)),
            ((ready.key, ready.height, ready.block_id, ready.signature),),
        )
    )
    aggregate = PARENT.header.aggregate
    header = replace(
        CANDIDATE.header,
        body=codec.compute_body_digest(body),
        aggregate=aggregate,
        state_next=execute_change(GENESIS.state, change, Place(1, aggregate)).digest,
    )
    return codec.make_block(GENESIS.chain_id, header, 0, body, KEYS[0])


_check_whole_block = takes_only_its_own(
    lambda data: codec.decode_block(GENESIS.chain_id, data), codec.encode_block, DecodeError
)
_check_header = takes_only_its_own(codec.decode_header, codec.encode_header, DecodeError)
_check_sealed = takes_only_its_own(
    lambda data: codec.decode_sealed_header(GENESIS.chain_id, data), codec.encode_sealed_header, DecodeError
)
_check_body = takes_only_its_own(codec.decode_body, codec.encode_body, DecodeError)


def check_block(data: bytes) -> bool:
    """A block, and its header and body by themselves, and what of it stands in evidence."""
    after = codec.HEADER_BYTES + 8
    parts = (_check_header(data[: codec.HEADER_BYTES]), _check_body(data[after:-64]))
    assert _check_sealed(data[:after] + bytes(64)) == (parts[0] and after <= len(data))
    taken = _check_whole_block(data)
    assert taken == (all(parts) and after + 64 <= len(data) <= codec.MAX_BLOCK_BYTES)
    return taken


def make_hints() -> Seeds:
    """Of the member that pushes, and the longest there is."""
    made_ms = PARENT.header.time_ms
    places = {"name": "node1.example:7050", "ipv6": "[2001:db8::1]:7050", "long": "a" * (MAX_ADDRESS_BYTES - 3) + ":80"}
    return {
        name: encode_hint(sign_hint(KEYS[1], GENESIS.chain_id, made_ms=made_ms + i, address=address))
        for i, (name, address) in enumerate(places.items())
    }


def make_published() -> Seeds:
    """Of the member that pushes: usual ones, and the longest there are."""
    usual = {"accuracy": 0.93, "auc": 0.991, "loss": 0.2}
    greatest = {name: high / ONE for name, (_, high) in MEASURES.items()}
    places = {"usual": (calendar.Place(1, 1), 114, usual), "longest": (calendar.Place(1, 1), MAX_SAMPLES, greatest)}
    places |= {"other": (calendar.Place(2**32 - 1, MAX_HEIGHT), 1, {})}
    return {
        name: encode_published(sign_published(KEYS[1], GENESIS.chain_id, place, num_samples=num, values=values))
        for name, (place, num, values) in places.items()
    }


def make_votes() -> Seeds:
    return {
        "prevote": sign_vote(Phase.PREVOTE, 0, CANDIDATE.id),
        "nil": sign_vote(Phase.PREVOTE, 3, ZERO),
        "precommit": sign_vote(Phase.PRECOMMIT, 2**32 - 1, CANDIDATE.id),
    }


def make_certificates() -> Seeds:
    whole = make_certificate(GENESIS, CANDIDATE, KEYS)
    return {
        "all": codec.encode_certificate(whole),
        "one": codec.encode_certificate(replace(whole, view=7, signatures=whole.signatures[-1:])),
    }


def make_evidences() -> Seeds:
    votes = [codec.decode_vote(sign_vote(Phase.PREVOTE, 0, block_id)) for block_id in (ZERO, CANDIDATE.id)]
    contributions = [make_contribution(GENESIS, KEYS[1], weight=weight) for weight in (1, 2)]
    blocks = [make_candidate(GENESIS, PARENT, KEYS, authors=authors) for authors in ([1], [2])]
    made = {
        "votes": make_evidence(*votes),
        "contributions": make_evidence(*contributions),
        "blocks": make_evidence(*blocks),
    }
    return {name: encode_evidence(evidence) for name, evidence in made.items()}


_check_evidence_bytes = takes_only_its_own(decode_evidence, encode_evidence, DecodeError)


def check_evidence(data: bytes) -> bool:
    """Taken is what proves something about somebody."""
    if not _check_evidence_bytes(data):
        return False
    evidence = decode_evidence(data)
    assert evidence.kind in EvidenceKind
    with believing():
        return passes(lambda: validate_evidence(GENESIS.state, evidence), InvalidEvidence)


def make_exports() -> Seeds:
    blocks = [(0, codec.encode_block(PARENT), b"")]
    for block, certificate in make_chain(GENESIS, KEYS, 2):
        blocks.append((block.height, codec.encode_block(block), codec.encode_certificate(certificate)))
    seeds = {}
    for name, part in (("none", blocks[:0]), ("first", blocks[:1]), ("chain", blocks)):
        out = io.BytesIO()
        write_export(out, GENESIS.chain_id, part)
        seeds[name] = out.getvalue()
    return seeds


def _rewrite_export(data: bytes) -> bytes:
    out = io.BytesIO()
    write_export(out, GENESIS.chain_id, read_export(io.BytesIO(data), GENESIS.chain_id))
    return out.getvalue()


def check_export(data: bytes) -> bool:
    """As it is, and with the digest of what it holds. Of an empty one the first height says nothing."""
    taken = False
    for whole in (data, data[:-32] + hashlib.sha256(data[:-32]).digest()):
        again = attempt(lambda: _rewrite_export(whole), DecodeError, ValidationError)  # noqa: B023
        if again is not None:
            assert again == whole or len(whole) == len(again) == len(make_exports()["none"])
            taken = True
    return taken
