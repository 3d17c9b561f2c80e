"""Published measures: what a site says of its own model after a round, under its own signature.

    PublishedMeasures    key 32 | run u32 | round u64 | length u16 | JSON | sig 64

The JSON is canonical: `n`, the number of test samples, and some of the measures in `MEASURES`, by name in sorted order.
All are whole numbers, a measure in units of 1 / `ONE`. They are gossiped and not part of the chain. Nothing depends on
them, and nobody can check them: each site states them itself.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from chain.block import Digest, Id
from chain.calendar import Place
from chain.errors import DecodeError, EncodeError
from chain.layout import MAX_HEIGHT, MAX_U32, U16, Error, Reader, check, check_size
from chain.signing import SIGNATURE_BYTES, SigningKey, tag, verify

MEASURES_TAG = tag("measures")
ONE = 10_000  # the number that 1.0 is written as
MAX_SAMPLES = 10**9
MAX_LOSS = 1000 * ONE

# The known measures, and the least and the greatest number that each is written as.
MEASURES: Mapping[str, tuple[int, int]] = {
    "accuracy": (0, ONE),
    "alone_auc": (0, ONE),  # of the model that the site trains alone
    "alone_balanced_accuracy": (0, ONE),
    "alone_r2": (-MAX_LOSS, ONE),
    "auc": (0, ONE),
    "average_precision": (0, ONE),
    "balanced_accuracy": (0, ONE),
    "brier": (0, 2 * ONE),
    "calibration_error": (0, ONE),
    "exact_match": (0, ONE),
    "gain": (-MAX_LOSS, MAX_LOSS),  # how much better the federation's model is than the one trained alone
    "gain_high": (-MAX_LOSS, MAX_LOSS),  # the ends of its interval
    "gain_low": (-MAX_LOSS, MAX_LOSS),
    "hamming_loss": (0, ONE),
    "loss": (0, MAX_LOSS),
    "macro_f1": (0, ONE),
    "micro_f1": (0, ONE),
    "r2": (-MAX_LOSS, ONE),
    "weighted_f1": (0, ONE),
}

_SAMPLES = "n"
_RANGES = {**MEASURES, _SAMPLES: (1, MAX_SAMPLES)}
_ENTRY = rb'"[a-z0-9_]{1,32}":(?:0|-?[1-9][0-9]{0,9})'
_JSON = re.compile(rb"\{(?:%b(?:,%b)*)?\}" % (_ENTRY, _ENTRY))
_HEAD = struct.Struct(">32sIQ")
MAX_JSON_BYTES = sum(len(name) + 15 for name in _RANGES)
MAX_PUBLISHED_BYTES = _HEAD.size + U16.size + MAX_JSON_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class PublishedMeasures:
    """The measures of the member with this key on its own `num_samples` test samples, after a round of a run."""

    key: Id
    place: Place
    num_samples: int
    numbers: Mapping[str, int]  # by measure, in units of 1 / ONE
    signature: bytes

    def get_values(self) -> dict[str, float]:
        """Returns the measures by name, as numbers for people."""
        return {name: number / ONE for name, number in self.numbers.items()}


def _check_published(published: PublishedMeasures, error: Error) -> None:
    check_size(error, "published key", published.key, 32)
    check(error, "published run", published.place.run, 1, MAX_U32)
    check(error, "published round", published.place.round, 1, MAX_HEIGHT)
    for name, number in {**published.numbers, _SAMPLES: published.num_samples}.items():
        if name not in _RANGES:
            raise error(f"published measures: expected some of {', '.join(MEASURES)}, got {name!r}")
        check(error, f"published {name}", number, *_RANGES[name])


def _encode_json(published: PublishedMeasures) -> bytes:
    numbers = {**published.numbers, _SAMPLES: published.num_samples}
    return json.dumps(numbers, sort_keys=True, separators=(",", ":")).encode()


def published_fields(published: PublishedMeasures) -> bytes:
    """Returns the bytes that the member signs: everything but the signature."""
    _check_published(published, EncodeError)
    place, numbers = published.place, _encode_json(published)
    return _HEAD.pack(published.key, place.run, place.round) + U16.pack(len(numbers)) + numbers


def encode_published(published: PublishedMeasures) -> bytes:
    check_size(EncodeError, "published signature", published.signature, SIGNATURE_BYTES)
    return published_fields(published) + published.signature


def decode_published(data: bytes) -> PublishedMeasures:
    """Returns published measures without checking their signature. Raises DecodeError."""
    reader = Reader("published measures", data, MAX_PUBLISHED_BYTES)
    key, run, round_number = _HEAD.unpack(reader.take(_HEAD.size))
    written = reader.take(reader.number(U16))
    signature = reader.take(SIGNATURE_BYTES)
    reader.end()
    if _JSON.fullmatch(written) is None:  # before it is parsed: nothing but names and whole numbers
        raise DecodeError("published measures: expected a JSON object of whole numbers")
    numbers: dict[str, int] = json.loads(written)
    if _SAMPLES not in numbers:
        raise DecodeError("published measures: expected n, the number of samples")
    num_samples = numbers.pop(_SAMPLES)
    published = PublishedMeasures(key, Place(run, round_number), num_samples, numbers, signature)
    _check_published(published, DecodeError)
    if _encode_json(published) != written:
        raise DecodeError("published measures: expected canonical JSON")
    return published


def encode_many(published: Iterable[PublishedMeasures]) -> bytes:
    """Returns several published measures as one byte string, each after its length."""
    encoded = [encode_published(one) for one in published]
    return b"".join(U16.pack(len(data)) + data for data in encoded)


def decode_many(data: bytes) -> Iterator[PublishedMeasures]:
    """Yields the published measures that `encode_many` wrote. Raises DecodeError."""
    at = 0
    while at < len(data):
        reader = Reader("published measures", data[at:], len(data))
        size = reader.number(U16)
        yield decode_published(reader.take(size))
        at += U16.size + size


def sign_published(
    key: SigningKey, chain_id: Digest, place: Place, *, num_samples: int, values: Mapping[str, float]
) -> PublishedMeasures:
    """Returns signed measures. Of `values` it takes the known measures that are within their ranges."""
    numbers = {
        name: number
        for name, value in values.items()
        if name in MEASURES and math.isfinite(value)
        if MEASURES[name][0] <= (number := round(value * ONE)) <= MEASURES[name][1]
    }
    unsigned = PublishedMeasures(key.id, place, num_samples, numbers, bytes(SIGNATURE_BYTES))
    signature = key.sign(MEASURES_TAG, chain_id, published_fields(unsigned))
    return PublishedMeasures(key.id, place, num_samples, numbers, signature)


def verify_published(chain_id: Digest, published: PublishedMeasures) -> None:
    """Raises InvalidSignature unless the key's holder signed these measures."""
    verify(published.key, published.signature, MEASURES_TAG, chain_id, published_fields(published))
