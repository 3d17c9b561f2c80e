"""The spec of a loop of one's own: FedAvg, whose local training is someone else's code (`ml.methods.own_loop`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.specs.sharing import ModelSpec


@dataclass(frozen=True)
class LoopSpec(ModelSpec):
    """The model, and nothing besides. `loop` is package.module:Class of what trains; it is not imported here."""

    training: ClassVar[str] = "ml.methods.own_loop:OwnLoop"
    loop: ClassVar[str]
