"""Round trips are measured with what is said anyway, and Delta follows them, as far as liars let it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from chain.block import Id
from node.boundary import Boundary
from node.p2p.bans import Bans
from node.p2p.delays import Delays
from node.p2p.peers import Peers
from node.p2p.refusals import Reason
from node.p2p.transport.base import TrafficCounters
from node.p2p.transport.rate_limits import Intake, RateLimits
from node.p2p.transport.round_trips import GIVE_UP_S, KEPT, LEAST_S, PING_S, RoundTrips
from node.pb import peer_pb2 as pb
from support.data.chains import make_genesis, make_keys
from support.federation.null_handler import NullHandler

KEYS = sorted(make_keys(7), key=lambda key: key.id)
STATE = make_genesis(KEYS).state
WAITS = STATE.rules.waits
PEERS = [key.id for key in KEYS[1:]]
BOOK = Peers(STATE, KEYS[0].id, cast(Any, None))


def measure(*seconds: float) -> RoundTrips:
    trips, now_s = RoundTrips(), 0.0
    for trip_s in seconds:
        now_s += PING_S
        trips.on_answer(trips.take_question(now_s), now_s + trip_s)
    return trips


def test_one_question_at_a_time_and_none_too_soon() -> None:
    trips = RoundTrips()
    first = trips.take_question(100.0)
    assert first
    assert not trips.take_question(100.0 + PING_S)  # it may still be answered
    trips.on_answer(first, 100.2)
    assert not trips.take_question(100.0 + PING_S - 0.1)
    assert trips.take_question(100.0 + PING_S) not in (0, first)
    assert trips.get_typical_s() == pytest.approx(0.2)


def test_what_is_never_answered_is_asked_anew() -> None:
    trips = RoundTrips()
    lost = trips.take_question(0.0)
    again = trips.take_question(GIVE_UP_S)
    assert again not in (0, lost)
    trips.on_answer(lost, GIVE_UP_S + 1)  # answers nothing that is open
    assert trips.get_typical_s() is None
    trips.on_answer(again, GIVE_UP_S + 0.5)
    assert trips.get_typical_s() == pytest.approx(0.5)


def test_a_new_connection_asks_at_once_and_an_answer_to_the_old_one_counts_for_nothing() -> None:
    trips = RoundTrips()
    trips.on_question(7, 0.0)
    old = trips.take_question(0.0)
    trips.restart()
    assert not trips.owes
    trips.on_answer(old, 0.1)
    assert trips.get_typical_s() is None
    assert trips.take_question(0.2) not in (0, old)


def test_answers_that_nobody_asked_for_are_left_alone() -> None:
    trips = measure(0.1)
    for number in (0, 1, 2**32 - 1):
        trips.on_answer(number, 1000.0)
    assert trips.get_typical_s() == pytest.approx(0.1)


def test_the_newest_say_what_is_usual() -> None:
    trips = measure(9.0, *[0.1] * KEPT)
    assert trips.longest_s == pytest.approx(0.1)
    assert measure(0.1, 0.2, 5.0).get_typical_s() == pytest.approx(0.2)


def test_a_question_of_a_peer_is_owed_an_answer_once_and_counts_against_its_messages() -> None:
    now, trips, woken = [0.0], RoundTrips(), []
    trips.on_owed = lambda: woken.append(True)
    limits = replace(RateLimits(), messages_per_s=0.1, messages_burst=2.0)
    intake = Intake(
        PEERS[0],
        limits,
        Bans(lambda: now[0]),
        TrafficCounters(),
        boundary=Boundary(),
        trips=trips,
        clock=lambda: now[0],
    )
    waits_s = []
    for number in (1, 2, 3, 4):
        waits_s.append(intake.take(pb.Batch(question=number), NullHandler()))
        now[0] += LEAST_S
    assert waits_s[:2] == [0.0, 0.0]
    assert waits_s[3] > waits_s[2] > 0  # it is read more slowly: its answers cost no more than its messages may
    assert len(woken) == 4
    assert (trips.take_answer(), trips.take_answer()) == (4, 0)


def test_questions_that_come_too_soon_are_refused_and_counted_as_each_answer_is_a_write() -> None:
    trips, counters = RoundTrips(), TrafficCounters()
    intake = Intake(PEERS[0], RateLimits(), Bans(lambda: 0.0), counters, trips=trips, clock=lambda: 0.0)
    for number in (1, 2, 3):
        intake.take(pb.Batch(question=number), NullHandler())
    assert (trips.take_answer(), counters.refusals) == (1, {Reason.RATE: 2})


def make_delays(*trips_s: float) -> Delays:
    known: dict[Id, RoundTrips] = {
        peer: measure(trip_s) for peer, trip_s in zip(PEERS, trips_s, strict=False) if trip_s
    }
    return Delays(lambda: known, BOOK.count_liars)


def test_delta_is_the_rules_where_nothing_is_measured_or_all_is_quick() -> None:
    assert make_delays().compute_delta_s(STATE) == WAITS.delta_s
    assert make_delays(*[WAITS.delta_s / 10] * 6).compute_delta_s(STATE) == WAITS.delta_s


def test_delta_is_half_a_round_trip_where_the_network_is_slower() -> None:
    trip_s = 3 * WAITS.delta_s
    assert make_delays(*[trip_s] * 6).compute_delta_s(STATE) == pytest.approx(trip_s / 2)


def test_as_many_as_may_lie_and_answer_late_do_not_move_delta() -> None:
    assert STATE.n - STATE.q == 2
    trip_s = 3 * WAITS.delta_s
    assert make_delays(trip_s, 25.0, trip_s, 25.0, trip_s, trip_s).compute_delta_s(STATE) == pytest.approx(trip_s / 2)
    # nor do those that were not measured, being of an older release, make the slow ones count
    assert make_delays(25.0, 25.0, 0.0, 0.0, 0.0, 0.0).compute_delta_s(STATE) == WAITS.delta_s
    assert make_delays(trip_s, trip_s, 25.0).compute_delta_s(STATE) == pytest.approx(trip_s / 2)


def test_it_ends_at_the_wait_for_a_vote_however_slow_all_are() -> None:
    assert make_delays(*[25.0] * 6).compute_delta_s(STATE) == WAITS.vote_s


def test_a_peer_that_answers_late_has_itself_given_less() -> None:
    delays = make_delays(25.0, 0.001)
    assert delays.compute_repair_s(PEERS[0], STATE) == WAITS.vote_s
    assert delays.compute_repair_s(PEERS[1], STATE) == WAITS.delta_s
    assert delays.compute_repair_s(b"unknown", STATE) == WAITS.delta_s


def test_observers_and_guests_do_not_count() -> None:
    known = {b"an observer": measure(0.4)} | {peer: measure(3 * WAITS.delta_s) for peer in PEERS[:3]}
    assert Delays(lambda: known, BOOK.count_liars).compute_delta_s(STATE) == pytest.approx(1.5 * WAITS.delta_s)
