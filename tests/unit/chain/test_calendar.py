"""The calendar: which run, and which round of it, a height is."""

from __future__ import annotations

from chain.calendar import Calendar, Place
from chain.changes.rules import SetRules
from chain.changes.runs import EndRun, SetRounds, StartRun
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import LivingChain

KEYS = make_keys(4)
RULES = SetRules({"keep_heights": (2, 3)})


def make_chain(rounds: int = 3) -> LivingChain:
    return LivingChain(make_genesis(KEYS, rounds=rounds), KEYS)


def start_run(chain: LivingChain, number: int, rounds: int) -> StartRun:
    terms = chain.state.run.to_terms()
    del terms["initial_model"]
    return StartRun(number, terms | {"rounds": rounds}, make_digest(f"model of run {number}"))


def read(chain: LivingChain) -> Calendar:
    """As a store has it: the state of genesis, and one for each change."""
    states = [(0, chain.genesis.state)]
    states += [(block.height, chain.tips[block.height].state) for block, _ in chain.blocks if block.change is not None]
    return Calendar(states)


def get_places(calendar: Calendar, last: int) -> list[tuple[int, int] | None]:
    """Of the heights from 0 on."""
    places = [calendar.get_place(height) for height in range(last + 1)]
    return [None if place is None else (place.run, place.round) for place in places]


def test_a_chain_without_changes_has_a_round_at_each_height_until_the_run_is_over() -> None:
    calendar = read(make_chain(rounds=3))
    assert get_places(calendar, 4) == [None, (1, 1), (1, 2), (1, 3), None]
    assert [calendar.get_height(Place(1, number)) for number in range(5)] == [None, 1, 2, 3, None]


def test_a_run_without_an_end_has_a_round_at_each_height_to_come() -> None:
    calendar = read(make_chain(rounds=0))
    assert calendar.get_place(1000) == Place(1, 1000)
    assert calendar.get_height(Place(1, 1000)) == 1000


def test_a_change_within_a_run_moves_its_later_rounds_by_a_height() -> None:
    chain = make_chain(rounds=3)
    chain.add_rounds(2)
    chain.add_change(RULES)
    calendar = read(chain)
    assert get_places(calendar, 5) == [None, (1, 1), (1, 2), None, (1, 3), None]
    assert calendar.is_change(3)
    assert not calendar.is_change(2)
    assert [calendar.get_height(Place(1, number)) for number in (1, 2, 3, 4)] == [1, 2, 4, None]
    assert [calendar.count_rounds(1, head) for head in range(5)] == [0, 1, 2, 2, 3]


def test_two_changes_in_a_row_move_rounds_by_two_heights() -> None:
    chain = make_chain(rounds=3)
    chain.add_rounds(1)
    chain.add_change(RULES)
    chain.add_change(SetRules({"keep_heights": (3, 4)}))
    chain.add_rounds(1)
    calendar = read(chain)
    assert get_places(calendar, 5) == [None, (1, 1), None, None, (1, 2), (1, 3)]
    assert calendar.get_height(Place(1, 2)) == 4
    assert [calendar.count_rounds(1, head) for head in range(6)] == [0, 1, 1, 1, 2, 3]


def test_each_run_counts_its_own_rounds() -> None:
    chain = make_chain(rounds=2)
    chain.add_rounds(2)
    chain.add_change(start_run(chain, 2, rounds=2))
    chain.add_rounds(1)
    chain.add_change(RULES)
    chain.add_rounds(1)
    calendar = read(chain)
    assert get_places(calendar, 7) == [None, (1, 1), (1, 2), None, (2, 1), None, (2, 2), None]
    assert [calendar.get_height(Place(2, number)) for number in (1, 2, 3)] == [4, 6, None]
    assert calendar.get_height(Place(3, 1)) is None
    assert calendar.count_rounds(1, 6) == 2
    assert calendar.count_rounds(2, 6) == 2


def test_a_run_that_was_ended_keeps_the_rounds_it_made() -> None:
    chain = make_chain(rounds=0)
    chain.add_rounds(2)
    chain.add_change(EndRun(1))
    chain.add_change(RULES)
    chain.add_change(start_run(chain, 2, rounds=1))
    calendar = read(chain)
    assert get_places(calendar, 7) == [None, (1, 1), (1, 2), None, None, None, (2, 1), None]
    assert calendar.count_rounds(1, 5) == 2
    assert calendar.get_height(Place(1, 3)) is None


def test_more_rounds_go_on_after_a_pause() -> None:
    chain = make_chain(rounds=1)
    chain.add_rounds(1)
    chain.add_change(SetRounds(1, 1, 2))
    calendar = read(chain)
    assert get_places(calendar, 4) == [None, (1, 1), None, (1, 2), None]


def test_a_calendar_that_grows_is_the_one_that_is_read() -> None:
    chain = make_chain(rounds=0)
    grown = read(chain)
    for _ in range(2):
        chain.add_rounds(1)
        chain.add_change(SetRules({"keep_heights": (chain.state.rules.keep_heights, 5 + chain.tip.height)}))
        grown.add(chain.tip.height, chain.state)
        grown.add(chain.tip.height, chain.state)  # which it knows
    assert get_places(grown, 6) == get_places(read(chain), 6)
    assert grown.newest.rules == chain.state.rules


def test_a_span_has_the_rules_and_members_of_its_heights() -> None:
    chain = make_chain(rounds=0)
    chain.add_rounds(1)
    chain.add_change(RULES)
    calendar = read(chain)
    assert [calendar.get_span(height).rules.keep_heights for height in (1, 2, 3)] == [2, 2, 3]
    assert calendar.get_span(3).num_members == 4
