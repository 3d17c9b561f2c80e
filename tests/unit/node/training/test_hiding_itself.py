"""A worker that begins with noise of the site's own in the middle of a run goes on from nothing that had none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.clients.build import Federation, make_clients
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from node.training.checkpoint import Checkpoint, Checkpoints, Phase
from node.training.privacy_ledger import PrivacyLedger
from node.training.session import Built, Session

MODEL = {"name": "mlp", "hidden": [8]}
DATA = {"format": "digits"}


def make_client(**noise: float) -> Client:
    federation = Federation(
        method={"name": "dfpl", "local_iterations": 3, **noise},
        model=MODEL,
        classes=tuple(get_classes(DATA)),
        input=get_default_input(DATA, MODEL),
        rounds=0,
        num_members=3,
    )
    return make_clients(federation, data=DATA, partition="dirichlet:1", run_seed=5)[0]


def open_session(path: Path, client: Client, *, before: Checkpoint | None = None, hides_itself: bool) -> Session:
    noise = {"dp_noise": 2.0} if client.spec.hyperparameters.is_private else {}
    answer: Any = client
    ledger = PrivacyLedger.open(path / "privacy.json", 1e-5, None, noise=noise) if noise else None
    built = Built(client, answer, "cpu", ledger=ledger)
    return Session(built, Checkpoints(path / "run-1"), path, 1, before, hides_itself=hides_itself)


def save(path: Path, client: Client) -> None:
    checkpoints = Checkpoints(path / "run-1")
    checkpoints.save(Checkpoint(1, Phase.TRAINED, client.state_arrays()))
    checkpoints.close()


def is_anew(client: Client) -> bool:
    fresh = make_client().state_arrays()
    return all(np.array_equal(array, fresh[name]) for name, array in client.state_arrays().items() if name in fresh)


@pytest.mark.parametrize("noise", [{}, {"dp_noise": 2.0}], ids=["without", "hidden"])
def test_it_goes_on_from_a_state_that_was_hidden_and_from_no_other(tmp_path: Path, noise: dict[str, float]) -> None:
    trained = make_client(**noise)
    trained.train(1, b"beacon")
    save(tmp_path, trained)
    client = make_client(dp_noise=2.0)
    session = open_session(tmp_path, client, hides_itself=True)
    assert (session.resumed is not None) == bool(noise)
    assert is_anew(client) == (not noise)
    session.close()


def test_where_the_run_has_the_noise_what_an_earlier_release_saved_is_gone_on_from(tmp_path: Path) -> None:
    trained = make_client(dp_noise=2.0)
    trained.train(1, b"beacon")
    arrays = {name: array for name, array in trained.state_arrays().items() if not name.startswith("hidden/")}
    checkpoints = Checkpoints(tmp_path / "run-1")
    checkpoints.save(Checkpoint(1, Phase.TRAINED, arrays))
    checkpoints.close()
    session = open_session(tmp_path, make_client(dp_noise=2.0), hides_itself=False)
    assert session.resumed is not None
    session.close()


@pytest.mark.parametrize("noise", [{}, {"dp_noise": 2.0}], ids=["without", "hidden"])
def test_a_run_with_noise_takes_over_nothing_of_one_without(tmp_path: Path, noise: dict[str, float]) -> None:
    trained = make_client(**noise)
    trained.train(1, b"beacon")
    before = Checkpoint(9, Phase.APPLIED, trained.state_arrays())
    client = make_client(dp_noise=2.0)
    open_session(tmp_path, client, before=before, hides_itself=False).close()
    assert is_anew(client) == (not noise)
