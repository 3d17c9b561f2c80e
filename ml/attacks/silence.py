"""Silence: what it costs that members are gone, beside which the harm of their lies is to be seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.attacks.base import Attack, Scene


@dataclass(frozen=True, kw_only=True)
class Silent(Attack):
    """Nothing is sent, in any round."""

    name: ClassVar[str] = "silent"

    def lie(self, scene: Scene) -> None:
        return None
