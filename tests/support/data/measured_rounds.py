"""Rounds with a record each, as a node measures them, on a chain that nobody trained for: long ones in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from chain.genesis import Genesis
from chain.signing import SigningKey
from chain.store.sqlite import SqliteStore
from ml.measures.classification import Measures
from support.data.synthetic import extend_chain

CLASSES = tuple(str(digit) for digit in range(10))
EACH = 36  # test samples of a class


def put_measured_rounds(store: SqliteStore, genesis: Genesis, keys: Sequence[SigningKey], rounds: int) -> None:
    """Puts so many rounds into an empty store; `keys` are all members'. Nothing waits for the disk."""
    store.rows.connection.execute("PRAGMA synchronous = OFF")
    extend_chain(store, genesis, keys, rounds, variety=2)
    for height in range(1, rounds + 1):
        store.put_round(height, make_record(height, rounds))


def make_record(height: int, rounds: int) -> dict[str, Any]:
    """Makes a record whose accuracy rises with the height and varies; one round in the middle has an extreme loss."""
    accuracy = 0.9 - 0.8 * math.exp(-5 * height / rounds) + 0.02 * math.sin(height)
    loss = 50.0 if height == rounds // 2 else 2.3 * (1 - accuracy)
    right = round(EACH * accuracy)
    confusion = [[right if i == j else (EACH - right) * (j == (i + 1) % 10) for j in range(10)] for i in range(10)]
    auc = [0.5 + accuracy / 2] * len(CLASSES)
    measures = Measures(10 * EACH, 10 * right, loss, 1 - accuracy, 0.05, confusion, auc, auc, CLASSES)
    return {
        "height": height,
        "run": 1,
        "round": height,
        "view": 0,
        "votes": 3,
        "contributors": [],
        "payload_bytes": 4000,
        "rejected": {},
        "seconds": {"train": 1.5, "exchange": 0.25, "mine": 0.5, "vote": 0.125, "apply": 0.25, "wall": 2.625},
        "bytes_sent": {"contribution": 900, "blob": 12_000 + height % 100, "vote": 1800, "status": 900},
        "beta_s": 0.5,
        "train": {"loss": loss, "first_loss": 1.2 * loss, "last_loss": loss, "steps": 40, "accuracy": accuracy - 0.01},
        "apply": {"accuracy": accuracy},
        "accuracy": accuracy,
        "local_accuracy": accuracy - 0.01,
        "measures": measures.to_mapping(),
        "alone": None,
        "signs": {},
    }
