"""The prototypes of a round side by side: the distances between those of two classes that members agreed on, and from
these to each member's own. Numpy, never torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chain.block import Block, Id
from chain.signing import encode_id
from chain.state import State
from chain.store.sqlite import SqliteStore
from ml import specs
from ml.payload import Arrays, decode_arrays, kind_code
from ml.specs.masked.aggregate import MASKED
from node.errors import InvalidRequest, NotFound
from node.ledger.names import get_name

KIND = "prototypes"
MAX_CLASSES = 256  # of a run: the number of distances grows with the square of the number of classes

_Means = dict[int, Any]  # by class: float64[D]


@dataclass(frozen=True, slots=True)
class HeldPrototypes:
    """A block, the state that judged it, and the held bytes of its prototypes: the `aggregate`, and members' own
    `payloads` by author."""

    state: State
    block: Block
    aggregate: bytes | None
    payloads: Mapping[Id, bytes]


def read_prototypes(store: SqliteStore, height: int) -> HeldPrototypes:
    """Reads the prototypes of a height, and decodes nothing, as votes wait for the store's thread on which it runs.
    Raises NotFound, and InvalidRequest for a run of too many classes."""
    stored = store.get_block(height)
    if stored is None:
        raise NotFound(f"block {height}: the chain ends at height {store.head_height}")
    block, state = stored.block, store.get_state(max(0, height - 1))
    if len(state.run.classes) > MAX_CLASSES:
        raise InvalidRequest(
            f"prototypes: expected a run of at most {MAX_CLASSES} classes, got {len(state.run.classes)}"
        )
    refs = {one.author: ref for one in block.contributions for ref in one.payloads if ref.kind == kind_code(KIND)}
    digest = block.header.aggregate
    aggregate = store.get_blob(digest) if refs and store.has_blob(digest) else None
    payloads = {author: store.get_blob(ref.digest) for author, ref in refs.items() if store.has_blob(ref.digest)}
    return HeldPrototypes(state, block, aggregate, payloads)


def show_prototypes(held: HeldPrototypes) -> dict[str, Any]:
    """Returns an object for JSON: the `classes` that the round has prototypes of, the `distances` between these, and
    for each of `members` the distances from its own to them, None for a class that it did not send or whose payload is
    not held. `held` is False where the aggregate is not held, or the round has no prototypes."""
    means = {} if held.aggregate is None else _find_agreed(_decode(held.aggregate))
    if not means:
        return {"held": False, "classes": [], "distances": [], "members": []}
    found = sorted(means)
    members = []
    for contribution in held.block.contributions:
        key = contribution.author
        payload = held.payloads.get(key)
        own: _Means = {} if payload is None else compute_means(_decode(payload))
        far = [float(np.linalg.norm(own[label] - means[label])) if label in own else None for label in found]
        members.append({"id": encode_id(key), "name": get_name(held.state, key), "distances": far})
    rows, classes = np.stack([means[label] for label in found]), held.state.run.classes
    between = [np.linalg.norm(rows - row, axis=1).tolist() for row in rows]
    return {"held": True, "classes": [classes[label] for label in found], "distances": between, "members": members}


def compute_means(arrays: Mapping[str, Any]) -> _Means:
    """Returns the mean of the prototypes of each class that has some."""
    labels, rows = np.asarray(arrays["classes"]), np.asarray(arrays["prototypes"], np.float64)
    return {int(label): rows[labels == label].mean(axis=0) for label in np.unique(labels)}


def _find_agreed(aggregate: Arrays) -> _Means:
    """Returns the mean prototypes that a block's own contributions were combined to, none where they had none. With
    masked sums the aggregate holds them under `masked` until the seeds are opened, beside the result of the round
    before."""
    is_masked = any(name.startswith(f"{MASKED}/") for name in aggregate)
    agreed = specs.get_kind(aggregate, f"{MASKED}/{KIND}" if is_masked else KIND)
    return {} if agreed is None else compute_means(agreed)


def _decode(data: bytes) -> Arrays:
    return decode_arrays(data, len(data))
