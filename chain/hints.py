"""Address hints: where a node says that it can be dialled, under its own signature.

    Hint          key 32 | made_ms u64 | length u8 | address | sig 64

A hint is gossiped and is not part of the chain. The newest hint of a key counts. Each node decides itself which
addresses it dials.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from chain.block import Digest, Id
from chain.errors import DecodeError, EncodeError
from chain.layout import MAX_TIME_MS, U8, Error, Reader, check, check_size
from chain.signing import SIGNATURE_BYTES, SigningKey, tag, verify

HINT_TAG = tag("hint")
MAX_ADDRESS_BYTES = 255

_HINT = struct.Struct(">32sQ")
MAX_HINT_BYTES = _HINT.size + U8.size + MAX_ADDRESS_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class AddressHint:
    """The `host:port` at which the node with this key can be dialled, as it said itself at `made_ms` of its clock."""

    key: Id
    made_ms: int
    address: str
    signature: bytes


def _check_hint(hint: AddressHint, address: bytes, error: Error) -> None:
    check_size(error, "hint key", hint.key, 32)
    check(error, "hint made_ms", hint.made_ms, 0, MAX_TIME_MS)
    check(error, "size of the hint's address", len(address), 1, MAX_ADDRESS_BYTES)


def hint_fields(hint: AddressHint) -> bytes:
    """Returns the bytes that the node signs: everything but the signature."""
    try:
        address = hint.address.encode()
    except UnicodeEncodeError as error:  # a lone surrogate
        raise EncodeError(f"hint address: expected text, got {hint.address!r}") from error
    _check_hint(hint, address, EncodeError)
    return _HINT.pack(hint.key, hint.made_ms) + U8.pack(len(address)) + address


def encode_hint(hint: AddressHint) -> bytes:
    check_size(EncodeError, "hint signature", hint.signature, SIGNATURE_BYTES)
    return hint_fields(hint) + hint.signature


def decode_hint(data: bytes) -> AddressHint:
    """Returns a hint without checking its signature. Raises DecodeError."""
    reader = Reader("hint", data, MAX_HINT_BYTES)
    key, made_ms = _HINT.unpack(reader.take(_HINT.size))
    address = reader.take(reader.number(U8))
    signature = reader.take(SIGNATURE_BYTES)
    reader.end()
    try:
        hint = AddressHint(key, made_ms, address.decode(), signature)
    except UnicodeDecodeError as error:
        raise DecodeError(f"hint address: expected UTF-8, got {address!r}") from error
    _check_hint(hint, address, DecodeError)
    return hint


def sign_hint(key: SigningKey, chain_id: Digest, *, made_ms: int, address: str) -> AddressHint:
    unsigned = AddressHint(key.id, made_ms, address, bytes(SIGNATURE_BYTES))
    return AddressHint(key.id, made_ms, address, key.sign(HINT_TAG, chain_id, hint_fields(unsigned)))


def verify_hint(chain_id: Digest, hint: AddressHint) -> None:
    """Raises InvalidSignature unless the key's holder signed this hint."""
    verify(hint.key, hint.signature, HINT_TAG, chain_id, hint_fields(hint))
