"""The prototypes of a round side by side: how far those of two classes are from each other, as members agreed on them,
and how far each member's own were from these. Numpy, never torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chain.block import Block
from chain.signing import encode_id
from chain.state import State
from chain.store.sqlite import SqliteStore
from ml import specs
from ml.payload import Arrays, decode_arrays, kind_code
from node.ledger.names import get_name

KIND = "prototypes"

_Means = dict[int, Any]  # by class: float64[D]


def show_prototypes(store: SqliteStore, state: State, block: Block, classes: Sequence[str]) -> dict[str, Any]:
    """JSON-able: `classes` as far as the round has any of theirs, `distances` between them, and for each `member` its
    distances to them, None where it sent nothing of a class or what it sent is not held. `held` is False where what
    members agreed on is not held, or the round has no prototypes. On the store's thread."""
    digest = block.header.aggregate
    aggregate = store.get_blob(digest) if store.has_blob(digest) else None
    agreed = None if aggregate is None else specs.get_kind(decode_arrays(aggregate, len(aggregate)), KIND)
    if not agreed:
        return {"held": False, "classes": [], "distances": [], "members": []}
    means = compute_means(agreed)
    found = sorted(means)
    members = []
    for contribution in block.contributions:
        refs = [ref for ref in contribution.payloads if ref.kind == kind_code(KIND) and store.has_blob(ref.digest)]
        own: _Means = compute_means(_read(store, refs[0].digest)) if refs else {}
        far = [_measure(own[label], means[label]) if label in own else None for label in found]
        key = contribution.author
        members.append({"id": encode_id(key), "name": get_name(state, key), "distances": far})
    between = [[_measure(means[one], means[other]) for other in found] for one in found]
    return {"held": True, "classes": [classes[label] for label in found], "distances": between, "members": members}


def compute_means(arrays: Mapping[str, Any]) -> _Means:
    """One for each class that has prototypes: their mean, where it has several."""
    labels, rows = np.asarray(arrays["classes"]), np.asarray(arrays["prototypes"], np.float64)
    return {int(label): rows[labels == label].mean(axis=0) for label in np.unique(labels)}


def _read(store: SqliteStore, digest: bytes) -> Arrays:
    data = store.get_blob(digest)
    return decode_arrays(data, len(data))


def _measure(one: Any, other: Any) -> float:
    return float(np.linalg.norm(one - other))
