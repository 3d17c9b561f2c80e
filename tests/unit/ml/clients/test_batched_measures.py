"""The end of many clients' phases, measured in one pass: the same as each would have found by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import ml.clients.batched
import ml.clients.batched_measures
from ml.clients.batched import train_batched
from ml.clients.batched_measures import Measured, measure_together
from ml.clients.client import Client, Phase
from ml.methods.base import Samples
from ml.methods.common.prototypes import sum_embeddings
from ml.models.mlp import Mlp
from ml.payload import encode_arrays
from ml.training.generator import States
from ml.training.loop import Diverged, Progress
from support.federation.simulated import BEACON, make_digit_clients

WORK: dict[str, Any] = {"local_iterations": 4, "lr": 0.05}
UNEVEN: dict[str, Any] = {"num_clients": 6, "partition": "dirichlet:0.3", "shots": 10, "seed": 3}
BY_MODEL: list[dict[str, Any]] = [{"name": "local"}, {"name": "fedavg"}, {"name": "uapdfl"}, {"name": "dfpl"}]
BY_PROTOTYPES: list[dict[str, Any]] = [
    {"name": "dfpl", "infer": "prototype"},
    {"name": "fedproto"},
    {"name": "mpfedcl"},
]


def make_trained(method: dict[str, Any], **settings: Any) -> list[Client]:
    """Clients whose models differ, as a phase leaves them."""
    clients = make_digit_clients(method | WORK, **UNEVEN | settings)
    for client in clients:
        client.run(client.begin(1, BEACON))
    return clients


def measure(clients: Sequence[Client]) -> list[Measured]:
    return measure_together(clients[0].method, [client.state for client in clients])


def keep_test_samples(client: Client, num: int) -> None:
    matched = client.state.data.matched
    client.state.data = replace(client.state.data, matched=Samples(matched.x[:num], matched.y[:num]))


def assert_judged_as_by_itself(client: Client, measured: Measured) -> None:
    judged = measured.judged
    assert judged is not None
    metrics, (logits_MC,), (labels_M,) = judged.metrics, judged.logits, judged.labels
    alone = client.evaluate()
    said = client.predict(client.state.data.matched.x)
    assert metrics.keys() == alone.keys()
    assert metrics["accuracy"] == alone["accuracy"]
    assert metrics["loss"] == pytest.approx(alone["loss"], abs=1e-5)
    torch.testing.assert_close(logits_MC, said.logits, rtol=0, atol=1e-5)
    assert torch.equal(labels_M, said.labels)


@pytest.mark.parametrize("method", BY_MODEL, ids=str)
def test_answers_are_those_that_each_client_gives_by_itself(method: dict[str, Any]) -> None:
    clients = make_trained(method)
    assert len({client.num_test for client in clients}) > 3
    for client, measured in zip(clients, measure(clients), strict=True):
        assert measured.is_finite
        assert_judged_as_by_itself(client, measured)


@pytest.mark.parametrize("method", [{"name": "dfpl"}, {"name": "fedproto"}], ids=str)
def test_sums_are_those_of_each_clients_own_samples(method: dict[str, Any]) -> None:
    clients = make_trained(method)
    owned = {tuple((client.state.data.counts > 0).tolist()) for client in clients}
    assert len(owned) > 3  # each lacks other classes
    for client, measured in zip(clients, measure(clients), strict=True):
        train = client.state.data.train
        alone = sum_embeddings(client.state.model, train.x, train.y, client.state.data.num_classes)
        assert measured.sums is not None
        assert torch.equal(measured.sums.counts, alone.counts)
        torch.testing.assert_close(measured.sums.sums, alone.sums, rtol=0, atol=1e-4)
        assert not measured.sums.sums[alone.counts == 0].any()


def test_test_sets_may_lack_classes_and_be_empty() -> None:
    clients = make_trained({"name": "dfpl"})
    for client, num in zip(clients, (0, 1, 2), strict=False):
        keep_test_samples(client, num)
    none, *others = measure(clients)
    assert none.judged is None
    for client, measured in zip(clients[1:], others, strict=True):
        assert_judged_as_by_itself(client, measured)


def test_a_client_without_test_samples_ends_as_it_does_alone() -> None:
    apart, together = (make_digit_clients({"name": "dfpl"} | WORK, **UNEVEN) for _ in range(2))
    for clients in (apart, together):
        keep_test_samples(clients[1], 0)
    trained = train_batched(together, 1, BEACON)
    for client, made in zip(apart, trained, strict=True):
        assert made.metrics["test_loss"] == pytest.approx(client.train(1, BEACON).metrics["test_loss"], nan_ok=True)
    assert math.isnan(trained[1].metrics["accuracy"])


def test_no_one_has_test_samples() -> None:
    clients = make_trained({"name": "local"})
    for client in clients:
        keep_test_samples(client, 0)
    assert [measured.judged for measured in measure(clients)] == [None] * 6


@pytest.mark.parametrize("method", BY_PROTOTYPES, ids=str)
def test_what_prototypes_answer_each_asks_for_itself(method: dict[str, Any]) -> None:
    assert [measured.judged for measured in measure(make_trained(method))] == [None] * 6


def test_only_methods_that_send_class_means_have_them_summed() -> None:
    assert [measured.sums for measured in measure(make_trained({"name": "uapdfl"}))] == [None] * 6


@pytest.mark.parametrize("name", ["local", "dfpl", "fedproto"])
def test_answers_of_somebody_elses_are_not_taken_for_the_models(name: str) -> None:
    method = {"name": name} if name == "local" else {"name": name, "infer": "classifier"}
    (client,) = make_digit_clients(method | WORK, num_clients=1)
    known: Any = type(client.method)

    class Other(known):  # type: ignore[misc]  # of a class found as the test runs
        def predict(self, *arguments: Any) -> Any:
            return super().predict(*arguments)

    spec = client.method.spec
    assert (known(spec).is_answered_by_model, Other(spec).is_answered_by_model) == (True, False)


def test_a_method_that_says_nothing_of_its_answers_is_asked_by_each() -> None:
    clients = make_trained({"name": "dfpl"})

    class Plain:
        spec = clients[0].method.spec

    plain: Any = Plain()
    found = measure_together(plain, [client.state for client in clients])
    assert [(one.is_finite, one.judged, one.sums) for one in found] == [(True, None, None)] * 6


def test_too_much_at_a_time_each_measures_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = make_trained({"name": "dfpl"})
    most = 6 * 64 * 4 * max(client.num_train for client in clients)
    for limit, is_known in ((most, True), (most - 1, False)):
        monkeypatch.setattr(ml.clients.batched_measures, "MAX_GATHERED_BYTES", limit)
        assert {one.sums is not None for one in measure(clients)} == {is_known}


def test_passes_do_not_grow_with_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    embed, counted = Mlp.embed, []

    def note(self: Mlp, x: torch.Tensor) -> torch.Tensor:
        counted.append(1)
        return embed(self, x)

    monkeypatch.setattr(Mlp, "embed", note)
    seen = []
    for num_clients in (2, 5):
        clients = make_digit_clients({"name": "dfpl"} | WORK, num_clients=num_clients)
        counted.clear()
        train_batched(clients, 1, BEACON)
        seen.append(len(counted))
    assert seen == [4 + 2, 4 + 2]  # the steps; the answers and the sums


# ---- what fails


@pytest.mark.parametrize(
    ("value", "why"), [(math.nan, "weights that are no numbers"), (1e30, "a model that gives no numbers")]
)
def test_a_client_that_diverged_in_the_last_step_is_told_as_alone(
    value: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 1, and of all four none has changed."""
    apart, together = (make_digit_clients({"name": "dfpl"} | WORK, num_clients=4) for _ in range(2))
    before = [encode_arrays(client.state_arrays()) for client in together]
    run_together, run = ml.clients.batched.run_together, Client.run

    def spoil(client: Client) -> None:
        with torch.no_grad():
            for weight in client.state.model.parameters():
                weight.fill_(value)

    def run_and_spoil(client: Client, phase: Phase, **options: Any) -> Progress:
        progress = run(client, phase, **options)
        spoil(client)
        return progress

    def run_together_and_spoil(
        clients: Sequence[Client], phases: Sequence[Phase], states: list[States]
    ) -> list[Progress]:
        progress = run_together(clients, phases, states)
        spoil(clients[1])
        return progress

    monkeypatch.setattr(ml.clients.batched, "run_together", run_together_and_spoil)
    with pytest.raises(Diverged, match=why) as batched:
        train_batched(together, 1, BEACON)
    assert [encode_arrays(client.state_arrays()) for client in together] == before
    monkeypatch.setattr(Client, "run", run_and_spoil)
    with pytest.raises(Diverged) as alone:
        apart[1].train(1, BEACON)
    assert str(batched.value) == str(alone.value)


def test_what_was_measured_of_a_phase_is_not_kept_for_the_next() -> None:
    """After a pass for all, a client goes on by itself as if there had been none."""
    apart, together = (make_digit_clients({"name": "dfpl"} | WORK, num_clients=2) for _ in range(2))
    train_batched(together, 1, BEACON)
    for client in apart:
        client.train(1, BEACON)
    for one, other in zip(together, apart, strict=True):
        ours, theirs = (client.train(2, BEACON) for client in (one, other))
        for name, array in theirs.payloads["prototypes"].items():
            assert ours.payloads["prototypes"][name] == pytest.approx(array, abs=1e-5)
        assert ours.metrics["test_loss"] == pytest.approx(theirs.metrics["test_loss"], abs=1e-4)
