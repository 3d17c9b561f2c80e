"""The account's words: which rounds are counted, as ranges that meet, and what may have been told beside what was."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ml.accountant import Release, Told
from node.training.account import Account

RELEASE = Release(20, 0.15, 2.0, 5.0)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30), st.booleans()), max_size=40))
def test_what_was_counted_is_read_again(phases: list[tuple[int, int, bool]]) -> None:
    account, counted = Account(chain="ab", checked=7, own_since=3, secret_since=5), set[tuple[int, int]]()
    for run, number, is_assumed in phases:
        if not is_assumed:
            account = account.plus(RELEASE, run, number, noise={"dp_noise": 2.0}, samples=9)
        elif (run, number) not in counted:
            account = account.plus_assumed(RELEASE, run, number, is_guessable=number < 9)
        counted.add((run, number))
    again = Account.decode(account.encode())
    assert again == account
    assert again.told.guessable == account.told.guessable <= again.told.phases
    for run in range(1, 4):
        numbers = {number for of, number in counted if of == run}
        assert {number for number in range(32) if again.has(run, number)} == numbers
        assert again.find_last(run, 20) == max((number for number in numbers if number < 20), default=None)
        ranges = again.runs[run].rounds if numbers else ()
        assert all(first[1] + 1 < second[0] for first, second in pairwise(ranges))


def test_a_round_that_is_trained_after_all_is_certain() -> None:
    account = Account().plus_assumed(RELEASE, 1, 4)
    assert account.has(1, 4)
    assert not account.is_certain(1, 4)
    assert account.with_certain(1, 4).is_certain(1, 4)
    assert account.with_certain(1, 4).told == Told.of([RELEASE])
    trained = account.plus(RELEASE, 1, 4)
    assert trained.is_certain(1, 4)
    assert trained.told == Told.of([RELEASE] * 2)  # nobody knows that it is the same


def test_a_file_of_an_earlier_release_knows_of_no_rounds() -> None:
    account = Account.decode(b'{"format": 1, "phases": 1, "steps": [[0.15, 2.0, 20]], "prototypes": [[5.0, 1]]}')
    assert account.told == replace(Told.of([RELEASE]), guessable=1)
    assert not account.has_rounds
    assert Account.decode(account.encode()).has_rounds
