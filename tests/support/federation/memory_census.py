"""A census of a node's memory, collection by collection: a leak is one that grows with the rounds, and it has a name.

    take_census(service)["handler._authenticator._opened[]"]    # how many entries, over all signers

It walks from an object through everything of this project that it holds. Collections inside collections are one line
of the census: what counts is how many entries there are in all.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Collection, Mapping
from functools import partial
from types import MethodType
from typing import Any

OURS = ("node.", "chain.", "ml.")
COLLECTIONS = (dict, list, tuple, set, frozenset, deque)


def take_census(root: object, *, beyond: Collection[object] = ()) -> Counter[str]:
    """Counts entries by the path from `root` to the collection that holds them. It does not enter objects in
    `beyond`."""
    census: Counter[str] = Counter()
    seen = {id(one) for one in beyond}
    todo: deque[tuple[str, object]] = deque([("", root)])
    while todo:
        path, one = todo.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, COLLECTIONS):
            census[sys.intern(path)] += len(one)
            held = [*one.values(), *one.keys()] if isinstance(one, dict) else [*one]
            todo.extend((f"{path}[]", entry) for entry in held if _is_entered(entry))
        else:
            todo.extend((f"{path}.{name}".lstrip("."), value) for name, value in _get_fields(one).items())
    return census


def _is_entered(thing: object) -> bool:
    return isinstance(thing, (*COLLECTIONS, partial, MethodType, asyncio.Queue)) or _is_ours(thing)


def _is_ours(thing: object) -> bool:
    return type(thing).__module__.startswith(OURS) and not isinstance(thing, type)


def _get_fields(thing: object) -> Mapping[str, Any]:
    if isinstance(thing, asyncio.Queue):
        return {"queued": thing._queue}  # type: ignore[attr-defined]  # the deque that it is made of
    if isinstance(thing, partial):
        return {"arguments": thing.args}
    if isinstance(thing, MethodType):
        return {"self": thing.__self__}
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    fields = {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | getattr(thing, "__dict__", {})
    return {name: value for name, value in fields.items() if _is_entered(value)}
