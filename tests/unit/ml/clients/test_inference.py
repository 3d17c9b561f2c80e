"""A client's answers: the way of its own samples, in chunks, leaving nothing changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ml.clients import inference as answer_module
from ml.clients.build import Federation, make_client, make_initial_aggregate
from ml.clients.client import Client
from ml.clients.inference import answer
from ml.data.base import InputFormat
from ml.data.readers.digits import load_digits
from ml.errors import DataError, MlError, Stopped
from ml.payload import encode_arrays

MODEL = {"name": "mlp", "hidden": [8]}
INPUT: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "mean": [0.3], "std": [0.4]}
FORMAT = InputFormat.from_mapping(INPUT)
CLASSES = tuple("0123456789")


def make(method: dict[str, Any]) -> Client:
    return make_client(
        Federation(method={"local_iterations": 5, **method}, model=MODEL, classes=CLASSES, input=INPUT),
        data={"format": "digits", "partition": None},
        seed=1,
        initial=make_initial_aggregate(MODEL, [1, 8, 8], 10, 1),
    )


@pytest.fixture(scope="module")
def fedavg() -> Client:
    return make({"name": "fedavg"})


def get_digits(count: int) -> np.ndarray:
    return load_digits()[1].x[:count]


def test_samples_are_fitted_and_normalised_as_the_clients_own(fedavg: Client) -> None:
    digits = get_digits(3)
    told = answer(fedavg, FORMAT, digits)
    logits = fedavg.predict(torch.tensor((digits - np.float32(0.3)) / np.float32(0.4))).logits
    assert told.keys() == {"labels", "probabilities"}
    assert {name: str(array.dtype) for name, array in told.items()} == {"labels": "int64", "probabilities": "float32"}
    assert np.array_equal(told["probabilities"], logits.softmax(1).numpy())
    assert np.array_equal(told["labels"], logits.argmax(1).numpy())


def test_bytes_colour_and_size_do_not_matter(fedavg: Client) -> None:
    pixels = np.full((1, 1, 8, 8), 102, np.uint8)  # 0.4
    told = [
        answer(fedavg, FORMAT, x)["probabilities"]
        for x in (
            pixels,
            np.full((1, 1, 8, 8), 0.4, np.float32),
            np.repeat(pixels, 3, axis=1),
            pixels.repeat(2, axis=2).repeat(2, axis=3),
        )
    ]
    assert all(np.allclose(one, told[0], atol=1e-6) for one in told)


def test_chunks_are_put_together_in_order(fedavg: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = get_digits(7)
    whole = answer(fedavg, FORMAT, digits)
    monkeypatch.setattr(answer_module, "CHUNK", 3)
    parts = answer(fedavg, FORMAT, digits)
    assert np.array_equal(parts["labels"], whole["labels"])
    assert np.allclose(parts["probabilities"], whole["probabilities"], atol=1e-6)


def test_an_answer_that_is_not_wanted_ends_between_two_chunks(fedavg: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_module, "CHUNK", 3)
    looks = iter([False, True])
    with pytest.raises(Stopped, match="after 3 of 7 samples"):
        answer(fedavg, FORMAT, get_digits(7), lambda: next(looks))


@pytest.mark.parametrize("method", [{"name": "dfpl", "infer": "prototype"}, {"name": "mpfedcl"}])
def test_prototypes_say_how_near_they_are(method: dict[str, Any]) -> None:
    client = make(method)
    payloads = client.train(1, bytes(32)).payloads
    before = answer(client, FORMAT, get_digits(5))
    assert before.keys() == {"labels", "probabilities"}  # the classifier answers while there are none
    agreed = {f"{kind}/{name}": array for kind, arrays in payloads.items() for name, array in arrays.items()}
    if method["name"] == "mpfedcl":
        agreed["prototypes/authors"] = np.zeros(len(agreed["prototypes/classes"]), np.int64)
    client.apply(1, agreed)
    told = answer(client, FORMAT, get_digits(5))
    assert (str(told["distances"].dtype), told["distances"].shape) == ("float32", (5,))
    assert (told["distances"] >= 0).all()
    if method["name"] == "mpfedcl":
        assert (str(told["authors"].dtype), told["authors"].tolist()) == ("int64", [0] * 5)


def test_nothing_changes_in_the_client_nor_in_torchs_generator(fedavg: Client) -> None:
    state, drawn = encode_arrays(fedavg.state_arrays()), torch.get_rng_state()
    answer(fedavg, FORMAT, get_digits(5))
    assert encode_arrays(fedavg.state_arrays()) == state
    assert torch.equal(torch.get_rng_state(), drawn)


def test_samples_of_another_kind_are_refused(fedavg: Client) -> None:
    with pytest.raises(DataError, match="expected images that can be made"):
        answer(fedavg, FORMAT, np.zeros((1, 4, 8, 8), np.uint8))


def test_a_model_that_gives_no_numbers_is_said_to() -> None:
    with pytest.raises(MlError, match="gives probabilities that are no numbers"):
        answer(make({"name": "fedavg"}), FORMAT, np.full((1, 1, 8, 8), 3e38, np.float32))
