"""The findings of `fednode doctor`: a precondition is good, worth a warning, or keeps the node from running."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was checked, what was found, and what to do unless it is ok. For a table `missing` are the columns
    with empty cells, each with the number of these and of all rows."""

    check: str
    verdict: Verdict
    found: str
    advice: str | None = None
    missing: tuple[tuple[str, int, int], ...] = ()


def ok(check: str, found: str, missing: tuple[tuple[str, int, int], ...] = ()) -> Finding:
    return Finding(check, Verdict.OK, found, missing=missing)


def warn(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARN, found, advice)


def fail(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAIL, found, advice)
