"""Final blocks: sync verifies them, votes make them, and the tip moves on to them."""

from __future__ import annotations

from dataclasses import dataclass

from chain.block import Block, Certificate


@dataclass(frozen=True, slots=True)
class FinalBlock:
    """Holds a block and the certificate that makes it final, both verified."""

    block: Block
    certificate: Certificate
