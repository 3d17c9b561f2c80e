"""The protocols that this release speaks: the rules by which it can judge a height.

A federation moves from one to the next by a change (FEDERATION §2, `upgrade`). What stands under a protocol that is not
spoken here cannot be judged here.
"""

from __future__ import annotations

from chain.genesis import FIRST_PROTOCOL, PROTOCOL_VERSION

SPOKEN: tuple[int, ...] = tuple(range(FIRST_PROTOCOL, PROTOCOL_VERSION + 1))


def speaks(protocol: int) -> bool:
    """Whether this release can judge what stands under a protocol."""
    return protocol in SPOKEN


def get_newest() -> int:
    """The newest protocol that this release speaks."""
    return SPOKEN[-1]


def describe_spoken() -> str:
    """The protocols spoken here, in words."""
    *others, last = map(str, SPOKEN)
    return f"{', '.join(others)} and {last}" if others else last
