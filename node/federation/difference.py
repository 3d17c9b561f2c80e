"""One difference that a change makes, as a line. It is apart from what computes it, so that a command can show it and
load no chain.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from node.unseen import escape_unseen


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that changes; `old` is None if it is new, `new` if it is removed. Values are JSON-able."""

    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return format_difference(self.path, self.old, self.new)


def format_difference(path: str, old: Any, new: Any) -> str:
    """Returns the line `+ path: new`, `- path: old` or `~ path: old -> new`."""
    path = escape_unseen(path)
    if old is None:
        return f"+ {path}: {_show(new)}"
    if new is None:
        return f"- {path}: {_show(old)}"
    return f"~ {path}: {_show(old)} -> {_show(new)}"


def _show(value: Any) -> str:
    return escape_unseen(value) if isinstance(value, str) else json.dumps(value)
