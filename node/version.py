"""The installed version, read without importing the program."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "unknown"


@cache
def get_version(distribution: str = "fednode") -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return UNKNOWN
