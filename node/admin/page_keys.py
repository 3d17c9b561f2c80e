"""The keys of a node's page: one that opens it, once and soon, and the one that it is exchanged for (SECURITY §4).

`fednode open` requests the first and puts it into the fragment of an address, which a browser sends to nobody. The page
exchanges it at once for a key of its own, so that an address found in a history opens nothing. Both are 256 random
bits, kept in memory alone: a restart ends them all.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from typing import NamedTuple

from node.addresses import parse_address
from node.admin.tokens import Role
from node.clock import Clock
from node.config.http_section import HttpSection
from node.errors import NodeError
from node.pb import admin_pb2 as pb

OPEN_S = 300.0  # how long a key opens the page
IDLE_S = 12 * 3600.0  # a page that has sent no request for so long has to be opened again
MAX_KEYS = 32  # of each kind; beyond it the one unused for longest is dropped
PREFIX = "fnp_"  # makes a leaked key recognisable


class NoPage(NodeError):
    """Raised when this node serves no page."""


class _Key(NamedTuple):
    role: Role
    until_s: float


class PageKeys:
    """Issues and checks the keys of one node's page, which is at `address`."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._opening: OrderedDict[str, _Key] = OrderedDict()
        self._sessions: OrderedDict[str, _Key] = OrderedDict()

    def __repr__(self) -> str:
        return f"PageKeys({self._address!r}, opening={len(self._opening)}, sessions={len(self._sessions)})"

    def issue(self, role: Role) -> pb.PageKey:
        """Returns a new key that opens the page."""
        key = self._put(self._opening, role, OPEN_S)
        return pb.PageKey(address=self._address, key=key, role=role.value, seconds=OPEN_S)

    def redeem(self, key: str) -> tuple[str, Role] | None:
        """Exchanges a key that opens the page for a key of the page's own, and returns it with its role. None if the
        key is used, expired or unknown."""
        found = self._opening.pop(_hash(key), None)
        if found is None or found.until_s < self._clock.monotonic():
            return None
        return self._put(self._sessions, found.role, IDLE_S), found.role

    def find_role(self, key: str) -> Role | None:
        """Returns the role of a page's own key, and extends its life; None for an unknown or expired key."""
        digest, now_s = _hash(key), self._clock.monotonic()
        found = self._sessions.get(digest)
        if found is None or found.until_s < now_s:
            return None
        self._sessions[digest] = _Key(found.role, now_s + IDLE_S)
        self._sessions.move_to_end(digest)
        return found.role

    def _put(self, keys: OrderedDict[str, _Key], role: Role, seconds: float) -> str:
        key = PREFIX + secrets.token_urlsafe(32)
        keys[_hash(key)] = _Key(role, self._clock.monotonic() + seconds)
        while len(keys) > MAX_KEYS:
            keys.popitem(last=False)
        return key


def make_keys(section: HttpSection, clock: Clock) -> PageKeys | None:
    """Returns the keys of the page that `section` configures; None where no page is served."""
    if section.listen is None or not section.serves_page:
        return None
    return PageKeys(make_address(section.listen, section.scheme), clock)


def make_address(listen: str, scheme: str = "http") -> str:
    """Returns where a browser on this machine finds a page that is served at `listen`."""
    host, port = parse_address(listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (compared, not bound)
    return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"


def _hash(key: str) -> str:
    """Returns the digest by which a key is looked up, so that the time this takes reveals nothing about the key."""
    return hashlib.sha256(key.encode()).hexdigest()
