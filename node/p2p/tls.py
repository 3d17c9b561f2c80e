"""Mutual TLS from the identity key alone (SECURITY §2): no authority, no certificate files.

TLS libraries do not offer Ed25519, so each process makes a P-256 key in memory and issues itself a short-lived *leaf*
for it, signed by the identity. The issuer that a peer needs in order to check a leaf, the *anchor*, follows from the
node id: a fixed certificate with the id as its name and its public key. Nobody checks its own signature: it is zeroed.

Dialling trusts the one anchor of the peer dialled. Accepting trusts the anchors of everybody allowed, and asks for a
certificate. Names must differ: of several roots with one name only the first is tried.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chain.block import Id
from chain.errors import InvalidKey
from chain.signing import SIGNATURE_BYTES, SigningKey, decode_id, encode_id

DOMAIN = "fednode.invalid"
LEAF_LIFETIME = timedelta(days=7)
CLOCK_SKEW = timedelta(hours=24)
MAX_CERTIFICATE_BYTES = 4096  # of a peer's leaf, in PEM; ours has about 800
MAX_CACHED_PEERS = 4096

_ANCHOR_FROM = datetime(2020, 1, 1, tzinfo=UTC)
_ANCHOR_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_ANCHOR_SERIAL = 1
_PLACEHOLDER = Ed25519PrivateKey.from_private_bytes(bytes(32))  # signs before the signature is zeroed


class UnknownCaller(Exception):
    """The certificate belongs to nobody that this node admits."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Holds a certificate for a fresh P-256 key, and that key, in PEM. `renew_at_s` and `expires_at_s` are Unix
    times."""

    certificate: bytes
    private_key: bytes = field(repr=False)
    renew_at_s: float
    expires_at_s: float


def get_server_name(peer: Id) -> str:
    """Returns the name that a leaf of `peer` is valid for. It resolves nowhere, by RFC 6761."""
    return f"{encode_id(peer)}.{DOMAIN}"


@lru_cache(maxsize=MAX_CACHED_PEERS)
def make_anchor(peer: Id) -> bytes:
    """Returns the trust anchor of `peer` in PEM, the same bytes on every node. Raises InvalidKey if the id is no valid
    key."""
    name = _make_name(peer)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    signed = (
        x509.CertificateBuilder(name, name, Ed25519PublicKey.from_public_bytes(peer), serial_number=_ANCHOR_SERIAL)
        .not_valid_before(_ANCHOR_FROM)
        .not_valid_after(_ANCHOR_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(_PLACEHOLDER, None)
        .public_bytes(Encoding.DER)
    )
    anchor = x509.load_der_x509_certificate(signed[:-SIGNATURE_BYTES] + bytes(SIGNATURE_BYTES))
    return anchor.public_bytes(Encoding.PEM)


def issue_leaf(key: SigningKey, now_s: float) -> Leaf:
    """Issues a leaf for a fresh TLS key, valid from a day ago (clocks differ) for a week. `now_s` is a Unix time."""
    now = datetime.fromtimestamp(now_s, UTC)
    tls_key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder(
            issuer_name=_make_name(key.id),
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leaf")]),
            public_key=tls_key.public_key(),
            serial_number=x509.random_serial_number(),
        )
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LEAF_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(get_server_name(key.id))]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(key.private_key, None)
    )
    return Leaf(
        certificate.public_bytes(Encoding.PEM),
        tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        renew_at_s=(now + LEAF_LIFETIME / 2).timestamp(),
        expires_at_s=(now + LEAF_LIFETIME).timestamp(),
    )


def identify(certificate: bytes) -> Id:
    """Returns the issuer of this leaf, proved by its signature. Raises UnknownCaller unless it is a leaf of a valid
    identity.

    The handshake has checked it against the bundle already; this says which of the anchors it was.
    """
    if len(certificate) > MAX_CERTIFICATE_BYTES:
        raise UnknownCaller(f"expected a certificate of at most {MAX_CERTIFICATE_BYTES} bytes, got {len(certificate)}")
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
        names = leaf.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
        issuer = decode_id(str(names[0].value)) if len(names) == 1 else b""
        Ed25519PublicKey.from_public_bytes(issuer).verify(leaf.signature, leaf.tbs_certificate_bytes)
    except InvalidSignature as error:
        raise UnknownCaller("expected a leaf signed by its issuer") from error
    except (ValueError, InvalidKey) as error:
        raise UnknownCaller(f"expected a leaf issued by a node id: {error}") from error
    return issuer


class MutualTls:
    """Holds one node's credentials: its current leaf, and the ids that it trusts. May be called from gRPC's threads."""

    def __init__(self, key: SigningKey, trusted: Iterable[Id], wall_clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._leaf = issue_leaf(key, wall_clock())
        self._trusted: frozenset[Id] = frozenset()
        self._bundle = b""
        self._served: tuple[Leaf, bytes] | None = None
        self._callers: OrderedDict[bytes, Id] = OrderedDict()
        self.set_trusted(trusted)

    def get_leaf(self) -> Leaf:
        """Returns the leaf to show now; a new one from half of its lifetime on."""
        with self._lock:
            if self._wall_clock() >= self._leaf.renew_at_s:
                self._leaf = issue_leaf(self._key, self._wall_clock())
            return self._leaf

    def set_trusted(self, trusted: Iterable[Id]) -> None:
        """Replaces the ids that are trusted from the next handshake on."""
        ids = frozenset(trusted)
        bundle = b"".join(make_anchor(peer) for peer in sorted(ids | {self._key.id}))  # a bundle must not be empty
        with self._lock:
            self._trusted, self._bundle = ids, bundle

    def make_server_credentials(self, *, are_callers_known: bool = True) -> grpc.ServerCredentials:
        """Makes credentials that fetch the leaf and the trusted ids at each handshake.

        Unless `are_callers_known`, callers need no certificate: they prove who they are in another way.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._make_configuration(),
            self._renew_configuration,  # type: ignore[arg-type]  # None is documented to mean "unchanged"
            require_client_authentication=are_callers_known,
        )

    def make_channel_credentials(self, peer: Id) -> grpc.ChannelCredentials:
        """Makes credentials under which only `peer` can answer."""
        leaf = self.get_leaf()
        return grpc.ssl_channel_credentials(make_anchor(peer), leaf.private_key, leaf.certificate)

    def resolve(self, certificate: bytes) -> Id:
        """Returns the trusted node behind a caller's certificate in PEM. Raises UnknownCaller."""
        caller = self._callers.get(certificate)
        if caller is None:
            caller = identify(certificate)
            self._callers[certificate] = caller
            if len(self._callers) > MAX_CACHED_PEERS:
                self._callers.popitem(last=False)
        if caller not in self._trusted:
            raise UnknownCaller(f"{encode_id(caller)} is neither a member nor an observer")
        return caller

    def _make_configuration(self) -> grpc.ServerCertificateConfiguration:
        leaf = self.get_leaf()
        with self._lock:
            self._served = (leaf, self._bundle)
        return grpc.ssl_server_certificate_configuration([(leaf.private_key, leaf.certificate)], self._bundle)

    def _renew_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns the configuration for the next handshake; None leaves it as it is. gRPC calls this before each."""
        leaf = self.get_leaf()
        with self._lock:
            unchanged = self._served == (leaf, self._bundle)
        return None if unchanged else self._make_configuration()


def _make_name(peer: Id) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, encode_id(peer))])
