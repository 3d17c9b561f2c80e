"""The account of what a site has revealed about any of its samples, as stored in its file: how much in all, and in
which rounds.

A round is identified by its run and its number in the run, as a change that takes its height moves it to the next
height. A phase that is trained twice is counted twice, but its round is listed once; what the chain shows of a listed
round is never counted again.

Formats 1 and 2 come from releases whose noise can be guessed: they drew it from torch's generators, of which the one
for a CPU keeps 32 bits of a seed, and from numpy's. They do not say from which, nor on which device, so all their
phases count as guessable.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ml.accountant import Release, Told

FORMAT = 3
GUESSABLE = 2  # up to this format noise came from generators that can be guessed
TOTALS_ALONE = 1  # the format of releases that listed no rounds

Ranges = tuple[tuple[int, int], ...]  # ranges of whole numbers (first, last), in order, with gaps between them


@dataclass(frozen=True, slots=True)
class RunAccount:
    """Lists the counted rounds of a run, and by key the noise of the last of them that was trained here. The `assumed`
    rounds are counted although nothing shows that they were trained here, and the chain has no contribution to them."""

    rounds: Ranges = ()
    assumed: tuple[int, ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Account:
    """Holds the account of a site. `told` is the total; `runs` holds the runs of the chain with id `chain`, None where
    no id is recorded.

    The blocks up to the height `checked` were searched for phases that are missing here; None where none were.
    `own_since` is the height above which the site's own noise is in force, None where it has none. `samples` is the
    number of samples that the site had in the last phase. `version` is the format that the account was read in.
    `secret_since` is the height above which all noise of the site was drawn from a secret stream, None where that is
    not known. `is_set_aside` says whether the site, when it last trained, counted earlier guessable noise as if nobody
    could guess it.
    """

    told: Told = field(default_factory=Told)
    runs: Mapping[int, RunAccount] = field(default_factory=dict)
    chain: str | None = None
    checked: int | None = None
    own_since: int | None = None
    samples: int | None = None
    version: int = FORMAT
    secret_since: int | None = None
    is_set_aside: bool = False

    @property
    def has_rounds(self) -> bool:
        """Says whether rounds are listed: the earliest release wrote the totals alone."""
        return self.version > TOTALS_ALONE

    @property
    def is_guessable(self) -> bool:
        """Says whether the account was written by a release whose noise can be guessed."""
        return self.version <= GUESSABLE

    def has(self, run: int, number: int) -> bool:
        """Says whether this round of a run is counted."""
        known = self.runs.get(run)
        return known is not None and _find(known.rounds, number) is not None

    def is_certain(self, run: int, number: int) -> bool:
        """Says whether this round is counted and not merely assumed."""
        return self.has(run, number) and number not in self.runs[run].assumed

    def find_last(self, run: int, number: int) -> int | None:
        """Returns the last counted round of a run below this one, None where there is none."""
        known = self.runs.get(run)
        below = [] if known is None else [min(last, number - 1) for first, last in known.rounds if first < number]
        return max(below, default=None)

    def plus(
        self, release: Release, run: int, number: int, *, noise: Mapping[str, float] | None = None, samples: int = 0
    ) -> Account:
        """Returns the account with one more phase, of this round; `noise` and `samples` are what it was trained with,
        if it was trained here."""
        account = replace(self, told=self.told.plus(release), samples=samples or self.samples)
        return account.with_certain(run, number, noise)

    def plus_assumed(self, release: Release, run: int, number: int, *, is_guessable: bool = False) -> Account:
        """Returns the account with one more phase, of a round that was not counted and may have revealed something."""
        before = self.runs.get(run, RunAccount())
        of_run = replace(before, rounds=_add(before.rounds, number), assumed=(*before.assumed, number))
        told = self.told.plus(release)
        told.guessable += is_guessable
        return replace(self, told=told, runs={**self.runs, run: of_run})

    @property
    def counted(self) -> Told:
        """Returns what epsilon is computed from, by the site's choice when it last trained."""
        return self.told.set_aside() if self.is_set_aside else self.told

    def with_certain(self, run: int, number: int, noise: Mapping[str, float] | None = None) -> Account:
        """Returns the account with no phase more, but with this round listed as certain."""
        before = self.runs.get(run, RunAccount())
        assumed = tuple(each for each in before.assumed if each != number)
        kept = before.noise if noise is None else dict(noise)
        return replace(self, runs={**self.runs, run: RunAccount(_add(before.rounds, number), assumed, kept)})

    def encode(self) -> bytes:
        names = ("chain", "checked", "own_since", "samples", "secret_since")
        more = {name: getattr(self, name) for name in names} | {"set_aside": self.is_set_aside or None}
        runs = {
            str(number): {
                "rounds": [list(pair) for pair in run.rounds],
                "assumed": list(run.assumed),
                "noise": dict(run.noise),
            }
            for number, run in sorted(self.runs.items())
        }
        known = {name: value for name, value in more.items() if value is not None}
        return json.dumps({"format": FORMAT, **self.told.to_json(), **known, "runs": runs}).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Returns the account in these bytes. Raises ValueError for bytes that `encode` cannot have returned, in this
        release or an earlier one."""
        values = json.loads(data)
        if not isinstance(values, dict) or values.get("format") not in (FORMAT, GUESSABLE, TOTALS_ALONE):
            raise ValueError(f"expected format {FORMAT}")
        told = Told.from_json(values)
        version: int = values["format"]
        if version <= GUESSABLE:
            told.guessable = told.phases
        if version == TOTALS_ALONE:
            return cls(told, version=version)
        try:
            runs = {int(number): _read_run(run) for number, run in values["runs"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"expected rounds by run, got {str(values.get('runs'))[:100]}") from error
        chain = values.get("chain")
        if chain is not None and not isinstance(chain, str):
            raise ValueError(f"expected the id of a chain, got {str(chain)[:100]}")
        counts = ("checked", "own_since", "samples", "secret_since")
        checked, own_since, samples, since = (_read_count(values.get(name)) for name in counts)
        is_set_aside = values.get("set_aside") is True
        return cls(told, runs, chain, checked, own_since, samples, version, since, is_set_aside)


def _read_run(value: Any) -> RunAccount:
    rounds = tuple((_read_number(first), _read_number(last)) for first, last in value["rounds"])
    ends = [number for pair in rounds for number in pair]
    assumed = tuple(_read_number(number) for number in value["assumed"])
    noise = {str(key): float(number) for key, number in value["noise"].items()}
    if ends != sorted(ends) or any(number < 0 for number in ends):
        raise ValueError(f"expected ranges of rounds in order, got {str(value['rounds'])[:100]}")
    return RunAccount(rounds, assumed, noise)


def _read_number(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"expected a whole number, got {str(value)[:100]}")
    return value


def _read_count(value: Any) -> int | None:
    if value is None:
        return None
    if (number := _read_number(value)) < 0:
        raise ValueError(f"expected a number of at least 0, got {number}")
    return number


def _find(rounds: Ranges, number: int) -> int | None:
    """Returns the index of the range that has this number, None where none has."""
    place = bisect_right(rounds, number, key=lambda pair: pair[0]) - 1
    return place if place >= 0 and number <= rounds[place][1] else None


def _add(rounds: Ranges, number: int) -> Ranges:
    """Returns the ranges with one number more; ranges that meet become one."""
    if _find(rounds, number) is not None:
        return rounds
    joined: list[tuple[int, int]] = []
    for first, last in sorted([*rounds, (number, number)]):
        if joined and joined[-1][1] == first - 1:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return tuple(joined)
