"""Address hints as bytes: a golden vector, and what is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chain.errors import DecodeError, EncodeError, InvalidSignature
from chain.hints import (
    HINT_TAG,
    MAX_ADDRESS_BYTES,
    MAX_HINT_BYTES,
    AddressHint,
    decode_hint,
    encode_hint,
    sign_hint,
    verify_hint,
)
from chain.layout import MAX_TIME_MS
from chain.signing import SigningKey

KEY = SigningKey.from_private_bytes(bytes(range(32)))
CHAIN = b"c" * 32
HINT = sign_hint(KEY, CHAIN, made_ms=1_800_000_000_000, address="a.example:7050")
VECTOR = (
    "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"  # key
    "000001a3185c5000"  # made_ms
    "0e612e6578616d706c653a37303530"  # length, address
    "c9345001876eba021a5a30d85019d0ba775f5b130680eb3eac39d8190a05aa90"  # signature
    "007abe6aaf002596b661fcbeed874a5010730af583d03cb0570eb4390526fc01"
)


def test_the_bytes_are_those_that_were_written_down() -> None:
    assert HINT_TAG == b"fn1.hint\0\0\0\0\0\0\0\0"
    assert encode_hint(HINT).hex() == VECTOR
    assert decode_hint(bytes.fromhex(VECTOR)) == HINT
    verify_hint(CHAIN, HINT)


def test_the_longest_is_as_long_as_may_be() -> None:
    longest = replace(HINT, address="a" * MAX_ADDRESS_BYTES, made_ms=MAX_TIME_MS)
    assert len(encode_hint(longest)) == MAX_HINT_BYTES
    assert decode_hint(encode_hint(longest)) == longest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encode_hint(HINT)[:-1],
        encode_hint(HINT) + b"x",
        encode_hint(replace(HINT, address="x" * 5)).replace(b"\5xxxxx", b"\0"),
        encode_hint(replace(HINT, address="x" * 5)).replace(b"xxxxx", b"\xff" * 5),
        KEY.id + (MAX_TIME_MS + 1).to_bytes(8, "big") + b"\1x" + bytes(64),
        bytes(MAX_HINT_BYTES + 1),
    ],
    ids=["nothing", "short", "long", "no address", "no text", "no time", "too long"],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_hint(data)


@pytest.mark.parametrize("change", [{"address": "a" * 256}, {"address": ""}, {"address": "\ud800"}, {"key": b"x"}])
def test_what_cannot_be_sent_is_not_encoded(change: dict[str, object]) -> None:
    with pytest.raises(EncodeError):
        encode_hint(replace(HINT, **change))  # type: ignore[arg-type]  # fields of a hint


@pytest.mark.parametrize("change", [{"made_ms": 5}, {"address": "b.example:7050"}, {"signature": bytes(64)}])
def test_a_signature_is_over_all_of_it_and_over_the_chain(change: dict[str, object]) -> None:
    forged: AddressHint = replace(HINT, **change)  # type: ignore[arg-type]  # fields of a hint
    with pytest.raises(InvalidSignature):
        verify_hint(CHAIN, forged)
    with pytest.raises(InvalidSignature):
        verify_hint(b"d" * 32, HINT)
