"""Credit: limits how long a member is waited for, by how often it kept the others waiting (PROTOCOL §3).

A wait for a contribution costs every member up to `collect_s`. Each member's credit pays for two such waits at first
and at most. A wait in vain is deducted, and every final height adds 1/32 of a wait. So a mute, withholding or late
member costs two waits at first and 1/32 of a wait a round after, whatever its pattern. Halving the wait instead would
starve a slow honest member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from chain.block import Id

FULL = 2.0  # waits that a member's credit pays for, at first and at most
PER_HEIGHT = 1 / 32  # the part of a wait that each final height adds
LEAST = 1.0  # with less credit a member is not awaited


@dataclass(frozen=True, slots=True)
class VainWait:
    """Describes a wait in vain: its share of the longest wait of its height, and why nothing came."""

    share: float
    why: str


@dataclass(slots=True)
class _Account:
    waits: float = FULL
    num_vain: int = 0
    last_height: int = 0
    last_why: str = ""


class Credits:
    """Keeps this node's accounts of the other members' credit. A member without an account has the full two waits."""

    def __init__(self, members: Iterable[Id]) -> None:
        self._accounts = {member: _Account() for member in members}

    def on_members(self, members: Iterable[Id]) -> None:
        """Closes the accounts of those who are no longer members, and opens full ones for new members."""
        self._accounts = {member: self._accounts.get(member) or _Account() for member in members}

    def get_waits(self, member: Id) -> float:
        """Returns how many waits the member's credit pays for."""
        account = self._accounts.get(member)
        return FULL if account is None else account.waits

    def get_overdrawn(self) -> frozenset[Id]:
        """Returns the members that are not awaited, since they have cost too much."""
        return frozenset(member for member, account in self._accounts.items() if account.waits < LEAST)

    def get_patience(self, members: Collection[Id]) -> float:
        """Returns the share of the longest wait that is spent on these members: 1, or a 32nd if all of them are
        overdrawn."""
        return PER_HEIGHT if self.get_overdrawn() >= set(members) else 1.0

    def explain(self, member: Id) -> str | None:
        """Says why a member is not awaited; None if its credit suffices."""
        account = self._accounts.get(member)
        if account is None or account.waits >= LEAST:
            return None
        times = "once" if account.num_vain == 1 else f"{account.num_vain} times"
        return f"waited for in vain {times}, last at height {account.last_height}: {account.last_why}"

    def on_final(self, height: int, vain: Mapping[Id, VainWait]) -> frozenset[Id]:
        """Charges the vain waits of a final height, and adds 1/32 to every account. Returns the members that are
        overdrawn by it."""
        before = self.get_overdrawn()
        for member, wait in vain.items():
            self.charge(member, height, wait)
        for account in self._accounts.values():
            account.waits = min(FULL, account.waits + PER_HEIGHT)
        return self.get_overdrawn() - before

    def charge(self, member: Id, height: int, wait: VainWait) -> bool:
        """Charges a member with one wait. Returns whether it is overdrawn by it."""
        account = self._accounts.get(member)
        if account is None or wait.share <= 0:
            return False
        before = account.waits
        account.waits = max(0.0, before - min(1.0, wait.share))
        account.num_vain += 1
        account.last_height, account.last_why = height, wait.why
        return account.waits < LEAST <= before
