"""Credit: for how long each member's contribution is worth waiting for, by how it has kept its promises (PROTOCOL §3).

A wait for a contribution costs everybody `collect_s`. Each member's credit pays for two of them at first and at most;
a wait in vain is taken off, and every final height gives a 32nd of one back. So whatever pattern a mute, withholding or
late member chooses, it costs two waits at first and a 32nd of one a round after. Halving patience instead would starve
a slow honest member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from chain.block import Id

FULL = 2.0  # waits that a member's credit pays for, at first and at most
PER_HEIGHT = 1 / 32  # of a wait, that each final height gives back
LEAST = 1.0  # below which a member is not awaited


@dataclass(frozen=True, slots=True)
class VainWait:
    """What was waited for in vain, as a share of the longest wait of its height, and why it did not come."""

    share: float
    why: str


@dataclass(slots=True)
class _Account:
    waits: float = FULL
    num_vain: int = 0
    last_height: int = 0
    last_why: str = ""


class Credits:
    """One node's accounts of the other members. A member that it has no account of begins with two waits."""

    def __init__(self, members: Iterable[Id]) -> None:
        self._accounts = {member: _Account() for member in members}

    def on_members(self, members: Iterable[Id]) -> None:
        """These are the members now: the accounts of others are closed, and new ones opened in full."""
        self._accounts = {member: self._accounts.get(member) or _Account() for member in members}

    def get_waits(self, member: Id) -> float:
        """How many waits the member's credit pays for."""
        account = self._accounts.get(member)
        return FULL if account is None else account.waits

    def get_overdrawn(self) -> frozenset[Id]:
        """Who is not awaited, since it has cost too much."""
        return frozenset(member for member, account in self._accounts.items() if account.waits < LEAST)

    def get_patience(self, members: Collection[Id]) -> float:
        """The share of the longest wait that any of these is worth: all of it, or a moment where each is overdrawn."""
        return PER_HEIGHT if self.get_overdrawn() >= set(members) else 1.0

    def explain(self, member: Id) -> str | None:
        """Why a member is not awaited; None where its credit suffices."""
        account = self._accounts.get(member)
        if account is None or account.waits >= LEAST:
            return None
        times = "once" if account.num_vain == 1 else f"{account.num_vain} times"
        return f"waited for in vain {times}, last at height {account.last_height}: {account.last_why}"

    def on_final(self, height: int, vain: Mapping[Id, VainWait]) -> frozenset[Id]:
        """A height is final that was waited for like this. Who is not awaited any more by it."""
        before = self.get_overdrawn()
        for member, wait in vain.items():
            self.charge(member, height, wait)
        for account in self._accounts.values():
            account.waits = min(FULL, account.waits + PER_HEIGHT)
        return self.get_overdrawn() - before

    def charge(self, member: Id, height: int, wait: VainWait) -> bool:
        """A wait that was not for a contribution. Whether the member is not awaited any more by it."""
        account = self._accounts.get(member)
        if account is None or wait.share <= 0:
            return False
        before = account.waits
        account.waits = max(0.0, before - min(1.0, wait.share))
        account.num_vain += 1
        account.last_height, account.last_why = height, wait.why
        return account.waits < LEAST <= before
