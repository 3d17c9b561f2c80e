"""How hard the next block is: a retarget every 16 blocks on mining time alone (PROTOCOL §6). Integers only.

A round is mostly training, so the whole round's length says nothing about the hash rate; `time_ms - start_ms` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.block import Header
from chain.genesis import PowRules

WINDOW = 16


def is_retarget_height(height: int) -> bool:
    return height > WINDOW and height % WINDOW == 1


def compute_next_difficulty(rules: PowRules, height: int, last16: Sequence[Header]) -> int:
    """The difficulty of the block at `height`, from the headers just below it, oldest first.

    A retarget needs all of heights height-16 .. height-1; between retargets the last header is enough, and up to
    height 16 none is read. Raises ValueError when the headers are not those.
    """
    if height <= WINDOW:
        return rules.difficulty
    needed = WINDOW if is_retarget_height(height) else 1
    window = last16[-needed:]
    heights = [header.height for header in window]
    expected = list(range(height - needed, height))
    if heights != expected:
        raise ValueError(f"difficulty of height {height}: expected headers of heights {expected}, got {heights}")
    difficulty = window[-1].difficulty
    if needed == 1:
        return difficulty
    median_ms = sorted(header.time_ms - header.start_ms for header in window)[WINDOW // 2 - 1]
    retargeted = difficulty * rules.target_ms // max(1, median_ms)
    retargeted = min(max(retargeted, difficulty // 4, 1), 4 * difficulty)
    return min(max(retargeted, rules.min), rules.max)
