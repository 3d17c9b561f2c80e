"""One height of one federation as those who vote on it see it, and the time that passes for all.

Whoever sits on a stage is known by its index: members first, in the order of their keys.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from chain.block import Id, Vote
from chain.waits import Waits
from node.consensus.height.candidates import EARLY_MS, FUTURE_MS
from support.federation.invariants import Checker

if TYPE_CHECKING:
    from support.faults.voters import Member, Message, TimeRule, VotingRule

EARLY_S = EARLY_MS / 1000  # how far ahead of a member's clock the time of a valid block may be
FUTURE_S = FUTURE_MS / 1000  # and that of one that is acceptable in view 0

WRONG_S = (0.0, 0.0, 0.5, 5.0, 60.0)  # how far clocks may be off, one value for each world


def draw_skews_s(rng: Random, n: int) -> list[float]:
    """Draws the seconds that each member's clock is ahead, from a generator of its own, so that schedules stay the
    same."""
    off_s = rng.choice(WRONG_S)
    return [rng.uniform(-off_s, off_s) if rng.random() < 0.5 else 0.0 for _ in range(n)]


class Timeline:
    """The events of a world, and their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def schedule(self, after_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + after_s, next(self._order), happen))

    def advance(self, until_s: float, is_over: Callable[[], bool]) -> None:
        """Runs all events that are due by then, or until it is over."""
        while self._queue and self._queue[0][0] <= until_s:
            self.now, _, happen = heapq.heappop(self._queue)
            self.steps += 1
            happen()
            if is_over():
                break


@dataclass(frozen=True, slots=True)
class Temper:
    """The values that all members of a world share, at every height."""

    waits: Waits
    mining_s: float
    harmony: float  # how often members agree that a candidate is acceptable
    fullness: float  # and how often one of them has all that it waits for
    time_rule: TimeRule


class Stage(ABC):
    """A height, its voters, and its blocks: their miners, their times and each member's opinion of them.

    An honest member's opinion of a block is drawn once and stays.
    """

    checker: Checker

    def __init__(
        self,
        rng: Random,
        time: Timeline,
        temper: Temper,
        *,
        height: int,
        members: tuple[Id, ...],
        quorum: int,
        skews_s: Sequence[float],
    ) -> None:
        self.rng = rng
        self.time = time
        self.temper = temper
        self.height = height
        self.members = members
        self.quorum = quorum
        self.all_blocks: list[Id] = []
        self._skews_s = skews_s
        self._times: dict[Id, float] = {}
        self._standings: dict[tuple[int, Id], tuple[bool, bool]] = {}

    def make_block(self, miner: int, time_s: float | None = None) -> Id:
        """Makes a valid block of this height, sealed at its miner's time unless one is given. Its miner finds it
        acceptable and full; the others may not."""
        block_id = self.rng.randbytes(32)
        self.all_blocks.append(block_id)
        self._times[block_id] = self.get_time_s(miner) if time_s is None else time_s
        self._standings[miner, block_id] = (True, True)
        return block_id

    def get_time_s(self, index: int) -> float:
        """Returns the time that a member judges by: its own clock, or the lower median of all where that is later."""
        median_s = sorted(self._skews_s)[(len(self._skews_s) - 1) // 2]
        return self.time.now + max(self._skews_s[index], median_s)

    def is_early(self, index: int, block_id: Id) -> bool:
        """Says whether the block's time is too far ahead of the member's clock for it to be valid yet."""
        return self._times[block_id] > self.get_time_s(index) + EARLY_S

    def get_standing(self, index: int, block_id: Id) -> tuple[bool, bool]:
        """Returns whether the block is acceptable to the member in view 0, by its time and its authors, and whether it
        is full."""
        agreeable, full = self._get_opinion(index, block_id)
        return agreeable and self._times[block_id] <= self.get_time_s(index) + FUTURE_S, full

    def _get_opinion(self, index: int, block_id: Id) -> tuple[bool, bool]:
        key, temper = (index, block_id), self.temper
        if key not in self._standings:
            self._standings[key] = (self.rng.random() < temper.harmony, self.rng.random() < temper.fullness)
        return self._standings[key]

    def get_voter(self, index: int) -> Id:
        """Returns the key that the voter at this index signs with."""
        return self.members[index]

    def get_coordinator(self, view: int) -> int:
        return (self.height + view) % len(self.members)

    def on_evidence(self, index: int, first: Vote, second: Vote) -> None:
        """Notes that an honest member holds two votes for one slot."""
        self.checker.on_evidence(first, second)

    @abstractmethod
    def open_voting(self, me: Id) -> VotingRule:
        """Opens a voting core for this height."""

    @abstractmethod
    def post(self, source: int, target: int, message: Message) -> None:
        """Sends a message through the network, which may lose it."""

    @abstractmethod
    def is_power_failing(self) -> bool: ...

    @abstractmethod
    def strike(self, victim: Member) -> None:
        """Crashes this member, sometimes all."""

    @abstractmethod
    def spread(self, vote: Vote) -> None:
        """Lets liars know what an honest member has sent."""
