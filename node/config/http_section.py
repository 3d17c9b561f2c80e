"""The section of node.yaml on HTTP: where the node serves it, with which certificate, and to whom."""

from __future__ import annotations

from pathlib import Path

from node.addresses import is_on_loopback, parse_address
from node.config.node_sections import Section
from node.config.value_types import FilePath, ListenAddress


class HttpTlsSection(Section):
    """Names the node's certificate for browsers and scrapers: a chain in PEM, its own certificate first, and the key of
    that certificate, without a passphrase. TLS is off if neither is named. A reload reads both again, from the paths
    that the configuration has then, so a renewed certificate needs no restart; turning TLS on or off does."""

    certificate_file: FilePath | None = None
    key_file: FilePath | None = None

    @property
    def files(self) -> tuple[Path, Path] | None:
        """Returns both files, or None where TLS is off."""
        both = self.certificate_file, self.key_file
        return None if both[0] is None or both[1] is None else (both[0], both[1])


class HttpSection(Section):
    """Sets the address at which the node answers HTTP: its page, metrics for Prometheus, and probes. HTTP is off
    without a port, as in `127.0.0.1:0`.

    With a `token_file` metrics need the token in it (`Authorization: Bearer …`), which serves for nothing else, and the
    page shows nothing without a key. Beyond loopback a `token_file` is required. Without the token the probes answer
    only yes or no.

    With `tls` everything is served over HTTPS. Beyond loopback the page is served in no other way, unless
    `tls_in_front` says that a proxy speaks TLS with its visitors, or that nobody else reaches this port.
    """

    listen: ListenAddress | None = None
    page: bool = True
    metrics: bool = True
    token_file: FilePath | None = None
    tls: HttpTlsSection = HttpTlsSection()
    tls_in_front: bool = False

    @property
    def is_on(self) -> bool:
        return self.listen is not None and parse_address(self.listen)[1] != 0

    @property
    def serves_page(self) -> bool:
        return self.is_on and self.page and not self.withholds_page

    @property
    def withholds_page(self) -> bool:
        """Says whether the page is not served because it, and its keys, would cross a network unencrypted."""
        return self.listen is not None and not (is_on_loopback(self.listen) or self.tls.files or self.tls_in_front)

    @property
    def scheme(self) -> str:
        return "http" if self.tls.files is None else "https"
