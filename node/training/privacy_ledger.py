"""The account that a worker keeps of what its local phases may have told of any sample of the site, over all runs.

It is a file in the data directory, and on the disk before what it counts begins. So a phase is counted that was
stopped, abandoned or never sent, and nothing is made of samples that was not counted. With a budget the worker trains
no phase that would take epsilon above it, and none at all while phases of earlier releases are counted whose noise can
be guessed, unless the site has set them aside by name.

The node adds to the same file what the chain shows of earlier phases and the file lacks
(`node.consensus.learning.recount`): whoever changes it reads it anew, and holds its directory meanwhile.
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
GUESSABLE_NOISE = "guessable_noise"  # what a site may set aside in its account
RESTS = 20.0  # times as long as epsilon took to be added up, until it is again for whoever looks


def read_account(path: Path) -> Account:
    """What a data directory's account says; nothing where there is none. Raises MlError where it cannot be read."""
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
    """As `read_account`, how much it is."""
    return read_account(path).told


def describe_guessable(told: Told) -> str:
    """The phases whose noise can be guessed, in a sentence without its end."""
    return (
        f"the noise of {told.guessable} of {told.phases} local phases can be guessed: an earlier release drew it, from "
        "a generator that keeps no secrets"
    )


def change_account(path: Path, change: Callable[[Account], Account]) -> Account:
    """What the account at `path` has become, durably. Raises MlError where it cannot be read or written."""
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
    """One process at a time. Raises NodeError."""
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
    """The account at `path`; `budget` is of epsilon at `delta`, None without end. The phases that are added are of the
    run of this number, with this `noise` by key, on so many `samples`. Where the site `sets_aside` that noise can be
    guessed, the phases with it count by how much noise it was."""

    path: Path
    delta: float
    budget: float | None = None
    account: Account = field(default_factory=Account)  # as far as it is known here
    run: int = 1
    noise: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    sets_aside: bool = False
    clock: Callable[[], float] = time.monotonic
    _fitting: tuple[Release, int] | None = None  # so many more phases like this one fit, if not more
    _last: Release | None = None  # what was asked for last
    _refused: tuple[Release, float] | None = None  # what does not fit, and epsilon of what was told
    _known: tuple[int, float] | None = None  # epsilon of so many phases, the newest that was added up
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
        """Raises MlError for a file that is damaged, or where epsilon cannot be computed and has to be."""
        if budget is not None:
            check_accountant()
        account = read_account(path)
        if account.is_set_aside != sets_aside and account != Account():
            account = change_account(path, lambda now: replace(now, is_set_aside=sets_aside))
        return cls(path, delta, budget, account, run, noise or {}, samples, sets_aside)

    def check(self, release: Release) -> None:
        """Raises MlError where a phase that tells as much would take epsilon above the budget. Takes a second, some for
        the first that is as the one before, and no time for those after that."""
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
        """Where phases are alike, so that the next need not be added up one by one."""
        if self._last == release:
            self._fitting = release, count_phases_within(budget, self.delta, self.counted, release, LOOK_AHEAD)
        self._last = release

    @property
    def told(self) -> Told:
        return self.account.told

    @property
    def counted(self) -> Told:
        """What epsilon is of."""
        return self.told.set_aside() if self.sets_aside else self.told

    def _look_again(self) -> None:
        """The node may have added to the account. One that has lost something is not followed."""
        account = read_account(self.path)
        if account.told.phases > self.told.phases:
            self.account, self._fitting, self._refused = account, None, None

    def add(self, release: Release, number: int) -> None:
        """Count a phase for this round, durably. Raises MlError where the file cannot be written."""

        def change(account: Account) -> Account:
            before = account if account.told.phases >= self.told.phases else self.account  # which somebody took away
            after = before.plus(release, self.run, number, noise=self.noise, samples=self.samples)
            return replace(after, is_set_aside=self.sets_aside)

        fitting, expected = self._fitting, self.told.plus(release)
        self.account = change_account(self.path, change)
        self._refused = self._fitting = None
        if fitting is not None and self.told == expected:
            like, num = fitting
            self._fitting = (like, num - 1) if like == release and num else None

    def describe(self, *, has_time: bool = False) -> dict[str, Any]:
        """As a round's record has it. Unless whoever asks `has_time` epsilon is added up on a thread of its own, for a
        small part of the time, and may be of fewer phases, or not there yet."""
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
        if self._known is None or self._known[0] < told.phases:  # two may be at it
            self._known = told.phases, epsilon
        ended_s = self.clock()
        self._rests_until_s = ended_s + RESTS * (ended_s - began_s)
