"""Final blocks: what sync verifies, the vote makes, and the tip moves on to."""

from __future__ import annotations

from dataclasses import dataclass

from chain.block import Block, Certificate


@dataclass(frozen=True, slots=True)
class FinalBlock:
    """A block and the certificate that makes it final, both verified."""

    block: Block
    certificate: Certificate
