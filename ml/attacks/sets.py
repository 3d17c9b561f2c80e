"""Poisoned encrypted sets: an attack on FedEDS, whose members train on the sets of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ml.attacks.base import Attack, Scene
from ml.payload import Array, Arrays, compute_chunk_digests
from ml.specs.hyperparameters import choice


@dataclass(frozen=True, kw_only=True)
class PoisonedSet(Attack):
    """Sends a misleading set, from a member whose models are true. `what` is poisoned: its `labels`, by reversing each
    sample's soft label, so that class y becomes C - 1 - y; or its images, which become `noise` of their own mean and
    deviation."""

    name: ClassVar[str] = "poisoned_set"
    kinds: ClassVar[frozenset[str] | None] = frozenset({"encrypted_set"})

    what: str = choice("labels", "noise")

    def lie(self, scene: Scene) -> Mapping[str, Arrays]:
        if "encrypted_set" not in scene.truly:
            return scene.truly
        truly = scene.truly["encrypted_set"]
        poisoned = {"y": truly["y"][:, ::-1]} if self.what == "labels" else {"x": self._draw(truly["x"], scene)}
        encrypted_set = {name: np.ascontiguousarray(array) for name, array in {**truly, **poisoned}.items()}
        return {"encrypted_set": encrypted_set, "chunk_digests": {"digests": compute_chunk_digests(encrypted_set)}}

    def _draw(self, x: Array, scene: Scene) -> Array:
        drawn = scene.rng.normal(x.mean(dtype=np.float64), x.std(dtype=np.float64), x.shape)
        return (drawn.clip(0, 255) if x.dtype == np.uint8 else drawn).astype(x.dtype)
