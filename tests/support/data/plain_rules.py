"""The rules of aggregation once more, one number at a time, with Python's own floats and integers and without numpy.

They are written from PROTOCOL §2, to be compared with `ml.aggregation` bit for bit. `tests/vectors/aggregate.json` is
made with them: a change of it is a fork of every chain there is. When one is meant, rewrite the file with
`PYTHONPATH=.:tests python tests/support/data/plain_rules.py` and say why in the commit.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ml.aggregation import Contributed, RuleSettings
from ml.payload import Array, Arrays, decode_arrays, encode_arrays

PATH = Path(__file__).parents[2] / "vectors" / "aggregate.json"
LARGEST = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

Numbers = list[float]


def round_to_float32(x: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", x))[0]
    return rounded


# ---- one element of all authors


def mean(values: Sequence[float], weights: Sequence[int], divisor: int | None = None) -> float:
    acc = 0.0
    for x, w in zip(values, weights, strict=True):
        acc += x * w
    return round_to_float32(acc / (sum(weights) if divisor is None else divisor))


def fixed(values: Sequence[float], weights: Sequence[int], bits: int | None) -> float:
    scale = Fraction(2) ** (bits or 0)
    total = sum(round(Fraction(x) * w * scale) for x, w in zip(values, weights, strict=True))  # halves to even
    return round_to_float32(float(total) / float(sum(weights) * scale))


def trimmed(values: Sequence[float], trim: int) -> float:
    kept = sorted(x + 0.0 for x in values)[trim : len(values) - trim]
    return mean(kept, [1] * len(kept))


def median(values: Sequence[float]) -> float:
    ordered = sorted(x + 0.0 for x in values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return round_to_float32(low if len(ordered) % 2 else (low + high) / 2)


def lower_median(values: Sequence[Any]) -> Any:
    return sorted(values)[(len(values) - 1) // 2]


def cap(weights: Sequence[int], most: int | None) -> list[int]:
    return list(weights) if most is None else [min(w, most * lower_median(weights)) for w in weights]


# ---- whole vectors, a list of numbers for each author


def compute_steps(vector: Numbers, origin: Numbers) -> list[int] | None:
    """Computes d_i; None for a vector that is too far."""
    steps = [round((x - p) * 2**20) for x, p in zip(vector, origin, strict=True)]
    return None if any(abs(d) > 2**25 - 1 for d in steps) else steps


def square(one: Sequence[int], other: Sequence[int] | None = None) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other or [0] * len(one), strict=True))


def weigh_by_length(vectors: Sequence[Numbers], origin: Numbers, settings: RuleSettings) -> list[int] | None:
    steps = [compute_steps(vector, origin) for vector in vectors]
    lengths = [math.inf if d is None else square(d) for d in steps]
    longest = lower_median(lengths)
    if longest == math.inf:
        return None
    if settings.clip is not None:
        longest = math.floor((Fraction(settings.clip) * 2**20) ** 2)
    weights = []
    for length in lengths:
        if length <= longest:
            weights.append(2**16)
        else:
            weights.append(0 if length == math.inf else math.isqrt((longest << 32) // int(length)))
    return [*weights, sum(2**16 - k for k in weights)]


def weigh_by_score(vectors: Sequence[Numbers], origin: Numbers, settings: RuleSettings) -> list[int] | None:
    m, f = len(vectors), settings.max_liars
    steps = [compute_steps(vector, origin) for vector in vectors]
    if m < 3 or steps.count(None) > f or steps.count(None) == m:
        return None
    scores: list[tuple[float, int]] = []
    for i, mine in enumerate(steps):
        if mine is not None:
            others = [math.inf if theirs is None else square(mine, theirs) for j, theirs in enumerate(steps) if j != i]
            scores.append((sum(sorted(others)[: max(1, m - f - 2)]), i))
    chosen = {i for _, i in sorted(scores)[: max(1, m - f)]}
    return [1 if i in chosen else 0 for i in range(m + 1)]


Weigh = Callable[[Sequence[Numbers], Numbers, RuleSettings], "list[int] | None"]
WEIGHS: dict[str, Weigh] = {"clipped_mean": weigh_by_length, "multi_krum": weigh_by_score}


def mix(values: Sequence[float], weights: Sequence[int] | None) -> float:
    """Mixes one element of all authors and of the point; `weights` of None take the authors' median."""
    if weights is None:
        return median(values[:-1])
    pairs = [(x, w) for x, w in zip(values, weights, strict=True) if w]
    return mean([x for x, _ in pairs], [w for _, w in pairs])


# ---- rules


def compute(rule: str, given: Sequence[Contributed], parent: Arrays | None, settings: RuleSettings) -> dict[str, Array]:
    """Computes the aggregate that `RULES[rule]` has to return."""
    ordered = sorted(given, key=lambda c: c.author)
    if rule.startswith("class_"):
        return _compute_by_class(rule.removeprefix("class_"), ordered, settings)
    if rule in ("pool", "trimmed_pool"):
        return _compute_pool(ordered, settings.max_liars if rule == "trimmed_pool" else 0)
    if rule == "nova":
        return _compute_nova(ordered, parent or {}, settings)
    if rule in ("sum", "trimmed_sum"):
        return _compute_sum(ordered, settings, settings.max_liars if rule == "trimmed_sum" else 0)
    return _compute_whole(rule, ordered, parent or {}, settings)


def _compute_whole(
    rule: str, ordered: Sequence[Contributed], parent: Arrays, settings: RuleSettings
) -> dict[str, Array]:
    m, names = len(ordered), sorted(ordered[0].arrays)
    measured = [name for name in names if name in parent and not name.endswith((".running_mean", ".running_var"))]
    weights: list[int] | None = None
    if rule in WEIGHS:
        vectors = [[x for name in measured for x in flatten(c.arrays[name])] for c in ordered]
        weights = WEIGHS[rule](vectors, [x for name in measured for x in flatten(parent[name])], settings)
    elif rule in ("weighted_mean", "uniform_mean"):
        weights = [1] * m if rule == "uniform_mean" else cap([c.weight for c in ordered], settings.weight_cap)
    out = {}
    for name in names:
        columns = list(zip(*(flatten(c.arrays[name]) for c in ordered), strict=True))
        if rule == "trimmed_mean":
            numbers = [trimmed(values, min(settings.max_liars, (m - 1) // 2)) for values in columns]
        elif rule == "fixed_mean":
            numbers = [fixed(values, [c.weight for c in ordered], settings.fraction_bits) for values in columns]
        elif rule == "median" or (rule in WEIGHS and name not in measured):
            numbers = [median(values) for values in columns]
        elif rule in WEIGHS:
            points = flatten(parent[name])
            numbers = [mix([*values, p], weights) for values, p in zip(columns, points, strict=True)]
        else:
            numbers = [mean(values, weights or []) for values in columns]
        out[name] = to_array(numbers, ordered[0].arrays[name].shape)
    return out


def _compute_by_class(rule: str, ordered: Sequence[Contributed], settings: RuleSettings) -> dict[str, Array]:
    held = sorted({c for given in ordered for c in given.arrays["classes"].tolist()})
    rows = []
    for class_id in held:
        vectors, counts = [], []
        for given in ordered:
            classes = given.arrays["classes"].tolist()
            if class_id in classes:
                vectors.append(flatten(given.arrays["prototypes"][classes.index(class_id)]))
                if "counts" in given.arrays:
                    counts.append(int(given.arrays["counts"][classes.index(class_id)]))
        m, columns = len(vectors), list(zip(*vectors, strict=True))
        match rule:
            case "mean":
                rows.append([mean(values, [1] * m) for values in columns])
            case "divide_by_k":
                rows.append([mean(values, [1] * m, len(ordered)) for values in columns])
            case "weighted_mean":
                rows.append([mean(values, cap(counts, settings.weight_cap)) for values in columns])
            case "fixed_mean":
                rows.append([fixed(values, counts or [1] * m, settings.fraction_bits) for values in columns])
            case "median":
                rows.append([median(values) for values in columns])
            case "trimmed_mean":
                rows.append([trimmed(values, min(settings.max_liars, (m - 1) // 2)) for values in columns])
            case _:
                origin = [lower_median([x + 0.0 for x in values]) for values in columns]
                weights = WEIGHS[rule](vectors, origin, settings)
                rows.append([mix([*values, p], weights) for values, p in zip(columns, origin, strict=True)])
    return {"classes": np.array(held, np.int64), "prototypes": np.array(rows, np.float32)}


def _compute_pool(ordered: Sequence[Contributed], max_liars: int) -> dict[str, Array]:
    by_class: dict[int, dict[int, list[Numbers]]] = {}
    for i, given in enumerate(ordered):
        for class_id, row in zip(given.arrays["classes"].tolist(), given.arrays["prototypes"], strict=True):
            by_class.setdefault(class_id, {}).setdefault(i, []).append(flatten(row))
    classes, authors, rows = [], [], []
    for class_id, holders in sorted(by_class.items()):
        means = {i: [mean(values, [1] * len(own)) for values in zip(*own, strict=True)] for i, own in holders.items()}
        center = [median(values) for values in zip(*means.values(), strict=True)]
        steps = {i: compute_steps(row, center) for i, row in means.items()}
        nearest = sorted((math.inf if d is None else square(d), i) for i, d in steps.items())
        num_left_out = max(0, min(max_liars, len(holders) - 2))
        for i in sorted(i for _, i in nearest[: len(nearest) - num_left_out]):
            classes += [class_id] * len(holders[i])
            authors += [i] * len(holders[i])
            rows += holders[i]
    return {
        "classes": np.array(classes, np.int64),
        "prototypes": np.array(rows, np.float32),
        "authors": np.array(authors, np.int64),
    }


def _compute_nova(ordered: Sequence[Contributed], parent: Arrays, settings: RuleSettings) -> dict[str, Array]:
    weights = cap([c.weight for c in ordered], settings.weight_cap)
    norms = []
    for steps in cap([int(c.arrays["local_steps"][0]) for c in ordered], settings.weight_cap):
        c = total = 0.0
        for _ in range(steps):
            c = settings.momentum * c + 1.0
            total += c
        norms.append(total)
    tau_eff = 0.0
    for w, a in zip(weights, norms, strict=True):
        tau_eff += w * a
    tau_eff /= sum(weights)
    names = sorted(set(ordered[0].arrays) - {"local_steps", "norm"})
    measured = [name for name in names if not name.endswith((".running_mean", ".running_var"))]
    origin = [p for name in measured for p in flatten(parent[name])]
    steps_of = [compute_steps([x for name in measured for x in flatten(c.arrays[name])], origin) for c in ordered]
    is_spoiled = lower_median([d is None for d in steps_of])
    out = {}
    for name in names:
        columns = list(zip(*(flatten(c.arrays[name]) for c in ordered), strict=True))
        if is_spoiled or name not in measured:
            numbers = [mean(values, weights) for values in columns]
        else:
            numbers = []
            for p, values in zip(flatten(parent[name]), columns, strict=True):
                acc = 0.0
                for x, w, a in zip(values, weights, norms, strict=True):
                    acc += (p - x) * w / a
                numbers.append(round_to_float32(max(-LARGEST, min(LARGEST, p - acc * tau_eff / sum(weights)))))
        out[name] = to_array(numbers, ordered[0].arrays[name].shape)
    return out


def read_digits(array: Array) -> list[int]:
    return [sum(digit * 2 ** (40 * i) for i, digit in enumerate(row)) for row in array.tolist()]


def write_digits(totals: Sequence[int], num: int) -> Array:
    rows = []
    for total in totals:
        row, rest = [], abs(total)
        for _ in range(num):
            row.append(rest % 2**40 if total >= 0 else -(rest % 2**40))
            rest //= 2**40
        rows.append(row)
    return np.array(rows, np.int64)


def _compute_sum(ordered: Sequence[Contributed], settings: RuleSettings, trim: int) -> dict[str, Array]:
    told = [c.arrays for c in ordered if int(c.arrays["count"])]
    counts = [int(arrays["count"]) for arrays in told]
    capped = cap(counts, settings.weight_cap)

    def shrink(values: Sequence[int], i: int) -> list[int]:
        shares = [Fraction(value * capped[i], counts[i]) for value in values]
        return [math.floor(share) if share >= 0 else math.ceil(share) for share in shares]

    sums = [shrink(read_digits(arrays["sums"]), i) for i, arrays in enumerate(told)]
    squares = [shrink(read_digits(arrays["squares"]), i) for i, arrays in enumerate(told)]
    classes = [shrink(arrays["classes"].tolist(), i) for i, arrays in enumerate(told) if "classes" in arrays]
    present = [
        shrink(arrays["present"].tolist(), i) if "present" in arrays else [capped[i]] * len(sums[i])
        for i, arrays in enumerate(told)
    ]
    out_counts, out_sums, out_squares = [], [], []
    for channel in range(len(sums[0])):
        there = [i for i in range(len(told)) if present[i][channel]]
        away = min(trim, max(0, len(there) - 1) // 2)
        by_size = sorted(there, key=lambda i: (Fraction(squares[i][channel], present[i][channel]), i))
        kept = by_size[away : len(there) - away]
        out_counts.append(sum(present[i][channel] for i in kept))
        out_sums.append(sum(sums[i][channel] for i in kept))
        out_squares.append(sum(squares[i][channel] for i in kept))
    per_class = (
        {"classes": np.array([sum(column) for column in zip(*classes, strict=True)], np.int64)} if classes else {}
    )
    return {
        "sites": np.array(len(told), np.int64),
        "samples": np.array(sum(counts), np.int64),
        "counts": np.array(out_counts, np.int64),
        "sums": write_digits(out_sums, 5),
        "squares": write_digits(out_squares, 7),
        **per_class,
    }


def flatten(array: Array) -> Numbers:
    numbers: Numbers = array.reshape(-1).tolist()
    return numbers


def to_array(numbers: Numbers, shape: tuple[int, ...]) -> Array:
    return np.array(numbers, np.float32).reshape(shape)


# ---- golden vectors


def decode_hex(text: str) -> dict[str, Array]:
    data = bytes.fromhex(text)
    return decode_arrays(data, len(data))


def load_vectors() -> dict[str, Any]:
    vectors: dict[str, Any] = json.loads(PATH.read_text())
    return vectors


def read_vector(vector: Mapping[str, Any]) -> tuple[list[Contributed], Arrays | None, RuleSettings]:
    """Reads the input of the vector's rule."""
    inputs = load_vectors()["inputs"][vector["input"]]
    given = [Contributed(bytes.fromhex(c["author"]), c["weight"], decode_hex(c["payload"])) for c in inputs]
    parent = decode_hex(vector["parent"]) if "parent" in vector else None
    return given, parent, RuleSettings(**vector.get("settings", {}))


def main() -> None:
    vectors = load_vectors()
    for vector in vectors["vectors"]:
        data = encode_arrays(compute(vector["rule"], *read_vector(vector)))
        vector["aggregate"], vector["digest"] = data.hex(), hashlib.sha256(data).hexdigest()
    PATH.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
