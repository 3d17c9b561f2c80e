"""DisPFL: each client trains, and sends, only the part of the model that its own mask keeps (ALGORITHMS §9).

Dai et al., *DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse Training*,
2022. Weights of two dimensions and more are masked; what has fewer (biases, norms, running statistics) is always whole.
How many entries each tensor keeps follows from `density` alone, by Erdos-Renyi-kernel. It keeps a fraction of its
entries in proportion to

    (sum of its dimensions) / (their product)

and is whole if that would be more than all of them. Of all maskable entries together, the fraction `density` is kept.
So the number is the same for all clients in all rounds; each client chooses its entries for itself.

A payload has whole tensors under their names; of the others the kept values, in row-major order, under theirs, and the
mask as bits under "mask/", most significant bit first and filled with zeros to whole bytes (`numpy.packbits`).

The share of a mask that is replaced each round falls to 0 over the planned rounds, so their number must be set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ml.errors import PayloadError, SpecError
from ml.payload import Array, Arrays, ArraySchema, ArraySpec
from ml.specs.hyperparameters import Hyperparameters, choice, number
from ml.specs.peers import PeerHyperparameters, PeerSpec

MASK = "mask/"
ANNEAL = 0.5  # the share of its mask that a client replaces in the first round

Mask = NDArray[np.bool_]
Shape = tuple[int, ...]


def compute_kept(shapes: Mapping[str, Shape], density: float) -> dict[str, int]:
    """Computes the number of entries of each tensor that a mask keeps: `density` of them all, dealt by
    Erdos-Renyi-kernel, but at least one of each. It computes with fractions, since everyone must have the same
    numbers."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    sums = {name: sum(shape) for name, shape in shapes.items()}
    budget = Fraction(density) * sum(sizes.values())
    sparse = set(shapes)
    while sparse:
        rest = budget - sum(size for name, size in sizes.items() if name not in sparse)
        epsilon = rest / sum(sums[name] for name in sparse)
        most = max(Fraction(sums[name], sizes[name]) for name in sparse)
        if epsilon * most <= 1:
            break
        sparse -= {name for name in sparse if Fraction(sums[name], sizes[name]) == most}
    return {name: max(1, int(epsilon * sums[name])) if name in sparse else sizes[name] for name in shapes}


def pack_mask(mask: Mask) -> Array:
    """Returns a mask of any shape as uint8[ceil(entries / 8)]."""
    return np.packbits(mask.reshape(-1))


def unpack_mask(bits: Array, num_entries: int) -> Mask:
    """Returns the mask bool[entries] with these bits."""
    return np.unpackbits(bits, count=num_entries).astype(bool)


@dataclass(frozen=True, kw_only=True)
class DisPflHyperparameters(PeerHyperparameters):
    """Settings of DisPFL. `density` is the share of all maskable weights that a mask keeps; `regrow` says which weights
    replace those that were pruned; `clip` is the greatest norm that a step's gradient may have. All clients' masks
    count alike."""

    weights: str = choice("uniform")
    density: float = number(0.5, "(0, 1]")
    regrow: str = choice("random", "gradient")
    clip: float = number(10.0, "(0, inf)")


@dataclass(frozen=True)
class DisPflSpec(PeerSpec):
    """DisPFL's spec, with `model` on demand, in the part that its author's mask keeps."""

    name: ClassVar[str] = "dispfl"
    settings: ClassVar[type[Hyperparameters]] = DisPflHyperparameters

    hyperparameters: DisPflHyperparameters

    def __post_init__(self) -> None:
        if not self.task.rounds:
            raise SpecError("rounds", "dispfl expects a number of rounds, over which its masks settle, got 0")

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of everything that is sent, by the names of the model's `state_dict()`."""
        return {name: tuple(map(int, spec.shape)) for name, spec in self.whole_schema.arrays.items()}

    @cached_property
    def kept(self) -> Mapping[str, int]:
        """The number of entries kept of each masked tensor; a tensor that is not named is whole."""
        trained = self.task.parameter_schema.arrays  # a buffer of a user's own model is not trained, whatever its shape
        maskable = {name: shape for name, shape in self.shapes.items() if len(shape) > 1 and name in trained}
        kept = compute_kept(maskable, self.hyperparameters.density)
        return {name: num for name, num in kept.items() if num < math.prod(maskable[name])}

    @cached_property
    def part_schemas(self) -> Mapping[str, ArraySchema]:
        arrays = {}
        for name, shape in self.shapes.items():
            arrays[name] = ArraySpec("float32", (self.kept[name],) if name in self.kept else shape)
            if name in self.kept:
                arrays[MASK + name] = ArraySpec("uint8", (-(-math.prod(shape) // 8),))
        return {"model": ArraySchema(arrays)}

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        for name, num_kept in self.kept.items():
            num_entries, bits = math.prod(self.shapes[name]), np.unpackbits(arrays[MASK + name])
            if bits[num_entries:].any():
                raise PayloadError(f"payload 'model': array {MASK + name!r}: expected zeros after bit {num_entries}")
            if (got := int(bits.sum())) != num_kept:
                raise PayloadError(
                    f"payload 'model': array {MASK + name!r}: expected {num_kept} entries kept, got {got}"
                )

    def compute_prune_ratio(self, height: int) -> float:
        """Computes q = 0.25 * (1 + cos(pi * r / R)), the share of its mask that a client replaces; r counts from 0."""
        r = min(height - 1, self.task.rounds)
        return ANNEAL / 2 * (1 + math.cos(math.pi * r / self.task.rounds))
