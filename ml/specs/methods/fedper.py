"""FedPer: the layers before the classifier are averaged, the classifier is each client's own (ALGORITHMS §9).

Arivazhagan et al., *Federated Learning with Personalization Layers*, 2019. h is never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ml.payload import ArraySchema
from ml.specs.peers import PeerSpec


@dataclass(frozen=True)
class FedPerSpec(PeerSpec):
    """FedPer's spec, with `g` on demand alone."""

    name: ClassVar[str] = "fedper"
    hides_samples: ClassVar[bool] = True
    needed_parts: ClassVar[tuple[str, ...]] = ("g",)

    @cached_property
    def part_schemas(self) -> Mapping[str, ArraySchema]:
        return {"g": super().part_schemas["g"]}
