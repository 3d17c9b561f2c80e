"""The round whose model answers, by what an operator asks for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from chain.selection import Selection
from node.errors import InvalidRequest, NotFound
from node.runs.chosen_round import NEWEST_ROUND, ChosenRound, choose_round
from node.training.own_best import OwnBest
from support.data.chains import make_genesis, make_keys

RUN = make_genesis(make_keys(4)).run
FOUND = Selection(run=1, best=3)


def test_it_is_the_best_once_the_run_is_over_and_the_newest_before() -> None:
    assert choose_round("", RUN, FOUND, is_over=False) == NEWEST_ROUND
    assert choose_round("", RUN, FOUND, is_over=True) == ChosenRound(3, is_best=True)
    assert choose_round("", RUN, Selection(run=1), is_over=True) == NEWEST_ROUND
    assert choose_round("", replace(RUN, number=2), FOUND, is_over=True) == NEWEST_ROUND  # what is known is of run 1


def test_a_sites_own_best_is_asked_for_by_name() -> None:
    for number, is_best in ((9, False), (3, True)):
        own = partial(OwnBest, number, "loss", 0.41)
        chosen = choose_round("own-best", RUN, FOUND, is_over=True, read_own_best=own)
        assert chosen == ChosenRound(number, is_best=is_best, is_asked=True)
    with pytest.raises(NotFound, match=r"run 1: this site has no best round of its own: .*data\.val"):
        choose_round("own-best", RUN, FOUND, is_over=True)


def test_it_is_what_is_asked_for() -> None:
    assert choose_round("newest", RUN, FOUND, is_over=True) == ChosenRound(None, is_asked=True)
    assert choose_round("best", RUN, FOUND, is_over=False) == ChosenRound(3, is_best=True, is_asked=True)
    assert choose_round("3", RUN, FOUND, is_over=False) == ChosenRound(3, is_best=True, is_asked=True)
    assert choose_round("12", RUN, FOUND, is_over=False) == ChosenRound(12, is_asked=True)


@pytest.mark.parametrize("asked", ["0", "-1", "oldest", "1.5", "²", "9" * 30])
def test_what_is_no_round_is_refused(asked: str) -> None:
    with pytest.raises(InvalidRequest, match="expected newest, best, own-best or a number"):
        choose_round(asked, RUN, FOUND, is_over=True)


def test_there_is_no_best_where_no_quorum_has_measured() -> None:
    with pytest.raises(NotFound, match="run 1 has no best round"):
        choose_round("best", RUN, Selection(run=1), is_over=True)
