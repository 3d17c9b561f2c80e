"""The tests that reach each mutant, and how long each takes, of one run of the default tests under coverage."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from mutants.clone import Clone
from mutants.sample import Mutant

# Each process reads it anew, so what a test starts counts for the test. Forked ones, and those that end by force, too.
_RC = """[run]
source = chain,node,ml
parallel = true
data_file = {directory}/data
context = ${{PYTEST_CURRENT_TEST-}}
patch = fork,_exit
disable_warnings = no-data-collected,module-not-imported,module-not-measured,already-imported,no-ctracer
"""
# As `make test` has them.
_RUNS = (("-n", "2", "--ignore=tests/e2e", "--ignore=tests/web"), ("tests/e2e",))
_CONTEXT = re.compile(r"(.+) \((setup|call|teardown)\)$")


@dataclass(frozen=True, slots=True)
class Reach:
    """The tests of each mutant, and the seconds that each test takes."""

    durations: Mapping[str, float]
    tests: Mapping[Mutant, frozenset[str]]

    def sort(self, tests: Sequence[str] | frozenset[str]) -> list[str]:
        """Sorts them by file, which may share what is slow to set up, and the files by their quickness."""
        files = defaultdict(list)
        for test in tests:
            files[test.partition("::")[0]].append(test)
        means = {file: sum(map(self._get_duration, those)) / len(those) for file, those in files.items()}
        return sorted(tests, key=lambda test: (means[file := test.partition("::")[0]], file, self._get_duration(test)))

    def sum(self, tests: Iterable[str]) -> float:
        """Sums the seconds that the tests take."""
        return sum(map(self._get_duration, tests))

    def _get_duration(self, test: str) -> float:
        return self.durations.get(test, 0.0)

    def save(self, path: Path) -> None:
        """Writes it with a number for each test."""
        numbers = {test: i for i, test in enumerate(self.durations)}
        reached = {mutant.key: sorted(numbers[test] for test in tests) for mutant, tests in self.tests.items()}
        path.write_text(json.dumps({"durations": self.durations, "reached": reached}))

    @classmethod
    def load(cls, path: Path, mutants: Sequence[Mutant]) -> Reach:
        """Reads what `save` has written."""
        said = json.loads(path.read_text())
        names = list(said["durations"])
        reached = {mutant: frozenset(names[i] for i in said["reached"].get(mutant.key, ())) for mutant in mutants}
        return cls(said["durations"], reached)


def record(clone: Clone, directory: Path) -> None:
    """Runs the default tests of the clone, and leaves the data of coverage and the durations in `directory`."""
    directory.mkdir(parents=True)
    rc = directory / "rc"
    rc.write_text(_RC.format(directory=directory))
    for i, options in enumerate(_RUNS):
        clone.run_all(*options, f"--junitxml={directory}/{i}.xml", env={"COVERAGE_PROCESS_START": str(rc)})


def read(clone: Clone, directory: Path, mutants: Sequence[Mutant]) -> Reach:
    """Reads what `record` has left. What a fixture does may serve every test of its file, so those reach it too."""
    from coverage import CoverageData
    from coverage.exceptions import DataError

    durations = {}
    for path in sorted(directory.glob("*.xml")):
        durations.update(_read_durations(path))
    of_file = defaultdict(list)
    for test in durations:
        of_file[test.partition("::")[0]].append(test)
    places = defaultdict(list)
    for place in clone.find_places(mutants).values():
        places[place.mutant.file].append(place)
    reached: dict[Mutant, set[str]] = defaultdict(set)
    for path in sorted(directory.glob("data*")):
        data = CoverageData(str(path))
        try:
            data.read()
        except DataError:  # its process was killed as it wrote
            continue
        for file, those in places.items():
            lines = data.contexts_by_lineno(str(clone.directory / file))
            for place in those:
                contexts = {context for line in place.lines for context in lines.get(line, ())}
                for match in filter(None, map(_CONTEXT.match, contexts)):
                    test, phase = match.groups()
                    tests = [test] if phase == "call" else of_file[test.partition("::")[0]]
                    reached[place.mutant].update(tests)
    return Reach(durations, {mutant: frozenset(tests & durations.keys()) for mutant, tests in reached.items()})


def _read_durations(path: Path) -> dict[str, float]:
    durations = {}
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("skipped") is None:
            durations[_get_node_id(case.attrib["classname"], case.attrib["name"])] = float(case.attrib["time"])
    return durations


def _get_node_id(class_name: str, name: str) -> str:
    """Puts together what JUnit's format takes apart: the module `tests.unit.test_x`, and the class within it if any."""
    folders, _, module = class_name.rpartition(".test_")
    module, *classes = module.split(".")
    return "::".join([f"{folders.replace('.', '/')}/test_{module}.py", *classes, name])
