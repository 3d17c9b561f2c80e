"""Stale entries: what a block's aggregate carries of members that are not in it, for how long, and who draws them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pytest

from ml.errors import AggregationError, SpecError
from ml.payload import Array, decode_arrays, encode_arrays
from ml.specs import AuthorPayloads, MethodSpec, Offer, Task, compute_aggregate
from ml.specs.methods.uapdfl import UaPdflHyperparameters, UaPdflSpec
from ml.specs.run_schema import describe_payloads
from ml.specs.stale import get_stale_rows, list_stale
from ml.specs.statistics import StatisticsSpec, agree

TASK = Task({"name": "mlp", "hidden": [2]}, (1, 8, 8), 2)
BEACON = bytes(32)


def spec_of(staleness: int | None = None, **settings: object) -> UaPdflSpec:
    given = {} if staleness is None else {"staleness": staleness}
    return UaPdflSpec.from_mapping({"num_peers": 5, **given, **settings}, TASK)


def get_id(i: int) -> bytes:
    return bytes([i]) * 32


def contribute(i: int, height: int) -> AuthorPayloads:
    """Of client i, with numbers that tell whose and of when they are."""
    p = (i + 1) / 8 + height / 64
    unit, auxiliary = np.array([p, 1 - p], np.float32), np.array([i, height], np.float32)
    return AuthorPayloads(get_id(i), 10 + i, {"unit": {"unit": unit}, "auxiliary": {"auxiliary": auxiliary}})


def play(spec: MethodSpec, rounds: Mapping[int, Collection[int]], parent: Mapping[str, Array] | None = None) -> bytes:
    """The aggregate of the last of these rounds, by who is in their blocks."""
    encoded = b""
    for height, present in rounds.items():
        made = compute_aggregate(spec, height, [contribute(i, height) for i in present], parent)
        assert made is not None
        encoded, parent = made, decode_arrays(made, len(made))
    return encoded


def read(encoded: bytes) -> dict[str, Array]:
    return decode_arrays(encoded, len(encoded))


ALL = (0, 1, 2, 3)


def test_without_staleness_an_aggregate_is_the_two_stacks_and_nothing_else() -> None:
    plain, zero = spec_of(), spec_of(0)
    rounds = {1: ALL, 2: (0, 1)}
    assert read(play(plain, rounds)).keys() == {"unit/unit", "auxiliary/auxiliary"}
    assert play(plain, rounds) == play(zero, rounds)
    assert plain.to_mapping() == zero.to_mapping()
    assert "staleness" not in plain.to_mapping()  # runs of before keep their names
    assert not plain.reads_parent(2)
    assert plain.needed_until(2) == 2


def test_who_is_not_in_the_block_is_carried_for_as_many_rounds_as_are_set_and_then_no_more() -> None:
    spec = spec_of(2)
    rounds: dict[int, Collection[int]] = {1: ALL, 2: (0, 1, 2)}
    aggregate = read(play(spec, rounds))
    assert list_stale(aggregate) == ((get_id(3), 1),)
    np.testing.assert_array_equal(aggregate["stale/auxiliary"], [[3, 1]])
    np.testing.assert_array_equal(aggregate["stale/unit"], contribute(3, 1).payloads["unit"]["unit"][None])
    aggregate = read(play(spec, rounds | {3: (0, 1)}))
    assert list_stale(aggregate) == ((get_id(2), 1), (get_id(3), 2))
    np.testing.assert_array_equal(aggregate["stale/auxiliary"], [[2, 2], [3, 1]])
    aggregate = read(play(spec, rounds | {3: (0, 1), 4: (0, 1)}))
    assert list_stale(aggregate) == ((get_id(2), 2),)
    aggregate = read(play(spec, rounds | {3: (0, 1), 4: (0, 1), 5: (0, 1)}))
    assert list_stale(aggregate) == ()
    assert aggregate["stale/unit"].shape == (0, 2)


def test_who_contributes_anew_is_stale_no_more_and_ages_from_there() -> None:
    spec = spec_of(1)
    back = {1: ALL, 2: (0, 1, 2), 3: ALL}
    assert list_stale(read(play(spec, back))) == ()
    aggregate = read(play(spec, {**back, 4: (0, 1, 2)}))
    assert list_stale(aggregate) == ((get_id(3), 1),)
    np.testing.assert_array_equal(aggregate["stale/auxiliary"], [[3, 3]])


def test_there_is_one_entry_of_each_author_at_most_whatever_comes_and_goes() -> None:
    spec, rng = spec_of(3), np.random.default_rng(1)
    rounds: dict[int, Collection[int]] = {}
    last: dict[int, int] = {}
    parent = None
    for height in range(1, 40):
        rounds = {height: sorted(rng.choice(6, size=rng.integers(1, 7), replace=False).tolist())}
        parent = read(play(spec, rounds, parent))
        last |= dict.fromkeys(rounds[height], height)
        expected = {get_id(i): height - at for i, at in last.items() if 0 < height - at <= 3}
        stale = list_stale(parent)
        assert dict(stale) == expected
        assert [author for author, _ in stale] == sorted(expected)
        assert len(parent["stale/present"]) + len(stale) <= 6
        told = get_stale_rows(parent, "auxiliary/auxiliary")
        assert {author: row[1] for author, row in told.items()} == {
            get_id(i): last[i] for i in last if get_id(i) in told
        }


def test_the_order_in_which_contributions_come_changes_no_byte() -> None:
    spec = spec_of(2)
    assert play(spec, {1: ALL, 2: (0, 1, 2)}) == play(spec, {1: (2, 0, 3, 1), 2: (2, 1, 0)})


def test_a_run_takes_nothing_over_from_the_run_before_it() -> None:
    spec = spec_of(2)
    before = read(play(spec, {1: ALL, 2: (0, 1)}))
    assert not spec.reads_parent(1)
    assert play(spec, {1: (0, 1)}, before) == play(spec, {1: (0, 1)})
    with pytest.raises(AggregationError, match="stale entries"):
        play(spec, {2: (0, 1)}, {"model/w": np.zeros(2, np.float32)})


def test_entries_are_carried_in_runs_that_agree_on_statistics_too() -> None:
    inner = spec_of(2)
    spec = agree(inner, {"normalize": "agreed"})
    assert isinstance(spec, StatisticsSpec)
    first = spec.sharing_heights + 1
    statistics: dict[str, Array] = {
        "statistics/sites": np.array(4, np.int64),
        "unit/unit": np.zeros((9, 2), np.float32),
    }
    aggregate = read(play(spec, {first: ALL, first + 1: (0, 1, 2)}, statistics))
    assert list(spec.list_stale(aggregate)) == [(get_id(3), 1)]
    assert aggregate.keys() > {"statistics/sites", "stale/present"}
    assert spec.needed_until(first) == first + 3


def test_the_runs_schema_names_what_is_carried() -> None:
    told = describe_payloads(spec_of(2))
    plain = describe_payloads(spec_of())
    assert told["rounds"] == plain["rounds"]
    extra = {name: text for name, text in told["aggregate"].items() if name not in plain["aggregate"]}
    assert extra == {
        "stale/present": "uint8[authors,32]",
        "stale/authors": "uint8[n,32]",
        "stale/ages": "int64[n]",
        "stale/unit": "float32[n,2]",
        "stale/auxiliary": "float32[n,2]",
    }
    made = read(play(spec_of(2), {1: ALL, 2: (0, 1)}))
    assert made.keys() == told["aggregate"].keys()
    assert encode_arrays(made) == play(spec_of(2), {1: ALL, 2: (0, 1)})


@pytest.mark.parametrize("value", [-1, 101, 1.5, True])
def test_a_staleness_that_cannot_be_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="from 0 to 100") as caught:
        UaPdflHyperparameters.from_mapping({"staleness": value})
    assert caught.value.path == "method.staleness"


# ---- who is drawn


def offer(i: int) -> Offer:
    return Offer(get_id(i), 10 + i, {"g": bytes([i, 1]), "h": bytes([i, 2])})


def test_a_stale_peer_is_drawn_and_compared_by_its_own_row_as_any_other() -> None:
    spec = spec_of(2, th=0.0, dropout=False)
    aggregate = read(play(spec, {1: ALL, 2: (0, 1, 2)}))
    offers = [offer(i) for i in ALL]
    decision = spec.decide(BEACON, get_id(0), offers, aggregate)
    assert {peer.author for peer in decision.peers} == {get_id(1), get_id(2), get_id(3)}
    own, stale = (contribute(i, at).payloads["unit"]["unit"].astype(float) for i, at in ((0, 2), (3, 1)))
    far = decision.divergences[[peer.author for peer in decision.peers].index(get_id(3))]
    assert far == pytest.approx(0.5 * ((own - stale) * np.log(own / stale)).sum())
    assert bytes([3, 1]) in spec.wanted(2, BEACON, get_id(0), offers, aggregate)


def test_a_stale_peer_whose_offer_is_not_at_hand_is_not_drawn() -> None:
    spec = spec_of(2)
    aggregate = read(play(spec, {1: ALL, 2: (0, 1, 2)}))
    decision = spec.decide(BEACON, get_id(0), [offer(i) for i in (0, 1, 2)], aggregate)
    assert {peer.author for peer in decision.peers} == {get_id(1), get_id(2)}
    assert len(spec.draw(BEACON, get_id(0), [offer(i) for i in ALL], aggregate, {get_id(3)})) == 2


def test_who_is_stale_itself_draws_nobody() -> None:
    spec = spec_of(2)
    aggregate = read(play(spec, {1: ALL, 2: (0, 1, 2)}))
    offers = [offer(i) for i in ALL]
    assert spec.draw(BEACON, get_id(3), offers, aggregate) == ()
    assert spec.wanted(2, BEACON, get_id(3), offers, aggregate) == ()


def test_a_round_is_explained_for_the_authors_of_its_block_alone() -> None:
    spec = spec_of(2)
    aggregate = read(play(spec, {1: ALL, 2: (0, 1, 2)}))
    told = spec.explain(2, BEACON, [offer(i) for i in ALL], aggregate)
    assert told is not None
    assert len(told["nodes"]) == 3
    assert all(sorted(node["peers"]) == sorted({0, 1, 2, 3} - {i}) for i, node in enumerate(told["nodes"]))
    assert [len(row) for row in told["divergences"]] == [3, 3, 3]
