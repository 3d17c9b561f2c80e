"""TLS for HTTP: the certificate that the node shows to browsers and scrapers, which the operator may renew while the
node runs (SECURITY §4). Peers never see it: between nodes the identity is the key."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Self

from node.config.node_sections import HttpTlsSection
from node.errors import ConfigError


class HttpTls:
    """What one node's server speaks TLS by: a certificate and its key. Raises ConfigError for files that do not
    serve."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self.context = make_context(certificate, key)
        self._certificate = certificate.read_bytes()

    @classmethod
    def read(cls, section: HttpTlsSection) -> Self | None:
        """None where TLS is off."""
        return None if section.files is None else cls(*section.files)

    def reload(self) -> bool:
        """Reads the files again, for connections from now on. True if another certificate is in them. Raises
        ConfigError; then all stays as it was."""
        make_context(*self._files)  # before anything changes
        read = self._files[0].read_bytes()
        _load(self.context, *self._files)
        is_other, self._certificate = read != self._certificate, read
        return is_other


def make_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key)
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    for name, path in (("certificate_file", certificate), ("key_file", key)):
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise ConfigError(f"http.tls.{name}: {path}: cannot be read ({error.strerror})") from error
    try:
        context.load_cert_chain(certificate, key, password=b"")  # without one it would ask at the terminal
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"http.tls: expected a certificate in {certificate} and its key, without a passphrase, in {key} ({why})"
        ) from error
