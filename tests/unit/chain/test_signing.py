"""Identities: which keys may be one, and what a signature says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from chain.approvals import APPROVAL_TAG, CHANGE_TAG, READINESS_TAG
from chain.codec import BLOCK_TAG, BODY_TAG, CONTRIBUTION_TAG, SEAL_TAG, VOTE_TAG
from chain.errors import InvalidKey, InvalidSignature
from chain.genesis import GENESIS_TAG
from chain.signing import (
    ID_CHARS,
    SMALL_ORDER_Y,
    SigningKey,
    compute_sign_bytes,
    decode_id,
    encode_id,
    tag,
    validate_public_key,
    verify,
)
from chain.state import STATE_TAG
from support.data.chains import make_digest, make_keys

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "keys.json").read_text())
CHAIN = make_digest("a chain")
TAGS = (
    GENESIS_TAG,
    STATE_TAG,
    SEAL_TAG,
    BODY_TAG,
    CONTRIBUTION_TAG,
    BLOCK_TAG,
    VOTE_TAG,
    CHANGE_TAG,
    APPROVAL_TAG,
    READINESS_TAG,
)

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


def add(a: Point, b: Point) -> Point:
    """The addition law of edwards25519 (RFC 8032 §5.1)."""
    (x1, y1), (x2, y2) = a, b
    t = D * x1 * x2 * y1 * y2
    return (x1 * y2 + x2 * y1) * pow(1 + t, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - t, -1, P) % P


def find_x(y: int) -> int | None:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    for root in (x, x * pow(2, (P - 1) // 4, P) % P):
        if root * root % P == square:
            return root
    return None


def test_the_table_holds_exactly_the_points_whose_order_divides_eight() -> None:
    points: set[Point] = set()
    for y in SMALL_ORDER_Y:
        x = find_x(y)
        assert x is not None
        points |= {(x, y), (-x % P, y)}
    assert len(points) == 8
    for point in points:
        eightfold = point
        for _ in range(3):
            eightfold = add(eightfold, eightfold)
        assert eightfold == (0, 1)


@pytest.mark.parametrize("text", VECTORS["small_order"])
def test_small_order_keys_are_refused(text: str) -> None:
    with pytest.raises(InvalidKey, match="order"):
        validate_public_key(bytes.fromhex(text))


@pytest.mark.parametrize("text", VECTORS["non_canonical"])
def test_non_canonical_keys_are_refused(text: str) -> None:
    with pytest.raises(InvalidKey):
        validate_public_key(bytes.fromhex(text))


def test_the_library_alone_would_accept_a_forgery_under_the_identity_point() -> None:
    identity = bytes([1]) + bytes(31)
    forgery = identity + bytes(32)  # R = identity, S = 0
    Ed25519PublicKey.from_public_bytes(identity).verify(forgery, b"any message at all")
    with pytest.raises(InvalidSignature, match="small-order"):
        verify(identity, forgery, VOTE_TAG, CHAIN, b"any message at all")


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(InvalidKey, match=f"expected 32, got {size}"):
        validate_public_key(bytes(size))
    with pytest.raises(InvalidKey, match=f"expected 32, got {size}"):
        SigningKey.from_private_bytes(bytes(size))


def test_generated_keys_are_admissible_and_differ() -> None:
    keys = [SigningKey.generate() for _ in range(8)]
    for key in keys:
        validate_public_key(key.id)
    assert len({key.id for key in keys}) == 8


def test_a_signature_holds_for_its_key_kind_chain_and_fields_only() -> None:
    alice, bob = make_keys(2)
    signature = alice.sign(VOTE_TAG, CHAIN, b"fields")
    verify(alice.id, signature, VOTE_TAG, CHAIN, b"fields")
    other_chain = make_digest("another chain")
    for args in (
        (bob.id, signature, VOTE_TAG, CHAIN, b"fields"),
        (alice.id, signature, BLOCK_TAG, CHAIN, b"fields"),
        (alice.id, signature, VOTE_TAG, other_chain, b"fields"),
        (alice.id, signature, VOTE_TAG, CHAIN, b"Fields"),
        (alice.id, signature[:-1], VOTE_TAG, CHAIN, b"fields"),
        (alice.id, b"", VOTE_TAG, CHAIN, b"fields"),
    ):
        with pytest.raises(InvalidSignature):
            verify(*args)


def test_a_key_that_is_no_point_of_the_curve_verifies_nothing() -> None:
    y = next(y for y in range(2, 100) if find_x(y) is None)
    with pytest.raises(InvalidSignature):
        verify(y.to_bytes(32, "little"), bytes(64), VOTE_TAG, CHAIN, b"fields")


def test_every_single_bit_flip_in_a_signature_is_refused() -> None:
    (alice,) = make_keys(1)
    signature = alice.sign(VOTE_TAG, CHAIN, b"fields")
    for bit in range(512):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidSignature):
            verify(alice.id, bytes(flipped), VOTE_TAG, CHAIN, b"fields")


def test_tags_are_sixteen_bytes_and_differ() -> None:
    assert {len(t) for t in TAGS} == {16}
    assert len(set(TAGS)) == len(TAGS)
    assert tag("vote") == b"fn1.vote\0\0\0\0\0\0\0\0"


@pytest.mark.parametrize("name", ["", "thirteenchars", "a\0"])
def test_a_tag_name_that_could_collide_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="tag name"):
        tag(name)


@given(st.sampled_from(TAGS), st.sampled_from(TAGS), st.binary(max_size=64), st.binary(max_size=64))
def test_sign_bytes_of_different_kinds_never_collide(a: bytes, b: bytes, fields_a: bytes, fields_b: bytes) -> None:
    same = compute_sign_bytes(a, CHAIN, fields_a) == compute_sign_bytes(b, CHAIN, fields_b)
    assert same == ((a, fields_a) == (b, fields_b))


def test_sign_bytes_of_odd_prefixes_are_refused() -> None:
    for odd_tag, chain in ((VOTE_TAG[:-1], CHAIN), (VOTE_TAG, CHAIN + b"\0")):
        with pytest.raises(ValueError, match="sign bytes"):
            compute_sign_bytes(odd_tag, chain, b"")


# Text and files


def test_a_node_id_is_52_characters_of_lower_case_base32() -> None:
    for key in make_keys(8):
        text = encode_id(key.id)
        assert len(text) == ID_CHARS
        assert text == text.lower()
        assert decode_id(text) == key.id
        assert text in repr(key)


def test_a_node_id_has_one_spelling() -> None:
    text = encode_id(make_keys(1)[0].id)
    last = "abcdefghijklmnopqrstuvwxyz234567".index(text[-1])
    unused_bit_set = text[:-1] + "abcdefghijklmnopqrstuvwxyz234567"[last + 1]  # the last character carries one bit
    for other in (text.upper(), unused_bit_set, text + "=", text[:-1], text[:-1] + "1", text[:-1] + "ı", "", "x" * 500):
        with pytest.raises(InvalidKey):
            decode_id(other)
    with pytest.raises(InvalidKey):
        encode_id(bytes(31))


def test_a_small_order_node_id_is_refused() -> None:
    with pytest.raises(InvalidKey, match="order"):
        decode_id(encode_id(bytes(32)))


@pytest.mark.parametrize("passphrase", [None, b"correct horse"])
def test_a_key_survives_pem(passphrase: bytes | None) -> None:
    (key,) = make_keys(1)
    pem = key.to_pem(passphrase)
    assert pem.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY" if passphrase else b"-----BEGIN PRIVATE KEY")
    again = SigningKey.from_pem(pem, passphrase)
    assert again.id == key.id
    assert again.sign(VOTE_TAG, CHAIN, b"x") == key.sign(VOTE_TAG, CHAIN, b"x")


def test_a_key_file_that_cannot_be_opened_says_why() -> None:
    (key,) = make_keys(1)
    ec = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for pem, passphrase, message in (
        (key.to_pem(b"right"), b"wrong", "passphrase opens"),
        (key.to_pem(b"right"), None, "no passphrase was given"),
        (key.to_pem(), b"needless", "is not encrypted"),
        (b"not a key", None, "expected PKCS#8 PEM"),
        (b"", None, "expected PKCS#8 PEM"),
        (ec, None, "expected Ed25519"),
    ):
        with pytest.raises(InvalidKey, match=message):
            SigningKey.from_pem(pem, passphrase)
