"""A worker whose client lacks the common model of a round: nothing is counted for it, and it learns what it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes
from ml.errors import AggregationError
from ml.payload import Arrays, encode_arrays
from node.training.checkpoint import Checkpoint, Checkpoints, Phase
from node.training.exchange import Exchange
from node.training.privacy_ledger import PrivacyLedger, read_told
from node.training.session import Built, Session

DIGITS = {"format": "digits"}
MODEL = {"name": "mlp", "hidden": [8]}
INPUT = {"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]}
CLASSES = get_classes(DIGITS)
INITIAL = make_initial_aggregate(MODEL, (1, 8, 8), len(CLASSES), 1)
NOISE: dict[str, Any] = {"dp_update_noise": 2.0}
MASKS: dict[str, Any] = {"aggregation": "masked_sum"}
NOTHING = Exchange()


def make_client(initial: Arrays = INITIAL, **method: Any) -> Client:
    settings = {"name": "fedavg", "local_iterations": 3, **method}
    federation = Federation(method=settings, model=MODEL, classes=CLASSES, input=INPUT, rounds=9, num_members=4)
    return make_clients(federation, data=DIGITS, partition="iid", run_seed=1, initial=initial)[0]


def move(by: float) -> Arrays:
    """The aggregate of a round."""
    return {name: array + np.float32(by) for name, array in INITIAL.items()}


@contextmanager
def opened(path: Path, client: Client, before: Checkpoint | None = None) -> Iterator[Session]:
    answer: Any = client
    ledger = PrivacyLedger.open(path / "privacy.json", 1e-5, None)
    session = Session(Built(client, answer, "cpu", ledger=ledger), Checkpoints(path / "run-1"), path, 1, before)
    yield session
    session.close()


def train(session: Session, number: int) -> None:
    session.train(number, b"beacon", None, NOTHING, lambda: False, lambda done, total: None)


def test_a_phase_without_the_common_model_of_its_round_is_not_counted(tmp_path: Path) -> None:
    with opened(tmp_path, make_client(**NOISE)) as session:
        with pytest.raises(AggregationError, match="expected the common model of height 1, got that of 0"):
            train(session, 2)
        assert read_told(tmp_path / "privacy.json").phases == 0
        session.apply(1, encode_arrays(move(0.1)), NOTHING)
        train(session, 2)
        assert read_told(tmp_path / "privacy.json").phases == 1


@pytest.mark.parametrize(("masks", "taken", "next_"), [({}, 2, 3), (MASKS, 3, 4)], ids=["plain", "masked"])
def test_a_client_that_hides_itself_from_the_middle_of_a_run_on_learns_what_all_begin_with(
    tmp_path: Path, masks: dict[str, Any], taken: int, next_: int
) -> None:
    with opened(tmp_path, make_client(**masks)) as session:
        session.apply(taken, encode_arrays(move(0.1)), NOTHING)
    with opened(tmp_path, make_client(**masks, **NOISE)) as session:
        assert session.resumed is not None
        with pytest.raises(AggregationError):
            train(session, next_)
        session.apply(taken, encode_arrays(move(0.1)), NOTHING)
        train(session, next_)


@pytest.mark.parametrize("method", [NOISE, {"model_dtype": "float16"}], ids=["noise", "changes"])
def test_a_run_that_goes_on_from_another_begins_with_its_own_common_model(
    tmp_path: Path, method: dict[str, Any]
) -> None:
    client = make_client(**method)
    client.apply(5, move(0.1))
    client.train(6, b"beacon")
    before = Checkpoint(6, Phase.APPLIED, client.state_arrays())
    goes_on = make_client(move(0.2), **method)
    with opened(tmp_path, goes_on, before) as session:
        for name, array in client.state_arrays().items():
            assert name.startswith("common") or np.array_equal(array, goes_on.state_arrays()[name])
        assert goes_on.state_arrays()["common_height/height"][0] == 0
        train(session, 1)
        session.apply(1, encode_arrays(move(0.3)), NOTHING)
        train(session, 2)
