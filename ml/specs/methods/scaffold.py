"""SCAFFOLD: FedAvg whose local steps are corrected by what the members' gradients have in common (ALGORITHMS §16).

Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, 2020, option II. Beside its
model a member sends the change of its control variate c_i, as the kind `control`. It is combined by the model's own
rule, around 0, and moves the common control variate c, which is in the aggregate:

    c' = c + (m / n) rule(c_i' - c_i)        element by element in float64, rounded to float32 once

m is how many members are in the block, n how many there are. The aggregate also says when each member was last in a
block, `scaffold/members` uint8[k, 32] and `scaffold/rounds` int64[k]: a member whose contribution came too late for the
block keeps the c_i that is in c, though it has trained. All of it restarts with a run.

Where we deviate: with `weights: samples` c is a mean weighted as the model's is, so that the corrections of a round sum
to 0 in it. The paper has one weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ml.aggregation.contributed import check_parent
from ml.aggregation.outer import LARGEST
from ml.errors import SpecError
from ml.payload import Array, Arrays, ArraySchema, ArraySpec, from_rows, make_empty_arrays, to_rows
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.sharing import ModelHyperparameters, ModelSpec

CONTROL = "control"
ROUNDS = "scaffold"  # the prefix of the members and the heights at which they were last in a block


@dataclass(frozen=True, kw_only=True)
class ScaffoldHyperparameters(ModelHyperparameters):
    """Settings of SCAFFOLD. A control variate is the mean gradient of a phase, which is defined for plain SGD with
    equal steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer not in (None, "sgd"):
            raise SpecError("method.optimizer", f"scaffold expects sgd, got {self.optimizer}")
        if self.momentum:
            raise SpecError("method.momentum", f"scaffold expects 0, got {self.momentum:g}")
        if self.decay_unit == "step":
            raise SpecError("method.decay_unit", "scaffold expects round, as all steps of one count alike; got 'step'")


@dataclass(frozen=True)
class ScaffoldSpec(ModelSpec):
    """SCAFFOLD's spec: the model, and `control`: float32 of each trained parameter."""

    name: ClassVar[str] = "scaffold"
    settings: ClassVar[type[Hyperparameters]] = ScaffoldHyperparameters

    hyperparameters: ScaffoldHyperparameters

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        return {"model": self._make_schema(), CONTROL: ArraySchema(dict(self.task.parameter_schema.arrays))}

    def rules(self, height: int) -> Mapping[str, str]:
        rules = super().rules(height)
        return {**rules, CONTROL: rules["model"]}

    def reads_parent(self, height: int) -> bool:
        return True

    def get_origin(self, kind: str) -> Arrays | None:
        return self._zeros if kind == CONTROL else None

    @cached_property
    def _zeros(self) -> Arrays:
        return {name: np.zeros_like(array) for name, array in make_empty_arrays(self.task.parameter_schema).items()}

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        ids, rounds = ArraySpec("uint8", ("n", 32)), ArraySpec("int64", ("n",))
        return {**super().carried, f"{ROUNDS}/members": ids, f"{ROUNDS}/rounds": rounds}

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        before = {} if self.get_round_number(height) <= 1 else parent or {}
        share = len(authors) / max(self.task.num_members, len(authors))
        carried = dict(super().carry(height, authors, made, parent))
        for name in self.task.parameter_schema.arrays:
            place = f"{CONTROL}/{name}"
            carried[place] = step_control(before.get(place), made[place], share, name)
        last = read_last_rounds(before) | dict.fromkeys(authors, height)
        members = sorted(last)
        carried[f"{ROUNDS}/members"] = to_rows(members)
        carried[f"{ROUNDS}/rounds"] = np.array([last[member] for member in members], np.int64)
        return carried


def step_control(before: Array | None, change: Array, share: float, name: str) -> Array:
    """Computes c' from c, which is 0 before the first round, and the rule's change. Raises AggregationError."""
    moved = change.astype(np.float64) * share
    if before is not None:
        check_parent(before, change, name)
        moved += before
    return np.clip(moved, -LARGEST, LARGEST, out=moved).astype(np.float32)


def read_last_rounds(aggregate: Arrays | None) -> dict[bytes, int]:
    """Returns the heights at which members were last in a block of the run, as its aggregate says."""
    arrays = aggregate or {}
    if f"{ROUNDS}/members" not in arrays:
        return {}
    members = from_rows(arrays[f"{ROUNDS}/members"])
    return dict(zip(members, arrays[f"{ROUNDS}/rounds"].tolist(), strict=True))
