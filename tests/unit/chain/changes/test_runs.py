"""Changes of what is trained: runs that start, grow and end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from chain.block import ZERO
from chain.changes.base import Kind
from chain.changes.members import AddObserver
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.errors import GenesisError, InvalidChange
from chain.schema import Section
from chain.state import State
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import MODEL, execute

KEYS = make_keys(4)
NEW = make_keys(1, "newcomer")[0]
STATE = make_genesis(KEYS).state  # run 1 of ten rounds, with an empty schema
WITH_WEIGHTS = replace(STATE, run=replace(STATE.run, schema={"aggregate": {"w": [2]}, "kinds": {"1": "w"}}))


def get_terms(**changes: Any) -> dict[str, Any]:
    terms = WITH_WEIGHTS.run.to_terms() | changes
    del terms["initial_model"]
    return terms


def refuse(state: State, kind: Kind, message: str, height: int = 4, aggregate: bytes = MODEL) -> None:
    with pytest.raises(InvalidChange, match=message):
        execute(state, kind, height, aggregate=aggregate)


# start_run


def test_a_run_starts_at_the_height_after_its_change() -> None:
    model = make_digest("another model")
    after = execute(STATE, StartRun(2, get_terms(rounds=3), model), 4)
    assert (after.run.number, after.run.first_height, after.run.rounds) == (2, 5, 3)
    assert (after.run.initial_model, after.run.is_ended) == (model, False)
    assert [after.has_round(height) for height in (5, 7, 8)] == [True, True, False]


def test_a_run_starts_whether_the_last_one_goes_on_or_is_over_or_was_ended() -> None:
    kind = StartRun(2, get_terms(), MODEL)
    ended = execute(STATE, EndRun(1), 3)
    for state, height in ((STATE, 4), (STATE, 11), (ended, 4)):
        after = execute(state, kind, height)
        assert (after.run.number, after.run.first_height, after.run.is_ended) == (2, height + 1, False)


def test_a_run_continues_from_the_aggregate_in_force_where_it_has_the_same_shape() -> None:
    after = execute(WITH_WEIGHTS, StartRun(2, get_terms(rounds=5), None), 4, aggregate=MODEL)
    assert after.run.initial_model == MODEL
    after = execute(execute(WITH_WEIGHTS, EndRun(1), 3), StartRun(2, get_terms(), None), 4)
    assert after.run.initial_model == MODEL


def test_a_run_may_train_more_or_less_of_the_model_that_it_continues() -> None:
    less, more = ({"aggregate": {"w": [2], **others}, "kinds": {}} for others in ({}, {"v": [3]}))
    for before, after in ((less, more), (more, less)):
        ran = execute(STATE, StartRun(2, get_terms(schema=before), MODEL), 4)
        assert execute(ran, StartRun(3, get_terms(schema=after), None), 5, aggregate=MODEL).run.schema == after
    for wrong in ({"w": [3], "v": [3]}, {"w": [2], "u": [1]}, {}, "w"):
        schema = {"aggregate": wrong, "kinds": {}}
        ran = execute(STATE, StartRun(2, get_terms(schema=more), MODEL), 4)
        refuse(ran, StartRun(3, get_terms(schema=schema), None), "not one this run can continue from")


def test_a_run_does_not_continue_from_what_it_cannot_read() -> None:
    other = get_terms(schema={"aggregate": {"w": [3]}, "kinds": {"1": "w"}})
    refuse(WITH_WEIGHTS, StartRun(2, other, None), "not one this run can continue from")
    refuse(WITH_WEIGHTS, StartRun(2, get_terms(schema={}), None), "not one this run can continue from")
    refuse(STATE, StartRun(2, get_terms(schema={}), None), "not one this run can continue from")
    refuse(WITH_WEIGHTS, StartRun(2, get_terms(), None), "no aggregate to continue from", aggregate=ZERO)
    assert execute(WITH_WEIGHTS, StartRun(2, other, MODEL), 4, aggregate=ZERO).run.initial_model == MODEL


# ---- agreed statistics

AGREED = {"shape": [1, 8, 8], "resize": None, "normalize": "agreed", "min_count": 5}
INHERITED = {**AGREED, "normalize": "inherited"}
WITH_STATISTICS = replace(WITH_WEIGHTS, run=replace(WITH_WEIGHTS.run, input=AGREED))


def test_a_run_that_continues_may_inherit_what_the_one_before_has_agreed_on() -> None:
    second = execute(WITH_STATISTICS, StartRun(2, get_terms(input=INHERITED), None), 4)
    assert second.run.input == INHERITED
    third = execute(second, StartRun(3, get_terms(input=INHERITED), None), 5)  # before its first round, which is there
    assert third.run.input["normalize"] == "inherited"
    anew = execute(WITH_STATISTICS, StartRun(2, get_terms(input=AGREED), None), 4)
    assert anew.run.input == AGREED


@pytest.mark.parametrize(
    ("state", "input_", "initial", "height", "problem"),
    [
        (WITH_STATISTICS, INHERITED, MODEL, 4, "goes with a run that continues"),
        (WITH_WEIGHTS, INHERITED, None, 4, "has no agreed statistics to inherit"),
        (WITH_STATISTICS, {**INHERITED, "shape": [1, 4, 16]}, None, 4, "by the same shape and resize only"),
        (WITH_STATISTICS, INHERITED, None, 1, "has not agreed on its statistics yet"),
    ],
)
def test_what_a_run_cannot_inherit_is_refused(
    state: State, input_: dict[str, Any], initial: bytes | None, height: int, problem: str
) -> None:
    refuse(state, StartRun(2, get_terms(input=input_), initial), problem, height)


@pytest.mark.parametrize(
    ("input_", "problem"),
    [
        ({**AGREED, "mean": [0.0]}, "input.mean: expected none with normalize: agreed"),
        ({**AGREED, "normalize": "auto"}, "input.normalize: expected one of agreed, inherited"),
        ({**AGREED, "min_count": 0}, "input.min_count: expected 1 to"),
        ({**AGREED, "low": [0.0]}, "input.high: expected it beside low"),
        ({**AGREED, "low": [0.0, 1.0], "high": [2.0]}, "input.low: expected 1 value or"),
        ({**AGREED, "low": [2.0], "high": [2.0]}, "input.high: expected values above those of low"),
        ({"shape": [1, 8, 8], "low": [0.0], "high": [1.0]}, "input.low: expected none without normalize: agreed"),
        ({**AGREED, "min_count": 2.5}, "input.min_count: expected a whole number"),
        ({**AGREED, "class_counts": 1}, "input.class_counts: expected true or false"),
        ({"shape": [1, 8, 8], "min_count": 5}, "input.min_count: expected none without normalize: agreed"),
    ],
)
def test_an_input_that_says_two_things_is_refused(input_: dict[str, Any], problem: str) -> None:
    with pytest.raises(GenesisError, match=re.escape(problem)):
        make_genesis(KEYS, input=input_)


def test_what_is_not_said_of_statistics_is_written_out_or_left_out() -> None:
    shape = {"shape": [1, 8, 8]}
    assert make_genesis(KEYS, input={**shape, "normalize": "agreed", "class_counts": False}).run.input == AGREED
    plain = {"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]}
    assert make_genesis(KEYS, input=shape).run.input == plain
    with pytest.raises(GenesisError, match=r"input.normalize: expected agreed in the first run"):
        make_genesis(KEYS, input=INHERITED)


@pytest.mark.parametrize("number", [0, 1, 3, -1])
def test_runs_are_numbered_without_gaps(number: int) -> None:
    refuse(STATE, StartRun(number, get_terms(), MODEL), "number of the run: expected 2, got")


def test_terms_that_are_no_runs_are_refused_when_read() -> None:
    good = {"number": 2, **get_terms()}
    for changes, initial, message in (
        ({}, "00" * 32, "expected the digest of a model, got zeros"),
        ({}, "other", "64 lower-case hex digits"),
        ({"number": 0}, "continue", "number: expected 1 to"),
        ({"rounds": -1}, "continue", "rounds: expected 0 to"),
        ({"rounds": True}, "continue", "expected a whole number"),
        ({"classes": []}, "continue", "classes: expected at least one"),
        ({"method": {}}, "continue", "method.name"),
        ({"initial_model": "00" * 32}, "continue", "unknown key"),
        ({"schema": None}, "continue", "expected a mapping"),
    ):
        with pytest.raises(GenesisError, match=message):
            StartRun.read(Section("", {"run": {**good, **changes}, "initial": initial}, ("run", "initial")))
    for missing in good:
        left = {name: value for name, value in good.items() if name != missing}
        with pytest.raises(GenesisError):
            StartRun.read(Section("", {"run": left, "initial": "continue"}, ("run", "initial")))


# set_rounds


def test_rounds_can_be_more_fewer_or_without_end() -> None:
    for new in (11, 3, 0):
        after = execute(STATE, SetRounds(1, 10, new), 4)
        assert (after.run.rounds, after.run.first_height) == (new, 2)
    assert execute(execute(STATE, SetRounds(1, 10, 0), 4), SetRounds(1, 0, 5), 5).run.rounds == 5


def test_rounds_are_never_fewer_than_were_made() -> None:
    """Blocks 1 to 3 are rounds and block 4 the change: three were made."""
    refuse(STATE, SetRounds(1, 10, 2), "rounds: expected 0 or at least the 3 made, got 2")
    over = execute(STATE, SetRounds(1, 10, 3), 4)
    assert not over.has_round(5)
    observed = execute(STATE, AddObserver(NEW.id, "archive"), 3)  # two rounds, an observer, a round
    refuse(observed, SetRounds(1, 10, 2), "at least the 3 made, got 2", height=5)
    assert not execute(observed, SetRounds(1, 10, 3), 5).has_round(6)


def test_set_rounds_holds_for_the_run_and_the_number_it_names() -> None:
    refuse(STATE, SetRounds(2, 10, 20), "number of the run: expected 1, got 2")
    refuse(STATE, SetRounds(1, 9, 20), "rounds in force: expected 9, got 10")
    refuse(STATE, SetRounds(1, 10, 10), "there are 10 already")
    refuse(STATE, SetRounds(1, 10, -1), "rounds")
    refuse(STATE, SetRounds(1, 10, 2**63), "rounds: expected 0 to")
    refuse(execute(STATE, EndRun(1), 3), SetRounds(1, 10, 20), "run 1 has been ended")


@pytest.mark.parametrize("pair", [[], [1], [1, 2, 3], 7, ["1", 2], [1, True], {"old": 1}, None, [1.0, 2]])
def test_a_pair_of_rounds_is_two_whole_numbers(pair: object) -> None:
    with pytest.raises(GenesisError):
        SetRounds.read(Section("", {"run": 1, "rounds": pair}, ("run", "rounds")))


# end_run


def test_an_ended_run_is_ended_once() -> None:
    after = execute(STATE, EndRun(1), 4)
    assert after.run.is_ended
    assert not after.has_round(5)
    refuse(after, EndRun(1), "run 1 has been ended", height=5)
    refuse(STATE, EndRun(2), "number of the run: expected 1, got 2")
