"""Clients that sit rounds out, and peers that take of them all the same, by what they showed last."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ml.errors import DataError
from ml.simulation.participation import draw_present
from ml.simulation.results import RoundResult
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.simulation.saved import StateFile

QUICK: dict[str, Any] = {"clients": 4, "rounds": 5, "shots": 10, "partition": "dirichlet:5"}


def run(
    staleness: int | None = None,
    present: Callable[[int], Collection[int]] | None = None,
    saved: StateFile | None = None,
    on_round: Callable[[RoundResult], None] | None = None,
    **settings: Any,
) -> SimulationResult:
    method = {"name": "uapdfl", "num_peers": 3, "local_iterations": 2, "dropout": settings.pop("dropout", True)}
    method |= {} if staleness is None else {"staleness": staleness}
    config = SimulationConfig(method=method, **{**QUICK, **settings})
    return simulate(config, present=present, saved=saved, on_round=on_round)


def leave_after_two(height: int) -> Collection[int]:
    """The last of four is there for two rounds."""
    return range(4) if height <= 2 else range(3)


def test_staleness_of_none_is_no_staleness() -> None:
    assert run(0, leave_after_two).rounds == run(None, leave_after_two).rounds
    assert run(0, leave_after_two).aggregate_digests == run(None, leave_after_two).aggregate_digests


def test_where_all_take_part_nobody_is_ever_stale() -> None:
    plain, stale = run(), run(3)
    assert plain.rounds == stale.rounds
    assert plain.aggregate_digests != stale.aggregate_digests  # which say who was there


@pytest.mark.parametrize(("staleness", "drawn"), [(0, (3, 3, 2, 2, 2)), (1, (3, 3, 3, 2, 2)), (2, (3, 3, 3, 3, 2))])
def test_who_sits_out_is_drawn_until_its_entry_is_too_old(staleness: int, drawn: tuple[int, ...]) -> None:
    """Each of those present draws `drawn` others; who is away draws nobody, and counts in the mean."""
    result = run(staleness, leave_after_two)
    there = [len(leave_after_two(height)) for height in range(1, 6)]
    assert [row.peers for row in result.rounds] == [n * k / 4 for n, k in zip(there, drawn, strict=True)]


def test_what_is_taken_of_a_stale_peer_counts_as_received_and_changes_what_others_learn() -> None:
    without, with_ = (run(s, leave_after_two, dropout=False) for s in (0, 3))
    assert without.rounds[:2] == with_.rounds[:2]
    for before, after in zip(without.rounds[2:], with_.rounds[2:], strict=True):
        assert after.received_params > before.received_params
    assert [row.taa for row in without.rounds] != [row.taa for row in with_.rounds]


def test_who_comes_back_goes_on_from_its_own_model() -> None:
    def be_away_once(height: int) -> Collection[int]:
        return range(3) if height == 3 else range(4)

    result = run(2, be_away_once)
    assert [row.peers for row in result.rounds] == [3, 3, 3 * 3 / 4, 3, 3]


def test_of_rounds_before_only_what_can_still_be_drawn_is_kept_and_saved(tmp_path: Path) -> None:
    """Of each author the blobs of its newest round: its unit, auxiliary, g and h."""
    file = StateFile(tmp_path / "state", "it", 0)

    def be_cut_short(row: RoundResult) -> None:
        if row.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(3, leave_after_two, saved=file, on_round=be_cut_short)
    tree = file.load()
    assert tree is not None
    kept = {one["height"]: (len(one["offers"]), len(one["blobs"])) for one in tree["run"]["kept"]}
    assert kept == {1: (4, 0), 2: (4, 1 * 4), 3: (3, 0), 4: (3, 3 * 4)}
    assert run(3, leave_after_two, saved=file).to_json() == run(3, leave_after_two).to_json()


@pytest.mark.parametrize("method", ["uapdfl", "fedavg"])
def test_a_share_of_the_clients_takes_part_the_same_whatever_the_method(method: str) -> None:
    config = SimulationConfig(method={"name": method, "local_iterations": 2}, participation=0.5, **QUICK)
    result = simulate(config)
    draw = partial(draw_present, 0.5, config.clients, config.seed)
    assert {len(draw(height)) for height in range(1, 9)} == {2}
    assert len({draw(height) for height in range(1, 9)}) > 1
    trained = [client.local_accuracy is not None for client in result.clients]
    assert [i for i, was_there in enumerate(trained) if was_there] == list(draw(5))
    assert result.rounds == simulate(config, present=draw).rounds
    assert result.to_json()["config"]["participation"] == 0.5
    assert "participation" not in run(rounds=1).to_json()["config"]


@pytest.mark.parametrize("participation", [0.0, 1.5, -1.0])
def test_a_share_that_cannot_be_is_refused(participation: float) -> None:
    with pytest.raises(DataError, match="participation"):
        SimulationConfig(method={"name": "fedavg"}, participation=participation)


def test_a_share_beside_an_attack_is_refused() -> None:
    with pytest.raises(DataError, match="beside an attack"):
        SimulationConfig(method={"name": "fedavg"}, participation=0.5, attack={"name": "silent", "liars": 1})
