"""The join request: one line, strict, bound to its key and its chain."""

from __future__ import annotations

import base64
import json

import pytest

from chain.errors import ChainError, InvalidJoinRequest, InvalidSignature
from chain.join_request import PREFIX, JoinRequest, sign_address, verify_address
from chain.run import encode_canonical
from support.data.chains import make_digest, make_keys

CHAIN = make_digest("a chain")
KEY, OTHER = make_keys(2, "joiner")
GOOD = JoinRequest.sign(KEY, CHAIN, name="hospital-d", address="fed.d.example:7050", made_ms=1_800_000_000_000)


def change(line: str, **fields: object) -> str:
    """The line with other fields, in canonical bytes."""
    body = line.removeprefix(PREFIX)
    mapping = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) | fields
    return encode({name: value for name, value in mapping.items() if value is not None})


def encode(mapping: object, data: bytes | None = None) -> str:
    return PREFIX + base64.urlsafe_b64encode(data or encode_canonical(mapping)).decode().rstrip("=")


def test_a_request_is_read_as_it_was_signed() -> None:
    assert JoinRequest.decode(GOOD.encode(), CHAIN) == GOOD
    assert JoinRequest.decode(f"  {GOOD.encode()}\n", CHAIN) == GOOD  # as a mail may bring it
    hidden = JoinRequest.sign(KEY, CHAIN, name="Klinik Süd", address="", made_ms=0)
    assert JoinRequest.decode(hidden.encode(), CHAIN) == hidden


def test_the_line_is_golden() -> None:
    """Whoever changes these bytes makes releases that cannot read each other's requests."""
    assert make_digest(GOOD.encode()).hex() == "d794dceffe4f1d629dde63ee1c6330e76e166e5f4046684b5841733f938d3d23"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "begins with fednode-join-1:"),
        (GOOD.encode().removeprefix(PREFIX), "begins with fednode-join-1:"),
        (PREFIX + "!" * 40, "expected base64url"),
        (PREFIX + "ü" * 40, "expected base64url"),
        (GOOD.encode() + "=", "the one spelling of its base64url"),
        (PREFIX + "A" * 5000, "at most 4096 characters"),
        (encode(None, b"\xff\xfe"), "expected JSON"),
        (encode(None, b"[" * 2000), "expected JSON"),
        (encode([]), "expected a mapping"),
        (encode(None, json.dumps(json.loads(base64.urlsafe_b64decode(GOOD.encode()[15:] + "==="))).encode()), "canon"),
        (change(GOOD.encode(), extra=1), "unknown key"),
        (change(GOOD.encode(), name=None), "name: is missing"),
        (change(GOOD.encode(), name="hospital-e"), "signature over fn1.join"),
        (change(GOOD.encode(), name=" hospital-d"), "1 to 64 printable characters"),
        (change(GOOD.encode(), name="a\nb"), "1 to 64 printable characters"),
        (change(GOOD.encode(), made_ms=True), "expected a whole number"),
        (change(GOOD.encode(), made_ms=-1), "made_ms"),
        (change(GOOD.encode(), key="a" * 52), "key"),
        (change(GOOD.encode(), signature="00"), "expected 64 bytes"),
        (change(GOOD.encode(), signature="zz"), "expected hex"),
        (change(GOOD.encode(), address=""), "expected none without an address"),
        (change(GOOD.encode(), address="fed.e.example:7050"), "signature over fn1.join"),
    ],
)
def test_what_is_no_request_is_refused_with_a_sentence(line: str, why: str) -> None:
    with pytest.raises(InvalidJoinRequest, match=why):
        JoinRequest.decode(line, CHAIN)


def test_a_request_is_for_one_chain() -> None:
    with pytest.raises(InvalidJoinRequest, match="chain: expected"):
        JoinRequest.decode(GOOD.encode(), make_digest("another chain"))


def test_every_changed_character_is_seen() -> None:
    line = GOOD.encode()
    for at in range(len(PREFIX), len(line)):
        tampered = line[:at] + ("A" if line[at] != "A" else "B") + line[at + 1 :]
        with pytest.raises(InvalidJoinRequest):
            JoinRequest.decode(tampered, CHAIN)


@pytest.mark.parametrize(
    "address", ["host", ":7050", "host:", "host:0", "host:65536", "ho\nst:1", "h" * 300 + ":1", "\ud800:1"]
)
def test_what_is_no_address_is_not_signed(address: str) -> None:
    with pytest.raises(ChainError, match="expected host:port"):
        JoinRequest.sign(KEY, CHAIN, name="d", address=address, made_ms=0)


def test_an_address_is_its_key_s_own_word() -> None:
    signature = sign_address(KEY, CHAIN, "a:1", 5)
    verify_address(KEY.id, CHAIN, "a:1", 5, signature)
    for key, chain, address, made_ms in [
        (OTHER.id, CHAIN, "a:1", 5),
        (KEY.id, make_digest("b"), "a:1", 5),
        (KEY.id, CHAIN, "a:2", 5),
        (KEY.id, CHAIN, "a:1", 6),
    ]:
        with pytest.raises(InvalidSignature):
            verify_address(key, chain, address, made_ms, signature)
