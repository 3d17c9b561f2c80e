"""Prototypes of a round side by side: distances that can be told by hand, and what is not held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chain.signing import SigningKey
from chain.store.sqlite import SqliteStore
from ml.payload import Array, encode_arrays
from node.errors import InvalidRequest, NotFound
from node.ledger.prototypes import MAX_CLASSES, HeldPrototypes, compute_means, read_prototypes, show_prototypes
from support.data.synthetic import extend_chain, make_genesis, make_prototype_genesis

NOTHING = {"held": False, "classes": [], "distances": [], "members": []}


def test_a_class_of_several_prototypes_stands_by_their_mean() -> None:
    prototypes = np.array([[0, 2], [5, 5], [4, 2]], np.float32)
    means = compute_means({"classes": np.array([3, 7, 3]), "prototypes": prototypes})
    assert {label: mean.tolist() for label, mean in means.items()} == {3: [2, 2], 7: [5, 5]}


def test_distances_are_between_classes_and_of_each_member(tmp_path: Path) -> None:
    genesis, keys = make_prototype_genesis(3, seed=1, difficulty=4)
    with SqliteStore.open(tmp_path / "store", genesis) as store:
        extend_chain(store, genesis, keys, 2)
        block = store.get_block(2)
        assert block is not None
        shown = show_prototypes(read_prototypes(store, 2))
        assert shown["held"] is True
        assert shown["classes"] == [str(digit) for digit in range(10)]
        distances = np.array(shown["distances"])
        assert distances.shape == (10, 10)
        assert np.allclose(distances, distances.T)
        assert np.all(np.diag(distances) == 0)
        assert np.all(distances[~np.eye(10, dtype=bool)] > 1)
        assert [member["name"] for member in shown["members"]] == ["node0", "node1", "node2"]
        assert all(distance > 1 for member in shown["members"] for distance in member["distances"])
        store.delete_blob(block.block.contributions[0].payloads[0].digest)
        less = show_prototypes(read_prototypes(store, 2))
        assert less["members"][0]["distances"] == [None] * 10
        assert less["members"][1:] == shown["members"][1:]


def test_what_is_not_held_or_never_was_says_so(tmp_path: Path) -> None:
    genesis, _ = make_prototype_genesis(1, seed=1, difficulty=4)
    with SqliteStore.open(tmp_path / "store", genesis) as store:
        shown = show_prototypes(read_prototypes(store, 0))
        assert shown == NOTHING
        with pytest.raises(NotFound, match="block 1: the chain ends at height 0"):
            read_prototypes(store, 1)


def make_pool(prefix: str, *rows: tuple[int, float]) -> dict[str, Array]:
    """Of (class, number): each number stands for a prototype of this number and a zero."""
    return {
        f"{prefix}/authors": np.zeros(len(rows), np.int64),
        f"{prefix}/classes": np.array([label for label, _ in rows], np.int64),
        f"{prefix}/prototypes": np.array([[number, 0] for _, number in rows], np.float32).reshape(-1, 2),
    }


def hold(tmp_path: Path, aggregate: Mapping[str, Array]) -> HeldPrototypes:
    """A block of one member, which has sent (3, 4) for class 0, and this aggregate."""
    genesis, keys = make_prototype_genesis(1, seed=1, difficulty=4)
    with SqliteStore.open(tmp_path / "store", genesis) as store:
        extend_chain(store, genesis, keys, 1)
        held = read_prototypes(store, 1)
    own = {"classes": np.array([0]), "prototypes": np.array([[3, 4]], np.float32)}
    payloads = dict.fromkeys(held.payloads, encode_arrays(own))
    return replace(held, aggregate=encode_arrays(aggregate), payloads=payloads)


def test_where_nobody_sent_any_there_is_nothing_to_compare(tmp_path: Path) -> None:
    assert show_prototypes(hold(tmp_path, make_pool("prototypes"))) == NOTHING


def test_masked_inputs_are_compared_with_their_own_pool_and_not_with_that_of_the_round_before(tmp_path: Path) -> None:
    spoiled = {"masked/spoiled": np.array(0, np.int64)}
    before = make_pool("prototypes", (0, 100), (1, 200))
    waiting = make_pool("masked/prototypes", (0, 0), (2, 7))
    shown = show_prototypes(hold(tmp_path, before | spoiled | waiting))
    assert (shown["held"], shown["classes"], shown["distances"]) == (True, ["0", "2"], [[0, 7], [7, 0]])
    assert [member["distances"] for member in shown["members"]] == [[5, None]]


@pytest.mark.parametrize("rows", [(), ((0, 1.0),)], ids=["first inputs", "too few inputs"])
def test_masked_inputs_without_a_pool_of_their_own_are_not_compared(
    tmp_path: Path, rows: tuple[tuple[int, float], ...]
) -> None:
    aggregate = make_pool("prototypes", *rows) | {"masked/spoiled": np.array(0, np.int64)}
    assert show_prototypes(hold(tmp_path, aggregate)) == NOTHING


@pytest.mark.parametrize("count", [MAX_CLASSES, MAX_CLASSES + 1])
def test_of_too_many_classes_nothing_is_read(tmp_path: Path, count: int) -> None:
    keys = [SigningKey.from_private_bytes(bytes([1]) * 32)]
    classes = [str(number) for number in range(count)]
    genesis = make_genesis(keys, difficulty=4, target_ms=50, method={"name": "dfpl"}, classes=classes)
    with SqliteStore.open(tmp_path / "store", genesis) as store:
        extend_chain(store, genesis, keys, 1)
        if count == MAX_CLASSES:
            assert np.array(show_prototypes(read_prototypes(store, 1))["distances"]).shape == (count, count)
        else:
            with pytest.raises(InvalidRequest, match="expected a run of at most 256 classes, got 257"):
                read_prototypes(store, 1)
