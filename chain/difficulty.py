"""The difficulty of the next block: a retarget every 16 blocks on mining time alone (PROTOCOL §6). Integers only.

A round is mostly training, so the whole round's length says nothing about the hash rate; `time_ms - start_ms` does. But
each miner states that time itself, and no member may raise everyone's difficulty alone. So each miner counts once, by
the median of its blocks, and it takes q miners to move away from the first difficulty of the rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from chain.block import Header, Id
from chain.rules import PowRules

PERIOD = 16  # blocks from one retarget to the next
WINDOW = 64  # blocks that a retarget looks at, at most
LOOKBACK = WINDOW + 1  # headers that it reads: a time that was forced is only seen beside the parent's


def is_retarget_height(height: int) -> bool:
    return height > PERIOD and height % PERIOD == 1


def get_first_read(head_height: int) -> int:
    """Returns the lowest height whose header the rule for the height after the head may read."""
    return max(0, head_height - WINDOW)


def compute_next_difficulty(
    rules: PowRules, quorum: int, height: int, headers: Sequence[Header], *, changed_at: int = 0
) -> int:
    """Returns the difficulty of the block at `height`, computed from the headers just below it, oldest first.

    The block at `changed_at` put these rules in force: difficulty restarts at theirs, and earlier blocks do not count.
    A retarget needs all headers from `get_first_read` on; between retargets the last one is enough, and up to height 16
    none is read. Raises ValueError when the headers are not those.
    """
    if height <= PERIOD or height == changed_at + 1:
        return rules.difficulty
    first = max(get_first_read(height - 1), changed_at) if is_retarget_height(height) else height - 1
    window = headers[first - height :]
    heights = [header.height for header in window]
    if heights != list(range(first, height)):
        raise ValueError(f"difficulty of height {height}: expected headers of {first} to {height - 1}, got {heights}")
    difficulty = window[-1].difficulty
    medians_ms = _compute_medians_ms(window)
    if not medians_ms:
        return difficulty
    retargeted = difficulty * rules.target_ms // _compute_median(medians_ms)
    low, high = max(difficulty // 4, 1), 4 * difficulty
    if len(medians_ms) < quorum:  # only back towards the first difficulty of the rules
        low = max(low, min(difficulty, rules.difficulty))
        high = min(high, max(difficulty, rules.difficulty))
    return min(max(retargeted, low, rules.min), high, rules.max)


def _compute_medians_ms(window: Sequence[Header]) -> list[int]:
    """Returns the median time that mining took each miner, over its blocks other than the first header.

    Excluded are a block whose time its parent has forced, which says nothing, and one that claims to have taken no
    time.
    """
    by_miner: defaultdict[Id, list[int]] = defaultdict(list)
    for parent, header in pairwise(window):
        if header.time_ms != parent.time_ms + 1 and header.time_ms != header.start_ms:
            by_miner[header.miner].append(header.time_ms - header.start_ms)
    return [_compute_median(times_ms) for times_ms in by_miner.values()]


def _compute_median(values: Sequence[int]) -> int:
    """Returns the median of values; of the two in the middle, the lower one."""
    return sorted(values)[(len(values) - 1) // 2]
