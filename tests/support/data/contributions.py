"""Contributions of made-up authors, and the digest of every rule's aggregate of them.

Run as a script it prints those digests as JSON, so that a test can ask another process, with another numpy set-up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ml.aggregation import MAX_WEIGHT, RULES, Contributed, RuleSettings
from ml.aggregation.fixed_point import compute_fraction_bits
from ml.aggregation.nova import NOVA_NUMBERS, compute_norm
from ml.data.statistics import compute_statistics
from ml.payload import Array, Arrays, encode_arrays
from ml.seeding import numpy_rng
from ml.specs.statistics import Agreement

NEAR = 1000.0  # no number of near models or near rows is larger
SETTINGS = RuleSettings(
    max_liars=2, weight_cap=4, momentum=0.9, fraction_bits=compute_fraction_bits(7, MAX_WEIGHT, NEAR)
)


def author(index: int) -> bytes:
    """Returns a member key; keys are in order of `index`."""
    return bytes([index]) * 32


def prototypes(rows: Mapping[int, Sequence[float]], counts: Mapping[int, int] | None = None) -> dict[str, Array]:
    """Makes a prototypes payload by hand: class id -> prototype."""
    classes = sorted(rows)
    arrays: dict[str, Array] = {
        "classes": np.array(classes, np.int64),
        "prototypes": np.array([rows[c] for c in classes], np.float32),
    }
    if counts is not None:
        arrays["counts"] = np.array([counts[c] for c in classes], np.int64)
    return arrays


def make_contributions(num_authors: int = 7, num_classes: int = 5, dim: int = 33) -> list[Contributed]:
    """Makes payloads that fit every rule: all scales float32 has, subnormals and both zeros among them."""
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
    """Makes whole models, longer than one block of the aggregation."""
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


def make_nova_models(num_authors: int = 5, momentum: float = 0.9) -> list[Contributed]:
    """Makes such models with the numbers that FedNova sends with them, different numbers of steps, and a batch norm's
    buffers."""
    made = []
    for index, given in enumerate(make_models(num_authors)):
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


def make_near_models(num_authors: int = 7) -> tuple[list[Contributed], Arrays]:
    """Makes models that have moved a little from the parent's, the last one too far to be measured; returns them and
    the parent's."""
    parent = make_models(1)[0].arrays
    parent = {name: np.clip(array, -1, 1) for name, array in parent.items()}
    made = []
    for given in make_nova_models(num_authors):
        rng = numpy_rng("near", given.author[0])
        way = 0.01 if given.author[0] < num_authors - 1 else 40.0
        moved = {name: array + way * rng.standard_normal(array.shape) for name, array in parent.items()}
        arrays = {**given.arrays, **{name: array.astype(np.float32) for name, array in moved.items()}}
        made.append(Contributed(given.author, given.weight, arrays))
    return made, {**parent, "encoder.weight": np.ones(3, np.float32)}


def make_near_rows() -> list[Contributed]:
    """Makes prototypes as `make_contributions` does, none of them far from another, except the last author's."""
    made = []
    for given in make_contributions():
        rng = numpy_rng("near rows", given.author[0])
        rows = rng.standard_normal(given.arrays["prototypes"].shape) * (0.1 if given.author[0] < 6 else 40.0)
        made.append(Contributed(given.author, 1, {**given.arrays, "prototypes": rows.astype(np.float32)}))
    return made


def make_statistics(num_authors: int = 7) -> list[Contributed]:
    """Makes statistics of sites of different sizes over samples with three features of different scales; the last site
    has none."""
    made = []
    for index in range(num_authors):
        rng = numpy_rng("statistics of sites", index)
        size = 3 if index == num_authors - 1 else int(rng.integers(5, 400))
        x_NCHW = (rng.standard_normal((size, 3, 1, 1)) * [[[1e-6]], [[1]], [[1e6]]]).astype(np.float32)
        told = compute_statistics(x_NCHW, rng.integers(0, 4, size), 4, Agreement(class_counts=True))
        made.append(Contributed(author(index), 1, told))
    return made


def make_given(rule: str) -> tuple[list[Contributed], Arrays, RuleSettings]:
    """Returns contributions that suit a rule, a parent's aggregate, and settings."""
    if rule in ("sum", "trimmed_sum"):
        return make_statistics(), {}, SETTINGS
    if rule == "nova":
        return *make_near_models(), SETTINGS
    if rule in ("clipped_mean", "multi_krum", "fixed_mean"):
        models, parent = make_near_models()
        return [drop_numbers(c) for c in models], parent, SETTINGS
    if rule in ("class_clipped_mean", "class_multi_krum", "class_fixed_mean", "trimmed_pool"):
        given = make_near_rows()
    else:
        given = make_models() if f"class_{rule}" in RULES or rule == "uniform_mean" else make_contributions()
    return given, {"model/fc1.bias": np.arange(4, dtype=np.float32)}, SETTINGS


def drop_numbers(contribution: Contributed) -> Contributed:
    """Returns a model without the numbers that FedNova sends with it."""
    arrays = {name: a for name, a in contribution.arrays.items() if name not in NOVA_NUMBERS}
    return Contributed(contribution.author, contribution.weight, arrays)


def compute_digests() -> dict[str, str]:
    """Computes the SHA-256 of each rule's encoded aggregate."""
    return {name: hashlib.sha256(encode_arrays(rule(*make_given(name)))).hexdigest() for name, rule in RULES.items()}


def to_json(contributions: Sequence[Contributed]) -> list[dict[str, Any]]:
    """Returns contributions as golden vectors have them: keys and payloads as hex."""
    return [
        {"author": c.author.hex(), "weight": c.weight, "payload": encode_arrays(c.arrays).hex()} for c in contributions
    ]


if __name__ == "__main__":
    print(json.dumps(compute_digests()))
