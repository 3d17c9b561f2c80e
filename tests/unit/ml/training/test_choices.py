"""A run's training choices: optimisers, clipping, losses, class weights, sampling; held to those of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from ml.clients.batched import train_batched
from ml.clients.build import Federation, make_clients
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from ml.errors import SpecError
from ml.specs import METHODS
from ml.specs.hyperparameters import Hyperparameters
from ml.training.criterion import Criterion, compute_class_weights, make_criterion
from ml.training.loop import Schedule
from ml.training.optimizers import Adam, Sgd, make_optimizer

MODEL = {"name": "mlp", "hidden": [16]}
Y = torch.tensor([0] * 6 + [1] * 2 + [3] * 12)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def make_batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 5, generator=generator), torch.randint(0, 3, (8,), generator=generator)


# ---- optimisers


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_is_torchs(name: str, weight_decay: float) -> None:
    ours, theirs = make_model(), make_model()
    hyper = Hyperparameters(optimizer=name, lr=0.01, weight_decay=weight_decay)
    optimizer = make_optimizer(hyper, ours.parameters(), hyper.lr, None)
    assert isinstance(optimizer, Adam)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    other = kind(theirs.parameters(), lr=0.01, weight_decay=weight_decay)
    for step in range(20):
        x, y = make_batch(step)
        optimizer.step(F.cross_entropy(ours(x), y))
        other.zero_grad()
        F.cross_entropy(theirs(x), y).backward()  # type: ignore[no-untyped-call]
        other.step()
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_clipping_is_torchs_and_comes_before_a_methods_own() -> None:
    ours, theirs = make_model(), make_model()
    seen: list[float] = []

    def look(gradients: Any) -> Any:
        seen.append(float(torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))))
        return gradients

    optimizer = make_optimizer(Hyperparameters(clip_norm=0.1), ours.parameters(), 0.5, look)
    x, y = make_batch(1)
    optimizer.step(F.cross_entropy(ours(x), y))
    F.cross_entropy(theirs(x), y).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.5 * parameter.grad)
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    assert seen == [pytest.approx(0.1, rel=1e-4)]


def test_without_choices_it_is_plain_sgd() -> None:
    optimizer = make_optimizer(Hyperparameters(), make_model().parameters(), 0.1, None)
    assert type(optimizer) is Sgd
    assert optimizer.is_plain


# ---- losses


def test_smoothing_and_weights_are_torchs() -> None:
    logits, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(1)), Y
    weights = compute_class_weights(Y, 4)
    expected = F.cross_entropy(logits, y, weight=weights, label_smoothing=0.2)
    made = make_criterion(Hyperparameters(label_smoothing=0.2, class_weights="own"), Y, 4)
    torch.testing.assert_close(made(logits, y), expected)
    plain = make_criterion(Hyperparameters(), Y, 4)
    assert torch.equal(plain(logits, y), F.cross_entropy(logits, y))


def test_class_weights_are_scikit_learns_and_one_where_a_class_is_not_there() -> None:
    weights = compute_class_weights(Y, 4)
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=Y.numpy())
    np.testing.assert_allclose(weights[[0, 1, 3]].numpy(), expected, rtol=1e-6)
    assert weights[2] == 1


def test_the_focal_loss_is_the_papers() -> None:
    logits, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(2)), Y
    p = logits.softmax(1)[torch.arange(20), y]
    made = make_criterion(Hyperparameters(loss="focal"), Y, 4)
    torch.testing.assert_close(made(logits, y), (-((1 - p) ** 2) * p.log()).mean())
    other = make_criterion(Hyperparameters(loss="focal", focal_gamma=0.5), Y, 4)
    torch.testing.assert_close(other(logits, y), (-((1 - p) ** 0.5) * p.log()).mean())
    weights = compute_class_weights(Y, 4)
    weighted = Criterion(weights=weights, gamma=2.0)(logits, y)
    torch.testing.assert_close(weighted, (-weights[y] * (1 - p) ** 2 * p.log()).sum() / weights[y].sum())


# ---- sampling


@pytest.mark.parametrize("work", [{"local_iterations": 400}, {"local_epochs": 160}])
def test_balanced_sampling_draws_classes_alike(work: dict[str, int]) -> None:
    hyper = Hyperparameters.from_mapping({"sampling": "balanced", "batch_size": 8, **work})
    schedule = Schedule.draw(hyper, Y, np.random.default_rng(1))
    plain = Schedule.draw(Hyperparameters.from_mapping({"batch_size": 8, **work}), Y, np.random.default_rng(1))
    assert list(map(len, schedule.batches)) == list(map(len, plain.batches))
    drawn = Y[torch.cat(tuple(schedule.batches))]
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(shares.numpy(), [1 / 3, 1 / 3, 0, 1 / 3], atol=0.03)


# ---- what is refused, and what genesis gets


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"optimizer": "rmsprop"}, "method.optimizer: expected one of sgd, adam, adamw, got 'rmsprop'"),
        ({"optimizer": "adam", "momentum": 0.9}, "method.momentum: expected 0 with adam"),
        ({"focal_gamma": 2.0}, "method.focal_gamma: expected none without loss: focal"),
        ({"label_smoothing": 1.0}, "method.label_smoothing: expected a number in"),
        ({"clip_norm": 0}, "method.clip_norm: expected a number in"),
        ({"sampling": "weighted"}, "method.sampling: expected one of uniform, balanced"),
    ],
)
def test_choices_that_make_no_sense_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        Hyperparameters.from_mapping(settings)
    assert str(caught.value).startswith(problem)


def test_fednova_goes_by_the_steps_of_sgd() -> None:
    with pytest.raises(SpecError, match=r"method\.optimizer: expected sgd, got adam"):
        METHODS["fednova"].settings.from_mapping({"optimizer": "adam"})


def test_what_is_not_set_is_not_written() -> None:
    assert not {"optimizer", "loss", "clip_norm"} & Hyperparameters().to_mapping().keys()
    told = Hyperparameters(optimizer="adam", loss="focal").to_mapping()
    assert (told["optimizer"], told["loss"]) == ("adam", "focal")


# ---- whole clients


def make_four(method: str, **settings: Any) -> list[Client]:
    federation = Federation(
        method={"name": method, "lr": 0.05, "local_iterations": 30, **settings},
        model=MODEL,
        classes=tuple(get_classes({"format": "digits"})),
        input=get_default_input({"format": "digits"}, MODEL),
        rounds=0,
        num_members=4,
    )
    return make_clients(federation, data={"format": "digits"}, partition="dirichlet:0.5", run_seed=3)


CHOICES: list[dict[str, Any]] = [
    {"optimizer": "adam", "lr": 0.01},
    {"clip_norm": 0.5},
    {"loss": "focal", "label_smoothing": 0.1},
    {"class_weights": "own"},
    {"sampling": "balanced"},
]


@pytest.mark.parametrize("settings", CHOICES, ids=lambda settings: next(iter(settings)))
@pytest.mark.parametrize("method", ["fedavg", "dfpl", "mpfedcl", "uapdfl", "moon", "fedprox"])
def test_each_choice_changes_training_and_learns(method: str, settings: dict[str, Any]) -> None:
    client, plain = make_four(method, **settings)[0], make_four(method)[0]
    start = client.evaluate()["loss"]
    for number in (1, 2):
        client.train(number + client.spec.sharing_heights, b"x", num_iterations=30)
        plain.train(number + plain.spec.sharing_heights, b"x", num_iterations=30)
    one, other = client.state_arrays(), plain.state_arrays()
    assert any(not np.array_equal(one[name], other[name]) for name in one if name.startswith("model/"))
    assert client.evaluate()["loss"] < start


@pytest.mark.parametrize("settings", CHOICES, ids=lambda settings: next(iter(settings)))
def test_many_clients_at_once_train_as_one_by_one(settings: dict[str, Any]) -> None:
    together, alone = make_four("fedavg", **settings), make_four("fedavg", **settings)
    train_batched(together, 1, b"x")
    for client in alone:
        client.train(1, b"x")
    for one, other in zip(together, alone, strict=True):
        for name, array in one.state_arrays().items():
            np.testing.assert_allclose(array, other.state_arrays()[name], rtol=1e-4, atol=1e-5)
