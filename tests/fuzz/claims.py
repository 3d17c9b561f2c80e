"""The claims about every reader of bytes from outside, whatever the bytes are.

A target's `check` says whether the bytes were taken, and raises for a finding: any other error than the reader's own,
something taken that is not written back as it came, a refusal that repeats what it refuses at length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq
from typing import Any, TypeVar

MAX_TEXT = 2000  # characters of a refusal: more would be the sender's bytes coming back
MIB = 1 << 20

T = TypeVar("T")
Check = Callable[[bytes], bool]
Seeds = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """`seeds` are made of real objects and are taken as they are; `words` is what a mutation may put in. In a campaign
    its process may take `memory_bytes` beside its program. `is_same` compares seeds that a library writes in one way
    or another, by its version."""

    check: Check
    seeds: Callable[[], Seeds]
    max_bytes: int
    words: tuple[str, ...] = ()
    memory_bytes: int | None = None
    is_same: Callable[[bytes, bytes], bool] = eq


def attempt(read: Callable[[], T], *kinds: type[Exception]) -> T | None:
    """The result of `read`; None when it refuses by an error of these kinds, in few words. Any other error is a
    finding."""
    try:
        return read()
    except kinds as error:
        text = str(error)
    if len(text) > MAX_TEXT:
        raise AssertionError(f"a refusal of {len(text)} characters: {text[:80]}")
    return None


def attempt_at(read: Callable[[], T], place: str, *kinds: type[Exception]) -> T | None:
    """As `attempt`, of a file: a refusal is one line that names its place, or the setting that says what is wanted."""
    said: list[str] = []

    def hear() -> T:
        try:
            return read()
        except kinds as error:
            said.append(str(error))
            raise

    value = attempt(hear, *kinds)
    for text in said:
        assert "\n" not in text, text
        assert place in text or text.startswith(("data.", "input.")), text
    return value


def passes(validate: Callable[[], object], *kinds: type[Exception]) -> bool:
    """As `attempt`, of what gives nothing."""
    return attempt(lambda: (validate(), True), *kinds) is not None


def takes_only_its_own(
    decode: Callable[[bytes], object], encode: Callable[[Any], bytes | bytearray], *kinds: type[Exception]
) -> Check:
    """The check of a canonical encoding: what is taken is what would have been written."""

    def check(data: bytes) -> bool:
        value = attempt(lambda: decode(data), *kinds)
        if value is None:
            return False
        assert encode(value) == data
        return True

    return check
