"""The account of what a worker's local phases may have revealed about any sample of the site, over all runs.

It is a file in the data directory, and it is written before the phase that it counts begins. So a phase that was
stopped, abandoned or never sent is counted, too, and nothing is computed from samples without being counted. With a
budget the worker trains no phase that would take epsilon above it. It trains none at all while the account has phases
of earlier releases whose noise can be guessed, unless the site has set them aside by name.

The node adds phases to the same file that the chain shows and the file lacks
(`node.consensus.learning.privacy_recount`): every change locks the directory and reads the file again.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ml.accountant import Release, Told, check_accountant, compute_epsilon, count_phases_within, has_accountant
from ml.errors import MlError
from node.errors import NodeError
from node.host.whole_file import writing_whole
from node.training.account import Account

PRIVACY_FILE = "privacy.json"
LOOK_AHEAD = 256  # phases
GUESSABLE_NOISE = "guessable_noise"  # the value by which a site sets such phases aside
RESTS = 20.0  # pause before epsilon is computed again, as a multiple of the time it took


def read_account(path: Path) -> Account:
    """Returns the account in a data directory; an empty one where there is none. Raises MlError where it cannot be
    read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Account()
    except OSError as error:
        raise MlError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        return Account.decode(data)
    except ValueError as error:
        raise MlError(f"{path}: the account of what was told is damaged: {error}") from error


def read_told(path: Path) -> Told:
    """Returns the total of the account. Raises MlError where it cannot be read."""
    return read_account(path).told


def describe_guessable(told: Told) -> str:
    """Describes the phases whose noise can be guessed, in a sentence without its end."""
    return (
        f"the noise of {told.guessable} of {told.phases} local phases can be guessed: an earlier release drew it, from "
        "a generator that keeps no secrets"
    )


def change_account(path: Path, change: Callable[[Account], Account]) -> Account:
    """Changes the account at `path`, durably, and returns it. Raises MlError where it cannot be read or written."""
    try:
        with _holding(path.parent):
            before = read_account(path)
            if (account := change(before)) != before:
                with writing_whole(path, over=True, mode=0o600) as file:
                    file.write(account.encode())
            return account
    except NodeError as error:
        raise MlError(f"nothing is sent that cannot be counted: {error}") from error


@contextmanager
def _holding(folder: Path) -> Iterator[None]:
    """Locks the folder, so that one process at a time changes it. Raises NodeError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NodeError(f"{folder}: cannot be opened ({error.strerror})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class PrivacyLedger:
    """Keeps the account at `path`. `budget` bounds epsilon at `delta`; None: no bound. Added phases belong to the run
    `run`, with this `noise` by key, on `samples` samples. With `sets_aside` the site disregards that noise can be
    guessed: such phases count by the size of their noise."""

    path: Path
    delta: float
    budget: float | None = None
    account: Account = field(default_factory=Account)  # as last read
    run: int = 1
    noise: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    sets_aside: bool = False
    clock: Callable[[], float] = time.monotonic
    _fitting: tuple[Release, int] | None = None  # at least so many more phases like this one fit
    _last: Release | None = None  # the release that was checked last
    _refused: tuple[Release, float] | None = None  # a release that does not fit, and epsilon so far
    _known: tuple[int, float] | None = None  # number of phases, and the newest epsilon computed, which is of these
    _adding: threading.Thread | None = None
    _rests_until_s: float = float("-inf")

    @classmethod
    def open(
        cls,
        path: Path,
        delta: float,
        budget: float | None,
        *,
        run: int = 1,
        noise: Mapping[str, float] | None = None,
        samples: int = 0,
        sets_aside: bool = False,
    ) -> Self:
        """Opens the account. Raises MlError for a damaged file, or where epsilon has to be computed and cannot be."""
        if budget is not None:
            check_accountant()
        account = read_account(path)
        if account.is_set_aside != sets_aside and account != Account():
            account = change_account(path, lambda now: replace(now, is_set_aside=sets_aside))
        return cls(path, delta, budget, account, run, noise or {}, samples, sets_aside)

    def check(self, release: Release) -> None:
        """Raises MlError where one more phase like `release` would take epsilon above the budget. A check takes a
        second, the first repetition some seconds, and later repetitions no time."""
        if self.budget is None:
            return
        self._look_again()
        if self.counted.guessable:
            raise MlError(
                f"{describe_guessable(self.told)}. Epsilon is infinite, and above training.privacy_budget, "
                f"{self.budget:g}; with training.privacy_set_aside: {GUESSABLE_NOISE} it is as if nobody guessed"
            )
        if self._fitting is not None and self._fitting[0] == release and self._fitting[1]:
            return
        if self._refused is None or self._refused[0] != release:
            if compute_epsilon(self.counted.plus(release), self.delta) <= self.budget:
                self._look_ahead(release, self.budget)
                return
            self._refused = release, compute_epsilon(self.counted, self.delta)
        raise MlError(
            f"the privacy budget is spent: epsilon is {self._refused[1]:.3g} at delta {self.delta:g}, and one round "
            f"more would take it above training.privacy_budget, {self.budget:g}"
        )

    def _look_ahead(self, release: Release, budget: float) -> None:
        """Computes how many more phases fit when a release is repeated, so that they need no computation each."""
        if self._last == release:
            self._fitting = release, count_phases_within(budget, self.delta, self.counted, release, LOOK_AHEAD)
        self._last = release

    @property
    def told(self) -> Told:
        return self.account.told

    @property
    def counted(self) -> Told:
        """Returns what epsilon is computed from."""
        return self.told.set_aside() if self.sets_aside else self.told

    def _look_again(self) -> None:
        """Reads the account again, as the node may have added to it. An account that has lost phases is ignored."""
        account = read_account(self.path)
        if account.told.phases > self.told.phases:
            self.account, self._fitting, self._refused = account, None, None

    def add(self, release: Release, number: int) -> None:
        """Counts a phase for this round, durably. Raises MlError where the file cannot be written."""

        def change(account: Account) -> Account:
            before = account if account.told.phases >= self.told.phases else self.account  # the file lost phases
            after = before.plus(release, self.run, number, noise=self.noise, samples=self.samples)
            return replace(after, is_set_aside=self.sets_aside)

        fitting, expected = self._fitting, self.told.plus(release)
        self.account = change_account(self.path, change)
        self._refused = self._fitting = None
        if fitting is not None and self.told == expected:
            like, num = fitting
            self._fitting = (like, num - 1) if like == release and num else None

    def describe(self, *, has_time: bool = False) -> dict[str, Any]:
        """Returns the values for a round's record. Unless the caller `has_time`, epsilon is computed on a thread of its
        own, in a small part of the time; then it may lack the last phases, or be None."""
        self._look_again()
        if has_accountant() and (self._known is None or self._known[0] != self.told.phases):
            if has_time:
                self._add_up(self.counted)
            elif (self._adding is None or not self._adding.is_alive()) and self.clock() >= self._rests_until_s:
                self._adding = threading.Thread(target=self._add_up, args=(self.counted,), name="epsilon", daemon=True)
                self._adding.start()
        phases, epsilon = self._known or (0, None)
        return {
            "phases": self.told.phases,
            "epsilon": epsilon,
            "epsilon_phases": phases,
            "delta": self.delta,
            "budget": self.budget,
            "guessable": self.told.guessable,
            "set_aside": self.sets_aside,
        }

    def _add_up(self, told: Told) -> None:
        began_s = self.clock()
        epsilon = compute_epsilon(told, self.delta)
        if self._known is None or self._known[0] < told.phases:  # two threads may compute it
            self._known = told.phases, epsilon
        ended_s = self.clock()
        self._rests_until_s = ended_s + RESTS * (ended_s - began_s)
