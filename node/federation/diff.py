"""The difference between two states of a federation, as an operator reads it: who comes and goes, what is trained,
which rules move.

A path names what changes: `members.hospital-d`, `run.method.lr`, `rules.waits.collect_s`. Automatic effects of a change
are left out: the place of a run on the chain, and the list of executed changes. The numbers that decide are shown if
they change, since an operator should see that four of five are needed now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chain.signing import encode_id
from chain.state import Member, State
from node.federation.difference import Difference

KEY_CHARS = 4  # of a key, beside the member's name
NOT_SHOWN = ("schema", "initial_model")  # of a run: kinds of payload and a digest are shown in their place


def compute_differences(before: State, after: State) -> list[Difference]:
    """Returns the differences between two states that an operator has to know."""
    return [
        *_compare_members(before, after),
        *_compare("observers", _map_observers(before), _map_observers(after)),
        *_compare_runs(before, after),
        *_compare("rules", flatten(before.rules.to_mapping()), flatten(after.rules.to_mapping())),
        *_compare("", _map_decisions(before), _map_decisions(after)),
    ]


def _compare_members(before: State, after: State) -> Iterator[Difference]:
    """Compares members by seat, as the key of a seat may change."""
    old = {member.seat: member for member in before.members}
    new = {member.seat: member for member in after.members}
    for seat in sorted(old.keys() | new.keys()):
        name = (new.get(seat) or old[seat]).name
        if seat not in old or seat not in new:
            yield Difference(f"members.{name}", _get_key(old.get(seat)), _get_key(new.get(seat)))
        else:
            yield from _compare(f"members.{name}", {"key": _get_key(old[seat])}, {"key": _get_key(new[seat])})
            path = f"members.{name} ({encode_id(new[seat].key)[:KEY_CHARS]})"  # the values do not show the key
            yield from _compare(path, {"suspended": old[seat].is_suspended}, {"suspended": new[seat].is_suspended})


def _get_key(member: Member | None) -> str | None:
    return None if member is None else encode_id(member.key)


def _map_observers(state: State) -> dict[str, Any]:
    return {observer.name: encode_id(observer.key) for observer in state.observers}


def _compare_runs(before: State, after: State) -> Iterator[Difference]:
    old, new = _map_run(before), _map_run(after)
    if before.run.number == after.run.number:
        yield from _compare("run", old, new)
        return
    yield Difference("run.number", before.run.number, after.run.number)
    yield from (each for each in _compare("run", old, new) if each.path not in ("run.number", "run.is_ended"))


def _map_run(state: State) -> dict[str, Any]:
    run = state.run
    terms = {key: value for key, value in run.to_terms().items() if key not in NOT_SHOWN}
    return {
        "number": run.number,
        **flatten(terms),
        "initial_model": run.initial_model.hex()[:8],
        "payloads": ", ".join(_list_kinds(run.schema)),
        "is_ended": run.is_ended,
    }


def _list_kinds(schema: Mapping[str, Any]) -> list[str]:
    """Returns the kinds of payload that a schema names, also kinds that this release does not know: any member may
    propose them."""
    rounds = schema.get("rounds")
    spans = rounds.values() if isinstance(rounds, Mapping) else ()
    return sorted({kind for payloads in spans if isinstance(payloads, Mapping) for kind in payloads})


def _map_decisions(state: State) -> dict[str, Any]:
    return {
        "decides": f"{state.q} of {state.n} members",
        "contributes": f"{state.min_contributions} at least",
        "protocol": state.protocol,
    }


def _compare(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            yield Difference(f"{path}.{name}" if path else name, old.get(name), new.get(name))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of a tree by dotted path."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
