"""Measuring in a simulation: some rounds, some of the test set; and clients that train until it is enough."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ml.data import open_dataset
from ml.data.fewer_tests import keep_test_labels, keep_test_samples
from ml.errors import DataError
from ml.simulation.run import SimulationConfig, SimulationResult, simulate

MODEL = {"name": "mlp", "hidden": [8]}
DFPL = {"name": "dfpl", "local_iterations": 2}


def run(method: dict[str, Any], **settings: Any) -> SimulationResult:
    return simulate(SimulationConfig(method=method, model=MODEL, **{"clients": 3, "rounds": 5, **settings}))


def test_rounds_that_are_not_measured_train_as_others_do() -> None:
    whole, some = run(DFPL), run(DFPL, eval_every=2)
    assert some.aggregate_digests == whole.aggregate_digests
    assert [math.isnan(row.taa) for row in some.rounds] == [True, False, True, False, False]
    for measured, row in zip(whole.rounds, some.rounds, strict=True):
        assert math.isnan(row.taa) or row == measured
    assert some.clients == whole.clients
    assert some.best_taa == max(row.taa for row in whole.rounds if row.round in (2, 4, 5))
    assert some.rounds[0].to_json()["taa"] is None


def test_a_smaller_test_set_is_the_same_whatever_the_method() -> None:
    _, test = open_dataset({"format": "digits"})
    kept = keep_test_samples(test, 60, 7)
    assert len(kept) == 60
    labels, _ = keep_test_labels(test.y, None, 60, 7)
    np.testing.assert_array_equal(kept.y, labels)
    assert keep_test_samples(test, len(test), 7) is test
    whole, few = run(DFPL), run(DFPL, test_samples=60)
    assert few.aggregate_digests == whole.aggregate_digests  # the same training samples
    assert [one.num_train for one in few.clients] == [one.num_train for one in whole.clients]
    assert sum(one.num_test for one in few.clients) < sum(one.num_test for one in whole.clients)


def test_clients_that_train_alone_stop_at_an_accuracy_each() -> None:
    method = {"name": "uapdfl", "local_iterations": 20, "num_peers": 2, "mu": 0.0, "div": "js"}
    settings: dict[str, Any] = {"partition": "owned:0+1,0+1,2+3", "rounds": 4, "alone_until": 0.9}
    alone = run(method, **settings)
    assert {row.peers for row in alone.rounds} == {0.0}
    assert alone.rounds[-1].taa >= 0.9
    assert alone.rounds[-1].divergences == alone.rounds[-2].divergences  # nobody trains any more
    (row,) = alone.rounds[-1:]
    assert row.divergences is not None
    assert row.divergences[0][1] < row.divergences[0][2]


def test_val_samples_show_an_accuracy_of_their_own() -> None:
    (*_, last) = run({"name": "fedavg"}, data={"format": "digits", "val": 0.2}, clients=2, partition="iid").rounds
    assert last.val_accuracy is not None
    assert 0.3 < last.val_accuracy <= 1
    assert run(DFPL, rounds=1).rounds[0].val_accuracy is None


def test_prototypes_are_counted_among_what_is_sent() -> None:
    row = run({"name": "mpfedcl", "num_prototypes": 2}, clients=2, partition="iid", rounds=1).rounds[0]
    assert row.sent_prototypes == 2 * 10 * 2 * 8  # clients, classes, prototypes, length
    assert row.sent_params == row.sent_prototypes + 2 * (64 * 8 + 8 + 8 * 10 + 10)
    assert run({"name": "fedavg"}, rounds=1).rounds[0].sent_prototypes is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"eval_every": 0}, "eval_every: expected at least 1, got 0"),
        ({"test_samples": 0}, "test_samples: expected at least 1, got 0"),
        ({"eval_every": 2, "max_loss_ratio": 4.0}, "eval_every: expected 1 beside max_loss_ratio"),
        ({"alone_until": 1.5, "method": {"name": "uapdfl"}}, r"alone_until: expected an accuracy in \(0, 1\], got 1.5"),
        ({"alone_until": 0.9}, "alone_until: expected a peer-to-peer method, got 'dfpl'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        SimulationConfig(**{"method": DFPL, **settings})
