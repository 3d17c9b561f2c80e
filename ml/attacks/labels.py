"""Attacks that replace one class by another: y' = C - 1 - y for C classes. For an odd C the middle class stays. A label
that a sample has is removed, one that it lacks is added, and a target moves as far to the other side of the mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ml.attacks.base import Attack, Scene
from ml.attacks.vectors import PROTOTYPES
from ml.payload import Array, Arrays


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Trains as it should, on samples whose labels are y': nothing that it sends differs from the others' in form.

    Fang, Cao, Jia, Gong, *Local Model Poisoning Attacks to Byzantine-Robust Federated Learning*, 2020, compares with
    this: a label l becomes L - l - 1. FedEDS's set is then made by a model that has learned so, and has its labels.
    """

    name: ClassVar[str] = "label_flip"

    def lie(self, scene: Scene) -> Mapping[str, Arrays]:
        return scene.truly

    def change_labels(self, labels_N: Array, num_classes: int) -> Array:
        return flip(labels_N, num_classes)


@dataclass(frozen=True, kw_only=True)
class MislabelledPrototypes(Attack):
    """Sends true prototypes under the names of other classes: those of y as those of y'."""

    name: ClassVar[str] = "mislabelled_prototypes"
    kinds: ClassVar[frozenset[str] | None] = PROTOTYPES

    def lie(self, scene: Scene) -> Mapping[str, Arrays]:
        truly = scene.truly["prototypes"]
        classes = flip(truly["classes"], scene.spec.task.num_classes)
        order = np.argsort(classes, kind="stable")  # validators require this order
        return {
            **scene.truly,
            "prototypes": {**{n: array[order] for n, array in truly.items()}, "classes": classes[order]},
        }


def flip(labels: Array, num_classes: int) -> Array:
    """Returns y', the false labels."""
    if labels.ndim == 2:
        is_binary = bool(((labels == 0) | (labels == 1)).all())
        return 1 - labels if is_binary else -labels
    return num_classes - 1 - labels
