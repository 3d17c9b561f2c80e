"""The list of classes: that of genesis decides, by name, whatever a site calls or lacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.data.labels import choose_held_out, number_by_meaning, number_labels
from ml.data.part import Part
from ml.errors import DataError


def number(
    labels: Sequence[Any], classes: Sequence[str] | None = None, names: Sequence[str] | None = None
) -> tuple[list[int], tuple[str, ...]]:
    part = Part.of_array("a", np.zeros((len(labels), 1, 2, 2), np.uint8), np.array(labels))
    [numbered], known = number_labels([part], names, classes)
    return numbered.tolist(), known


def test_names_are_the_same_composed_and_decomposed() -> None:
    composed, decomposed = ("\u00e9t\u00e9", "x"), ("e\u0301te\u0301", "x")
    for classes, labels in ((composed, decomposed), (decomposed, composed)):
        assert number(labels, classes) == ([0, 1], classes)
    part = Part.of_array("a", np.zeros((2, 1, 2, 2), np.uint8), np.array(decomposed))
    [numbered], _ = number_by_meaning([part], None, {"yes": [composed[0]], "no": ["x"]})
    assert numbered.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        ([0, 2, 2], None, ([0, 2, 2], ("0", "1", "2"))),
        ([1, 3, 3], None, ([0, 2, 2], ("1", "2", "3"))),
        ([5, 2], None, ([5, 2], ("0", "1", "2", "3", "4", "5"))),
        (["b", "a", "b"], None, ([1, 0, 1], ("a", "b"))),
        (["10", "9", "1"], None, ([9, 8, 0], tuple(map(str, range(1, 11))))),
        (["01", "1"], None, ([0, 1], ("01", "1"))),
        ([0, 1], ("cat", "dog"), ([0, 1], ("cat", "dog"))),
        (["dog", "dog"], ("cat", "dog"), ([1, 1], ("cat", "dog"))),
    ],
)
def test_a_source_alone_numbers_its_own(labels: Any, names: Any, expected: Any) -> None:
    assert number(labels, None, names) == expected


@pytest.mark.parametrize(
    ("labels", "names", "classes", "expected"),
    [
        ([0, 1], ("cat", "dog"), ("eel", "dog", "cat"), [2, 1]),
        (["dog"], None, ("eel", "dog", "cat"), [1]),
        ([1, 1], ("cat", "dog"), ("dog", "eel"), [0, 0]),  # cat is a class of the source without a sample
        ([3, 7], None, ("7", "3", "1"), [1, 0]),  # numbers are names where genesis has numbers
        (["3", "7"], None, ("7", "3", "1"), [1, 0]),
        ([2, 0], None, ("eel", "dog", "cat"), [2, 0]),  # and indices where it has names
        ([2, 0], None, ("eel", "1", "cat"), [2, 0]),
    ],
)
def test_genesis_renumbers_by_name(labels: Any, names: Any, classes: Any, expected: list[int]) -> None:
    assert number(labels, classes, names) == (expected, classes)


@pytest.mark.parametrize(
    ("labels", "names", "classes", "message"),
    [
        (["cat", "cow"], None, ("cat", "dog"), "a: sample 1: class 'cow' is not one of genesis' classes: cat, dog"),
        (
            ["Cat", "dog"],
            None,
            ("cat", "dog"),
            "a: sample 0: class 'Cat' is not one of genesis' classes: cat, dog; 'cat' differs by case or blanks only",
        ),
        ([0, 5], None, ("0", "1"), "a: sample 1: label 5 is not one of genesis' classes: 0, 1"),
        ([0, 2], None, ("cat", "dog"), "a: sample 1: expected a label from 0 to 1, got 2"),
        ([0, -1], None, None, "a: sample 1: expected a label from 0 to 65535, got -1"),
        ([70000], None, None, "a: sample 0: expected a label from 0 to 65535, got 70000"),
        ([0, 2], ("cat", "dog"), None, "a: sample 1: expected a label from 0 to 1, got 2"),
        (["cow"], ("cat", "dog"), None, "a: sample 0: class 'cow' is not one of the data's own: cat, dog"),
    ],
)
def test_a_label_without_a_class_is_named_with_its_place(labels: Any, names: Any, classes: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        number(labels, classes, names)


def test_splits_are_numbered_alike() -> None:
    parts = [
        Part.of_array(name, np.zeros((2, 1, 2, 2), np.uint8), np.array(labels))
        for name, labels in (("train", ["b", "c"]), ("test", ["a", "c"]))
    ]
    (train, test), classes = number_labels(parts, None, None)
    assert (train.tolist(), test.tolist(), classes) == ([1, 2], [0, 2], ("a", "b", "c"))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200))
def test_a_fifth_of_each_class_is_held_out_and_one_of_two(labels: list[int]) -> None:
    y = np.array(labels, np.int64)
    is_test = choose_held_out(y)
    for label in set(labels):
        count = labels.count(label)
        held = int(is_test[y == label].sum())
        assert held == (0 if count == 1 else max(1, round(count / 5)))
    assert np.array_equal(is_test, choose_held_out(y))


@pytest.mark.parametrize("labels", [[0, 3, 1], ["0", "3", "1"], ["0.0", "3.0", "1.00"]])
def test_a_class_may_have_several_labels_that_mean_it(labels: Any) -> None:
    part = Part.of_array("a", np.zeros((len(labels), 1, 2, 2), np.uint8), np.array(labels))
    meaning = {"yes": ["1", "2", "3", "4"], "no": ["0"]}
    [numbered], names = number_by_meaning([part], None, meaning)
    assert (numbered.tolist(), names) == ([1, 0, 0], ("yes", "no"))
    with pytest.raises(DataError, match=r"a: sample 1: label '3(.0)?' means no class of genesis \(yes: 1; no: 0\)"):
        number_by_meaning([part], None, {"yes": ["1"], "no": ["0"]})


def test_named_classes_of_a_source_may_be_put_together() -> None:
    part = Part.of_array("a", np.zeros((3, 1, 2, 2), np.uint8), np.array([2, 0, 1]))
    [numbered], _ = number_by_meaning([part], ("eel", "cat", "dog"), {"pet": ["cat", "dog"], "fish": ["eel"]})
    assert numbered.tolist() == [0, 1, 0]
