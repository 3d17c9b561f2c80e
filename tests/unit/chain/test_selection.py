"""The best round of a run by the measures in its blocks, and the end of the run by patience."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.audit import verify_chain
from chain.block import Block, Contribution, Measure
from chain.calendar import Calendar, Place
from chain.changes.members import ReplaceKey
from chain.changes.runs import EndRun, SetRounds
from chain.codec import decode_contribution, encode_contribution, sign_contribution
from chain.errors import DecodeError, EncodeError, GenesisError, InvalidContribution, InvalidState
from chain.genesis import Genesis
from chain.run import Run
from chain.select import Select
from chain.selection import Selection, cap_weights, compute_score, read_selection
from chain.state import State
from chain.store.sqlite import SqliteStore
from chain.validation import validate_candidate
from support.data.chains import make_genesis, make_keys
from support.data.changes import LivingChain, extend_with, make_round

KEYS = make_keys(4)
PATIENT = {"by": "loss", "patience": 2}
VALUES = st.integers(0, 2_000_000)
WEIGHTS = st.integers(1, 1_000_000)


def make_chain(rounds: int = 10, select: Any = PATIENT, **terms: Any) -> LivingChain:
    return LivingChain(make_genesis(KEYS, protocol=5, rounds=rounds, select=select, **terms), KEYS)


def measure(chain: LivingChain, values: Sequence[int | None], samples: Sequence[int] = (10, 10, 10, 10)) -> None:
    """Adds a round whose authors measured the one before so, in the order of KEYS."""
    told = {
        key.id: Measure(count, value)
        for key, count, value in zip(KEYS, samples, values, strict=True)
        if value is not None
    }
    chain.add_rounds(1, told)


# ---- terms


def test_what_a_run_selects_by_is_hashed_where_it_is_set_and_comes_back() -> None:
    genesis = make_chain().genesis
    assert genesis.run.select == Select("loss", 2, 0.0)
    assert Genesis.from_mapping(genesis.to_mapping()) == genesis
    assert Run.from_mapping(genesis.run.to_mapping()) == genesis.run
    assert "select" not in make_genesis(KEYS).run.to_terms()
    assert make_genesis(KEYS, select=None).chain_id == make_genesis(KEYS).chain_id
    stopped = replace(genesis.state, run=replace(genesis.run, stopped=3))
    assert State.decode(stopped.chain_id, stopped.canonical) == stopped


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"select": {"by": "f1"}}, "select.by: expected one of loss, auc"),
        ({"select": {"patience": -1}}, "select.patience: expected 0 to"),
        ({"select": {"min_delta": 2}}, "select.min_delta: expected 0 to 1, got 2"),
        ({"select": {"min_delta": -1}}, "select.min_delta: expected 0 to 1, got -1"),
        ({"select": {"best": 3}}, "select.best: unknown key"),
        ({"select": {"evaluate": 1}}, "select.evaluate: expected true or false, got 1"),
        ({"select": {"evaluate": True}, "protocol": 4}, "protocol: expected 5 for such a run, got 4"),
        ({"select": "loss"}, "select: expected a mapping"),
        ({"select": PATIENT, "protocol": 4}, "protocol: expected 5 for such a run, got 4"),
        ({"select": PATIENT, "method": {"name": "fedavg", "dp_noise": 1.0}}, "select: expected none with dp_noise"),
        (
            {"select": PATIENT, "method": {"name": "fedavg", "aggregation": "masked_sum"}},
            "expected none with aggregation",
        ),
        ({"select": {"by": "auc"}, "classes": ["y"], "task": "regression"}, "select.by: expected loss"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(terms: dict[str, Any], problem: str) -> None:
    with pytest.raises(GenesisError, match=problem):
        make_genesis(KEYS, **{"protocol": 5, **terms})


# ---- measures in contributions


def make_contribution(measured: Measure | None) -> Contribution:
    return sign_contribution(KEYS[0], bytes(32), height=2, prev=bytes(32), weight=7, payloads=(), measure=measured)


@given(st.builds(Measure, st.integers(1, 2**29 - 1), st.integers(0, 2**32 - 1)))
def test_a_measure_comes_back_and_is_signed(measured: Measure) -> None:
    told = make_contribution(measured)
    assert decode_contribution(encode_contribution(told)) == told
    assert len(encode_contribution(told)) == len(encode_contribution(make_contribution(None))) + 8
    assert told.signature != make_contribution(replace(measured, value=measured.value ^ 1)).signature


def test_a_measure_out_of_range_has_no_bytes_and_none_are_read() -> None:
    for measured in (Measure(0, 1), Measure(2**29, 1), Measure(1, -1), Measure(1, 2**32)):
        with pytest.raises(EncodeError):
            make_contribution(measured)
    data = bytearray(encode_contribution(make_contribution(Measure(1, 1))))
    at = data.index(Measure(1, 1).samples.to_bytes(4, "big") * 2)
    data[at : at + 4] = bytes(4)
    with pytest.raises(DecodeError, match="samples"):
        decode_contribution(bytes(data))


def refuse(chain: LivingChain, told: Measure, problem: str) -> None:
    body = make_round(chain.tip, KEYS, {KEYS[1].id: told})
    block = extend_with(chain.tip, body, KEYS[0], state_next=chain.state.digest)
    with pytest.raises(InvalidContribution, match=problem):
        validate_candidate(chain.tip, block)


def test_a_measure_is_taken_only_where_a_run_selects_and_in_its_range() -> None:
    plain = make_chain(select=None)
    plain.add_rounds()
    refuse(plain, Measure(1, 1), "expected no measure")
    chain = make_chain()
    refuse(chain, Measure(1, 1), "expected no measure")  # there was no round yet
    chain.add_rounds()
    refuse(chain, Measure(1, 1_000_000_001), "loss in millionths: expected 0 to 1000000000, got 1000000001")
    refuse(chain, Measure(1_000_001, 1), "samples of the measure: expected 1 to 1000000")
    by_auc = make_chain(select={"by": "auc"})
    by_auc.add_rounds()
    refuse(by_auc, Measure(1, 1_000_001), "auc in millionths")


# ---- scores


@given(st.lists(st.tuples(WEIGHTS, VALUES), min_size=2, max_size=3), WEIGHTS, VALUES, st.booleans())
def test_a_score_lies_between_the_honest_ones_whatever_one_of_four_says(
    honest: list[tuple[int, int]], weight: int, value: int, is_auc: bool
) -> None:
    measures = {seat: Measure(*each) for seat, each in enumerate([*honest, (weight, value)])}
    select = Select("auc" if is_auc else "loss")
    values = [each for _, each in honest]
    assert min(values) <= compute_score(select, measures, 1) <= max(values)


@settings(max_examples=30)
@given(st.integers(1, 4), st.data())
def test_a_score_is_an_honest_one_or_between_where_fewer_than_a_third_lie(f: int, data: st.DataObject) -> None:
    n = 3 * f + 1
    count = data.draw(st.integers(2 * f + 1, n))
    honest = data.draw(st.lists(st.tuples(WEIGHTS, VALUES), min_size=count - f, max_size=count - f))
    lies = data.draw(st.lists(st.tuples(WEIGHTS, VALUES), min_size=f, max_size=f))
    measures = {seat: Measure(*each) for seat, each in enumerate([*lies, *honest])}
    values = [each for _, each in honest]
    assert min(values) <= compute_score(Select(), measures, f) <= max(values)


def test_weights_are_capped_only_as_far_as_the_heaviest_need() -> None:
    assert cap_weights([5, 6, 7], 0) == [5, 6, 7]
    assert cap_weights([5, 6, 7], 1) == [5, 6, 7]
    assert cap_weights([5, 6, 100], 1) == [5, 6, 6]
    assert cap_weights([1, 1, 1, 1000], 1) == [1, 1, 1, 1]
    assert cap_weights([2, 3], 1) == [2, 2]


def test_the_lower_weighted_median_is_taken() -> None:
    assert compute_score(Select(), {0: Measure(1, 10), 1: Measure(1, 20)}, 0) == 10
    assert compute_score(Select(), {0: Measure(1, 10), 1: Measure(2, 20), 2: Measure(2, 30)}, 0) == 20
    assert compute_score(Select("auc"), {0: Measure(1, 800_000), 1: Measure(1, 900_000)}, 0) == 900_000


# ---- rounds compared


def test_the_best_round_is_that_of_the_least_loss_and_patience_ends_the_run_two_rounds_later() -> None:
    chain = make_chain()
    chain.add_rounds()
    for loss in (500, 400, 450):
        measure(chain, [loss] * 4)
    assert (chain.tip.selection.best, chain.tip.selection.score, chain.tip.selection.since) == (2, 400, 1)
    measure(chain, [420] * 4)  # at height 5, of round 4: the second one without a better
    assert (chain.tip.selection.best, chain.tip.selection.since) == (2, 2)
    assert (chain.state.run.stopped, chain.state.run.num_heights) == (5, 6)
    assert chain.state.run.is_closing(6)
    assert chain.state.has_round(6)
    assert not chain.state.has_round(7)
    measure(chain, [300] * 4)  # the closing height has the measures of round 5
    assert (chain.tip.selection.best, chain.tip.selection.score) == (5, 300)
    assert chain.state.run.stopped == 5


def test_rounds_end_with_one_height_for_the_last_measures() -> None:
    chain = make_chain(rounds=2, select={"by": "auc"})
    chain.add_rounds()
    measure(chain, [700_000] * 4)
    assert not chain.state.run.is_closing(2)
    assert chain.state.run.is_closing(3)
    measure(chain, [710_000] * 4)
    assert chain.tip.selection.best == 2
    assert not chain.state.has_round(4)


def test_less_than_a_quorum_of_measures_counts_neither_for_nor_against() -> None:
    chain = make_chain()
    chain.add_rounds()
    for told in ([500, 500, 500, None], [100, 100, None, None], [None] * 4):
        measure(chain, told)
    assert (chain.tip.selection.best, chain.tip.selection.since, chain.tip.selection.last) == (1, 0, 1)


def test_rounds_are_compared_over_the_members_that_measured_both() -> None:
    chain = make_chain()
    chain.add_rounds()
    measure(chain, [100, 500, 500, 500])
    measure(chain, [None, 490, 490, 490])  # by all of the first it would be no better than 100
    assert chain.tip.selection.best == 2
    measure(chain, [50, None, 491, 491])  # two that measured both
    assert (chain.tip.selection.best, chain.tip.selection.since) == (2, 0)


def test_a_better_round_is_better_by_min_delta() -> None:
    chain = make_chain(select={"patience": 5, "min_delta": 0.01})
    chain.add_rounds()
    measure(chain, [500_000] * 4)
    measure(chain, [490_000] * 4)
    assert (chain.tip.selection.best, chain.tip.selection.since) == (1, 1)
    measure(chain, [489_999] * 4)
    assert (chain.tip.selection.best, chain.tip.selection.since) == (3, 0)


def test_who_changes_its_key_is_the_same_member() -> None:
    spare = make_keys(1, "spare")[0]
    chain = LivingChain(make_genesis(KEYS, protocol=5, rounds=10, select=PATIENT), [*KEYS, spare])
    chain.add_rounds()
    measure(chain, [500, 500, 500, None])
    chain.add_change(ReplaceKey(0, spare.id))
    told = {key.id: Measure(1, 400) for key in (spare, KEYS[1], KEYS[2])}
    chain.add_rounds(1, told)
    assert chain.tip.selection.best == 2


# ---- the end of a run by patience


EVALUATING = PATIENT | {"evaluate": True}


def stop(chain: LivingChain) -> None:
    """Adds rounds until patience has ended the run after its fourth."""
    chain.add_rounds()
    for loss in (400, 500, 500):
        measure(chain, [loss] * 4)
    assert chain.state.run.stopped == 4


def judge(chain: LivingChain, block: Block) -> None:
    validate_candidate(chain.tip, block)


def test_a_block_that_hides_the_end_of_a_run_or_invents_it_is_refused() -> None:
    chain = make_chain()
    chain.add_rounds()
    measure(chain, [400] * 4)
    measure(chain, [500] * 4)
    told = {key.id: Measure(10, 500) for key in KEYS}
    body, early = make_round(chain.tip, KEYS, told), make_round(chain.tip, KEYS)
    ended = chain.tip.compute_state(body)
    assert ended.run.stopped == 4
    judge(chain, extend_with(chain.tip, body, KEYS[0]))
    with pytest.raises(InvalidState, match="state_next"):
        judge(chain, extend_with(chain.tip, body, KEYS[0], state_next=chain.state.digest))
    with pytest.raises(InvalidState, match="state_next"):
        judge(chain, extend_with(chain.tip, early, KEYS[0], state_next=ended.digest))


def test_changes_about_the_end_leave_rounds_where_they_are() -> None:
    chain = make_chain()
    calendar = Calendar([(0, chain.genesis.state)])
    stop(chain)
    calendar.add(4, chain.state)
    assert not calendar.is_change(4)
    assert calendar.get_place(4) == Place(1, 4)
    assert calendar.get_height(Place(1, 4)) == 4
    assert calendar.get_height(Place(1, 5)) == 5
    assert calendar.get_height(Place(1, 6)) is None
    chain.add_change(SetRounds(1, 10, 11))  # at the height that was to close it
    calendar.add(5, chain.state)
    assert calendar.is_change(5)
    assert (chain.state.run.stopped, chain.state.run.rounds) == (0, 11)
    assert calendar.get_height(Place(1, 5)) == 6
    assert calendar.count_rounds(1, 6) == 5
    measure(chain, [500] * 4)
    assert chain.state.run.stopped == 0  # what was said before ends it once
    measure(chain, [300] * 4)
    assert (chain.tip.selection.best, chain.tip.selection.since) == (5, 0)


def test_members_may_have_a_stopped_run_go_on_to_the_rounds_that_were_planned() -> None:
    chain = make_chain()
    stop(chain)
    chain.add_change(SetRounds(1, 10, 10))
    assert chain.state.run.last_round == 10


def test_the_round_that_closes_a_run_is_no_round_that_was_trained_for() -> None:
    chain = make_chain()
    stop(chain)
    calendar = Calendar([(0, chain.genesis.state), (4, chain.state)])
    measure(chain, [500] * 4)
    assert calendar.count_rounds(1, 5) == 4
    assert chain.state.run.get_trained(5) == 4


def test_a_store_an_audit_and_whoever_begins_in_the_middle_find_the_same(tmp_path: Path) -> None:
    chain = make_chain()
    chain.add_rounds()
    measure(chain, [450] * 4)
    chain.add_change(SetRounds(1, 10, 12))
    for loss in (400, 500, 500):
        measure(chain, [loss] * 4)
    measure(chain, [500] * 4)
    assert (chain.state.run.stopped, chain.tip.height) == (5, 7)
    chain.add_change(EndRun(1))
    with SqliteStore.open(tmp_path / "data", chain.genesis) as store:
        for block, certificate in chain.blocks:
            store.append(block, certificate)
        assert store.get_change_heights(1, 8) == (3, 8)
        for height in range(8):
            found = read_selection(store.get_state, store.read_blocks, height)
            assert found == chain.tips[height].selection
            report = verify_chain(chain.genesis, store, first=height + 1)
            assert report.ok, report.fault


def test_nothing_is_selected_in_the_run_after() -> None:
    chain = make_chain(select=None)
    chain.add_rounds(3)
    assert chain.tip.selection == Selection()


# ---- the height that evaluates


def test_a_run_that_evaluates_is_another_and_one_that_does_not_has_the_bytes_it_had() -> None:
    evaluating, plain = make_chain(select=EVALUATING).genesis, make_chain().genesis
    assert evaluating.run.select == Select("loss", 2, 0.0, evaluate=True)
    assert Genesis.from_mapping(evaluating.to_mapping()) == evaluating
    assert Run.from_mapping(evaluating.run.to_mapping()) == evaluating.run
    assert plain.run.to_terms()["select"] == {"by": "loss", "patience": 2, "min_delta": 0.0}
    assert make_chain(select=PATIENT | {"evaluate": False}).genesis.chain_id == plain.chain_id
    assert plain.chain_id.hex() == "34139734361e60a63079f8b6bdc634bf3fddf380f66301360caf11103f731f57"
    assert evaluating.chain_id.hex() == "c04d10ffc85d406097716007a7cb47ed50c0f29002c91ffba119a23952224731"


def test_one_more_height_evaluates_the_best_round_and_takes_no_measures() -> None:
    chain = make_chain(select=EVALUATING)
    stop(chain)
    run = chain.state.run
    assert (run.num_heights, run.last_round) == (6, 4)
    measure(chain, [500] * 4)
    assert [run.is_closing(height) for height in (4, 5, 6, 7)] == [False, True, True, False]
    assert [run.is_evaluating(height) for height in (4, 5, 6, 7)] == [False, False, True, False]
    refuse(chain, Measure(10, 400), "expected no measure")
    selection = chain.tip.selection
    assert selection.get_evaluated(run) == selection.best == 1
    chain.add_rounds()
    assert chain.tip.selection == selection
    assert not chain.state.has_round(7)
    assert run.get_trained(6) == 4


def test_a_run_without_a_best_round_evaluates_its_last() -> None:
    chain = make_chain(rounds=2, select=EVALUATING)
    chain.add_rounds(3)
    assert chain.tip.selection.get_evaluated(chain.state.run) == 2
    assert chain.state.run.is_evaluating(4)


def test_a_run_that_never_ends_by_itself_and_one_that_does_not_select_evaluate_at_no_height() -> None:
    for select, rounds in ((EVALUATING, 0), (PATIENT, 5), (None, 5)):
        run = make_chain(rounds=rounds, select=select).state.run
        assert not any(run.is_evaluating(height) for height in range(1, 20))


def test_a_calendar_knows_the_heights_that_evaluate_also_where_a_change_took_one() -> None:
    chain = make_chain(select=EVALUATING)
    calendar = Calendar([(0, chain.genesis.state)])
    stop(chain)
    calendar.add(4, chain.state)
    measure(chain, [500] * 4)
    assert calendar.list_evaluating(5) == []
    chain.add_change(ReplaceKey(0, make_keys(1, "spare")[0].id))  # at the height that was to evaluate
    calendar.add(6, chain.state)
    assert calendar.list_evaluating(6) == []
    chain.add_rounds()
    assert (calendar.list_evaluating(7), calendar.get_place(7)) == ([7], Place(1, 6))
    chain.add_change(SetRounds(1, 10, 7))
    calendar.add(8, chain.state)
    chain.add_rounds(3)
    assert (calendar.list_evaluating(10), calendar.list_evaluating(11)) == ([7], [7, 11])
