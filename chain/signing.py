"""Ed25519 identities, and the one way anything is signed: `tag[16] || chain_id || fields` (PROTOCOL §1, SECURITY §3).

The signature library accepts a universal forgery under the identity point, so admission refuses the eight small-order
points and every non-canonical encoding itself; libraries differ on these edges and the rule must be ours.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from functools import lru_cache

from cryptography.exceptions import InvalidSignature as _LibraryRefusal
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from chain.block import Id
from chain.errors import InvalidKey, InvalidSignature

KEY_BYTES = 32
SIGNATURE_BYTES = 64
TAG_BYTES = 16
ID_CHARS = 52  # base32 of 32 bytes without padding: fits a DNS label and an X.509 common name

_P = 2**255 - 19  # the field of edwards25519 (RFC 8032 §5.1)
_SIGN_BIT = 1 << 255

# y coordinates of the eight points whose order divides 8; with the sign bit masked, five values name them all.
SMALL_ORDER_Y = frozenset(
    {
        0,  # order 4, both signs
        1,  # the identity
        _P - 1,  # order 2
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,  # order 8, both signs
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,  # order 8, both signs
    }
)


def tag(name: str) -> bytes:
    """Returns the 16 bytes that keep one kind of signed or hashed object apart from every other; names are at most 12
    ASCII characters."""
    raw = b"fn1." + name.encode("ascii")
    if not name or len(raw) > TAG_BYTES or b"\0" in raw:
        raise ValueError(f"tag name: expected 1 to {TAG_BYTES - 4} characters, got {name!r}")
    return raw.ljust(TAG_BYTES, b"\0")


def validate_public_key(key: bytes) -> None:
    """Raises InvalidKey unless `key` may be an identity: 32 bytes, canonical, not of small order."""
    if len(key) != KEY_BYTES:
        raise InvalidKey.differs("public key length", KEY_BYTES, len(key))
    y = int.from_bytes(key, "little") & ~_SIGN_BIT
    if y >= _P:
        raise InvalidKey(f"public key {key.hex()}: expected a canonical encoding (y < 2^255 - 19), got y = {y:#x}")
    if y in SMALL_ORDER_Y:
        raise InvalidKey(f"public key {key.hex()}: expected a point of large order, got a small-order one")


@lru_cache(maxsize=4096)
def _load_public_key(key: bytes) -> Ed25519PublicKey:
    validate_public_key(key)
    return Ed25519PublicKey.from_public_bytes(key)


def compute_sign_bytes(tag: bytes, chain_id: bytes, fields: bytes) -> bytes:
    """Returns the bytes that are signed. Both prefixes have a fixed length, so no two kinds can collide."""
    if len(tag) != TAG_BYTES or len(chain_id) != KEY_BYTES:
        raise ValueError(
            f"sign bytes: expected a tag of {TAG_BYTES} and a chain id of {KEY_BYTES} bytes, "
            f"got {len(tag)} and {len(chain_id)}"
        )
    return tag + chain_id + fields


def verify(id: Id, signature: bytes, tag: bytes, chain_id: bytes, fields: bytes) -> None:  # noqa: A002 (the node id)
    """Raises InvalidSignature unless the holder of `id` signed these fields, of this kind, for this chain."""
    try:
        _load_public_key(id).verify(signature, compute_sign_bytes(tag, chain_id, fields))
    except _LibraryRefusal as error:
        kind = tag.rstrip(b"\0").decode("ascii", "replace")
        raise InvalidSignature(f"signature over {kind}: expected one by {id.hex()}, got {signature.hex()}") from error
    except InvalidKey as error:
        raise InvalidSignature(str(error)) from error


class SigningKey:
    """A private key and the node id, which is its public half. The repr shows the id only."""

    __slots__ = ("_key", "id")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.id: Id = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, raw: bytes) -> SigningKey:
        """Returns the key with the 32 secret bytes of RFC 8032. Raises InvalidKey on another length."""
        if len(raw) != KEY_BYTES:
            raise InvalidKey.differs("private key length", KEY_BYTES, len(raw))
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    @classmethod
    def from_pem(cls, pem: bytes, passphrase: bytes | None = None) -> SigningKey:
        """Returns the key in PKCS#8 PEM. Raises InvalidKey when it is not one, not Ed25519, or the passphrase does not
        open it."""
        try:
            key = serialization.load_pem_private_key(pem, passphrase)
        except TypeError as error:  # the library raises it if a passphrase is missing, or given and not needed
            state = "is encrypted and no passphrase was given" if passphrase is None else "is not encrypted"
            raise InvalidKey(f"private key: the PEM {state}") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            needs = "" if passphrase is None else " that this passphrase opens"
            raise InvalidKey(f"private key: expected PKCS#8 PEM{needs}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidKey.differs("private key", "Ed25519", type(key).__name__)
        return cls(key)

    def derive_secret(self, purpose: bytes, *parts: bytes) -> bytes:
        """Returns 32 bytes that nobody without the key can compute, the same at every call: HMAC-SHA-256 of `parts` by
        the private key. The `purpose` is a tag of its own."""
        return hmac.digest(self._key.private_bytes_raw(), purpose + b"".join(parts), "sha256")

    def to_pem(self, passphrase: bytes | None = None) -> bytes:
        """Returns PKCS#8 PEM, encrypted when a passphrase is given."""
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase is not None:
            encryption = serialization.BestAvailableEncryption(passphrase)
        return self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)

    def sign(self, tag: bytes, chain_id: bytes, fields: bytes) -> bytes:
        return self._key.sign(compute_sign_bytes(tag, chain_id, fields))

    @property
    def private_key(self) -> Ed25519PrivateKey:
        """The private key itself, used only to issue this node's TLS leaf (SECURITY §2)."""
        return self._key

    def __repr__(self) -> str:
        return f"SigningKey({encode_id(self.id)})"


def encode_id(id: Id) -> str:  # noqa: A002 (the node id)
    """Returns a node id as text: base32, lower case, 52 characters."""
    if len(id) != KEY_BYTES:
        raise InvalidKey.differs("node id length", KEY_BYTES, len(id))
    return base64.b32encode(id).decode("ascii").rstrip("=").lower()


def decode_id(text: str) -> Id:
    """Returns the key that `text` names. Raises InvalidKey unless it is the one spelling of an admissible key."""
    if len(text) != ID_CHARS:
        raise InvalidKey(f"node id: expected {ID_CHARS} characters of base32, got {len(text)}: {text[:64]!r}")
    try:
        key = base64.b32decode(text.upper() + "====")
    except (binascii.Error, ValueError) as error:
        raise InvalidKey(f"node id: expected lower-case base32, got {text!r}") from error
    if encode_id(key) != text:  # upper case, or unused low bits set: a second name for one key
        raise InvalidKey.differs("node id spelling", encode_id(key), text)
    validate_public_key(key)
    return key
