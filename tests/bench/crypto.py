"""`make bench-crypto`: what signing, hashing, encoding and judging cost over the library's call for the same bytes.

What is signed and judged is real: a block of a federation that shares prototypes of digits, mined, certified and stored
as rounds leave it (`support.data.synthetic`). Beside each of our calls, in turn with it, its baseline is made:

  signatures   the library's Ed25519 over the bytes that ours puts together
  digests      one SHA-256 over the same bytes, in memory
  codec        pickle of the same object, which checks nothing
  validation   the library's verification of as many signatures; where arrays are aggregated, numpy's mean of them
  envelopes    protobuf's bytes of a batch that is already made, and its reading
"""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bench.paired import Call, compare_calls
from chain import codec, validation
from chain.block import Block, Certificate, Contribution, Id, PayloadRef, Vote
from chain.genesis import Genesis
from chain.signing import SigningKey, compute_sign_bytes
from chain.store.rows import compute_row_digest
from chain.store.sqlite import SqliteStore
from chain.tip import Tip, get_first_read
from ml import specs
from ml.payload import Arrays, decode_arrays, kind_name
from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_directory
from node.config.genesis_file import get_genesis_spec
from node.host.machine import get_machine
from node.host.procfs import MB
from node.p2p.bans import Bans
from node.p2p.transport.base import Message, MessageKind, TrafficCounters
from node.p2p.transport.rate_limits import Intake, RateLimits, to_pb
from node.pb import peer_pb2 as pb
from support.data.synthetic import KIND, extend_chain, make_prototype_genesis
from support.federation.null_handler import NullHandler

HEIGHT = 2  # of the block that is looked at: one with a parent that is not genesis
BLOB_BYTES = 1 << 24
MANY_MESSAGES = 1e12  # a second: the intake is to be measured, not its limit


@dataclass(frozen=True, slots=True)
class Pair:
    """Our call and its baseline. `num_bytes` is what one call is about."""

    ours: Call
    bare: Call
    num_bytes: int


def run_crypto_bench(*, members: int, seconds: float, repeats: int, seed: int, report: Report) -> dict[str, Any]:
    """Figures by group and call; see `bench.paired`. `seconds` are for each of `repeats` rounds of either call."""
    with temporary_directory() as directory:
        genesis, keys = make_prototype_genesis(members, seed=seed, difficulty=DIFFICULTY)
        with SqliteStore.open(directory / "store", genesis) as store:
            extend_chain(store, genesis, keys, HEIGHT)
            found = _Found.read(genesis, keys, store)
            groups = {
                "signatures": found.pair_signatures(),
                "digests": found.pair_digests(store),
                "codec": found.pair_codec(),
                "validation": found.pair_validation(),
                "envelopes": found.pair_envelopes(),
            }
            figures = {}
            for name, pairs in groups.items():
                report(name)
                figures[name] = {what: _measure(pair, seconds=seconds, repeats=repeats) for what, pair in pairs.items()}
    job = {"members": members, "quorum": genesis.state.q, "seconds": seconds, "repeats": repeats, "seed": seed}
    return {"machine": get_machine(), "job": job, **figures}


def _measure(pair: Pair, *, seconds: float, repeats: int) -> dict[str, Any]:
    figures = compare_calls(pair.ours, pair.bare, seconds=seconds, repeats=repeats)
    mb_per_s = figures["per_s"]["median"] * pair.num_bytes / MB
    return {"bytes": pair.num_bytes, **figures, "mb_per_s": mb_per_s}


@dataclass(frozen=True, slots=True)
class _Found:
    """A block with what belongs to it, and the members' keys."""

    genesis: Genesis
    keys: Sequence[SigningKey]
    tip: Tip
    block: Block
    certificate: Certificate
    payloads: Mapping[bytes, bytes]  # by digest

    @classmethod
    def read(cls, genesis: Genesis, keys: Sequence[SigningKey], store: SqliteStore) -> _Found:
        *below, stored = store.blocks(get_first_read(HEIGHT - 1), HEIGHT)
        tip = Tip.at(store.get_state(HEIGHT - 1), [final.block for final in below])
        assert stored.certificate is not None
        refs = [ref for contribution in stored.block.contributions for ref in contribution.payloads]
        payloads = {ref.digest: store.get_blob(ref.digest) for ref in refs}
        return cls(genesis, keys, tip, stored.block, stored.certificate, payloads)

    @property
    def contribution(self) -> Contribution:
        return self.block.contributions[0]

    @property
    def votes(self) -> Sequence[Vote]:
        return validation.get_precommits(self.genesis.state, self.block.id, HEIGHT, self.certificate)

    # ---- the calls

    def pair_signatures(self) -> dict[str, Pair]:
        genesis, block, contribution, vote = self.genesis, self.block, self.contribution, self.votes[0]
        sign = partial(
            codec.sign_contribution,
            self._get_key(contribution.author),
            genesis.chain_id,
            height=contribution.height,
            prev=contribution.prev,
            weight=contribution.weight,
            payloads=contribution.payloads,
        )
        cast = partial(
            codec.sign_vote,
            self._get_key(vote.voter),
            genesis.chain_id,
            phase=vote.phase,
            height=vote.height,
            view=vote.view,
            block_id=vote.block_id,
        )
        signed = Signed.of_contribution(genesis, contribution)
        voted = Signed.of_vote(genesis, vote)
        return {
            "sign_contribution": self._pair_signing(sign, signed),
            "sign_vote": self._pair_signing(cast, voted),
            "verify_contribution": _pair_verifying(
                partial(validation.verify_contribution, genesis.chain_id, contribution), [signed]
            ),
            "verify_vote": _pair_verifying(partial(validation.verify_vote, genesis.chain_id, vote), [voted]),
            "verify_block": _pair_verifying(
                partial(validation.verify_block, genesis.chain_id, block), [Signed.of_block(genesis, block)]
            ),
        }

    def pair_digests(self, store: SqliteStore) -> dict[str, Pair]:
        header, encoded = codec.encode_header(self.block.header), codec.encode_block(self.block)
        body = codec.encode_body(self.block.body)
        seal_header = partial(codec.compute_seal, self.genesis.chain_id, self.block.header)
        seal = seal_header()
        blob = os.urandom(BLOB_BYTES)
        digest = store.put_blob(blob)
        row = partial(compute_row_digest, "block", HEIGHT, self.block.id, encoded)
        return {
            "seal": _pair_digest(seal_header, header),
            "block_id": _pair_digest(partial(codec.compute_block_id, seal, self.block.nonce), seal + bytes(8)),
            "body": _pair_digest(partial(codec.compute_body_digest, self.block.body), body),
            "stored_row": _pair_digest(row, encoded),
            "blob_file": _pair_digest(partial(store.check_blob, digest), blob),
        }

    def pair_codec(self) -> dict[str, Pair]:
        chain_id, vote = self.genesis.chain_id, self.votes[0]
        block, contribution = codec.encode_block(self.block), codec.encode_contribution(self.contribution)
        voted, certificate = codec.encode_vote(vote), codec.encode_certificate(self.certificate)
        return {
            "encode_block": _pair_encoding(partial(codec.encode_block, self.block), self.block, block),
            "decode_block": _pair_decoding(partial(codec.decode_block, chain_id, block), self.block, block),
            "encode_contribution": _pair_encoding(
                partial(codec.encode_contribution, self.contribution), self.contribution, contribution
            ),
            "decode_contribution": _pair_decoding(
                partial(codec.decode_contribution, contribution), self.contribution, contribution
            ),
            "encode_vote": _pair_encoding(partial(codec.encode_vote, vote), vote, voted),
            "decode_vote": _pair_decoding(partial(codec.decode_vote, voted), vote, voted),
            "encode_certificate": _pair_encoding(
                partial(codec.encode_certificate, self.certificate), self.certificate, certificate
            ),
            "decode_certificate": _pair_decoding(
                partial(codec.decode_certificate, certificate), self.certificate, certificate
            ),
        }

    def pair_validation(self) -> dict[str, Pair]:
        block, genesis = codec.encode_block(self.block), self.genesis
        certificate = codec.encode_certificate(self.certificate)
        signed = list_candidate(genesis, self.block)
        voted = list_certificate(genesis, self.block, self.certificate)
        spec = get_genesis_spec(genesis)
        arrays = [_decode(spec, data)["prototypes"] for data in self.payloads.values()]
        payload_bytes = sum(map(len, self.payloads.values()))
        judge_certificate = partial(
            validation.validate_certificate, genesis.state, self.block.id, HEIGHT, self.certificate
        )
        check = make_bare_check([*signed, *voted])

        def average() -> bytes:
            return hashlib.sha256(np.mean(arrays, axis=0)).digest()

        def judge_all() -> None:
            decoded = codec.decode_block(genesis.chain_id, block)
            self._judge(decoded)
            validation.validate_certificate(genesis.state, decoded.id, HEIGHT, codec.decode_certificate(certificate))
            self._recompute(spec, decoded)

        def check_all() -> None:
            check()
            average()

        return {
            "candidate": _pair_verifying(partial(self._judge, self.block), signed, num_bytes=len(block)),
            "certificate": _pair_verifying(judge_certificate, voted, num_bytes=len(certificate)),
            "aggregate": Pair(partial(self._recompute, spec, self.block), average, payload_bytes),
            "whole_block": Pair(judge_all, check_all, len(block) + len(certificate) + payload_bytes),
        }

    def pair_envelopes(self) -> dict[str, Pair]:
        """A batch with one vote of each member of the quorum."""
        messages = [Message(MessageKind.VOTE, codec.encode_vote(vote)) for vote in self.votes]
        batch = pb.Batch(messages=[to_pb(message) for message in messages])
        data = batch.SerializeToString()
        limits = RateLimits(messages_per_s=MANY_MESSAGES, bytes_per_s=MANY_MESSAGES)
        intake = Intake(self.keys[0].id, limits, Bans(time.monotonic), TrafficCounters())
        ears = NullHandler()
        return {
            "send_batch": Pair(
                lambda: pb.Batch(messages=[to_pb(message) for message in messages]).SerializeToString(),
                batch.SerializeToString,
                len(data),
            ),
            "take_batch": Pair(
                lambda: intake.take(pb.Batch.FromString(data), ears), partial(pb.Batch.FromString, data), len(data)
            ),
        }

    # ---- what they are made of

    def _get_key(self, member: Id) -> SigningKey:
        return next(key for key in self.keys if key.id == member)

    def _pair_signing(self, ours: Call, signed: Signed) -> Pair:
        return Pair(ours, partial(self._get_key(signed.signer).private_key.sign, signed.data), len(signed.data))

    def _judge(self, block: Block) -> None:
        validation.validate_candidate(self.tip, block)

    def _recompute(self, spec: specs.MethodSpec, block: Block) -> None:
        authors = [
            specs.AuthorPayloads(c.author, c.weight, {KIND: self._read_payload(spec, c.payloads[0])})
            for c in block.contributions
        ]
        aggregate = specs.compute_aggregate(spec, HEIGHT, authors, None)
        assert aggregate is not None
        validation.validate_aggregate(block, hashlib.sha256(aggregate).digest())

    def _read_payload(self, spec: specs.MethodSpec, ref: PayloadRef) -> Arrays:
        arrays = _decode(spec, self.payloads[ref.digest])
        spec.validate_payload(kind_name(ref.kind), arrays, HEIGHT)
        return arrays


def _decode(spec: specs.MethodSpec, data: bytes) -> Arrays:
    return decode_arrays(data, spec.schemas(HEIGHT)[KIND].max_bytes)


def _pair_verifying(ours: Call, signed: Sequence[Signed], *, num_bytes: int | None = None) -> Pair:
    size = sum(len(one.data) for one in signed) if num_bytes is None else num_bytes
    return Pair(ours, make_bare_check(signed), size)


def _pair_digest(ours: Call, data: bytes) -> Pair:
    return Pair(ours, lambda: hashlib.sha256(data).digest(), len(data))


def _pair_encoding(ours: Call, value: object, data: bytes) -> Pair:
    return Pair(ours, partial(pickle.dumps, value, pickle.HIGHEST_PROTOCOL), len(data))


def _pair_decoding(ours: Call, value: object, data: bytes) -> Pair:
    return Pair(ours, partial(pickle.loads, pickle.dumps(value, pickle.HIGHEST_PROTOCOL)), len(data))


@dataclass(frozen=True, slots=True)
class Signed:
    signer: Id
    signature: bytes
    data: bytes

    @classmethod
    def of_block(cls, genesis: Genesis, block: Block) -> Signed:
        data = compute_sign_bytes(codec.BLOCK_TAG, genesis.chain_id, block.id)
        return cls(block.header.miner, block.signature, data)

    @classmethod
    def of_contribution(cls, genesis: Genesis, contribution: Contribution) -> Signed:
        fields = codec.contribution_fields(contribution)
        data = compute_sign_bytes(codec.CONTRIBUTION_TAG, genesis.chain_id, fields)
        return cls(contribution.author, contribution.signature, data)

    @classmethod
    def of_vote(cls, genesis: Genesis, vote: Vote) -> Signed:
        data = compute_sign_bytes(codec.VOTE_TAG, genesis.chain_id, codec.vote_fields(vote))
        return cls(vote.voter, vote.signature, data)


def list_candidate(genesis: Genesis, block: Block) -> list[Signed]:
    """The miner's and the contributors'."""
    contributions = (Signed.of_contribution(genesis, contribution) for contribution in block.contributions)
    return [Signed.of_block(genesis, block), *contributions]


def list_certificate(genesis: Genesis, block: Block, certificate: Certificate) -> list[Signed]:
    votes = validation.get_precommits(genesis.state, block.id, block.height, certificate)
    return [Signed.of_vote(genesis, vote) for vote in votes]


def make_bare_check(signed: Iterable[Signed]) -> Callable[[], None]:
    """Verifies all of them and does nothing else. Keys are read beforehand, as a node keeps its members'."""
    held = list(signed)
    public = {signer: Ed25519PublicKey.from_public_bytes(signer) for signer in {one.signer for one in held}}

    def check() -> None:
        for one in held:
            public[one.signer].verify(one.signature, one.data)

    return check
