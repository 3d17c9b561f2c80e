"""Stale entries: the latest rows of members that are not in a block, which its aggregate carries on for some rounds.

In the papers with asynchronous clients a client may use the newest state of a peer, whenever that was made. A block's
aggregate has only what its own authors have sent. So the aggregate also takes over the rows of authors of earlier
blocks, and says how many rounds old each is. All of it follows from the block and its parent's aggregate:

    stale/present   uint8[n, 32]   the block's authors, whose rows are those of the stacks
    stale/authors   uint8[m, 32]   others, sorted, each at most `staleness` rounds old
    stale/ages      int64[m]       how old, in rounds, from 1 on
    stale/NAME      [m, ...]       their row of each stack

A member that contributes again is present, and no longer stale. There is at most one entry of each author.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ml.errors import AggregationError
from ml.payload import Array, Arrays, ArraySpec, from_rows, to_rows

STALE = "stale"
ID_BYTES = 32

_Rows = Mapping[str, Array]  # an author's row of each stack, by the stack's name


def carry_stale(authors: Sequence[bytes], stacks: Arrays, parent: Arrays | None, staleness: int) -> dict[str, Array]:
    """Returns the stale entries of a block by these authors, in order. `stacks` are its own, by the names they have in
    an aggregate; `parent` is the parent's aggregate, None if a run begins and nothing is carried on."""
    present = set(authors)
    found: dict[bytes, tuple[int, _Rows]] = {}
    if parent is not None:
        if f"{STALE}/present" not in parent:
            raise AggregationError("expected the stale entries of the aggregate before, got none")
        names = {name: _get_own_name(name) for name in stacks}
        for i, author in enumerate(from_rows(parent[f"{STALE}/present"])):
            found[author] = 1, {name: parent[name][i] for name in names}
        ages = parent[f"{STALE}/ages"].tolist()
        for i, author in enumerate(from_rows(parent[f"{STALE}/authors"])):
            found[author] = ages[i] + 1, {name: parent[own][i] for name, own in names.items()}
    kept = sorted(author for author, (age, _) in found.items() if age <= staleness and author not in present)
    carried = {
        f"{STALE}/present": to_rows(authors),
        f"{STALE}/authors": to_rows(kept),
        f"{STALE}/ages": np.array([found[author][0] for author in kept], np.int64),
    }
    for name, stack in stacks.items():
        rows = [found[author][1][name] for author in kept]
        carried[_get_own_name(name)] = np.array(rows, stack.dtype).reshape(-1, *stack.shape[1:])
    return carried


def list_stale(aggregate: Arrays | None) -> tuple[tuple[bytes, int], ...]:
    """Lists the authors of the stale entries in an aggregate, sorted, each with its age in rounds."""
    if aggregate is None or f"{STALE}/authors" not in aggregate:
        return ()
    ages = aggregate[f"{STALE}/ages"].tolist()
    return tuple(zip(from_rows(aggregate[f"{STALE}/authors"]), ages, strict=True))


def get_stale_rows(aggregate: Arrays, stack: str) -> dict[bytes, Array]:
    """Returns the stale rows of a stack, which has this name in the aggregate, by author."""
    return {author: aggregate[_get_own_name(stack)][i] for i, (author, _) in enumerate(list_stale(aggregate))}


def describe_stale(stacks: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """Returns the arrays of stale entries by their names in an aggregate, for contributions with these rows of the
    stacks."""
    own = {_get_own_name(name): replace(row, shape=("n", *row.shape)) for name, row in stacks.items()}
    ids = {
        f"{STALE}/present": ArraySpec("uint8", ("authors", ID_BYTES)),
        f"{STALE}/authors": ArraySpec("uint8", ("n", ID_BYTES)),
        f"{STALE}/ages": ArraySpec("int64", ("n",)),
    }
    return {**ids, **own}


def _get_own_name(stack: str) -> str:
    return f"{STALE}/{stack.rpartition('/')[2]}"
