"""Trials of mutants with a clone that only says which test fails, and what is counted of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mutants.clone import Clone, Ran
from mutants.reach import Reach
from mutants.report import compare, read_verdicts
from mutants.sample import Edit, Mutant, Place, apply_edits, load_sample
from mutants.trial import GROUP_SIZE, Laboratory, Results, make_groups

BROKEN = "tests/rpc/test_z.py::test_broken"


class SayingClone(Clone):
    """A test fails if one of those it kills is there, and the broken one fails always."""

    def __init__(self, killed: Mapping[str, str]) -> None:
        self.killed = killed

    def run(
        self, places: Sequence[Place], tests: Sequence[str], *_: object, to_the_end: bool = False, **__: object
    ) -> Ran:
        there = {self.killed.get(place.mutant.definition) for place in places}
        failed = [test for test in tests if test in there or test == BROKEN]
        passed = tests if to_the_end or not failed else tests[: tests.index(failed[0])]
        return Ran(frozenset(passed) - set(failed), tuple(failed if to_the_end else failed[:1]))

    def collect(self, *_: object) -> list[str]:
        return [*self.killed.values(), BROKEN]


def make_mutant(definition: str) -> Mutant:
    return Mutant("chain/finality.py", definition, "core/AddNot", "if it:", 0)


def make_laboratory(path: Path, killed: Mapping[str, str], reached: Mapping[str, Sequence[str]]) -> Laboratory:
    """Of mutants that are called by their functions; each test takes a second."""
    tests = {make_mutant(name): frozenset(those) for name, those in reached.items()}
    places = {mutant: Place(mutant, 0, (1, 0), frozenset([1])) for mutant in tests}
    durations = {test: 1.0 for those in reached.values() for test in those}
    return Laboratory([SayingClone(killed)], Reach(durations, tests), places, Results(path), print)


def get_states(path: Path) -> dict[str, tuple[str, str | None]]:
    """Returns what became of each function's mutant, and by which test."""
    return {key.split(":")[1]: (it.state, it.test) for key, it in read_verdicts(path).items()}


def test_each_dies_of_its_own_test_and_a_broken_test_kills_nobody(tmp_path: Path) -> None:
    quick, late, last = "tests/unit/test_a.py::test_a", "tests/rpc/test_b.py::test_b", "tests/rpc/test_zz.py::test_c"
    killed = {"one": quick, "two": late, "three": last, "five": late}
    reached = {name: [quick, late, BROKEN, last] for name in ("one", "two", "three", "four")} | {"five": [quick]}
    laboratory = make_laboratory(tmp_path / "results", killed, reached)
    laboratory.try_unit()
    laboratory.try_default()
    assert get_states(tmp_path / "results") == {
        "one": ("unit", quick),
        "two": ("default", late),
        "three": ("default", last),
        "four": ("lives", None),
        "five": ("lives", None),
    }


def test_what_killed_it_before_is_tried_first_and_what_is_not_there_kills_nobody(tmp_path: Path) -> None:
    quick, gone = "tests/unit/test_a.py::test_a", "tests/unit/test_a.py::test_gone"
    laboratory = make_laboratory(tmp_path / "results", {"one": quick, "two": quick}, {"one": [quick], "two": [quick]})
    killers = {mutant.key: test for mutant, test in zip(laboratory.places, (quick, gone), strict=True)}
    laboratory.try_known(killers)
    assert get_states(tmp_path / "results") == {"one": ("unit", quick), "two": ("lives", None)}
    laboratory.try_unit()
    assert get_states(tmp_path / "results") == {"one": ("unit", quick), "two": ("unit", quick)}


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    test = "tests/unit/test_a.py::test_a"
    make_laboratory(tmp_path / "results", {}, {"one": [test]}).try_unit()
    again = make_laboratory(tmp_path / "results", {"one": test, "two": test}, {"one": [test], "two": [test]})
    again.try_unit()
    assert get_states(tmp_path / "results") == {"one": ("lives", None), "two": ("unit", test)}


def test_what_died_before_and_lives_now_is_named_and_what_is_gone_counts_nowhere(tmp_path: Path) -> None:
    one, two, three = map(make_mutant, ("one", "two", "three"))
    before, after = Results(tmp_path / "before"), Results(tmp_path / "after")
    for mutant, was, tier, now in ((one, "test_a", "unit", None), (two, "test_b", "slow", "test_c")):
        before.add_trial(mutant, "unit", was, 1)
        after.add_trial(mutant, tier, now, 1)
    before.add_trial(three, "unit", "test_d", 1)
    after.add_trial(three, "gone", None, 0)
    said = "\n".join(compare(read_verdicts(tmp_path / "before"), read_verdicts(tmp_path / "after")))
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("all")] == ["100.0%", "50.0%"]
    assert "1 mutants are not in both" in said
    assert [line for line in said.splitlines() if "lives now" in line] == [f"lives now: {one.key}"]


def test_no_two_of_a_function_are_in_one_group() -> None:
    groups = make_groups(load_sample())
    assert sum(map(len, groups)) == len(load_sample()) >= 200
    for group in groups:
        assert len({(mutant.file, mutant.definition) for mutant in group}) == len(group) <= GROUP_SIZE


def test_edits_of_one_source_do_not_move_each_other() -> None:
    assert apply_edits("a + b * c", [Edit(2, 3, "--"), Edit(6, 7, "/")]) == "a -- b / c"
