"""FedEDS: its loss (ALGORITHMS §12.4), what it comes to without sets (§13.3), what never leaves or changes (§13.4), and
what a poisoned set does."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ml.clients.batched
from ml.clients.batched import train_batched
from ml.clients.client import Client, Phase
from ml.errors import Stopped
from ml.fededs.encryptor import count_encryptor_steps
from ml.fededs.shared_set import EncryptedSet
from ml.fededs.stochastic_layer import classify_through, compute_distillation, compute_soft_labels, make_layer
from ml.methods.base import Trained
from ml.methods.fededs import MAX_DIVERGENCE, FedEds
from ml.models import Model
from ml.models.batch_norm import BatchNorm2d
from ml.payload import Array, Arrays, compute_chunk_digests, encode_arrays
from ml.seeding import numpy_rng
from ml.simulation.exchange import Exchange
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.specs import add_kind, get_kind, get_spec
from ml.specs.methods.fededs import MAX_MAGNITUDE, FedEdsSpec
from ml.training.generator import States
from ml.training.loop import Batch, Progress
from support.data.placement import ProductsWatch, displace
from support.federation.simulated import BEACON, CNN, MLP, aggregate_round, get_parent, make_digit_clients

QUICK: dict[str, Any] = {
    "local_epochs": 2,
    "warmup_epochs": 2,
    "encryptor_epochs": 1,
    "unet_width": 2,
    "batch_size": 8,
    "lr": 0.05,
}
WORK: dict[str, Any] = {"local_epochs": 1, "lr": 0.05}
IDS = [bytes([i]) * 32 for i in range(8)]


def make_clients(num_clients: int = 3, *, shots: int | None = 3, model: Any = MLP, **settings: Any) -> list[Client]:
    method = {"name": "fededs", **QUICK, **settings}
    return make_digit_clients(method, num_clients=num_clients, shots=shots, model=model, partition="iid")


def make_base_clients(num_clients: int, *, model: Any = MLP, **settings: Any) -> list[Client]:
    """FedAvg's, of the same samples."""
    method = {"name": "fedavg", "batch_size": 8, **settings}
    return make_digit_clients(method, num_clients=num_clients, shots=3, model=model, partition="iid")


def share(clients: Sequence[Client]) -> tuple[Exchange, list[Trained]]:
    """The sharing round: all train for it and apply it."""
    parent = get_parent(clients)
    trained = [client.train(1, BEACON) for client in clients]
    aggregate = aggregate_round(clients, 1, trained, parent)
    for client in clients:
        client.apply(1, aggregate)
    return Exchange.make(clients[0].spec, 1, IDS[: len(clients)], trained), trained


def train(
    clients: Sequence[Client], height: int, shared: Exchange, *, gone: Collection[bytes] = (), **changes: Any
) -> list[Trained]:
    """A round's local phases. A set of `changes`, by author, stands for the one that was shared."""
    made = []
    for me, client in zip(IDS, clients, strict=False):
        wanted = client.spec.wanted_in_training(height, BEACON, me, shared.offers, frozenset(gone))
        blobs = {digest: changes.get("blobs", {}).get(digest, shared.blobs[digest]) for digest in wanted}
        made.append(client.train(height, BEACON, me=me, offers=shared.offers, blobs=blobs, gone=gone))
    return made


def poison(shared: Exchange, author: bytes, **arrays: Array) -> dict[bytes, Arrays]:
    """The author's set with other arrays, under the digest of its own."""
    (digest,) = (offer.digests["encrypted_set"] for offer in shared.offers if offer.author == author)
    return {digest: {**shared.blobs[digest], **arrays}}


def get_model(client: Client) -> dict[str, Array]:
    return get_kind(client.state_arrays(), "model") or {}


def hash_arrays(arrays: Arrays) -> str:
    return hashlib.sha256(encode_arrays(arrays)).hexdigest()


def run(*, method: Mapping[str, Any], **settings: Any) -> SimulationResult:
    config: dict[str, Any] = {"clients": 3, "rounds": 3, "shots": 3, "partition": "iid", **settings}
    return simulate(SimulationConfig(method=method, **config))


# ---- the loss


class Passed(Model):
    """Its logits are what it is given."""

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def classify(self, z: Tensor) -> Tensor:
        return z


LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
SOFT = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
LABELS = torch.tensor([0, 2])


def make_method(model: Mapping[str, Any] = MLP, shape: Sequence[int] = (1, 8, 8), **settings: Any) -> FedEds:
    spec = get_spec({"name": "fededs", **settings}, model, 10, shape)
    assert isinstance(spec, FedEdsSpec)
    return FedEds(spec)


@pytest.mark.parametrize("model", [(MLP, (1, 8, 8)), (CNN, (1, 28, 28))], ids=["one pass", "two passes"])
@pytest.mark.parametrize(("t", "total"), [(1, 0.650432763696), (2, 0.840706334239), (3, 0.860645366744)])
def test_eq_8_is_the_worked_examples(model: tuple[dict[str, Any], Sequence[int]], t: int, total: float) -> None:
    method = make_method(*model)
    lambda_c, lambda_dis = method.spec.compute_lambdas(t + 1)
    context = {"lambda_c": torch.tensor(lambda_c), "lambda_dis": torch.tensor(lambda_dis)}
    batch = Batch(LOGITS, LABELS, {"x": LOGITS, "y": SOFT})
    assert method.compute_loss(Passed(), batch, context).item() == pytest.approx(total, rel=1e-6)


def test_a_batch_without_a_set_costs_its_cross_entropy() -> None:
    context = {"lambda_c": torch.tensor(0.5), "lambda_dis": torch.tensor(0.5)}
    loss = make_method().compute_loss(Passed(), Batch(LOGITS, LABELS), context)
    assert loss.item() == pytest.approx(0.860645366744, rel=1e-6)
    assert torch.equal(loss, F.cross_entropy(LOGITS, LABELS))


@pytest.mark.parametrize(("layer", "logits"), [([2.0, 1.0, 1.0], [4.0, 0.0, -1.0]), (np.eye(3)[::-1], [-1, 0, 2])])
def test_only_the_others_half_goes_through_their_layer(layer: Any, logits: Sequence[float]) -> None:
    context = {"lambda_c": torch.tensor(0.5), "lambda_dis": torch.tensor(0.5)}
    extra = {"x": LOGITS[:1], "y": SOFT[:1], "layer": torch.tensor(np.array(layer, np.float32))}
    divergence = SOFT[0] @ (SOFT[0].log() - torch.tensor(logits).float().log_softmax(0))
    for method in (make_method(), make_method(CNN, (1, 28, 28))):
        loss = method.compute_loss(Passed(), Batch(LOGITS, LABELS, extra), context)
        assert loss.item() == pytest.approx(0.5 * 0.860645366744 + 0.5 * divergence.item(), rel=1e-6)


def test_fedprox_adds_its_term_to_both() -> None:
    (client,) = make_clients(1, base="fedprox", eps=1)
    phase = client.begin(2, BEACON)
    model, (batch, *_) = client.state.model, client.get_batches(phase)
    plain = client.method.compute_loss(model, batch, {})
    moved = phase.prepared.context["anchor"].clone()
    moved[[0, 7]] -= 1  # w - w_G = [1, 1] and zeros
    term = client.method.compute_loss(model, batch, {"anchor": moved}) - plain
    assert term.item() == pytest.approx(0.1, rel=1e-5)
    assert not client.begin(1, BEACON).prepared.context  # Eq. (2) has none


def test_statistics_of_batch_norm_and_dropout_are_of_own_samples_alone() -> None:
    class Normed(Model):
        def __init__(self) -> None:
            super().__init__()
            self.norm = BatchNorm2d(1)
            self.last = torch.nn.Linear(16, 3)

        def embed(self, x: Tensor) -> Tensor:
            z: Tensor = self.norm(x).flatten(1)
            return z

        def classify(self, z: Tensor) -> Tensor:
            logits: Tensor = self.last(z)
            return logits

    context = {"lambda_c": torch.tensor(0.5), "lambda_dis": torch.tensor(0.5)}
    ours, theirs = Normed().train(), Normed().train()
    theirs.load_state_dict(ours.state_dict())
    x = torch.rand(2, 1, 4, 4)
    loss = make_method(CNN, (1, 28, 28)).compute_loss(ours, Batch(x, LABELS, {"x": 100 * x, "y": SOFT}), context)
    theirs(x)
    assert torch.equal(ours.norm.running_mean, theirs.norm.running_mean)
    assert torch.equal(ours.norm.running_var, theirs.norm.running_var)
    assert ours.training
    assert loss.requires_grad


# ---- what it comes to without sets

BASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedavg": ({"base": "fedavg"}, {"name": "fedavg"}),
    "uniform": ({"weights": "uniform"}, {"name": "fedavg", "weights": "uniform"}),
    "fedprox": ({"base": "fedprox", "mu": 0.5}, {"name": "fedprox", "mu": 0.5}),
    "fednova": ({"base": "fednova"}, {"name": "fednova"}),
    "fednova by the epoch": ({"base": "fednova", "unit": "epochs"}, {"name": "fednova", "unit": "epochs"}),
}
ONE_EPOCH: dict[str, Any] = {"local_epochs": 1, "lr": 0.05, "momentum": 0.9, "decay": 0.8, "weight_decay": 1e-3}


@pytest.mark.parametrize("base", BASES)
def test_with_one_epoch_and_nothing_shared_it_is_its_base(base: str) -> None:
    ours, theirs = BASES[base]
    annealed = run(method={"name": "fededs", "share": False, **ours, **ONE_EPOCH}, partition="dirichlet:0.3")
    plain = run(method={**theirs, **ONE_EPOCH}, partition="dirichlet:0.3")
    assert annealed.aggregate_digests == plain.aggregate_digests
    assert annealed.rounds == plain.rounds


@pytest.mark.parametrize("base", BASES)
def test_with_sets_that_count_for_nothing_it_is_its_base_a_height_later(base: str) -> None:
    ours, theirs = BASES[base]
    quick = {"warmup_epochs": 1, "encryptor_epochs": 1, "unet_width": 2, "eps": 1}
    shared = run(method={"name": "fededs", **quick, **ours, **ONE_EPOCH}, partition="dirichlet:0.3", rounds=4)
    plain = run(method={**theirs, **ONE_EPOCH}, partition="dirichlet:0.3")
    assert shared.aggregate_digests[1:] == plain.aggregate_digests
    assert [(entry.taa, entry.tal) for entry in shared.rounds[1:]] == [(entry.taa, entry.tal) for entry in plain.rounds]


def test_dropout_draws_by_the_methods_round_too() -> None:
    ours = make_clients(2, model=CNN, shots=3, eps=1, **ONE_EPOCH)
    theirs = make_base_clients(2, model=CNN, **ONE_EPOCH)
    shared, _ = share(ours)
    for made, other in zip(train(ours, 2, shared), [client.train(1, BEACON) for client in theirs], strict=True):
        assert hash_arrays(made.payloads["model"]) == hash_arrays(other.payloads["model"])


def test_once_lambda_is_zero_a_round_is_fedavgs() -> None:
    """t = 3 of m = 3 and eps = 0.01, sets at hand or not; t = 1 and 2 are something else."""
    ours, theirs = make_clients(local_epochs=1), make_base_clients(3, **WORK)
    shared, _ = share(ours)
    for height in (2, 3, 4):
        for client, other in zip(ours, theirs, strict=True):
            other.load_state_arrays(client.state_arrays())
        made = train(ours, height, shared)
        plain = [client.train(height - 1, BEACON) for client in theirs]
        same = [
            hash_arrays(own.payloads["model"]) == hash_arrays(other.payloads["model"])
            for own, other in zip(made, plain, strict=True)
        ]
        assert same == [height == 4] * 3
        assert [made_.metrics["sets"] for made_ in made] == [float(height < 4)] * 3


def test_whoever_has_nobody_to_draw_trains_as_its_base() -> None:
    (client,) = make_clients(1, local_epochs=1)
    (other,) = make_base_clients(1, **WORK)
    shared, _ = share([client])
    (made,) = train([client], 2, shared)
    assert hash_arrays(made.payloads["model"]) == hash_arrays(other.train(1, BEACON).payloads["model"])
    assert (made.metrics["lambda_dis"], made.metrics["sets"]) == (0.5, 0.0)


def test_epochs_are_annealed() -> None:
    clients = make_clients(2, local_epochs=5)
    shared, trained = share(clients)
    assert trained[0].metrics["iterations"] == 2
    for height, epochs in ((2, 5), (3, 3), (4, 1), (5, 1)):
        assert [made.metrics["iterations"] for made in train(clients, height, shared)] == [epochs] * 2


# ---- the sharing round


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layer": "identity"},
        {"layer": "diag", "share_dtype": "float16"},
        {"layer": "orthogonal", "share_dtype": "uint8", "unet_out": "tanh"},
        {"layer": "conv1x1", "weights": "uniform", "base": "fednova", "draw": "batch"},
        {"base": "fednova", "unit": "epochs", "draw": "round", "share_per_class": 2, "lambda_clock": "fraction"},
    ],
)
def test_payloads_are_what_validators_accept(settings: dict[str, Any]) -> None:
    clients = make_clients(**settings)
    shared, trained = share(clients)
    for height, round_ in ((1, trained), (2, train(clients, 2, shared))):
        for client, made in zip(clients, round_, strict=True):
            client.spec.validate_weight(made.weight)
            client.spec.validate_kinds(made.payloads, height)
            for kind, arrays in made.payloads.items():
                client.spec.validate_payload(kind, arrays, height)
    assert all(made.metrics["sets"] >= 1 for made in train(clients, 2, shared))


def test_a_set_is_of_all_samples_or_of_as_many_as_allowed() -> None:
    for share_max, expected in ((10_000, 30), (7, 7)):
        clients = make_clients(share_max=share_max)
        _, trained = share(clients)
        assert [client.num_train for client in clients] == [30] * 3
        assert [len(made.payloads["encrypted_set"]["x"]) for made in trained] == [expected] * 3


def test_chunks_have_their_digests() -> None:
    _, trained = share(make_clients(2))
    for made in trained:
        digests = made.payloads["chunk_digests"]["digests"]
        assert np.array_equal(digests, compute_chunk_digests(made.payloads["encrypted_set"]))
        assert digests.tobytes() == hashlib.sha256(encode_arrays(made.payloads["encrypted_set"])).digest()


def test_after_the_sharing_round_all_stand_where_they_began() -> None:
    clients = make_clients()
    before = [encode_arrays(client.state_arrays()) for client in clients]
    trained = [client.train(1, BEACON) for client in clients]
    assert all(encode_arrays(client.state_arrays()) != old for client, old in zip(clients, before, strict=True))
    initial = add_kind("model", get_model(make_clients(1)[0]))
    aggregate = aggregate_round(clients, 1, trained, initial)
    assert aggregate is not None
    assert hash_arrays(aggregate) == hash_arrays(initial)
    for client, old in zip(clients, before, strict=True):
        client.apply(1, aggregate)
        assert encode_arrays(client.state_arrays()) == old


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_a_receiver_with_the_teacher_makes_the_same_soft_labels(dtype: str) -> None:
    clients = make_clients(2, share_dtype=dtype)
    for client in clients:
        arrays = client.train(1, BEACON).payloads["encrypted_set"]
        teacher = client.state.model.eval()  # after the warm-up, before it takes block 0's back
        x, y = EncryptedSet.open(arrays, client.device).read(np.arange(len(arrays["y"])))
        layer = torch.from_numpy(arrays["layer"])
        assert torch.allclose(compute_soft_labels(teacher, x, layer), y, atol=1e-6)
        assert not torch.allclose(compute_soft_labels(teacher, x, None), y, atol=1e-3)


def test_theta_l_never_changes_and_is_never_in_a_model() -> None:
    clients = make_clients(m=0)  # lambda_dis stays 1/2
    shared, trained = share(clients)
    sets = [made.payloads["encrypted_set"] for made in trained]
    layers = [hash_arrays({"layer": arrays["layer"]}) for arrays in sets]
    blobs = {digest: hash_arrays(arrays) for digest, arrays in shared.blobs.items()}
    names = get_model(clients[0]).keys()
    for height in (2, 3, 4):
        parent = get_parent(clients)
        made = train(clients, height, shared)
        assert all(one.metrics["sets"] > 0 for one in made)
        for one in made:
            assert one.payloads.keys() == {"model"}
            assert one.payloads["model"].keys() == names
        aggregate = aggregate_round(clients, height, made, parent)
        for client in clients:
            client.apply(height, aggregate)
            assert client.state_arrays().keys() == {f"model/{name}" for name in names}
            phase = client.begin(height, BEACON)
            assert len(phase.sgd.parameters) == len(names)
    assert {digest: hash_arrays(arrays) for digest, arrays in shared.blobs.items()} == blobs
    assert len(set(layers)) == 3
    for client, digest in zip(clients, layers, strict=True):
        again = make_layer("gaussian", 32, numpy_rng(client.seed, "layer"))
        assert again is not None
        assert hash_arrays({"layer": again}) == digest


def test_both_trainings_are_counted_as_one() -> None:
    told: list[tuple[int, int]] = []
    (client,) = make_clients(1)
    made = client.train(1, BEACON, on_step=lambda done, total: told.append((done, total)))
    steps = 2 * -(-client.num_train // 8) + count_encryptor_steps(client.num_train, 8, 1)
    assert told == [(step, steps) for step in range(1, steps + 1)]
    assert made.metrics["steps"] == steps
    assert made.metrics["iterations"] == 2


@pytest.mark.parametrize("after", [3, 10, 13], ids=["warming up", "training the encryptor", "encrypting"])
def test_a_sharing_round_that_is_stopped_has_changed_nothing(after: int) -> None:
    (client,) = make_clients(1)
    assert client.num_train == 30  # 8 steps of the warm-up, 4 of the encryptor, 4 parts of the set
    before = encode_arrays(client.state_arrays())
    polls = iter([False] * after + [True])
    with pytest.raises(Stopped):
        client.train(1, BEACON, should_stop=lambda: next(polls))
    assert encode_arrays(client.state_arrays()) == before
    assert all(parameter.requires_grad for parameter in client.state.model.parameters())


# ---- rounds that read sets


@pytest.mark.parametrize(("draw", "opened"), [("epoch", 2), ("batch", 3), ("round", 1)])
def test_sets_are_drawn_as_often_as_asked(draw: str, opened: int) -> None:
    clients = make_clients(4, local_epochs=3, draw=draw)
    shared, _ = share(clients)
    made = train(clients, 2, shared)
    expected = [len(clients[0].spec.wanted_in_training(2, BEACON, me, shared.offers)) for me in IDS[:4]]
    assert [one.metrics["sets"] for one in made] == expected
    assert max(expected) >= opened


def test_steps_of_an_epoch_are_of_the_set_that_everyone_can_say() -> None:
    clients = make_clients(4, local_epochs=3)
    shared, _ = share(clients)
    client, spec = clients[0], clients[0].spec
    assert isinstance(spec, FedEdsSpec)
    wanted = spec.wanted_in_training(2, BEACON, IDS[0], shared.offers)
    blobs = {digest: shared.blobs[digest] for digest in wanted}
    phase = client.begin(2, BEACON, me=IDS[0], offers=shared.offers, blobs=blobs)
    batches = list(client.get_batches(phase))
    assert len(batches) == 3 * 4
    for step, batch in enumerate(batches):
        drawn = spec.draw(BEACON, IDS[0], shared.offers, step // 4)
        assert drawn is not None
        arrays = blobs[drawn.digests["encrypted_set"]]
        assert np.array_equal(batch.extra["layer"].numpy(), arrays["layer"])
        rows = [np.flatnonzero((arrays["y"] == y.numpy()).all(1)) for y in batch.extra["y"]]
        assert len(rows) == len(batch.x)
        for x, (row, *_) in zip(batch.extra["x"], rows, strict=True):
            assert np.array_equal(x.numpy(), arrays["x"][row])


def test_small_blocks_give_the_same_steps() -> None:
    clients = make_clients(local_epochs=3)
    shared, _ = share(clients)
    blobs = {digest: shared.blobs[digest] for digest in shared.blobs}
    phase = clients[0].begin(2, BEACON, me=IDS[0], offers=shared.offers, blobs=blobs)
    at_once, apart = (list(clients[0].get_batches(phase, max_bytes)) for max_bytes in (64 << 20, 0))
    for one, other in zip(at_once, apart, strict=True):
        for name in ("x", "y", "layer"):
            assert torch.equal(one.extra[name], other.extra[name])


def test_whose_set_is_gone_is_not_drawn() -> None:
    clients = make_clients(local_epochs=1)
    shared, _ = share(clients)
    made = train(clients, 2, shared, gone={IDS[1], IDS[2]})
    assert [one.metrics["sets"] for one in made] == [0.0, 1.0, 1.0]  # of the first alone


def test_a_restored_client_goes_on_exactly() -> None:
    clients, fresh = make_clients(base="fednova"), make_clients(base="fednova")
    shared, _ = share(clients)
    for old, new in zip(clients, fresh, strict=True):
        new.load_state_arrays(old.state_arrays())
    for first, second in zip(train(clients, 2, shared), train(fresh, 2, shared), strict=True):
        assert hash_arrays(first.payloads["model"]) == hash_arrays(second.payloads["model"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_where_a_set_lies_in_memory_shows_in_no_bit(dtype: str) -> None:
    clients, others = make_clients(share_dtype=dtype), make_clients(share_dtype=dtype)
    shared, _ = share(clients)
    share(others)
    displaced = {digest: displace(arrays) for digest, arrays in shared.blobs.items()}
    plain = [made for height in (2, 3) for made in train(clients, height, shared)]
    with ProductsWatch() as watch:
        again = [made for height in (2, 3) for made in train(others, height, shared, blobs=displaced)]
    for first, second in zip(plain, again, strict=True):
        assert hash_arrays(first.payloads["model"]) == hash_arrays(second.payloads["model"])
    assert watch.num_seen > 100
    assert watch.displaced == []


def test_with_the_others_sets_a_client_comes_nearer_to_what_they_say_of_them() -> None:
    work: dict[str, Any] = {"warmup_epochs": 40, "encryptor_epochs": 20, "encryptor_lr": 0.01}
    clients = make_clients(2, local_epochs=20, lr=0.1, **work)
    shared, _ = share(clients)
    arrays = shared.blobs[shared.offers[1].digests["encrypted_set"]]
    before, client = clients[0].state_arrays(), clients[0]

    def measure() -> float:
        set_ = EncryptedSet.open(arrays, client.device)
        x, y = set_.read(set_.rows)
        with torch.no_grad():
            return compute_distillation(classify_through(client.state.model.eval(), x, set_.layer), y).item()

    distances = [measure()]
    for gone in ((), IDS):
        client.load_state_arrays(before)
        train([client], 2, shared, gone=gone)
        distances.append(measure())
    start, with_set, without = distances
    assert with_set < 0.2 * start
    assert with_set < 0.2 * without


# ---- poisoned sets


def fill(arrays: Arrays, **values: float) -> dict[str, Array]:
    return {name: np.full_like(arrays[name], value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"x": MAX_MAGNITUDE, "layer": MAX_MAGNITUDE}, f"expected a divergence of {MAX_DIVERGENCE:g} at most, got"),
        ({"x": MAX_MAGNITUDE, "layer": 1e-4}, "expected a step shorter than the weights"),
    ],
)
def test_a_poisoned_set_is_left_out_and_training_goes_on(
    values: dict[str, float], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = make_clients(2, lr=0.5)
    shared, _ = share(clients)
    digest = shared.offers[1].digests["encrypted_set"]
    bad = fill(shared.blobs[digest], **values)
    clients[0].spec.validate_payload("encrypted_set", {**shared.blobs[digest], **bad}, 1)
    with caplog.at_level(logging.WARNING):
        made = train(clients[:1], 2, shared, blobs=poison(shared, IDS[1], **bad))
    assert made[0].metrics["sets_dropped"] == 1.0
    assert made[0].metrics["sets"] == 0.0
    assert np.isfinite(made[0].metrics["loss"])
    (record,) = caplog.records
    assert f"Left out the encrypted set of 01010101 in round 1: {reason}" in record.getMessage()


def test_other_epochs_go_on_with_their_own_sets() -> None:
    clients = make_clients(3, local_epochs=4)
    shared, _ = share(clients)
    digest = shared.offers[1].digests["encrypted_set"]
    bad = poison(shared, IDS[1], **fill(shared.blobs[digest], x=MAX_MAGNITUDE, layer=MAX_MAGNITUDE))
    spec = clients[0].spec
    assert isinstance(spec, FedEdsSpec)
    blobs = {**shared.blobs, **bad}
    phase = clients[0].begin(2, BEACON, me=IDS[0], offers=shared.offers, blobs=blobs)
    drawn = [spec.draw(BEACON, IDS[0], shared.offers, epoch) for epoch in range(4)]
    authors = [offer.author for offer in drawn if offer is not None]
    assert set(authors) == {IDS[1], IDS[2]}
    for step, batch in enumerate(clients[0].get_batches(phase)):
        assert bool(batch.extra) == (authors[step // 4] == IDS[2])
    assert phase.prepared.metrics == {"lambda_dis": 0.5, "sets": 1.0, "sets_dropped": 1.0}


# ---- many clients in one pass


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"draw": "batch", "layer": "diag", "share_dtype": "uint8"},
        {"draw": "round", "layer": "identity", "base": "fedprox"},
        {"base": "fednova", "unit": "epochs", "momentum": 0.5},
    ],
)
def test_clients_in_one_pass_learn_what_they_would_have_one_after_the_other(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    run_together = ml.clients.batched.run_together

    def note(clients: Sequence[Client], phases: Sequence[Phase], states: list[States]) -> list[Progress]:
        groups.append(len(clients))
        return run_together(clients, phases, states)

    monkeypatch.setattr(ml.clients.batched, "run_together", note)
    clients = make_clients(**settings)
    made = train_batched(clients, 1, BEACON)
    assert groups == []  # whoever trains an encryptor trains alone
    alone = make_clients(**settings)
    shared, trained = share(alone)
    for one, other in zip(made, trained, strict=True):
        assert hash_arrays(one.payloads["encrypted_set"]) == hash_arrays(other.payloads["encrypted_set"])
    for client, from_ in zip(clients, alone, strict=True):
        client.load_state_arrays(from_.state_arrays())
    blobs = [shared.take_for_training(2, BEACON, me) for me in IDS[:3]]
    together = train_batched(clients, 2, BEACON, ids=IDS[:3], offers=shared.offers, blobs=blobs)
    assert groups == [3]
    for one, other in zip(together, train(alone, 2, shared), strict=True):
        assert one.metrics["sets"] == other.metrics["sets"] > 0
        assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], abs=1e-4)
        for name, array in other.payloads["model"].items():
            assert one.payloads["model"][name] == pytest.approx(array, abs=1e-4), name


# ---- whole runs


def test_runs_repeat_whoever_is_drawn() -> None:
    method = {"name": "fededs", **QUICK}
    first, same, other = (run(method=method, seed=seed) for seed in (5, 5, 6))
    assert first.aggregate_digests == same.aggregate_digests
    assert first.to_json() == same.to_json()
    assert not set(first.aggregate_digests) & set(other.aggregate_digests)
    elsewhere = simulate(first.config, beacons=lambda height: bytes([height]) * 32)
    assert elsewhere.aggregate_digests[0] == first.aggregate_digests[0]  # block 0's
    assert elsewhere.aggregate_digests[1] != first.aggregate_digests[1]  # others are drawn


def test_one_pass_for_all_comes_to_the_same_run() -> None:
    ours, theirs = (run(method={"name": "fededs", **QUICK}, batched=batched) for batched in ("on", "off"))
    for one, other in zip(ours.rounds, theirs.rounds, strict=True):
        assert (one.sent_bytes, one.received_bytes) == (other.sent_bytes, other.received_bytes)
        assert one.tal == pytest.approx(other.tal, abs=1e-3)


def test_traffic_of_the_sharing_round_is_its_sets() -> None:
    result = run(method={"name": "fededs", **QUICK})
    _, trained = share(make_clients())
    sizes = [len(encode_arrays(arrays)) for made in trained for arrays in made.payloads.values()]
    sharing, *others = result.rounds
    assert sharing.sent_bytes == sum(sizes)
    assert sharing.received_bytes == 2 * sum(sizes)
    assert sharing.sent_params == 3 * (30 * (64 + 10) + 32 * 32)
    assert {entry.sent_params for entry in others} == {3 * 6_570}


# Bands measured over eight seeds and widened by about their own width. Without sharing at all it is 0.75 to 0.88: on so
# small a task the sets bring nothing, and a round in which half of the loss is theirs is slower.
@pytest.mark.parametrize(("base", "low", "high"), [("fedavg", 0.62, 0.97), ("fednova", 0.63, 0.98)])
def test_it_learns(base: str, low: float, high: float) -> None:
    method = {"name": "fededs", "base": base, "unet_width": 4, "encryptor_epochs": 1, "momentum": 0.5}
    result = run(method=method, partition="dirichlet:0.3", clients=4, rounds=9, shots=None)
    assert result.rounds[0].global_ < 0.2  # block 0's model
    assert low <= result.final_global <= high  # 0.74 to 0.85 with fedavg, 0.75 to 0.87 with fednova
