"""Addresses as people write them, `host:port`: parsing and checks, with nothing that dials."""

from __future__ import annotations

from ipaddress import ip_address

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
    """`text`, if a peer can be dialled there. Raises ValueError."""
    if parse_address(text)[1] == 0:
        raise ValueError("expected host:port with a port of at least 1")
    return text


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def is_on_loopback(address: str) -> bool:
    """Whether `host:port` can be reached from this machine alone. Raises ValueError."""
    return is_loopback(parse_address(address)[0])
