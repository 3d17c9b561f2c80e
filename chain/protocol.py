"""The protocols that this release speaks: the rules by which it can judge a height.

A federation moves from one to the next by a change (FEDERATION §2, `upgrade`). This release cannot judge heights under
any other protocol.
"""

from __future__ import annotations

from chain.genesis import FIRST_PROTOCOL, PROTOCOL_VERSION

SPOKEN: tuple[int, ...] = tuple(range(FIRST_PROTOCOL, PROTOCOL_VERSION + 1))


def speaks(protocol: int) -> bool:
    """Says whether this release can judge heights under a protocol."""
    return protocol in SPOKEN


def get_newest() -> int:
    """Returns the newest protocol that this release speaks."""
    return SPOKEN[-1]


def describe_spoken() -> str:
    """Returns the numbers of the protocols spoken here, as text."""
    *others, last = map(str, SPOKEN)
    return f"{', '.join(others)} and {last}" if others else last
