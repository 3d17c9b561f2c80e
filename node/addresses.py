"""Addresses as people write them, `host:port`: parsing and checks, with nothing that dials."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")

ANY_HOSTS = ("0.0.0.0", "::")  # noqa: S104 (compared with, not listened at)


def parse_address(text: str) -> tuple[str, int]:
    """Splits `host:port` (`[::1]:7050` for IPv6). Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("expected host:port, an IPv6 host in brackets")
    if not colon or not host or any(c.isspace() for c in host) or not (port.isascii() and port.isdigit()):
        raise ValueError("expected host:port")
    if int(port) > 65535:
        raise ValueError("expected host:port with a port of at most 65535")
    return host, int(port)


def validate_dialled(text: str) -> str:
    """Returns `text`, if a peer can be dialled there. Raises ValueError."""
    if parse_address(text)[1] == 0:
        raise ValueError("expected host:port with a port of at least 1")
    return text


def is_loopback(host: str) -> bool:
    """Says whether `host` can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def is_on_loopback(address: str) -> bool:
    """Says whether `host:port` can be reached from this machine alone. Raises ValueError."""
    return is_loopback(parse_address(address)[0])


def validate_told(text: str) -> str:
    """Returns `text`, if it is an address that this node may dial when a peer has sent it: a plain name or an IP
    address, and a port. Raises ValueError."""
    host, _ = parse_address(validate_dialled(text))
    if text.startswith("["):
        IPv6Address(host)
    elif not _NAME.fullmatch(host):
        raise ValueError("expected host:port with a host of letters, digits, dots and hyphens")
    return text
