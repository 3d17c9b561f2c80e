"""The findings of checks of data: what may mislead although it can be trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ml.text import escape_undecoded


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a check. A note describes the data, a warning doubts them."""

    level: Literal["note", "warning"]
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", escape_undecoded(self.text))
