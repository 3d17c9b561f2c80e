"""Trials of mutants: alone before the quick unit tests, then in groups before all else, as most die of the former.

A test that fails without any mutant, here and now, says nothing of them and is left out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from mutants.clone import Clone, Ran
from mutants.reach import Reach
from mutants.sample import Mutant, Place

UNIT_BUDGET_S = 60.0
GROUP_SIZE = 8
TIMEOUT_S = 120.0
SLOW_TIMEOUT_S = 600.0

T = TypeVar("T")


class Results:
    """The lines of a file, one a trial: a run that was stopped goes on from them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.lines: list[dict[str, object]] = []
        if path.exists():
            self.lines = [json.loads(line) for line in path.read_text().splitlines()]

    def add(self, **line: object) -> None:
        """Appends a line."""
        with self._lock:
            self.lines.append(line)
            with self._path.open("a") as file:
                print(json.dumps(line), file=file, flush=True)

    def add_trial(self, mutant: Mutant, tier: str, killed_by: str | None, num_tests: int) -> None:
        """Appends what became of a mutant."""
        self.add(mutant=mutant.key, tier=tier, killed_by=killed_by, tests=num_tests)

    def get_open(self, mutants: Iterable[Mutant], tier: str) -> list[Mutant]:
        """Lists those that still live and have not been through this tier."""
        over = {line["mutant"] for line in self.lines if line.get("killed_by") or line.get("tier") in (tier, "gone")}
        return [mutant for mutant in mutants if mutant.key not in over]

    @property
    def has_checked(self) -> bool:
        """Says that the unit tests have run without a mutant."""
        return any("checked" in line for line in self.lines)

    def get_broken(self) -> set[str]:
        """Returns the tests that fail without any mutant."""
        return {str(line["broken"]) for line in self.lines if "broken" in line}


@dataclass(frozen=True, slots=True)
class Laboratory:
    """The clones of one tree, with what is known of its tests."""

    clones: Sequence[Clone]
    reach: Reach
    places: Mapping[Mutant, Place]
    results: Results
    say: Callable[[str], None]

    def report_gone(self, mutants: Iterable[Mutant]) -> None:
        """Notes those that this tree does not have."""
        for mutant in self.results.get_open(mutants, "gone"):
            if mutant not in self.places:
                self.results.add_trial(mutant, "gone", None, 0)

    def try_known(self, killers: Mapping[str, str]) -> None:
        """Tries each mutant before the test that killed it in another tree, if this one has that test."""
        there = set(self.clones[0].collect("-m", ""))
        known = [mutant for mutant in self.results.get_open(self.places, "known") if mutant.key in killers]
        self.say(f"{len(known)} mutants before the tests that killed them")

        def try_one(clone: Clone, mutant: Mutant) -> None:
            test = killers[mutant.key]
            failed = self._run(clone, [mutant], [test]).failed if test in there else ()
            if failed and self._run(clone, [], [test]).failed:
                self.results.add(broken=test)
                failed = ()
            tier = "unit" if test.startswith("tests/unit/") else "default"
            self.results.add_trial(mutant, tier if failed else "known", failed[0] if failed else None, 1)
            self.say(f"{'killed' if failed else 'lives '} {mutant.key}")

        self._share(try_one, known)

    def try_unit(self) -> None:
        """Tries each mutant alone before the quickest unit tests that reach it."""
        tests = {mutant: self._get_unit_tests(mutant) for mutant in self.results.get_open(self.places, "unit")}
        needed = frozenset().union(*tests.values())
        if not self.results.has_checked:
            self.say(f"{len(needed)} unit tests without a mutant")
            for test in self._run(self.clones[0], [], self.reach.sort(needed), to_the_end=True).failed:
                self.results.add(broken=test)
            self.results.add(checked=len(needed))
        broken = self.results.get_broken()
        self.say(f"{len(tests)} mutants alone before the unit tests that reach them")

        def try_one(clone: Clone, mutant: Mutant) -> None:
            chosen = [test for test in tests[mutant] if test not in broken]
            failed = self._run(clone, [mutant], chosen).failed if chosen else ()
            self.results.add_trial(mutant, "unit", failed[0] if failed else None, len(chosen))
            self.say(f"{'killed' if failed else 'lives '} {mutant.key}")

        self._share(try_one, list(tests))

    def try_default(self) -> None:
        """Tries what lives in groups before the other default tests that reach one of them."""
        tests = {}
        for mutant in self.results.get_open(self.places, "default"):
            tests[mutant] = self.reach.tests[mutant] - set(self._get_unit_tests(mutant))
            if not tests[mutant]:
                self.results.add_trial(mutant, "default", None, 0)
        reached = sorted(
            (mutant for mutant in tests if tests[mutant]), key=lambda mutant: self.reach.sum(tests[mutant])
        )
        groups = make_groups(reached)  # so that what few tests reach does not wait for what many do
        self.say(f"{sum(map(len, groups))} mutants in {len(groups)} groups before the default tests that reach them")
        self._share(lambda clone, group: self._try_group(clone, "default", group, tests), groups)

    def try_slow(self) -> None:
        """Tries what lives in groups before all of the slow tests and of those of real processes."""
        mutants = self.results.get_open(self.places, "slow")
        slow = self.clones[0].collect("-m", "slow and not long", "--ignore=tests/e2e", "--ignore=tests/web")
        tests = dict.fromkeys([*slow, *self.clones[0].collect("-m", "not long", "tests/e2e")])
        groups = make_groups(mutants)
        self.say(f"{len(mutants)} mutants in {len(groups)} groups before {len(tests)} slow tests")
        reached = dict.fromkeys(mutants, tests)
        self._share(lambda clone, group: self._try_group(clone, "slow", group, reached), groups)

    def _get_unit_tests(self, mutant: Mutant) -> list[str]:
        chosen, total_s = [], 0.0
        for test in self.reach.sort([test for test in self.reach.tests[mutant] if test.startswith("tests/unit/")]):
            total_s += self.reach.durations[test]
            if total_s > UNIT_BUDGET_S:
                break
            chosen.append(test)
        return chosen

    def _try_group(
        self, clone: Clone, tier: str, group: Sequence[Mutant], reached: Mapping[Mutant, Collection[str]]
    ) -> None:
        alive = list(group)
        todo = self.reach.sort(frozenset().union(*(reached[mutant] for mutant in group)) - self.results.get_broken())
        while alive and todo:
            ran = self._run(clone, alive, todo)
            over = ran.passed
            if ran.failed:
                killed = self._judge(clone, alive, ran.failed[0])  # of a worker's lines coverage need not know
                for mutant in killed:
                    alive.remove(mutant)
                    self.results.add_trial(mutant, tier, ran.failed[0], len(reached[mutant]))
                    self.say(f"killed {mutant.key}")
                over |= set(ran.failed[:1] if killed else ran.failed)
            needed = set().union(*(reached[mutant] for mutant in alive)) - over
            todo = [test for test in todo if test in needed]
        for mutant in alive:
            self.results.add_trial(mutant, tier, None, len(reached[mutant]))
            self.say(f"lives  {mutant.key}")

    def _judge(self, clone: Clone, mutants: Sequence[Mutant], test: str) -> list[Mutant]:
        """Returns those of the mutants that the test kills, none where it fails by itself."""
        if not self._run(clone, [], [test]).failed:
            return self._find_killed(clone, mutants, test)
        self.results.add(broken=test)
        self.say(f"broken {test}")
        return []

    def _find_killed(self, clone: Clone, mutants: Sequence[Mutant], test: str) -> list[Mutant]:
        """Returns those that the test kills alone, by halves."""
        if not mutants or not self._run(clone, mutants, [test]).failed:
            return []
        if len(mutants) == 1:
            return [*mutants]
        half = len(mutants) // 2
        return [*self._find_killed(clone, mutants[:half], test), *self._find_killed(clone, mutants[half:], test)]

    def _run(self, clone: Clone, mutants: Sequence[Mutant], tests: Sequence[str], *, to_the_end: bool = False) -> Ran:
        places = [self.places[mutant] for mutant in mutants]
        known = all(test in self.reach.durations for test in tests)
        timeout_s = TIMEOUT_S if known else SLOW_TIMEOUT_S
        return clone.run(places, tests, self.reach.durations, timeout_s=timeout_s, to_the_end=to_the_end)

    def _share(self, work: Callable[[Clone, T], None], items: Sequence[T]) -> None:
        """Does the work on all items, as many at a time as there are clones."""
        free: SimpleQueue[Clone] = SimpleQueue()
        for clone in self.clones:
            free.put(clone)

        @contextmanager
        def borrowed() -> Iterator[Clone]:
            clone = free.get()
            try:
                yield clone
            finally:
                free.put(clone)

        def work_on(item: T) -> None:
            with borrowed() as clone:
                work(clone, item)

        with ThreadPoolExecutor(len(self.clones)) as pool:
            list(pool.map(work_on, items))


def make_groups(mutants: Sequence[Mutant]) -> list[list[Mutant]]:
    """Groups mutants, no two of one function: one could hide what the other does."""
    groups: list[list[Mutant]] = []
    for mutant in mutants:
        name = (mutant.file, mutant.definition)
        for group in groups:
            if len(group) < GROUP_SIZE and name not in {(other.file, other.definition) for other in group}:
                group.append(mutant)
                break
        else:
            groups.append([mutant])
    return groups
