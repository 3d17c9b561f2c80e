"""Steps and prototypes that hide samples: their arithmetic, how much one sample can do, and that the noise is as much
as is claimed, by a test that half of it fails."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ml.errors import SpecError
from ml.methods.base import Round
from ml.methods.common.clustering import cluster_by_mean
from ml.payload import encode_arrays
from ml.secret_stream import SecretStream
from ml.seeding import derive_key
from ml.specs import get_spec
from ml.training.loop import Batch, compute_cross_entropy, draw_by_chance, make_step
from ml.training.optimizers import Sgd
from ml.training.private import PrivateStep, PrototypePrivacy, StepPrivacy
from support.federation.simulated import BEACON, make_digit_clients

CPU = torch.device("cpu")
QUIET = 1e-9  # so little noise that arithmetic shows


class Dot(nn.Module):
    """A loss whose gradient by the weights is the sample."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))


def compute_dot(model: Any, batch: Batch, context: object) -> Tensor:
    loss: Tensor = (batch.x @ model.weight).mean()
    return loss


def make(size: int, noise: float, clip: float = 1.0, batch_size: float = 1.0, seed: int = 1) -> tuple[Dot, PrivateStep]:
    """Weights that a step moves by minus its gradient."""
    model: Any = Dot(size)
    privacy = StepPrivacy(noise, clip, batch_size, SecretStream(derive_key(seed)))
    step = make_step(
        model, compute_dot, {}, Sgd(model.parameters(), 1.0), torch.autocast("cpu", enabled=False), privacy
    )
    assert isinstance(step, PrivateStep)
    return model, step


def make_batch(*rows: list[float]) -> Batch:
    x = torch.tensor(rows) if rows else torch.empty((0, 3))
    return Batch(x, torch.zeros(len(rows), dtype=torch.int64))


# ---- arithmetic


def test_gradients_are_cut_summed_and_divided_by_the_mean_size_of_a_batch() -> None:
    model, step = make(3, QUIET, clip=5.0, batch_size=4.0)
    loss = step(make_batch([3.0, 4.0, 0.0], [0.0, 30.0, 40.0], [0.5, 0.0, 0.0]))  # the second is ten times too long
    assert model.weight.tolist() == pytest.approx([-3.5 / 4, -7.0 / 4, -4.0 / 4])
    assert loss.item() == 0.0


def test_a_sample_without_a_finite_gradient_does_nothing() -> None:
    model, step = make(3, QUIET)
    step(make_batch([0.5, 0.0, 0.0], [math.nan, 0.0, 0.0], [math.inf, 0.0, 0.0]))
    assert model.weight.tolist() == pytest.approx([-0.5, 0.0, 0.0], abs=1e-6)


def test_no_gradient_is_left_longer_than_it_may_be_by_many_small_numbers() -> None:
    """Added up in float32 all squares beside a one are lost, each of which is less than half of its last digit."""
    size = 1 << 20
    row = torch.full((1, size), 0.99 * 2.0**-12)
    row[:, :8] = 1.0
    assert row.norm().item() < row.double().norm().item() * 0.997
    model, step = make(size, QUIET)
    step(Batch(row, torch.zeros(1, dtype=torch.int64)))
    assert model.weight.double().norm().item() == pytest.approx(1.0, abs=1e-5)


def test_a_step_of_no_sample_is_noise() -> None:
    model, step = make(3, 1.0)
    assert step(make_batch()).item() == 0.0
    assert model.weight.abs().min() > 0


def test_more_samples_than_fit_at_once_are_the_same() -> None:
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(1)).tolist()
    model, step = make(3, QUIET, clip=0.7)
    step(make_batch(*rows))
    by_hand = sum(torch.tensor(row) * min(1.0, 0.7 / torch.tensor(row).norm().item()) for row in rows)
    assert isinstance(by_hand, Tensor)
    assert model.weight.tolist() == pytest.approx((-by_hand).tolist(), abs=1e-5)


def test_each_samples_gradient_is_that_of_a_batch_of_one() -> None:
    (client,) = make_digit_clients({"name": "fedavg", "dp_noise": QUIET, "dp_clip": 0.5}, num_clients=1)
    model, samples = client.state.model, client.state.data.train
    weights = list(model.parameters())
    before = [weight.detach().clone() for weight in weights]
    total = [torch.zeros_like(weight) for weight in weights]
    for i in range(9):
        loss = compute_cross_entropy(model, Batch(samples.x[i : i + 1], samples.y[i : i + 1]), {})
        gradients = torch.autograd.grad(loss, weights)
        length = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_ += gradient * min(1.0, 0.5 / length)
    privacy = StepPrivacy(QUIET, 0.5, 9.0, SecretStream.fresh())
    sgd = Sgd(weights, 1.0)
    PrivateStep(model, compute_cross_entropy, {}, sgd, privacy, torch.autocast("cpu", enabled=False))(
        Batch(samples.x[:9], samples.y[:9])
    )
    for weight, start, sum_ in zip(weights, before, total, strict=True):
        torch.testing.assert_close(start - weight.detach(), sum_ / 9, rtol=0, atol=1e-6)


def test_a_method_that_wants_to_see_gradients_has_no_private_step() -> None:
    model: Any = Dot(1)
    sgd = Sgd(model.parameters(), 1.0, on_gradients=lambda gradients: gradients)
    privacy = StepPrivacy(1, 1, 1, SecretStream.fresh())
    with pytest.raises(ValueError, match="nobody looks at"):
        make_step(model, compute_dot, {}, sgd, torch.autocast("cpu", enabled=False), privacy)


def test_every_step_has_every_sample_with_the_same_chance() -> None:
    batches = draw_by_chance(50, 20, SecretStream(derive_key(1)), 4000, CPU)
    counts = torch.bincount(torch.cat(tuple(batches)), minlength=50)
    assert len({len(batch) for batch in batches}) > 10
    assert all(len(set(batch.tolist())) == len(batch) for batch in batches)
    deviation = math.sqrt(4000 * 0.4 * 0.6)
    assert (counts - 1600).abs().max() < 4.5 * deviation
    together = sum(1 for batch in batches if {0, 1} <= set(batch.tolist()))
    assert together == pytest.approx(
        4000 * 0.16, abs=4.5 * math.sqrt(4000 * 0.16 * 0.84)
    )  # one does not change the other


# ---- the noise


def compute_deviation(noise: float) -> float:
    """Of what steps of no sample move weights by, in units of clip / batch size."""
    moved = []
    for seed in range(20):
        model, step = make(5000, noise, clip=0.5, batch_size=8.0, seed=seed)
        step(Batch(torch.empty((0, 5000)), torch.empty(0, dtype=torch.int64)))
        moved.append(model.weight.detach())
    return torch.cat(moved).std().item() * 8.0 / 0.5


def is_as_claimed(noise: float, claimed: float) -> bool:
    return abs(compute_deviation(noise) / claimed - 1) < 0.01  # of 100,000 draws: 4.5 standard errors


def test_the_noise_in_steps_is_as_much_as_is_claimed() -> None:
    assert is_as_claimed(1.5, 1.5)
    assert not is_as_claimed(0.75, 1.5)


def measure_epsilon(noise: float, delta: float = 1e-2, trials: int = 4000) -> float:
    """What an attacker shows who knows all samples but one, and looks whether that is there: a lower bound of epsilon
    that holds with a chance of 99.9 %. It says *there* where the weights went far enough along that sample. Each weight
    is a trial: its sample moves it and no other."""
    moved = []
    for is_there, seed in ((True, 1), (False, 2)):
        model, step = make(trials, noise, seed=seed)
        x = torch.eye(trials) if is_there else torch.empty((0, trials))
        step(Batch(x, torch.zeros(len(x), dtype=torch.int64)))
        moved.append(-model.weight.detach())
    z, best = NormalDist().inv_cdf(0.999), 0.0
    for threshold in (0.0, 0.5, 1.0, 1.5):
        found, false = ((values > threshold).double().mean().item() for values in moved)
        low, high = (p + sign * z * math.sqrt(p * (1 - p) / trials) for p, sign in ((found, -1), (false, 1)))
        if low > delta and high > 0:
            best = max(best, math.log((low - delta) / high))
    return best


def test_an_attacker_finds_no_more_than_epsilon_says_and_with_half_the_noise_more() -> None:
    claimed = compute_gaussian_epsilon(1.0, 1e-2)
    assert 1.0 < claimed < 3.0
    assert measure_epsilon(1.0) < claimed
    assert measure_epsilon(0.5) > claimed


def compute_gaussian_epsilon(noise: float, delta: float) -> float:
    """Of one release of a normal variable whose mean one sample moves by 1 (Balle and Wang, 2018, theorem 8)."""
    normal = NormalDist()

    def compute_delta(epsilon: float) -> float:
        a, b = 1 / (2 * noise), epsilon * noise
        return normal.cdf(a - b) - math.exp(epsilon) * normal.cdf(-a - b)

    low, high = 0.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if compute_delta(middle) > delta else (low, middle)
    return high


# ---- prototypes


def test_prototypes_are_means_of_cut_embeddings_with_noise_by_their_number() -> None:
    z_ND, y_N = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 1.0]]), torch.tensor([2, 2, 0])
    quiet = PrototypePrivacy(QUIET, 1.0, SecretStream(derive_key(1)))
    found = cluster_by_mean(z_ND, y_N, 3, quiet)
    assert found.classes.tolist() == [0, 2]
    assert found.prototypes == pytest.approx(np.array([[0.0, 1.0], [0.6, 0.8]]), abs=1e-6)
    for noise, is_right in ((0.1, True), (0.05, False)):
        privacy = PrototypePrivacy(noise, 1e3, SecretStream(derive_key(1)))
        means_nD = privacy.average(torch.zeros(25_000, 4, dtype=torch.float64), torch.full((25_000,), 4))
        assert (abs(means_nD.std().item() / (0.1 * 1e3 / 4) - 1) < 0.01) == is_right


def test_no_prototype_is_longer_than_an_embedding_may_be() -> None:
    privacy = PrototypePrivacy(100.0, 0.7, SecretStream(derive_key(1)))
    means_nD = privacy.average(torch.zeros(5, 8, dtype=torch.float64), torch.ones(5))
    assert means_nD.norm(dim=1).tolist() == pytest.approx([0.7] * 5)


# ---- clients


def test_a_rehearsal_can_be_run_again_and_a_sites_noise_is_never_the_same() -> None:
    def train(*, is_rehearsal: bool) -> bytes:
        (client,) = make_digit_clients({"name": "dfpl", "dp_noise": 1.0, "local_iterations": 2}, num_clients=1)
        client.is_rehearsal = is_rehearsal
        return encode_arrays(client.train(1, BEACON).payloads["prototypes"])

    assert train(is_rehearsal=True) == train(is_rehearsal=True)
    assert len({train(is_rehearsal=False) for _ in range(3)}) == 3


def test_draws_that_hide_samples_cannot_be_told_from_a_seed() -> None:
    site, rehearsal = (Round(1, 1, BEACON, 7, is_rehearsal=is_rehearsal) for is_rehearsal in (False, True))

    def draw(round_: Round, purpose: str) -> tuple[int, ...]:
        return tuple(round_.secret_stream(purpose).draw_words(2).tolist())

    assert draw(rehearsal, "x") == draw(rehearsal, "x") != draw(rehearsal, "y")
    assert draw(rehearsal, "x") != draw(replace(rehearsal, number=2), "x")
    assert len({draw(site, "x") for _ in range(3)} | {draw(rehearsal, "x")}) == 4


@pytest.mark.parametrize("method", ["fedavg", "dfpl", "fedproto", "fedper", "local", "fedprox", "blade_fl", "mpfedcl"])
def test_what_a_phase_may_have_told_is_said(method: str) -> None:
    settings = {"cluster": "mean"} if method == "mpfedcl" else {}
    asked = {"name": method, "dp_noise": 2.0, "local_iterations": 3, "batch_size": 8, **settings}
    (client,) = make_digit_clients(asked, num_clients=1)
    release = client.train(1, BEACON).release
    assert release is not None
    sends_prototypes = method in ("dfpl", "fedproto", "mpfedcl")
    assert (release.steps, release.noise) == (3, 2.0)
    assert release.rate == 8 / client.num_train
    assert release.prototype_noise == (5.0 if sends_prototypes else None)
    (plain,) = make_digit_clients({"name": method, "local_iterations": 1, **settings}, num_clients=1)
    assert plain.train(1, BEACON).release is None


def test_epochs_are_as_many_steps_as_their_batches() -> None:
    asked = {"name": "fedavg", "dp_noise": 2.0, "local_epochs": 2, "batch_size": 50}
    (client,) = make_digit_clients(asked, num_clients=1)
    release = client.train(1, BEACON).release
    assert release is not None
    assert release.steps == 2 * -(-client.num_train // 50)


@pytest.mark.parametrize(
    ("method", "input_", "model", "problem"),
    [
        ({"name": "moon"}, {}, "mlp", "moon sends what has no noise"),
        ({"name": "fededs"}, {}, "mlp", "fededs sends what has no noise"),
        ({"name": "dfpl", "aux_protos": "full"}, {}, "mlp", "every sample is in the loss of each"),
        ({"name": "mpfedcl"}, {}, "mlp", "mean is one prototype a class"),
        ({"name": "fedavg"}, {}, "resnet18", "resnet18 keeps statistics of batches"),
        ({"name": "fedavg"}, {"normalize": "agreed"}, "mlp", "expected low and high with dp_noise"),
        ({"name": "fedavg", "clip_norm": 1.0}, {}, "mlp", "method.clip_norm: expected none with dp_noise"),
        ({"name": "fedavg", "sampling": "balanced"}, {}, "mlp", "method.sampling: expected uniform with dp_noise"),
        ({"name": "fedavg", "class_weights": "own"}, {}, "mlp", "method.class_weights: expected none with dp_noise"),
        ({"name": "fedavg", "dp_noise": 0}, {}, "mlp", "method.dp_noise: expected a number in"),
        ({"name": "fedavg", "dp_delta": 1}, {}, "mlp", "method.dp_delta: expected a number in"),
    ],
)
def test_what_cannot_hide_samples_is_refused(
    method: dict[str, Any], input_: dict[str, Any], model: str, problem: str
) -> None:
    asked = {"dp_noise": 1.0, **method}
    with pytest.raises(SpecError, match=problem):
        get_spec(asked, {"name": model}, 10, (3, 32, 32), input_=input_)


@pytest.mark.parametrize(
    "key", ["dp_clip", "dp_prototype_noise", "dp_prototype_clip", "dp_statistics_noise", "dp_delta"]
)
def test_its_settings_are_refused_where_nothing_hides_samples(key: str) -> None:
    with pytest.raises(SpecError, match=f"method.{key}: expected none without dp_noise"):
        get_spec({"name": "fedavg", key: 0.5}, {"name": "mlp"}, 10, (1, 8, 8))
