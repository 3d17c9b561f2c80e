"""TLS for HTTP: the certificate that the node shows to browsers and scrapers, which the operator may renew while the
node runs (SECURITY §4). Peers never see it: between nodes the identity is the key."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from node.config.http_section import HttpTlsSection
from node.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate and its key as they were read, and the digests of their files, by the names in `http.tls`."""

    context: ssl.SSLContext
    held: Mapping[str, bytes]

    @classmethod
    def read(cls, certificate: Path, key: Path) -> Self:
        """Reads a certificate and its key. Raises ConfigError for files that are not valid."""
        held = {name: _digest(name, path) for name, path in (("certificate_file", certificate), ("key_file", key))}
        return cls(make_context(certificate, key), held)


class HttpTls:
    """Holds the TLS settings of one node's server. Connections are accepted on `context`, which never changes, and each
    is shown the newest certificate. Raises ConfigError for files that are not valid."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._newest = Certified.read(certificate, key)
        self.context = self._newest.context
        self.context.sni_callback = self._choose  # called also for callers that name no server

    @classmethod
    def read(cls, section: HttpTlsSection) -> Self | None:
        """Reads the files of the section; None where TLS is off."""
        return None if section.files is None else cls(*section.files)

    def replace(self, certified: Certified) -> list[str]:
        """Replaces the certificate for later connections. Returns the files that have changed, by their names in
        `http.tls`."""
        before, self._newest = self._newest, certified
        return [name for name, digest in certified.held.items() if digest != before.held[name]]

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest.context


def make_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Makes the TLS context of a server. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for name, path in (("certificate_file", certificate), ("key_file", key)):
        _digest(name, path)
    try:
        context.load_cert_chain(certificate, key, password=b"")  # without a password it would ask at the terminal
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"http.tls: expected a certificate in {certificate} and its key, without a passphrase, in {key} ({why})"
        ) from error
    return context


def _digest(name: str, path: Path) -> bytes:
    """Returns the digest of a file. Raises ConfigError."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        raise ConfigError(f"http.tls.{name}: {path}: cannot be read ({error.strerror})") from error
