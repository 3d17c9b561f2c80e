"""Contributions of made-up authors, and the digest of every rule's aggregate of them.

Run as a script it prints those digests as JSON, so that a test can ask another process, with another numpy set-up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ml.aggregation import RULES, Contributed
from ml.payload import Array, Arrays, encode_arrays
from ml.seeding import numpy_rng
from ml.specs.fednova import compute_norm


def author(index: int) -> bytes:
    """A member key, in order of `index`."""
    return bytes([index]) * 32


def prototypes(rows: Mapping[int, Sequence[float]], counts: Mapping[int, int] | None = None) -> dict[str, Array]:
    """A prototypes payload by hand: class id -> prototype."""
    classes = sorted(rows)
    arrays: dict[str, Array] = {
        "classes": np.array(classes, np.int64),
        "prototypes": np.array([rows[c] for c in classes], np.float32),
    }
    if counts is not None:
        arrays["counts"] = np.array([counts[c] for c in classes], np.int64)
    return arrays


def make_contributions(num_authors: int = 7, num_classes: int = 5, dim: int = 33) -> list[Contributed]:
    """Payloads that fit every rule: all scales float32 has, subnormals and both zeros among them."""
    made = []
    for index in range(num_authors):
        rng = numpy_rng("contributions", index)
        classes = np.sort(rng.choice(num_classes, size=3, replace=False)).astype(np.int64)
        values = rng.standard_normal((3, dim)) * 10.0 ** rng.integers(-44, 38, (3, dim))
        values[rng.random((3, dim)) < 0.1] = -0.0
        arrays: dict[str, Array] = {
            "classes": classes,
            "prototypes": values.astype(np.float32),
            "counts": rng.integers(1, 1 << 29, 3).astype(np.int64),
        }
        made.append(Contributed(author(index), int(rng.integers(1, 1 << 29)), arrays))
    return made


def make_models(num_authors: int = 5, num_elements: int = 70_000) -> list[Contributed]:
    """Whole models, longer than one block of the aggregation."""
    made = []
    for index in range(num_authors):
        rng = numpy_rng("models", index)
        values = rng.standard_normal(num_elements) * 10.0 ** rng.integers(-44, 37, num_elements)
        arrays: dict[str, Array] = {
            "fc1.weight": values.astype(np.float32).reshape(-1, 10),
            "fc1.bias": values[:7].astype(np.float32),
        }
        made.append(Contributed(author(index), int(rng.integers(1, 1 << 29)), arrays))
    return made


def make_nova_models(momentum: float = 0.9) -> list[Contributed]:
    """Such models with the numbers that FedNova sends with them, of unlike steps, and a batch norm's buffers."""
    made = []
    for index, given in enumerate(make_models()):
        steps, rng = 1 + 7 * index, numpy_rng("statistics", index)
        arrays = {
            **given.arrays,
            "bn1.running_mean": rng.standard_normal(9).astype(np.float32),
            "bn1.running_var": rng.random(9).astype(np.float32),
            "local_steps": np.array([steps], np.int64),
            "norm": np.array([compute_norm(steps, momentum)]),
        }
        made.append(Contributed(given.author, given.weight, arrays))
    return made


def make_given(rule: str) -> tuple[list[Contributed], Arrays]:
    """Contributions that suit a rule, and a parent's aggregate."""
    if rule == "nova":
        return make_nova_models(), {**make_models(6)[5].arrays, "encoder.weight": np.ones(3, np.float32)}
    given = make_models() if rule in ("weighted_mean", "uniform_mean") else make_contributions()
    return given, {"model/fc1.bias": np.arange(4, dtype=np.float32)}


def compute_digests() -> dict[str, str]:
    """The SHA-256 of each rule's encoded aggregate."""
    return {name: hashlib.sha256(encode_arrays(rule(*make_given(name)))).hexdigest() for name, rule in RULES.items()}


def to_json(contributions: Sequence[Contributed]) -> list[dict[str, Any]]:
    """Contributions as golden vectors have them: keys and payloads as hex."""
    return [
        {"author": c.author.hex(), "weight": c.weight, "payload": encode_arrays(c.arrays).hex()} for c in contributions
    ]


if __name__ == "__main__":
    print(json.dumps(compute_digests()))
