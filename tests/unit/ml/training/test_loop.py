"""Batches and steps of a local phase, and the ways an engine may run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ml.clients.batched import train_batched
from ml.clients.build import Compute, Federation, make_client, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from ml.data.augment import PADDING, augment
from ml.errors import Stopped
from ml.models import build_model
from ml.models.base import Model
from ml.payload import encode_arrays
from ml.specs import get_kind
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.methods.dfpl import DfplHyperparameters
from ml.training.loop import (
    Batch,
    Diverged,
    Engine,
    Progress,
    Schedule,
    Stepping,
    augment_batches,
    compile_loss,
    compute_cross_entropy,
    draw_batches,
    gather_batches,
    train,
)
from ml.training.metrics import Prediction, compute_mean, compute_std, judge
from ml.training.optimizers import Sgd, compute_gradients
from support.federation.simulated import BEACON, CNN

torch.set_num_threads(1)  # two threads on so small a model only wait for each other

NO_CLASSES = torch.zeros(20, dtype=torch.int64)  # of twenty samples
CPU = torch.device("cpu")
MLP = {"name": "mlp", "hidden": [8]}
DATA = {"format": "digits"}


def make_model() -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_model(MLP, (1, 4, 4), 3)


def make_samples(count: int = 20) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 4, 4, generator=rng), torch.randint(0, 3, (count,), generator=rng)


def train_plainly(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int,
    batch_size: int = 20,
    lr: float = 0.5,
    momentum: float = 0.5,
    stepping: Stepping | None = None,
) -> Progress:
    batches = draw_batches(len(y), batch_size, np.random.default_rng(0), iterations=iterations)
    sgd = Sgd(model.parameters(), lr, momentum)
    gathered = gather_batches(x, y, {}, batches)
    return train(model, gathered, compute_cross_entropy, {}, sgd, num_steps=iterations, stepping=stepping)


# ---- what is drawn


def draw(
    iterations: int | None = None, epochs: int | None = None, seed: int = 0, *, drop_last: bool = False
) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    batches = draw_batches(10, 4, rng, iterations=iterations, epochs=epochs, drop_last=drop_last)
    return [batch.tolist() for batch in batches]


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


def test_dropping_the_last_batch_leaves_the_others_as_they_were() -> None:
    assert draw(epochs=2, drop_last=True) == [batch for batch in draw(epochs=2) if len(batch) == 4]
    assert draw(iterations=3, drop_last=True) == draw(iterations=3)


@pytest.mark.parametrize(("samples", "sizes"), [(9, [4, 5]), (10, [4, 4, 2]), (8, [4, 4]), (1, [1])])
def test_a_last_batch_that_is_too_small_joins_the_one_before(samples: int, sizes: list[int]) -> None:
    drawn = draw_batches(samples, 4, np.random.default_rng(0), epochs=2, least=2)
    assert [len(batch) for batch in drawn] == sizes * 2
    as_ever = draw_batches(samples, 4, np.random.default_rng(0), epochs=2)
    assert torch.equal(torch.cat(tuple(drawn)), torch.cat(tuple(as_ever)))


def test_batch_is_no_larger_than_the_data() -> None:
    rng = np.random.default_rng(0)
    assert [len(batch) for batch in draw_batches(3, 32, rng, iterations=2)] == [3, 3]
    assert [len(batch) for batch in draw_batches(3, 32, rng, epochs=2)] == [3, 3]
    assert [len(batch) for batch in draw_batches(3, 32, rng, epochs=2, drop_last=True)] == [3, 3]


@pytest.mark.parametrize(
    ("hyperparameters", "iterations", "steps"),
    [
        (Hyperparameters(local_iterations=7, batch_size=8), 7, 7),
        (Hyperparameters(local_iterations=None, local_epochs=2, batch_size=8), 2, 6),
        (Hyperparameters(local_iterations=None, local_epochs=2, batch_size=8, drop_last=True), 2, 4),
        (DfplHyperparameters(local_iterations=2, iteration="epoch", batch_size=8), 2, 6),
        (DfplHyperparameters(local_iterations=2, iteration="step", batch_size=8), 2, 2),
    ],
)
def test_schedule_has_the_work_that_the_hyperparameters_set(
    hyperparameters: Hyperparameters, iterations: int, steps: int
) -> None:
    schedule = Schedule.draw(hyperparameters, NO_CLASSES, np.random.default_rng(0))
    assert (schedule.num_iterations, len(schedule.batches)) == (iterations, steps)
    other = Schedule.draw(hyperparameters, NO_CLASSES, np.random.default_rng(0), 3)  # as a time budget sets it
    assert (other.num_iterations, len(other.batches)) == (3, 3 * steps // iterations)


def test_schedule_knows_which_samples_occur() -> None:
    schedule = Schedule.draw(Hyperparameters(local_iterations=2, batch_size=4), NO_CLASSES, np.random.default_rng(0))
    assert schedule.drawn.tolist() == sorted(set(torch.cat(tuple(schedule.batches)).tolist()))
    assert Schedule((), 0).drawn.tolist() == []


@pytest.mark.parametrize(("iterations", "epochs"), [(5, None), (None, 2)])
def test_gathering_at_once_is_gathering_one_by_one(iterations: int | None, epochs: int | None) -> None:
    x, y = make_samples()
    by_sample = {"row": torch.arange(20.0), "history": torch.rand(20, 0, 3)}
    batches = draw_batches(20, 6, np.random.default_rng(0), iterations=iterations, epochs=epochs)
    at_once, one_by_one = (list(gather_batches(x, y, by_sample, batches, size)) for size in (1 << 20, 0))
    assert len(at_once) == len(one_by_one) == len(batches)
    for first, second, indices in zip(at_once, one_by_one, batches, strict=True):
        for batch in (first, second):
            assert torch.equal(batch.x, x[indices])
            assert torch.equal(batch.y, y[indices])
            assert batch.extra["row"].tolist() == indices.tolist()
            assert batch.extra["history"].shape == (len(indices), 0, 3)
    assert list(gather_batches(x, y, by_sample, ())) == []


# ---- steps


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_torch(momentum: float, weight_decay: float) -> None:
    x, y = make_samples()
    ours, theirs = make_model(), make_model()
    sgd = Sgd(ours.parameters(), 0.1, momentum, weight_decay)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for _ in range(5):
        sgd.step(F.cross_entropy(ours(x), y))
        reference.zero_grad()
        F.cross_entropy(theirs(x), y).backward()  # type: ignore[no-untyped-call]  # torch leaves it bare
        reference.step()
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(own, other)


def test_gradients_are_those_of_torch() -> None:
    x, y = make_samples()
    model = make_model()
    parameters = tuple(model.parameters())
    ours = compute_gradients(F.cross_entropy(model(x), y), parameters)
    theirs = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
    assert all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))
    assert all(parameter.grad is None for parameter in parameters)
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        compute_gradients(model.embed(x).sum(), parameters)


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
    first = train_plainly(model, x, y, iterations=1)
    train_plainly(model, x, y, iterations=300)
    last = train_plainly(model, x, y, iterations=1)
    assert first.steps == 1
    assert first.seconds > 0
    assert last.losses.mean < first.losses.mean / 2


def test_training_tells_every_step() -> None:
    x, y = make_samples()
    steps: list[tuple[int, int]] = []
    train_plainly(make_model(), x, y, iterations=3, stepping=Stepping(on_step=lambda *step: steps.append(step)))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_training_stops_between_two_steps() -> None:
    x, y = make_samples()
    polls = iter([False, False, True])
    with pytest.raises(Stopped, match="after 2 of 9 steps"):
        train_plainly(make_model(), x, y, iterations=9, stepping=Stepping(should_stop=lambda: next(polls)))


def test_a_loss_that_is_no_number_is_said() -> None:
    x, y = make_samples()
    x[3] = torch.nan
    with pytest.raises(Diverged, match=r"loss not finite at step 1 of 9, lr 0.1"):
        train_plainly(make_model(), x, y, iterations=9, batch_size=20, lr=0.1)


def test_nothing_to_do_is_done_at_once() -> None:
    x, y = make_samples()
    model = make_model()
    before = [parameter.clone() for parameter in model.parameters()]
    progress = train_plainly(model, x, y, iterations=0)
    assert (progress.losses.mean, progress.steps) == (0.0, 0)
    assert all(torch.equal(own, old) for own, old in zip(model.parameters(), before, strict=True))


# ---- a client's phase


def make_digit_client(
    engine: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **method: Any
) -> Client:
    model, classes = model or {"name": "mlp"}, get_classes(DATA)
    input_ = get_default_input(DATA, model)
    method = {"name": "fedavg"} | (method or {"local_iterations": 3})
    return make_client(
        Federation(method=method, model=model, classes=classes, input=input_),
        data=DATA,
        seed=1,
        initial=make_initial_aggregate(model, input_["shape"], len(classes), 1),
        compute=Compute(engine=engine),
    )


def test_learning_rate_decays_by_the_round() -> None:
    def move(height: int) -> float:
        client = make_digit_client(local_iterations=1, batch_size=2000, lr=0.1, decay=0.5)
        before = client.state.model.get_parameter("fc1.weight").detach().clone()
        client.train(height, BEACON)
        return float((client.state.model.get_parameter("fc1.weight").detach() - before).norm())

    assert move(2) == pytest.approx(move(1) / 2, rel=1e-4)
    assert move(4) == pytest.approx(move(1) / 8, rel=1e-4)


def test_learning_rate_decays_by_the_step() -> None:
    w = torch.zeros(1, requires_grad=True)
    sgd = Sgd([w], 1.0, decay=0.5)
    for expected in (-1.0, -1.5, -1.75):
        sgd.step(w.sum())
        assert w.item() == expected


def test_a_round_goes_on_with_the_learning_rate_that_the_steps_before_it_have_left() -> None:
    lr = []
    for height in (1, 2, 3):
        client = make_digit_client(local_iterations=4, lr=0.1, decay=0.9, decay_unit="step")
        lr.append(client.begin(height, BEACON).sgd.lr)
    assert lr == pytest.approx([0.1, 0.1 * 0.9**4, 0.1 * 0.9**8])


@pytest.mark.parametrize(
    ("work", "iterations", "steps"), [({"local_iterations": 5}, 5, 5), ({"local_epochs": 2, "batch_size": 500}, 2, 6)]
)
def test_the_time_of_an_iteration_is_its_part_of_the_phase(work: dict[str, Any], iterations: int, steps: int) -> None:
    metrics = make_digit_client(**work).train(1, BEACON).metrics
    assert (metrics["iterations"], metrics["steps"]) == (iterations, steps)
    assert metrics["alpha_s"] == pytest.approx(metrics["seconds"] / iterations)


def test_a_phase_is_timed_from_its_first_draw_to_what_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [make_digit_client(local_iterations=5) for _ in range(2)]
    now_s = 0.0

    def takes(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            nonlocal now_s
            now_s += seconds
            return work(*args)

        return timed

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    for method in (client.method for client in clients):
        for name, seconds in (("prepare", 2.0), ("compute_loss", 1.0), ("finish", 3.0), ("predict", 100.0)):
            monkeypatch.setattr(method, name, takes(seconds, getattr(method, name)))
    alone = clients[0].train(1, BEACON).metrics
    assert (alone["seconds"], alone["alpha_s"]) == (2 + 5 + 3, 2)  # measuring accuracy is no part of training
    for trained in train_batched(clients, 2, BEACON):
        assert (trained.metrics["seconds"], trained.metrics["alpha_s"]) == (2 + 2.5 + 3, 1.5)  # half of all steps


def test_a_time_budgets_iterations_take_the_place_of_the_methods() -> None:
    client, other = make_digit_client(local_iterations=9), make_digit_client(local_iterations=4)
    shortened = client.train(1, BEACON, num_iterations=4)
    assert shortened.metrics["steps"] == 4
    assert encode_arrays(shortened.payloads["model"]) == encode_arrays(other.train(1, BEACON).payloads["model"])


# ---- engines


def test_bfloat16_trains_and_leaves_weights_and_payloads_in_float32() -> None:
    exact, rounded = make_digit_client(), make_digit_client({"precision": "bf16"})
    ours, theirs = (client.train(1, BEACON) for client in (rounded, exact))
    assert {parameter.dtype for parameter in rounded.state.model.parameters()} == {torch.float32}
    for name, array in theirs.payloads["model"].items():
        assert ours.payloads["model"][name].dtype == array.dtype == np.float32
        assert ours.payloads["model"][name] == pytest.approx(array, abs=5e-3)
    assert encode_arrays(ours.payloads["model"]) != encode_arrays(theirs.payloads["model"])
    assert ours.metrics["loss"] == pytest.approx(theirs.metrics["loss"], rel=0.02)


def test_precision_is_chosen_by_the_device_only_where_it_is_left_to_it() -> None:
    model = make_model()
    assert Engine().get_precision(CPU, model) == "fp32"
    assert Engine(precision="bf16").get_precision(CPU, model) == "bf16"
    with Engine(precision="bf16").autocast(CPU, model):
        assert torch.is_autocast_enabled("cpu")
    with Engine().autocast(CPU, model):
        assert not torch.is_autocast_enabled("cpu")


def test_channels_last_is_a_layout_and_nothing_else() -> None:
    settings: dict[str, Any] = {"model": CNN, "local_iterations": 1, "batch_size": 4, "lr": 0.05}
    usual, turned = make_digit_client(**settings), make_digit_client({"channels_last": True}, **settings)
    weight = turned.state.model.get_parameter("conv2.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert turned.state.data.train.x.is_contiguous(memory_format=torch.channels_last)
    assert encode_arrays(usual.state_arrays()) == encode_arrays(turned.state_arrays())
    ours, theirs = (client.train(1, BEACON).payloads["model"] for client in (turned, usual))
    assert list(ours) == list(theirs)
    assert len(encode_arrays(ours)) == len(encode_arrays(theirs))
    for name, array in theirs.items():
        assert ours[name].shape == array.shape
        assert ours[name] == pytest.approx(array, abs=1e-5)
    turned.apply(1, {f"model/{name}": array for name, array in theirs.items()})
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert encode_arrays(get_kind(turned.state_arrays(), "model") or {}) == encode_arrays(theirs)


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """What a deterministic engine sets for the whole process is put back."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cudnn.benchmark = before[1]


@pytest.mark.usefixtures("torch_settings")
def test_a_deterministic_engine_changes_nothing_on_a_cpu() -> None:
    usual = make_digit_client().train(1, BEACON)
    assert not torch.are_deterministic_algorithms_enabled()
    strict = make_digit_client({"deterministic": True}).train(1, BEACON)
    assert torch.are_deterministic_algorithms_enabled()
    assert encode_arrays(strict.payloads["model"]) == encode_arrays(usual.payloads["model"])


@pytest.mark.long  # a minute of a C++ compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what it compiles with
def test_a_compiled_loss_gives_close_numbers() -> None:
    x, y = make_samples()
    compiled, eager = make_model(), make_model()
    sgd, other = Sgd(compiled.parameters(), 0.5, 0.5), Sgd(eager.parameters(), 0.5, 0.5)
    for _ in range(5):
        sgd.step(compile_loss(compute_cross_entropy)(compiled, Batch(x, y), {}))
        other.step(compute_cross_entropy(eager, Batch(x, y), {}))
    for own, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert torch.allclose(own, theirs, atol=1e-5)


# ---- augmentation


IMAGES = torch.arange(1.0, 1 + 3 * 2 * 6 * 5).view(3, 2, 6, 5)  # every pixel its own value, none of them 0


def generate(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.sampled_from(["none", "flip", "crop", "flip_crop"]), st.integers(0, 2**32))
def test_augmented_images_keep_shape_and_are_made_of_their_own_pixels(kind: str, seed: int) -> None:
    changed = augment(IMAGES, kind, generate(seed))
    assert (changed.shape, changed.dtype) == (IMAGES.shape, IMAGES.dtype)
    for before, after in zip(IMAGES, changed, strict=True):
        for channel, other in zip(before, after, strict=True):
            kept = other[other != 0].tolist()
            assert set(kept) <= set(channel.flatten().tolist())
            assert len(set(kept)) == len(kept)
    assert torch.equal(changed, augment(IMAGES, kind, generate(seed)))


@given(st.integers(0, 2**32))
def test_a_flipped_image_is_its_mirror_or_itself(seed: int) -> None:
    for before, after in zip(IMAGES, augment(IMAGES, "flip", generate(seed)), strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(2))


@given(st.integers(0, 2**32))
def test_a_cropped_image_is_moved_by_at_most_the_padding(seed: int) -> None:
    _, _, height, width = IMAGES.shape
    padded = F.pad(IMAGES, (PADDING,) * 4)
    places = [(top, left) for top in range(2 * PADDING + 1) for left in range(2 * PADDING + 1)]
    for before, after in zip(padded, augment(IMAGES, "crop", generate(seed)), strict=True):
        windows = (before[:, top : top + height, left : left + width] for top, left in places)
        assert any(torch.equal(after, window) for window in windows)


def test_each_image_is_changed_in_a_way_of_its_own() -> None:
    same = IMAGES[:1].expand(64, -1, -1, -1)
    for kind, ways in (("flip", 2), ("crop", 30)):
        changed = augment(same, kind, generate(0))
        assert len({tuple(image.flatten().tolist()) for image in changed}) >= ways
    assert torch.equal(same, IMAGES[:1].expand(64, -1, -1, -1))  # what is drawn from stays as it is


def test_augmented_batches_are_new_each_time_and_keep_labels_and_rows() -> None:
    x, y = make_samples()
    plain = [Batch(x, y, {"row": torch.arange(20)})] * 2
    first, second = augment_batches(plain, "flip_crop", generate(3))
    assert not torch.equal(first.x, second.x)
    for batch in (first, second):
        assert batch.y is y
        assert batch.extra is plain[0].extra


def test_augmentation_repeats_by_round_and_leaves_other_draws_alone() -> None:
    settings: dict[str, Any] = {"model": CNN, "local_iterations": 1, "batch_size": 4}
    clients = [make_digit_client({"augment": "flip_crop"}, **settings) for _ in range(2)]
    first, second = (encode_arrays(client.train(1, BEACON).payloads["model"]) for client in clients)
    assert first == second
    plain = make_digit_client(**settings)
    phase, other = plain.begin(1, BEACON), clients[0].begin(1, BEACON)
    assert all(torch.equal(a, b) for a, b in zip(phase.schedule.batches, other.schedule.batches, strict=True))
    (batch,), (changed,) = plain.get_batches(phase), clients[0].get_batches(other)
    assert torch.equal(batch.y, changed.y)
    assert not torch.equal(batch.x, changed.x)


# ---- measuring


def test_evaluation_counts_all_chunks() -> None:
    y = torch.arange(5000) % 2
    x = torch.zeros(5000, 1)

    def predict(chunk: Tensor) -> Prediction:
        return Prediction(torch.zeros(len(chunk), 2), torch.zeros(len(chunk), dtype=torch.int64))

    assert judge(predict, x, y).metrics == {"accuracy": 0.5, "loss": pytest.approx(np.log(2), rel=1e-6)}


def test_summaries_over_clients_and_seeds() -> None:
    assert compute_mean([0.5, 1.0]) == 0.75
    assert compute_std([1.0, 3.0]) == 1.0
