"""Models: what validators expect of them, their two parts, what travels of them and what never does."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml.errors import SpecError
from ml.models import Model, build_model, dump_parameters, initial_parameters, load_parameters
from ml.models.batch_norm import BatchNorm2d
from ml.models.unet import UNet2
from ml.specs.architectures import (
    ARCHITECTURES,
    buffer_shapes,
    classifier_names,
    embedding_dim,
    frozen_shapes,
    get_layout,
    is_batchable,
    layer_dims,
    parameter_shapes,
)

Shape = tuple[int, int, int]

CASES: list[tuple[dict[str, Any], Shape, int]] = [
    ({"name": "mlp", "hidden": [64, 32]}, (1, 8, 8), 10),
    ({"name": "mlp", "hidden": [16]}, (3, 8, 6), 3),
    ({"name": "cnn_mnist"}, (1, 28, 28), 10),
    ({"name": "linear"}, (13, 1, 1), 2),
    ({"name": "wide_deep"}, (13, 1, 1), 2),
    ({"name": "wide_deep", "hidden": [8, 5]}, (2, 3, 1), 3),
    ({"name": "mlp_mnist"}, (1, 28, 28), 10),
    ({"name": "mlp_mnist", "normalize": False}, (1, 8, 8), 4),
    ({"name": "cnn_cifar"}, (3, 32, 32), 10),
    ({"name": "cnn_cifar"}, (1, 16, 29), 2),
    ({"name": "resnet18"}, (3, 32, 32), 10),
    ({"name": "resnet18"}, (1, 16, 20), 100),
    ({"name": "resnet18_cifar"}, (1, 8, 9), 10),
    ({"name": "resnet18_nobn"}, (3, 8, 8), 10),
    ({"name": "resnet18_nobn", "stem": "7x7"}, (1, 28, 28), 7),
    ({"name": "vgg11"}, (3, 32, 32), 10),
    ({"name": "vgg11", "batch_norm": True}, (1, 32, 40), 5),
    ({"name": "vgg11", "classifier": 4096}, (2, 32, 32), 10),
    ({"name": "head_256"}, (3, 32, 32), 10),
    ({"name": "head_256", "normalize": False}, (1, 28, 28), 4),
]


@dataclass(frozen=True)
class Case:
    """One model, and its module in eval mode, which no test changes."""

    model: dict[str, Any]
    shape: Shape
    num_classes: int
    net: Model

    def make_images(self) -> Tensor:
        return torch.rand(2, *self.shape)


def show(case: tuple[dict[str, Any], Shape, int]) -> str:
    return "-".join(map(str, case[0].values()))


@pytest.fixture(scope="module", params=CASES, ids=show)
def case(request: pytest.FixtureRequest) -> Case:
    model, shape, num_classes = request.param
    return Case(model, shape, num_classes, build_model(model, shape, num_classes).eval())


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small are slower on more, above all beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_architecture_is_among_the_cases() -> None:
    assert {model["name"] for model, _, _ in CASES} == set(ARCHITECTURES)


def test_names_and_shapes_are_those_that_validators_expect(case: Case) -> None:
    net, task = case.net, (case.model, case.shape, case.num_classes)
    trained = {name: tuple(p.shape) for name, p in net.named_parameters() if p.requires_grad}
    frozen = {name: tuple(t.shape) for name, t in net.state_dict().items() if net.is_frozen(name)}
    buffers = {name: tuple(t.shape) for name, t in net.named_buffers() if not net.is_frozen(name)}
    assert list(trained.items()) == list(parameter_shapes(*task).items())
    assert list(buffers.items()) == list(buffer_shapes(*task).items())
    assert frozen == frozen_shapes(*task)
    assert not [name for name in net.state_dict() if name.endswith("num_batches_tracked")]


@torch.no_grad()
def test_a_model_is_classify_of_embed_and_its_layers_end_in_the_embedding(case: Case) -> None:
    net, x = case.net, case.make_images()
    z_BD, layers = net.embed(x), net.embed_layers(x)
    assert z_BD.shape == (2, embedding_dim(case.model, case.shape))
    assert bool((z_BD >= 0).all())  # after ReLU
    assert [layer.shape for layer in layers] == [(2, width) for width in layer_dims(case.model, case.shape)]
    assert torch.equal(layers[-1], z_BD)
    assert torch.equal(net(x), net.classify(z_BD))
    assert net(x).shape == (2, case.num_classes)


@torch.no_grad()
def test_there_is_a_slot_before_the_last_linear(case: Case) -> None:
    net, x = case.net, case.make_images()
    z_BD = net.embed(x)
    s_BS = net.enter_slot(z_BD)
    *_, (name, last) = ((name, part) for name, part in net.named_modules() if isinstance(part, nn.Linear))
    assert name + ".weight" in classifier_names(case.model, case.shape)
    assert s_BS.shape == (2, last.in_features)
    assert last.in_features == get_layout(case.model, case.shape, case.num_classes).slot_dim
    assert torch.equal(net.leave_slot(s_BS), net.classify(z_BD))
    assert torch.equal(net.leave_slot(s_BS), last(s_BS))


@pytest.mark.parametrize("model", [{"name": "cnn_mnist"}, {"name": "vgg11", "classifier": 4096}])
def test_dropout_before_the_last_linear_comes_after_the_slot(model: dict[str, Any]) -> None:
    net = build_model(model, (1, 28, 28) if model["name"] == "cnn_mnist" else (1, 32, 32), 10).train()
    s_BS = torch.ones(4, 50 if model["name"] == "cnn_mnist" else 4096)
    assert not torch.equal(net.leave_slot(s_BS), net.leave_slot(s_BS))
    assert torch.equal(net.eval().leave_slot(s_BS), net.leave_slot(s_BS))


@torch.no_grad()
def test_what_is_precomputed_of_images_stands_for_them(case: Case) -> None:
    net, x = case.net, case.make_images()
    found = net.precompute(x)
    assert net.precompute(found) is found
    assert found.shape == (2, 512) if net.frozen_prefix else found is x
    assert torch.equal(net.embed(found), net.embed(x))
    assert all(map(torch.equal, net.embed_layers(found), net.embed_layers(x)))
    assert torch.equal(net(found), net(x))


def test_the_classifiers_parameters_are_those_that_classify_uses(case: Case) -> None:
    names = [name for name, p in case.net.named_parameters() if p.requires_grad]
    parameters = [case.net.get_parameter(name) for name in names]
    logits = case.net.classify(torch.rand(2, embedding_dim(case.model, case.shape)))
    gradients = torch.autograd.grad(logits.sum(), parameters, allow_unused=True)
    used = tuple(name for name, gradient in zip(names, gradients, strict=True) if gradient is not None)
    assert used == classifier_names(case.model, case.shape)


@torch.no_grad()
def test_parameters_can_be_swapped_by_name_and_a_copy_has_its_own(case: Case) -> None:
    net, x = case.net, case.make_images()
    before = net(x)
    zeros = {name: torch.zeros_like(p) for name, p in net.named_parameters() if not net.is_frozen(name)}
    assert torch.equal(torch.func.functional_call(net, zeros, (x,)), torch.zeros(2, case.num_classes))
    twin = copy.deepcopy(net)
    load_parameters(twin, {name: zero.numpy() for name, zero in zeros.items()})
    assert torch.equal(twin(x), torch.zeros(2, case.num_classes))
    assert torch.equal(net(x), before)
    ones = {name: torch.ones_like(zero) for name, zero in zeros.items()}
    assert bool(torch.func.functional_call(net, ones, (x,)).any())


@pytest.mark.parametrize("case", [case for case in CASES if is_batchable(case[0])], indirect=True, ids=show)
def test_a_batchable_models_clients_have_the_same_gradients_in_one_pass(case: Case) -> None:
    net = case.net
    own = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    stacked = {name: torch.stack([p, p * 0.5]) for name, p in own.items()}
    x, y = torch.rand(2, 2, *case.shape), torch.tensor([[0, 1], [1, 1]])

    def compute_loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, parameters, (x,)), y)

    together = torch.func.vmap(torch.func.grad(compute_loss))(stacked, x, y)
    for i in range(2):
        alone = torch.func.grad(compute_loss)({name: p[i] for name, p in stacked.items()}, x[i], y[i])
        for name, gradient in alone.items():
            torch.testing.assert_close(together[name][i], gradient, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_what_is_dumped_makes_another_the_same(case: Case) -> None:
    net, task = case.net, (case.model, case.shape, case.num_classes)
    arrays = dump_parameters(net)
    assert {name: array.shape for name, array in arrays.items()} == parameter_shapes(*task) | buffer_shapes(*task)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    other = build_model(*task).eval()
    load_parameters(other, dump_parameters(net, with_frozen=True))
    x = case.make_images()
    assert torch.equal(net(x), other(x))


def test_cnn_drops_out_in_training_only() -> None:
    net = build_model({"name": "cnn_mnist"}, (1, 28, 28), 10)
    x = torch.rand(4, 1, 28, 28)
    assert not torch.equal(net.train()(x), net(x))
    assert torch.equal(net.eval()(x), net(x))


# ---- what training starts from


@pytest.mark.parametrize(
    ("model", "shape", "layers"),
    [
        ({"name": "mlp"}, (1, 8, 8), {"fc1": (64, 64), "fc2": (64, 32), "fc3": (32, 10)}),
        (
            {"name": "cnn_mnist"},
            (1, 28, 28),
            {"conv1": (1, 10, 5), "conv2": (10, 20, 5), "fc1": (320, 50), "fc2": (50, 10)},
        ),
    ],
)
def test_small_models_start_as_torch_draws_their_layers_one_after_the_other(
    model: dict[str, Any], shape: Shape, layers: Mapping[str, tuple[int, ...]]
) -> None:
    arrays = initial_parameters(model, shape, 10, 7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        for name, sizes in layers.items():
            inputs, outputs, *kernel = sizes
            layer = nn.Conv2d(inputs, outputs, kernel[0]) if kernel else nn.Linear(inputs, outputs)
            for part, tensor in layer.state_dict().items():
                assert np.array_equal(arrays[f"{name}.{part}"], tensor.numpy())


def test_initial_parameters_come_from_the_seed_and_disturb_nothing() -> None:
    before = torch.get_rng_state()
    first = initial_parameters({"name": "mlp"}, (1, 8, 8), 10, 7)
    assert torch.equal(torch.get_rng_state(), before)
    again = initial_parameters({"name": "mlp"}, (1, 8, 8), 10, 7)
    other = initial_parameters({"name": "mlp"}, (1, 8, 8), 10, 8)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["fc1.weight"], other["fc1.weight"])
    assert {array.dtype for array in first.values()} == {np.dtype(np.float32)}


def test_initial_parameters_hold_buffers_and_what_is_frozen() -> None:
    arrays = initial_parameters({"name": "head_256"}, (3, 32, 32), 10, 1)
    assert len(arrays) == 4 + 60 + 40
    assert np.array_equal(arrays["encoder.bn1.running_var"], np.ones(64, np.float32))


def test_resnet_and_vgg_are_drawn_as_torchvision_draws_them() -> None:
    resnet = initial_parameters({"name": "resnet18"}, (3, 32, 32), 10, 1)
    # fan-out of 512 maps of 3x3, so std = sqrt(2 / 4608); 2.4e6 draws put the estimate within 0.2 %
    assert np.std(resnet["layer4.1.conv2.weight"]) == pytest.approx(math.sqrt(2 / 4608), rel=2e-3)
    assert np.all(resnet["layer4.1.bn2.weight"] == 1)
    assert not np.any(resnet["layer4.1.bn2.bias"])
    assert np.abs(resnet["fc.weight"]).max() <= 1 / math.sqrt(512)  # torch's own
    vgg = initial_parameters({"name": "vgg11"}, (3, 32, 32), 10, 1)
    assert np.std(vgg["features.18.weight"]) == pytest.approx(math.sqrt(2 / 4608), rel=2e-3)
    assert np.std(vgg["classifier.weight"]) == pytest.approx(0.01, rel=0.05)
    assert not np.any(vgg["classifier.bias"])
    assert not np.any(vgg["features.0.bias"])


# ---- loading


def test_parameters_survive_a_round_trip_and_are_copies() -> None:
    parameters = initial_parameters({"name": "mlp"}, (1, 8, 8), 10, 1)
    net = build_model({"name": "mlp"}, (1, 8, 8), 10)
    load_parameters(net, parameters)
    dumped = dump_parameters(net)
    assert all(np.array_equal(dumped[name], parameters[name]) for name in parameters)
    dumped["fc1.weight"][:] = 0
    assert np.array_equal(dump_parameters(net)["fc1.weight"], parameters["fc1.weight"])


def change(arrays: dict[str, Any], name: str, array: Any) -> dict[str, Any]:
    return {k: v for k, v in (arrays | {name: array}).items() if v is not None}


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("fc1.weight", np.zeros((64, 63), np.float32), r"do not fit the model in 1 places, first at 'fc1.weight'"),
        ("fc1.weight", None, r"'fc1.weight': expected shape \[64, 64\], got no such array"),
        ("fc9.weight", np.zeros(1, np.float32), r"'fc9.weight': expected no such array, got shape \[1\]"),
    ],
)
def test_parameters_of_another_model_are_refused_and_change_nothing(name: str, array: Any, message: str) -> None:
    net = build_model({"name": "mlp"}, (1, 8, 8), 10)
    before = dump_parameters(net)
    wrong = change(initial_parameters({"name": "mlp"}, (1, 8, 8), 10, 1), name, array)
    with pytest.raises(ValueError, match=message):
        load_parameters(net, wrong)
    assert all(np.array_equal(dump_parameters(net)[name], before[name]) for name in before)


def test_a_model_without_its_statistics_keeps_its_own() -> None:
    net = build_model({"name": "resnet18_cifar"}, (1, 8, 8), 2)
    net(torch.rand(4, 1, 8, 8))
    own = dump_parameters(net)["bn1.running_mean"]
    assert np.any(own)
    given = initial_parameters({"name": "resnet18_cifar"}, (1, 8, 8), 2, 1)
    load_parameters(net, {name: array for name, array in given.items() if "running" not in name})
    assert np.array_equal(dump_parameters(net)["bn1.running_mean"], own)
    assert np.array_equal(dump_parameters(net)["conv1.weight"], given["conv1.weight"])


def test_unknown_model_is_named() -> None:
    with pytest.raises(SpecError, match="did you mean 'mlp'"):
        build_model({"name": "mlpp"}, (1, 8, 8), 10)


# ---- batch norm


def test_batch_norm_is_torchs_without_the_counter() -> None:
    ours, theirs = BatchNorm2d(3), nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5) * 2 + 1
    for _ in range(2):
        torch.testing.assert_close(ours(x), theirs(x))
    assert torch.equal(ours.running_var, theirs.running_var)  # type: ignore[arg-type]
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    assert list(ours.state_dict()) == ["weight", "bias", "running_mean", "running_var"]


def test_a_batch_of_one_value_is_normalised_by_what_was_seen_before() -> None:
    norm = BatchNorm2d(2).train()
    norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
    norm.running_var.copy_(torch.tensor([4.0, 9.0]) - 1e-5)
    y = norm(torch.tensor([3.0, 8.0]).reshape(1, 2, 1, 1))
    torch.testing.assert_close(y.flatten(), torch.tensor([1.0, 2.0]))
    assert norm.running_mean.tolist() == [1.0, 2.0]


def test_resnet_trains_on_a_last_batch_of_one_image() -> None:
    net = build_model({"name": "resnet18"}, (3, 32, 32), 10).train()
    F.cross_entropy(net(torch.rand(1, 3, 32, 32)), torch.tensor([3])).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


# ---- the frozen encoder, and the normalised embedding


def test_a_frozen_encoder_stays_as_it_was_in_train_mode() -> None:
    net = build_model({"name": "head_256"}, (3, 32, 32), 10).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    x = torch.rand(4, 3, 32, 32)
    logits = net(x)
    assert torch.equal(logits, net(x))
    logits.sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert {name for name, p in net.named_parameters() if p.grad is not None} == {
        *("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    }
    assert not any(module.training for name, module in net.named_modules() if name.startswith("encoder"))


@pytest.mark.parametrize("name", ["mlp_mnist", "head_256"])
def test_the_embedding_of_mp_fedcl_has_unit_length_and_is_what_the_classifier_sees(name: str) -> None:
    shape = (1, 28, 28)
    normed, raw = (build_model({"name": name, "normalize": on}, shape, 10).eval() for on in (True, False))
    load_parameters(raw, dump_parameters(normed, with_frozen=True))
    x = torch.rand(3, *shape)
    with torch.no_grad():
        v, features = normed.embed(x), raw.embed(x)
        torch.testing.assert_close(v.norm(dim=1), torch.ones(3))
        torch.testing.assert_close(v, features / features.norm(dim=1, keepdim=True))
        torch.testing.assert_close(normed(x), F.linear(v, *head_of(normed)))


def head_of(net: Model) -> tuple[Tensor, Tensor]:
    return net.get_parameter("fc2.weight"), net.get_parameter("fc2.bias")


# ---- the encryptor


@pytest.mark.parametrize(("channels", "count"), [(3, 1_865_539), (1, 1_864_257)])
def test_the_encryptor_has_the_tables_parameters_and_keeps_the_shape(channels: int, count: int) -> None:
    net = UNet2((channels, 28, 32)).eval()
    assert sum(p.numel() for p in net.parameters()) == count
    with torch.no_grad():
        assert net(torch.rand(2, channels, 28, 32)).shape == (2, channels, 28, 32)


@pytest.mark.parametrize(
    ("output", "low", "high"), [("linear", -math.inf, math.inf), ("sigmoid", 0, 1), ("tanh", -1, 1)]
)
def test_the_encryptors_output_has_the_activation_asked_for(output: str, low: float, high: float) -> None:
    torch.manual_seed(1)
    nets = {name: UNet2((1, 8, 8), width=4, output=name).eval() for name in ("linear", output)}
    nets[output].load_state_dict(nets["linear"].state_dict())
    x = torch.rand(2, 1, 8, 8) * 9
    with torch.no_grad():
        linear, y = nets["linear"](x), nets[output](x)
    assert bool(((y > low) & (y < high)).all())
    expected = {"linear": linear, "sigmoid": linear.sigmoid(), "tanh": linear.tanh()}[output]
    torch.testing.assert_close(y, expected)


def test_in_eval_mode_an_encrypted_image_does_not_depend_on_its_batch() -> None:
    net = UNet2((1, 8, 8), width=4)
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert not torch.allclose(net(x)[:1], net(x[:1]))
        net.eval()
        torch.testing.assert_close(net(x)[:1], net(x[:1]))


def test_the_encryptor_refuses_what_it_cannot_halve_twice() -> None:
    with pytest.raises(SpecError, match=r"height and width divisible by 4, got \[1, 30, 32\]"):
        UNet2((1, 30, 32))
    with pytest.raises(SpecError, match="expected one of linear, sigmoid, tanh, got 'relu'"):
        UNet2((1, 32, 32), output="relu")
