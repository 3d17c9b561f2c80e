"""Published measures as bytes: a golden vector, what is none, and how they are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chain.calendar import Place
from chain.errors import DecodeError, EncodeError, InvalidSignature
from chain.layout import MAX_HEIGHT, MAX_U32
from chain.published import (
    MAX_PUBLISHED_BYTES,
    MAX_SAMPLES,
    MEASURES,
    MEASURES_TAG,
    ONE,
    PublishedMeasures,
    decode_many,
    decode_published,
    encode_many,
    encode_published,
    sign_published,
    verify_published,
)
from chain.signing import SigningKey
from chain.store.records import PUBLISHED_HEIGHTS
from chain.store.sqlite import SqliteStore
from support.data.chains import make_genesis, make_keys

KEY = SigningKey.from_private_bytes(bytes(range(32)))
CHAIN = b"c" * 32
VALUES = {"accuracy": 0.93859649, "auc": 0.9906, "loss": 0.2}
WORD = sign_published(KEY, CHAIN, Place(2, 19), num_samples=114, values=VALUES)
VECTOR = (
    "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"  # key
    "00000002" "0000000000000013"  # run, round
    "0030"  # length
    "7b226163637572616379223a393338362c22617563223a393930362c226c6f7373223a323030302c226e223a3131347d"
)  # fmt: skip


def with_json(text: bytes) -> bytes:
    return encode_published(WORD)[:44] + len(text).to_bytes(2, "big") + text + WORD.signature


def test_the_bytes_are_those_that_were_written_down() -> None:
    assert MEASURES_TAG == b"fn1.measures\0\0\0\0"
    assert encode_published(WORD).hex() == VECTOR + WORD.signature.hex()
    assert WORD.signature.hex() == (
        "adc972fff9b4905af0c410b92bc8fd04abefcb0fa57e50ba9157cd284fc41a89"
        "f2f78d86afd8693f7fb52aac9667b7b8548f51ebe83303fe53920ed1b85ed208"
    )
    assert decode_published(encode_published(WORD)) == WORD
    verify_published(CHAIN, WORD)
    assert WORD.get_values() == {"accuracy": 0.9386, "auc": 0.9906, "loss": 0.2}


def test_the_longest_fits_into_a_message() -> None:
    greatest = {name: high / ONE for name, (_, high) in MEASURES.items()}
    place = Place(MAX_U32, MAX_HEIGHT)
    longest = sign_published(KEY, CHAIN, place, num_samples=MAX_SAMPLES, values=greatest)
    assert longest.get_values() == greatest
    assert len(encode_published(longest)) <= MAX_PUBLISHED_BYTES < 640
    assert decode_published(encode_published(longest)) == longest


def test_what_is_no_measure_or_out_of_its_range_is_left_out() -> None:
    values = {"accuracy": 1.5, "loss": float("nan"), "patient": 1.0, "auc": 0.5}
    assert sign_published(KEY, CHAIN, Place(1, 1), num_samples=5, values=values).numbers == {"auc": 5000}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encode_published(WORD)[:-1],
        encode_published(WORD) + b"x",
        bytes(MAX_PUBLISHED_BYTES + 1),
        with_json(b"{}"),
        with_json(b"[" * 60),
        with_json(b'{"auc":5000}'),
        with_json(b'{"n":0}'),
        with_json(b'{"n":01}'),
        with_json(b'{"n":1.0}'),
        with_json(b'{"n": 1}'),
        with_json(b'{"n":1,"n":1}'),
        with_json(b'{"n":1,"auc":1}'),
        with_json(b'{"n":9999999999}'),
        with_json(b'{"auc":10001,"n":1}'),
        with_json(b'{"auc":-1,"n":1}'),
        with_json(b'{"auc":-0,"n":1}'),
        with_json(b'{"auc":"x","n":1}'),
        with_json(b'{"age":1,"n":1}'),
        encode_published(WORD).replace(b"\0\0\0\2", b"\0\0\0\0", 1),
        encode_published(WORD).replace(b"\0" * 7 + b"\x13", b"\0" * 8, 1),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_published(data)


@pytest.mark.parametrize("change", [{"key": b"x"}, {"num_samples": 0}, {"numbers": {"auc": 10001}}, {"signature": b""}])
def test_what_cannot_be_sent_is_not_encoded(change: dict[str, object]) -> None:
    with pytest.raises(EncodeError):
        encode_published(replace(WORD, **change))  # type: ignore[arg-type]  # fields of published measures


@pytest.mark.parametrize(
    "change", [{"num_samples": 5}, {"place": Place(2, 20)}, {"numbers": {}}, {"signature": bytes(64)}]
)
def test_a_signature_is_over_all_of_it_and_over_the_chain(change: dict[str, object]) -> None:
    forged: PublishedMeasures = replace(WORD, **change)  # type: ignore[arg-type]  # fields of published measures
    with pytest.raises(InvalidSignature):
        verify_published(CHAIN, forged)
    with pytest.raises(InvalidSignature):
        verify_published(b"d" * 32, WORD)


def test_many_are_written_behind_each_other() -> None:
    words = [WORD, replace(WORD, num_samples=9)]
    assert [*decode_many(encode_many(words))] == words
    assert [*decode_many(b"")] == []
    with pytest.raises(DecodeError):
        [*decode_many(encode_many(words)[:-1])]


def test_a_store_keeps_those_of_the_newest_heights(tmp_path: Path) -> None:
    genesis = make_genesis(make_keys(4))
    other = replace(WORD, num_samples=9)
    with SqliteStore.open(tmp_path, genesis) as store:
        store.put_published(1, [WORD])
        store.put_published(7, [WORD])
        store.put_published(7, [WORD, other])
        assert store.get_published(6) == []
    with SqliteStore.open(tmp_path, genesis, readonly=True) as store:
        assert store.get_published(1) == [WORD]
        assert store.get_published(7) == [WORD, other]
    with SqliteStore.open(tmp_path, genesis) as store:
        store.put_published(PUBLISHED_HEIGHTS + 1, [other])
        assert store.get_published(1) == []
        assert store.get_published(7) == [WORD, other]
        store.put_published(PUBLISHED_HEIGHTS + 100, [other])
        assert store.get_published(7) == []
        assert store.get_published(PUBLISHED_HEIGHTS + 1) == [other]
