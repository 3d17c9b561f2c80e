"""Silence: members that send nothing. The harm of lies is measured against the harm of silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.attacks.base import Attack, Scene


@dataclass(frozen=True, kw_only=True)
class Silent(Attack):
    """Sends nothing, in any round."""

    name: ClassVar[str] = "silent"

    def lie(self, scene: Scene) -> None:
        return None
