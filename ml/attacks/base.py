"""The base of an attack: its settings, and the answer of a lying member in place of the true one.

The threat model is the strongest that is usual in the literature. The liars are members with valid keys, and act as
one. They train as honest members do, see all that honest members send in a round before they answer it, and know the
method and its rule. Answers that validators refuse count as not sent. The liars neither delay honest members nor see
their samples.

Numpy only, so that an experiment's file is checked without torch. `ml.simulation.liars` runs an attack.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from numpy.random import Generator

from ml.errors import SpecError, suggest
from ml.payload import Array, Arrays
from ml.specs import MethodSpec
from ml.specs.hyperparameters import count, read_value
from ml.specs.methods.fededs import FedEdsSpec
from ml.specs.methods.fednova import FedNovaSpec


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """The view of one liar when it answers a round: the payloads that it would `truly` send and those of the `honest`;
    the model that its local phase began from, `start`, and the parent's aggregate, `common`; and its own random
    generator, `rng`."""

    spec: MethodSpec
    height: int
    truly: Mapping[str, Arrays]
    honest: Sequence[Mapping[str, Arrays]]
    start: Arrays
    common: Arrays | None
    num_members: int
    rng: Generator


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """An attack in which `liars` members lie, all in the same way. `weight` is what each claims in place of the number
    of its samples: in its signed statement or, where prototypes are averaged by class sizes, in those. `steps` is what
    it claims where FedNova cannot check the number of steps."""

    name: ClassVar[str]
    kinds: ClassVar[frozenset[str] | None] = None  # payload kinds that it changes; None for all
    sees_others: ClassVar[bool] = False

    liars: int = count(1)
    weight: int | None = count(None)
    steps: int | None = count(None)

    @abstractmethod
    def lie(self, scene: Scene) -> Mapping[str, Arrays] | None:
        """Returns the payloads sent in place of `scene.truly`; None to send nothing at all."""

    def change_labels(self, labels_N: Array, num_classes: int) -> Array:
        """Returns the labels under which a liar trains on its own samples."""
        return labels_N

    def applies_to(self, spec: MethodSpec) -> bool:
        """Says whether members of this method send anything that the attack changes."""
        sent = {kind for height in (1, 1 + spec.sharing_heights) for kind in spec.schemas(height)}
        return bool(sent if self.kinds is None else sent & self.kinds)

    def claim(self, scene: Scene, payloads: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        """Returns `payloads` with the class sizes and the steps that are claimed, where they have such."""
        claimed = {kind: dict(arrays) for kind, arrays in payloads.items()}
        if self.weight is not None and "counts" in claimed.get("prototypes", ()):
            claimed["prototypes"]["counts"] = claimed["prototypes"]["counts"] * 0 + self.weight
        if self.steps is not None and "model" in claimed and isinstance(scene.spec, FedNovaSpec | FedEdsSpec):
            claimed["model"] |= scene.spec.make_numbers(self.steps)
        return claimed

    def check_liars(self, num_members: int) -> None:
        """Raises SpecError where nobody would be honest."""
        if self.liars >= num_members:
            raise SpecError("attack.liars", f"expected fewer than the {num_members} clients, got {self.liars}")

    def check_claims(self, spec: MethodSpec) -> None:
        """Raises SpecError for a claim that no member of this method makes."""
        if self.weight is not None:
            if spec.max_weight_is_one and not _sends_counts(spec):
                raise SpecError("attack.weight", f"expected none, since {spec.name} signs 1 for all; got {self.weight}")
            if self.weight > spec.task.max_weight:
                raise SpecError("attack.weight", f"expected {spec.task.max_weight} at most, got {self.weight}")
        if self.steps is not None and not _takes_word_for_steps(spec):
            raise SpecError(
                "attack.steps",
                "expected none: steps are claimed in fednova alone, and where local work does not set their number; "
                f"got {self.steps}",
            )

    @classmethod
    def keys(cls) -> dict[str, dataclasses.Field[Any]]:
        """Returns the settings by name."""
        return {field.name: field for field in dataclasses.fields(cls)}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Reads an attack's settings, without its `name`. Raises SpecError for an unknown key or a value out of
        range."""
        fields = cls.keys()
        values = {}
        for key, value in mapping.items():
            if key == "name":
                continue
            if key not in fields:
                raise SpecError(f"attack.{key}", f"unknown key: {suggest(key, fields)}")
            values[key] = read_value(f"attack.{key}", fields[key].metadata, value)
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Returns its name and every setting, with all defaults."""
        values = {"name": self.name, **dataclasses.asdict(self)}
        return {key: value for key, value in values.items() if value is not None}


def _sends_counts(spec: MethodSpec) -> bool:
    schema = spec.schemas(1).get("prototypes")
    return schema is not None and "counts" in schema.arrays


def _takes_word_for_steps(spec: MethodSpec) -> bool:
    if isinstance(spec, FedNovaSpec):
        return spec.hyperparameters.fixed_steps is None
    return (
        isinstance(spec, FedEdsSpec)
        and spec.hyperparameters.base == "fednova"
        and spec.get_fixed_steps(1 + spec.sharing_heights) is None
    )
