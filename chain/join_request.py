"""The join request: one line by which a key asks for a seat in a federation, signed by that key.

    fednode-join-1: and canonical JSON in base64url without padding:
    {"chain", "key", "name", "address", "made_ms", "address_signature", "signature"}

A member reads it before it proposes a change with it; the request itself is not part of the change. The address carries
a signature of its own, so that it can be passed on as a hint (FEDERATION §2).
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, replace
from typing import Any, Self

from chain.block import Digest, Id
from chain.errors import ChainError, EncodeError, InvalidJoinRequest
from chain.layout import MAX_TIME_MS, U8, U64, check_size
from chain.run import encode_canonical
from chain.schema import Section, check_name, check_range, describe, quote, read_digest
from chain.signing import SIGNATURE_BYTES, SigningKey, encode_id, tag, verify
from chain.state import read_key

JOIN_TAG = tag("join")
HINT_TAG = tag("hint")

PREFIX = "fednode-join-1:"
MAX_CHARS = 4096  # of a request
MAX_ADDRESS_BYTES = 255
MAX_PORT = 65535

_FIELDS = ("chain", "key", "name", "address", "made_ms", "address_signature", "signature")


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The key that asks to join, the chain and the name that it asks for. Valid once made or read.

    `address` is host:port, or empty if nobody can dial the node; then `address_signature` is empty, too.
    """

    chain_id: Digest
    key: Id
    name: str
    address: str
    made_ms: int
    address_signature: bytes
    signature: bytes

    @classmethod
    def sign(cls, key: SigningKey, chain_id: Digest, *, name: str, address: str, made_ms: int) -> Self:
        """Returns a request signed by this key. Raises ChainError if a field is not what it may be."""
        check_name("name", name)
        check_range("made_ms", made_ms, 0, MAX_TIME_MS)
        address_signature = sign_address(key, chain_id, address, made_ms) if address else b""
        unsigned = cls(chain_id, key.id, name, address, made_ms, address_signature, b"")
        return replace(unsigned, signature=key.sign(JOIN_TAG, chain_id, unsigned._get_signed()))

    def _get_signed(self) -> bytes:
        return encode_canonical({name: value for name, value in self._to_mapping().items() if name != "signature"})

    def _to_mapping(self) -> dict[str, Any]:
        return {
            "chain": self.chain_id.hex(),
            "key": encode_id(self.key),
            "name": self.name,
            "address": self.address,
            "made_ms": self.made_ms,
            "address_signature": self.address_signature.hex(),
            "signature": self.signature.hex(),
        }

    def encode(self) -> str:
        """Returns the line that people send to each other."""
        data = base64.urlsafe_b64encode(encode_canonical(self._to_mapping()))
        return PREFIX + data.decode("ascii").rstrip("=")

    @classmethod
    def decode(cls, text: str, chain_id: Digest) -> Self:
        """Returns the request in a line after checking both signatures. Raises InvalidJoinRequest, whatever is wrong
        with it."""
        data = _read_line(text)
        try:
            request = cls._from_mapping(json.loads(data.decode("ascii")))
            if encode_canonical(request._to_mapping()) != data:
                raise InvalidJoinRequest("expected canonical JSON, got another spelling of it")
            if request.chain_id != chain_id:
                raise InvalidJoinRequest.differs("chain", chain_id, request.chain_id)
            request._verify()
        except (ValueError, RecursionError) as error:
            raise InvalidJoinRequest(f"join request: expected JSON, got {quote(data[:40])}") from error
        except ChainError as error:
            raise InvalidJoinRequest(f"join request: {describe(error)}") from error
        return request

    @classmethod
    def _from_mapping(cls, obj: object) -> Self:
        top = Section("", obj, _FIELDS)
        name, address, made_ms = top.text("name"), top.text("address"), top.integer("made_ms")
        check_name("name", name)
        check_range("made_ms", made_ms, 0, MAX_TIME_MS)
        address_signature = _read_signature(top, "address_signature") if address else _read_nothing(top)
        return cls(
            chain_id=read_digest("chain", top.text("chain")),
            key=read_key(top),
            name=name,
            address=address,
            made_ms=made_ms,
            address_signature=address_signature,
            signature=_read_signature(top, "signature"),
        )

    def _verify(self) -> None:
        verify(self.key, self.signature, JOIN_TAG, self.chain_id, self._get_signed())
        if self.address:
            verify_address(self.key, self.chain_id, self.address, self.made_ms, self.address_signature)


def _read_line(text: str) -> bytes:
    line = text.strip()
    if not line.startswith(PREFIX):
        raise InvalidJoinRequest(f"join request: expected a line that begins with {PREFIX}, got {quote(line[:40])}")
    if len(line) > MAX_CHARS:
        raise InvalidJoinRequest(f"join request: expected at most {MAX_CHARS} characters, got {len(line)}")
    body = line.removeprefix(PREFIX)
    try:
        data = base64.b64decode(body.encode("ascii") + b"=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidJoinRequest(f"join request: expected base64url after {PREFIX}, got {quote(body[:40])}") from error
    if base64.urlsafe_b64encode(data).decode("ascii").rstrip("=") != body:
        raise InvalidJoinRequest("join request: expected the one spelling of its base64url, got another")
    return data


def _read_signature(top: Section, name: str) -> bytes:
    text = top.text(name)
    try:
        signature = bytes.fromhex(text)
    except ValueError as error:
        raise InvalidJoinRequest(f"{name}: expected hex, got {quote(text)}") from error
    check_size(InvalidJoinRequest, name, signature, SIGNATURE_BYTES)
    return signature


def _read_nothing(top: Section) -> bytes:
    if top.text("address_signature"):
        raise InvalidJoinRequest("address_signature: expected none without an address")
    return b""


def read_join_request(text: str, chain_id: Digest) -> JoinRequest:
    """Returns the request in a line, as `JoinRequest.decode` does."""
    return JoinRequest.decode(text, chain_id)


# The address hint


def address_fields(key: Id, address: str, made_ms: int) -> bytes:
    """Returns the bytes that are signed: key 32 | made_ms u64 | length u8 | address. Raises EncodeError."""
    data = address.encode("utf-8", "replace")  # a lone surrogate is not printable
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= MAX_PORT
    if not (host and colon and is_port and address.isprintable() and len(data) <= MAX_ADDRESS_BYTES):
        raise EncodeError(f"address: expected host:port of at most {MAX_ADDRESS_BYTES} bytes, got {quote(address)}")
    return key + U64.pack(made_ms) + U8.pack(len(data)) + data


def sign_address(key: SigningKey, chain_id: Digest, address: str, made_ms: int) -> bytes:
    """Returns this key's signature on the statement that its node can be dialled at `address`."""
    return key.sign(HINT_TAG, chain_id, address_fields(key.id, address, made_ms))


def verify_address(key: Id, chain_id: Digest, address: str, made_ms: int, signature: bytes) -> None:
    """Raises InvalidSignature unless the key signed this address, EncodeError if it is no address."""
    verify(key, signature, HINT_TAG, chain_id, address_fields(key, address, made_ms))
