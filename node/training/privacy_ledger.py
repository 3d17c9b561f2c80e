"""The account that a worker keeps of what its local phases may have told of any sample of the site, over all runs.

It is a file in the data directory, and on the disk before what it counts begins. So a phase is counted that was
stopped, abandoned or never sent, and nothing is made of samples that was not counted. With a budget the worker trains
no phase that would take epsilon above it.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ml.accountant import Release, Told, check_accountant, compute_epsilon, count_phases_within, has_accountant
from ml.errors import MlError
from node.errors import NodeError
from node.host.whole_file import writing_whole

PRIVACY_FILE = "privacy.json"
FORMAT = 1
LOOK_AHEAD = 256  # phases
RESTS = 20.0  # times as long as epsilon took to be added up, until it is again for whoever looks


def read_told(path: Path) -> Told:
    """What a data directory's account says; nothing where there is none. Raises MlError where it cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Told()
    except OSError as error:
        raise MlError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        values = json.loads(data)
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        return Told.from_json(values)
    except ValueError as error:
        raise MlError(f"{path}: the account of what was told is damaged: {error}") from error


@dataclass(slots=True)
class PrivacyLedger:
    """The account at `path`; `budget` is of epsilon at `delta`, None without end."""

    path: Path
    delta: float
    budget: float | None = None
    told: Told = field(default_factory=Told)
    _fitting: tuple[Release, int] | None = None  # so many more phases like this one fit, if not more
    _last: Release | None = None  # what was asked for last
    _refused: tuple[Release, float] | None = None  # what does not fit, and epsilon of what was told
    _known: tuple[int, float] | None = None  # epsilon of so many phases, the newest that was added up
    _adding: threading.Thread | None = None
    _rests_until_s: float = float("-inf")

    @classmethod
    def open(cls, path: Path, delta: float, budget: float | None) -> Self:
        """Raises MlError for a file that is damaged, or where epsilon cannot be computed and has to be."""
        if budget is not None:
            check_accountant()
        return cls(path, delta, budget, read_told(path))

    def check(self, release: Release) -> None:
        """Raises MlError where a phase that tells as much would take epsilon above the budget. Takes a second, some for
        the first that is as the one before, and no time for those after that."""
        if self.budget is None or (self._fitting is not None and self._fitting[0] == release and self._fitting[1]):
            return
        if self._refused is None or self._refused[0] != release:
            if compute_epsilon(self.told.plus(release), self.delta) <= self.budget:
                self._look_ahead(release, self.budget)
                return
            self._refused = release, compute_epsilon(self.told, self.delta)
        raise MlError(
            f"the privacy budget is spent: epsilon is {self._refused[1]:.3g} at delta {self.delta:g}, and one round "
            f"more would take it above training.privacy_budget, {self.budget:g}"
        )

    def _look_ahead(self, release: Release, budget: float) -> None:
        """Where phases are alike, so that the next need not be added up one by one."""
        if self._last == release:
            self._fitting = release, count_phases_within(budget, self.delta, self.told, release, LOOK_AHEAD)
        self._last = release

    def add(self, release: Release) -> None:
        """Count a phase, durably. Raises MlError where the file cannot be written."""
        told = self.told.plus(release)
        try:
            with writing_whole(self.path, over=True, mode=0o600) as file:
                file.write(json.dumps({"format": FORMAT, **told.to_json()}).encode("ascii"))
        except NodeError as error:
            raise MlError(f"nothing is sent that cannot be counted: {error}") from error
        self.told, self._refused = told, None
        if self._fitting is not None:
            like, num = self._fitting
            self._fitting = (like, num - 1) if like == release and num else None

    def describe(self, *, has_time: bool = False) -> dict[str, Any]:
        """As a round's record has it. Unless whoever asks `has_time` epsilon is added up on a thread of its own, for a
        small part of the time, and may be of fewer phases, or not there yet."""
        if has_accountant() and (self._known is None or self._known[0] != self.told.phases):
            if has_time:
                self._add_up(self.told)
            elif (self._adding is None or not self._adding.is_alive()) and time.monotonic() >= self._rests_until_s:
                self._adding = threading.Thread(target=self._add_up, args=(self.told,), name="epsilon", daemon=True)
                self._adding.start()
        phases, epsilon = self._known or (0, None)
        return {
            "phases": self.told.phases,
            "epsilon": epsilon,
            "epsilon_phases": phases,
            "delta": self.delta,
            "budget": self.budget,
        }

    def _add_up(self, told: Told) -> None:
        began_s = time.monotonic()
        epsilon = compute_epsilon(told, self.delta)
        if self._known is None or self._known[0] < told.phases:  # two may be at it
            self._known = told.phases, epsilon
        ended_s = time.monotonic()
        self._rests_until_s = ended_s + RESTS * (ended_s - began_s)
