"""The encryptor: its optimiser, what training it leaves alone, what it writes into a set, and how sets are read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ml.errors import Stopped
from ml.fededs.encryptor import (
    AdamW,
    EncryptorSettings,
    count_encryptor_steps,
    encrypt,
    make_encrypted_set,
    train_encryptor,
)
from ml.fededs.shared_set import Draw, EncryptedSet, decode_images, find_first, gather_draws, take_rows
from ml.fededs.stochastic_layer import classify_through, compute_soft_labels, make_layer
from ml.models import Model, build_model, dump_parameters
from ml.models.unet import UNet2
from ml.payload import Array, encode_arrays, map_arrays
from ml.seeding import numpy_rng
from ml.specs.methods.fededs import MAX_MAGNITUDE
from ml.training.loop import Diverged, Stepping, Tensors
from support.data.placement import LINE

CPU = torch.device("cpu")
SETTINGS = EncryptorSettings(width=2, out="linear", epochs=3, lr=0.01, weight_decay=0.01, batch_size=16)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        yield
    torch.set_num_threads(before)


def make_model(channels: int = 1) -> Model:
    return build_model({"name": "mlp", "hidden": [16]}, (channels, 8, 8), 4)


def make_samples(num: int = 48, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Images whose class is the quarter that is bright."""
    y = torch.arange(num) % 4
    x = 0.2 * torch.rand(num, channels, 8, 8)
    for i, label in enumerate(y.tolist()):
        top, left = 4 * (label // 2), 4 * (label % 2)
        x[i, :, top : top + 4, left : left + 4] += 1
    return x, y


def make_theta(seed: int = 1) -> Tensor:
    layer = make_layer("gaussian", 16, numpy_rng(seed))
    assert layer is not None
    return torch.from_numpy(layer)


def train(model: Model, x: Tensor, y: Tensor, stepping: Stepping | None = None, **changes: Any) -> UNet2:
    settings = replace(SETTINGS, **changes)
    return train_encryptor(model, make_theta(), x, y, settings, rng=numpy_rng(5), stepping=stepping)


# ---- its optimiser


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_is_torchs(weight_decay: float) -> None:
    ours, theirs = ([torch.nn.Parameter(torch.randn(3, 2)) for _ in range(2)] for _ in range(2))
    for own, other in zip(ours, theirs, strict=True):
        other.data.copy_(own.data)
    reference = torch.optim.AdamW(theirs, 0.01, weight_decay=weight_decay, foreach=True)
    optimiser = AdamW(ours, 0.01, weight_decay)
    for step in range(20):
        target = torch.randn(3, 2)
        optimiser.step(sum((w - target).square().sum() * (step + 1) for w in ours))  # type: ignore[arg-type]
        reference.zero_grad()
        sum((w - target).square().sum() * (step + 1) for w in theirs).backward()  # type: ignore[union-attr]
        reference.step()
        for own, other in zip(ours, theirs, strict=True):
            assert torch.allclose(own, other, rtol=1e-6, atol=1e-7)


# ---- training it


def test_training_lowers_the_loss_through_the_layer() -> None:
    model, (x, y), theta = make_model(), make_samples(), make_theta()
    fresh = train(model, x, y, epochs=0)
    trained = train(model, x, y, epochs=15)
    losses = [F.cross_entropy(classify_through(model, unet(x), theta), y).item() for unet in (fresh, trained)]
    assert losses[1] < 0.7 * losses[0]


def test_training_leaves_the_model_and_torchs_generator_as_they_were() -> None:
    model, (x, y) = make_model(), make_samples()
    model.get_parameter("fc1.bias").requires_grad_(False)
    before = encode_arrays(dump_parameters(model))
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    state = torch.get_rng_state()
    for mode in (True, False):
        train(model.train(mode), x, y)
        assert model.training is mode
    assert encode_arrays(dump_parameters(model)) == before
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_generator_trains_the_same_encryptor() -> None:
    model, (x, y) = make_model(), make_samples()
    first, same = (train(model, x, y).state_dict() for _ in range(2))
    other = train_encryptor(model, make_theta(), x, y, SETTINGS, rng=numpy_rng(6)).state_dict()
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["leave.weight"], other["leave.weight"])


def test_steps_are_counted_and_told() -> None:
    (x, y), told = make_samples(40), list[tuple[int, int]]()
    train(make_model(), x, y, Stepping(on_step=lambda done, total: told.append((done, total))))
    assert count_encryptor_steps(40, 16, 3) == 9  # of 16, 16 and 8
    assert told == [(step, 9) for step in range(1, 10)]


def test_a_stopped_encryptor_gives_the_model_back() -> None:
    model, (x, y), polls = make_model().train(), make_samples(), iter([False] * 4 + [True])
    with pytest.raises(Stopped, match="stopped after 4 of the encryptor's 9 steps"):
        train(model, x, y, Stepping(should_stop=lambda: next(polls)))
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_encryptor_that_diverges_is_heard_of() -> None:
    x, y = make_samples()
    with pytest.raises(Diverged, match=r"loss not finite at step \d of 9, lr 1e\+30"):
        train(make_model(), x, y, lr=1e30)


# ---- what is shared


def make_set(dtype: str = "float32", *, num: int = 48, channels: int = 2, **changes: Any) -> dict[str, Array]:
    model, (x, y) = make_model(channels), make_samples(num, channels)
    unet = train(model, x, y)
    given: dict[str, Any] = {"dtype": dtype, "batch_size": 16, "rows": np.arange(num), **changes}
    return make_encrypted_set(model, make_theta().numpy(), unet, x, given.pop("rows"), **given)


def read_all(arrays: dict[str, Array]) -> Tensor:
    return EncryptedSet.open(arrays, CPU).read(np.arange(len(arrays["y"])))[0]


def test_a_set_has_images_soft_labels_and_the_layer() -> None:
    arrays = make_set()
    assert {name: (str(a.dtype), a.shape) for name, a in arrays.items()} == {
        "x": ("float32", (48, 2, 8, 8)),
        "y": ("float32", (48, 4)),
        "layer": ("float32", (16, 16)),
    }
    assert np.array_equal(arrays["layer"], make_theta().numpy())
    assert arrays["y"].sum(1) == pytest.approx(np.ones(48), abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_soft_labels_are_those_of_the_images_as_they_are_read(dtype: str) -> None:
    """Whoever has the teacher can make them again, Eq. (4)."""
    torch.default_generator.manual_seed(1)
    arrays = make_set(dtype)
    torch.default_generator.manual_seed(1)
    teacher = make_model(2).eval()
    again = compute_soft_labels(teacher, read_all(arrays), torch.from_numpy(arrays["layer"]))
    assert arrays["y"] == pytest.approx(again.numpy(), abs=1e-6)


def test_numbers_are_read_within_a_step_of_what_they_were() -> None:
    made = {}
    for dtype in ("float32", "float16", "uint8"):
        torch.default_generator.manual_seed(1)
        made[dtype] = make_set(dtype)
    exact = read_all(made["float32"])
    step = torch.from_numpy(made["uint8"]["scale"]).view(1, 2, 1, 1)
    ranges = exact.amax((0, 2, 3)) - exact.amin((0, 2, 3))
    assert made["uint8"]["scale"] == pytest.approx(ranges.numpy() / 255, rel=1e-5)
    assert made["uint8"]["offset"] == pytest.approx(exact.amin((0, 2, 3)).numpy())
    assert bool(((read_all(made["uint8"]) - exact).abs() <= 0.501 * step).all())
    assert bool((read_all(made["uint8"]) - exact).abs().max() > 0.2 * step.min())
    assert torch.allclose(read_all(made["float16"]), exact, rtol=2**-11, atol=1e-7)
    assert made["uint8"]["x"].nbytes * 4 == made["float32"]["x"].nbytes


def test_a_channel_of_one_number_is_read_as_that_number() -> None:
    coded, step = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(1)
    assert torch.equal(decode_images(coded, step, torch.tensor([0.3])), torch.full((2, 1, 4, 4), 0.3))
    unet = UNet2((1, 8, 8), 2).eval()
    with torch.no_grad():
        unet.leave.weight.zero_()
        unet.get_parameter("leave.bias").fill_(0.3)
    arrays = make_encrypted_set(make_model(), None, unet, make_samples()[0], np.arange(8), dtype="uint8", batch_size=4)
    assert arrays["scale"].tolist() == [0.0]
    assert "layer" not in arrays
    assert read_all(arrays) == pytest.approx(np.full((8, 1, 8, 8), 0.3), abs=1e-6)


def test_only_the_rows_asked_for_are_shared_in_their_order() -> None:
    torch.default_generator.manual_seed(1)
    everything = make_set()
    torch.default_generator.manual_seed(1)
    some = make_set(rows=np.array([40, 3, 17]), batch_size=2)
    for name in ("x", "y"):
        assert some[name] == pytest.approx(everything[name][[40, 3, 17]], abs=1e-5)


def test_an_image_does_not_depend_on_those_it_is_encrypted_with() -> None:
    x, y = make_samples()
    unet = train(make_model(), x, y)
    one_by_one = torch.cat(list(encrypt(unet, torch.split(x, 1))))
    assert torch.allclose(torch.cat(list(encrypt(unet, [x]))), one_by_one, atol=1e-5)
    assert not one_by_one.requires_grad


def test_images_stay_within_what_validators_accept() -> None:
    unet = UNet2((1, 8, 8), 2).eval()
    with torch.no_grad():
        unet.get_parameter("leave.bias").fill_(1e6)
    (encrypted,) = encrypt(unet, [torch.rand(2, 1, 8, 8)])
    assert bool((encrypted == MAX_MAGNITUDE).all())


def test_encrypting_can_be_stopped() -> None:
    polls = iter([False, True])
    with pytest.raises(Stopped, match="while the samples were encrypted"):
        make_set(should_stop=lambda: next(polls))


# ---- reading


def make_numbered(start: int, num: int = 10, **more: Array) -> EncryptedSet:
    """Row i of this set is start + i all over."""
    numbers = np.arange(start, start + num, dtype=np.float32)
    x, y = (np.broadcast_to(numbers[:, None], (num, size)).copy() for size in (16, 3))
    return EncryptedSet.open({"x": x.reshape(num, 1, 4, 4), "y": y, **more}, CPU)


@pytest.mark.parametrize("max_bytes", [0, 200, 500, 1 << 20])
def test_steps_get_their_own_rows_however_many_are_read_at_once(max_bytes: int) -> None:
    sets = [make_numbered(0, layer=np.eye(2, dtype=np.float32)), make_numbered(100)]
    places = [(0, [1, 2]), None, (1, [3]), (0, [9, 0, 5]), (1, [4, 4]), None]
    draws = [None if place is None else Draw(sets[place[0]], np.array(place[1])) for place in places]
    got: list[Tensors] = list(gather_draws(draws, max_bytes))
    assert [step["x"][:, 0, 0, 0].tolist() if step else None for step in got] == [
        [1, 2], None, [103], [9, 0, 5], [104, 104], None
    ]  # fmt: skip
    assert [step["y"][:, 2].tolist() if step else None for step in got] == [
        [1, 2], None, [103], [9, 0, 5], [104, 104], None
    ]  # fmt: skip
    assert ["layer" in step for step in got] == [True, False, False, True, False, False]


def test_each_set_is_read_once_for_as_many_steps_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = EncryptedSet.read

    def note(self: EncryptedSet, rows: Any) -> tuple[Tensor, Tensor]:
        reads.append(len(rows))
        return read(self, rows)

    monkeypatch.setattr(EncryptedSet, "read", note)
    sets = [make_numbered(0), make_numbered(100)]
    draws = [Draw(sets[step % 2], np.arange(5)) for step in range(8)]
    assert sets[0].row_bytes == 4 * (16 + 3)
    list(gather_draws(draws, 4 * 5 * 4 * 19))
    assert reads == [10, 10, 10, 10]  # two blocks of four steps, two of each set


def test_what_was_read_for_earlier_steps_is_gone_when_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else there is twice as much of it as was allowed."""
    taken: list[Any] = []
    refer: Any = StorageWeakRef
    held: list[int] = []
    read = EncryptedSet.read

    def note(self: EncryptedSet, rows: Any) -> tuple[Tensor, Tensor]:
        held.append(sum(not memory.expired() for memory in taken))
        found = read(self, rows)
        taken.extend(refer(tensor.untyped_storage()) for tensor in found)
        return found

    source = make_numbered(0)
    expected = source.read(np.arange(5))[0]
    monkeypatch.setattr(EncryptedSet, "read", note)
    draws = [Draw(source, np.arange(5)) for _ in range(8)]
    for step in gather_draws(draws, 2 * 5 * source.row_bytes):
        assert torch.equal(step["x"], expected)
    assert held == [0] * 4


def test_rows_are_read_once_into_memory_that_torch_took() -> None:
    array = np.arange(1 << 20, dtype=np.float32).reshape(-1, 1 << 10)
    rows = np.arange(len(array))[::-1]
    tracemalloc.start()
    taken = take_rows(array, rows)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert torch.equal(taken, torch.tensor(array[rows]))
    assert taken.data_ptr() % LINE == 0
    assert peak_bytes < array.nbytes / 4  # of numpy's


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_a_mapped_file_is_read_as_what_was_written(dtype: str, tmp_path: Path) -> None:
    arrays = make_set(dtype)
    path = tmp_path / "set"
    path.write_bytes(encode_arrays(arrays))
    mapped = EncryptedSet.open(map_arrays(path, path.stat().st_size), CPU)
    rows = np.array([7, 0, 31])
    x, y = mapped.read(rows)
    assert x.dtype == y.dtype == torch.float32
    assert torch.equal(x, read_all(arrays)[rows])
    assert y.numpy() == pytest.approx(arrays["y"][rows])


def test_rows_are_drawn_without_repeats_and_all_of_a_small_set() -> None:
    set_ = make_numbered(0)
    drawn = set_.draw(6, numpy_rng(1))
    assert len(set(drawn.tolist())) == 6
    assert np.array_equal(drawn, set_.draw(6, numpy_rng(1)))
    assert sorted(set_.draw(32, numpy_rng(1)).tolist()) == list(range(10))


def test_of_each_class_no_more_rows_than_allowed_may_be_drawn() -> None:
    assert find_first(np.array([2, 0, 2, 2, 0, 1, 2]), 2).tolist() == [0, 1, 2, 4, 5]
    assert find_first(np.array([2, 0, 2]), 9).tolist() == [0, 1, 2]
    labels = np.eye(3, dtype=np.float32)[[2, 0, 2, 2, 0, 1, 2]]
    arrays = {"x": np.zeros((7, 1, 4, 4), np.float32), "y": labels}
    assert EncryptedSet.open(arrays, CPU, per_class=1).rows.tolist() == [0, 1, 5]
    assert len(EncryptedSet.open(arrays, CPU).rows) == 7
