"""Batches and steps of a local phase."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ml.errors import Stopped
from ml.metrics import Prediction, compute_mean, compute_std, count_rounds_to, evaluate
from ml.models import build_model
from ml.models.base import Model
from ml.specs import DfplHyperparameters, Hyperparameters
from ml.training import Diverged, Sgd, cross_entropy, draw_batches, run_local_phase, train

torch.set_num_threads(1)  # two threads on so small a model only wait for each other

MLP = {"name": "mlp", "hidden": [8]}


def make_model() -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_model(MLP, (1, 4, 4), 3)


def make_samples(count: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 4, 4, generator=rng), torch.randint(0, 3, (count,), generator=rng)


def draw(iterations: int | None = None, epochs: int | None = None, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [batch.tolist() for batch in draw_batches(10, 4, rng, iterations=iterations, epochs=epochs)]


def test_iterations_draw_afresh_without_replacement() -> None:
    batches = draw(iterations=50)
    assert [len(set(batch)) for batch in batches] == [4] * 50
    assert set(chain(*batches)) == set(range(10))
    assert batches == draw(iterations=50)
    assert batches != draw(iterations=50, seed=1)


def test_epochs_pass_over_everything_and_keep_the_last_partial_batch() -> None:
    batches = draw(epochs=2)
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    assert sorted(chain(*batches[:3])) == sorted(chain(*batches[3:])) == list(range(10))
    assert batches[:3] != batches[3:]


def test_batch_is_no_larger_than_the_data() -> None:
    rng = np.random.default_rng(0)
    assert [len(batch) for batch in draw_batches(3, 32, rng, iterations=2)] == [3, 3]
    assert [len(batch) for batch in draw_batches(3, 32, rng, epochs=2)] == [3, 3]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_steps_are_those_of_torch(momentum: float) -> None:
    x, y = make_samples()
    ours, theirs = make_model(), make_model()
    sgd = Sgd(ours.parameters(), 0.1, momentum)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum)
    for _ in range(5):
        sgd.step(F.cross_entropy(ours(x), y))
        reference.zero_grad()
        F.cross_entropy(theirs(x), y).backward()  # type: ignore[no-untyped-call]  # torch leaves it bare
        reference.step()
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(own, other)


def test_frozen_parameters_stay() -> None:
    x, y = make_samples()
    model = make_model()
    model.get_parameter("fc1.weight").requires_grad_(False)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    Sgd(model.parameters(), 0.1).step(F.cross_entropy(model(x), y))
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {"fc1.bias", "fc2.weight", "fc2.bias"}


def test_training_learns_and_reports() -> None:
    x, y = make_samples()
    model = make_model()
    batches = draw_batches(20, 20, np.random.default_rng(0), iterations=300)
    first = train(model, batches[:1], cross_entropy(model, x, y), lr=0.5, momentum=0.5)
    train(model, batches, cross_entropy(model, x, y), lr=0.5, momentum=0.5)
    last = train(model, batches[:1], cross_entropy(model, x, y), lr=0.5, momentum=0.5)
    assert first.steps == 1
    assert first.seconds > 0
    assert last.loss < first.loss / 2


def test_training_stops_between_two_steps() -> None:
    x, y = make_samples()
    model = make_model()
    polls = iter([False, False, True])
    with pytest.raises(Stopped, match="after 2 of 9 steps"):
        train(
            model,
            draw_batches(20, 4, np.random.default_rng(0), iterations=9),
            cross_entropy(model, x, y),
            lr=0.1,
            momentum=0.0,
            should_stop=lambda: next(polls),
        )


def test_a_loss_that_is_no_number_is_said() -> None:
    x, y = make_samples()
    x[3] = torch.nan
    model = make_model()
    with pytest.raises(Diverged, match=r"the mean loss of 9 steps at lr 0.1 is nan"):
        train(
            model,
            draw_batches(20, 4, np.random.default_rng(0), iterations=9),
            cross_entropy(model, x, y),
            lr=0.1,
            momentum=0.0,
        )


@pytest.mark.parametrize(
    ("hyperparameters", "steps"),
    [
        (Hyperparameters(local_iterations=7, batch_size=8), 7),
        (Hyperparameters(local_iterations=None, local_epochs=2, batch_size=8), 6),
        (DfplHyperparameters(local_iterations=2, iteration="epoch", batch_size=8), 6),
        (DfplHyperparameters(local_iterations=2, iteration="step", batch_size=8), 2),
    ],
)
def test_local_work_is_what_the_hyperparameters_say(hyperparameters: Hyperparameters, steps: int) -> None:
    x, y = make_samples()
    model = make_model()
    metrics = run_local_phase(
        model,
        cross_entropy(model, x, y),
        hyperparameters,
        num_train=20,
        height=1,
        rng=np.random.default_rng(0),
        device=torch.device("cpu"),
    )
    assert metrics["steps"] == steps
    iterations = hyperparameters.local_iterations or hyperparameters.local_epochs or 0
    assert metrics["alpha_s"] == pytest.approx(metrics["seconds"] / iterations)


def test_learning_rate_decays_by_the_round() -> None:
    x, y = make_samples()

    def move(height: int) -> float:
        model = make_model()
        before = model.get_parameter("fc1.weight").detach().clone()
        run_local_phase(
            model,
            cross_entropy(model, x, y),
            Hyperparameters(local_iterations=1, batch_size=20, lr=0.1, decay=0.5),
            num_train=20,
            height=height,
            rng=np.random.default_rng(0),
            device=torch.device("cpu"),
        )
        return float((model.get_parameter("fc1.weight").detach() - before).norm())

    assert move(2) == pytest.approx(move(1) / 2, rel=1e-4)
    assert move(4) == pytest.approx(move(1) / 8, rel=1e-4)


def test_evaluation_counts_all_chunks() -> None:
    y = torch.arange(5000) % 2
    x = torch.zeros(5000, 1)

    def predict(chunk: torch.Tensor) -> Prediction:
        return Prediction(torch.zeros(len(chunk), 2), torch.zeros(len(chunk), dtype=torch.int64))

    assert evaluate(predict, x, y) == {"accuracy": 0.5, "loss": pytest.approx(np.log(2), rel=1e-6)}


def test_summaries_over_clients_rounds_and_seeds() -> None:
    assert compute_mean([0.5, 1.0]) == 0.75
    assert compute_std([1.0, 3.0]) == 1.0
    assert count_rounds_to(0.8, [0.5, 0.8, 0.7, 0.9]) == 2
    assert count_rounds_to(0.95, [0.5, 0.8]) is None
