"""Layers of a user's own that do not go with every step: told where a run is made, with their names."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ml.errors import DataError, SpecError
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from node.config.genesis_draft import GenesisSpec, complete_genesis, draft_genesis
from node.errors import ConfigError

NORMED, RECURRENT, SMALL = (f"support.data.user_models:{name}" for name in ("Normed", "Recurrent", "make_small"))


def run(model: str, **method: Any) -> SimulationResult:
    settings, own = {"name": "fedavg", "lr": 0.1, **method}, {"name": model}
    return simulate(SimulationConfig(method=settings, model=own, clients=2, rounds=1, partition="iid", shots=4))


def test_the_last_sample_of_an_epoch_joins_the_batch_before_it_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "ml.clients.measured"):
        done = run(NORMED, local_epochs=1, batch_size=39)  # of 40
    assert done.clients[0].num_train == 40
    (told, _) = [record.getMessage() for record in caplog.records]
    assert told == (
        "data: 40 training samples in batches of 39: the last one of an epoch joins the batch before it, as layer "
        "'norm' (BatchNorm1d) takes the variance of a batch"
    )


@pytest.mark.parametrize("model", [NORMED, SMALL])
def test_nothing_is_said_where_no_batch_is_too_small(model: str, caplog: pytest.LogCaptureFixture) -> None:
    run(model, local_epochs=1, batch_size=20 if model == NORMED else 39)  # images have more than one pixel
    assert not caplog.records


def test_batches_of_one_sample_are_refused_by_the_layers_name() -> None:
    expected = r"method.batch_size: expected at least 2, as layer 'norm' \(BatchNorm1d\) takes the variance"
    with pytest.raises(SpecError, match=expected):
        run(NORMED, batch_size=1)
    run(SMALL, batch_size=1, local_iterations=1)


def test_a_site_of_one_sample_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from ml.clients.client import Client

    monkeypatch.setattr(Client, "num_train", property(lambda client: 1))
    with pytest.raises(DataError, match="data: expected at least 2 training samples, as layer 'norm'"):
        run(NORMED)


def test_what_torch_cannot_differentiate_by_sample_is_refused_with_noise() -> None:
    run(RECURRENT, local_iterations=1)
    with pytest.raises(SpecError) as refused:
        run(RECURRENT, local_iterations=1, dp_noise=1.0)
    expected = "method.dp_noise: expected none, as layer 'gru' (GRU) cannot be differentiated for each sample by itself"
    assert str(refused.value).startswith(expected)


@pytest.mark.parametrize(
    ("model", "setting", "message"),
    [(NORMED, "batch_size=1", "layer 'norm'"), (RECURRENT, "dp_noise=1.0", "layer 'gru'")],
)
def test_no_genesis_is_made_that_no_site_could_train(model: str, setting: str, message: str) -> None:
    spec = GenesisSpec(method="fedavg", model=model, data="digits", settings=(setting,))
    asked, _ = draft_genesis(spec)
    members = [{"key": "k5ry2m4ak5ry2m4ak5ry2m4ak5ry2m4ak5ry2m4ak5ry2m4ak5rq", "name": "a", "address": "127.0.0.1:1"}]
    with pytest.raises(ConfigError, match=message):
        complete_genesis(asked, members, spec)
