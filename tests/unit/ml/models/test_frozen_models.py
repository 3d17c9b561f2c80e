"""The part of a model that does not train: sent once, in the initial model, and the same ever after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes
from ml.errors import PayloadError, SpecError
from ml.models import build_model, dump_parameters, initial_parameters, load_parameters, resolve_model
from ml.models.base import copy_model, find_tied
from ml.payload import Array, encode_arrays
from ml.plugins import ANY_PLUGIN
from ml.simulation.rounds import Rounds
from ml.simulation.run import SimulationConfig, begin_simulation
from ml.specs import METHODS, get_spec
from ml.specs.architectures import (
    buffer_shapes,
    classifier_names,
    frozen_shapes,
    initial_schema,
    model_schema,
    parameter_shapes,
    tied_names,
)
from support.data.adapter_models import count_numbers

SHAPE = (1, 8, 8)
ADAPTERS = {"name": "support.data.adapter_models:make_adapters"}
TIED = {"name": "support.data.adapter_models:make_tied"}
HEAD_ONLY = {"name": "mlp", "hidden": [32, 16], "frozen": ["*", "!fc3.*"]}
FIRST_FROZEN = {"name": "mlp", "hidden": [32, 16], "frozen": ["fc1.*"]}
EDS = {"name": "fededs", "warmup_epochs": 1, "encryptor_epochs": 1, "unet_width": 4, "share_max": 20, "local_epochs": 1}
RESNET = {"name": "resnet18_cifar", "frozen": ["*", "!layer4.*", "!fc.*"]}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- what is frozen


def test_patterns_say_what_of_an_architecture_is_frozen() -> None:
    assert list(parameter_shapes(HEAD_ONLY, SHAPE, 10)) == ["fc3.weight", "fc3.bias"]
    assert list(frozen_shapes(HEAD_ONLY, SHAPE, 10)) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert classifier_names(HEAD_ONLY, SHAPE) == ("fc3.weight", "fc3.bias")
    assert list(model_schema(HEAD_ONLY, SHAPE, 10).arrays) == ["fc3.weight", "fc3.bias"]
    whole = {"name": "mlp", "hidden": [32, 16]}
    assert initial_schema(HEAD_ONLY, SHAPE, 10).arrays == initial_schema(whole, SHAPE, 10).arrays


def test_statistics_rest_with_the_module_they_are_of() -> None:
    shape = (3, 32, 32)
    assert {name.split(".")[0] for name in buffer_shapes(RESNET, shape, 10)} == {"layer4"}
    net = build_model(RESNET, shape, 10).train()
    before = dump_parameters(net, with_frozen=True)
    assert {name for name in before if net.is_frozen(name)} == frozen_shapes(RESNET, shape, 10).keys()
    with torch.no_grad():
        net(torch.rand(4, *shape))
    changed = {name for name, array in dump_parameters(net, with_frozen=True).items() if (array != before[name]).any()}
    assert changed == buffer_shapes(RESNET, shape, 10).keys()
    assert not net.get_submodule("bn1").training
    assert net.get_submodule("layer4").training


def test_what_has_no_gradient_in_a_users_model_is_frozen() -> None:
    model = resolve_model(ADAPTERS, SHAPE, 10)
    trained = ["first.down.weight", "first.up.weight", "second.down.weight", "second.up.weight", "head.weight"]
    assert list(model["parameters"]) == [*trained, "head.bias"]
    assert model["buffers"] == {}
    assert model["frozen_arrays"].keys() == {
        *("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"),
        *("first.base.weight", "first.base.bias", "second.base.weight", "second.base.bias"),
    }
    assert resolve_model(model, SHAPE, 10) == model
    net = build_model(model, SHAPE, 10, plugins=ANY_PLUGIN)
    assert dump_parameters(net).keys() == model["parameters"].keys()
    net.train()(torch.rand(4, *SHAPE))
    assert torch.equal(net.get_buffer("norm.running_mean"), torch.zeros(64))


def test_patterns_freeze_more_of_a_users_model() -> None:
    model = resolve_model({**ADAPTERS, "frozen": ["first.*"]}, SHAPE, 10)
    assert list(model["parameters"]) == ["second.down.weight", "second.up.weight", "head.weight", "head.bias"]
    assert model["frozen"] == ["first.*"]
    net = build_model(model, SHAPE, 10, plugins=ANY_PLUGIN)
    assert not net.get_parameter("first.up.weight").requires_grad


def test_a_users_model_that_trains_whole_says_nothing_of_freezing() -> None:
    model = resolve_model({**ADAPTERS, "args": {"whole": True}}, SHAPE, 10)
    found = {"parameters", "buffers", "embedding", "layers", "classifier", "plugin"}
    assert model.keys() == {"name", "args", *found}


def test_one_that_freezes_other_arrays_each_time_is_refused() -> None:
    with pytest.raises(SpecError, match="built again has other"):
        resolve_model({"name": "support.data.adapter_models:make_other_each_time"}, SHAPE, 10)


def test_copies_share_what_is_frozen() -> None:
    net = build_model(FIRST_FROZEN, SHAPE, 10)
    twin = copy_model(net)
    assert twin.get_parameter("fc1.weight") is net.get_parameter("fc1.weight")
    assert twin.get_parameter("fc2.weight") is not net.get_parameter("fc2.weight")
    assert dump_parameters(twin).keys() == parameter_shapes(FIRST_FROZEN, SHAPE, 10).keys()


def test_an_initial_model_without_what_is_frozen_is_refused() -> None:
    federation = _federate("fedavg", FIRST_FROZEN)
    initial = make_initial_aggregate(FIRST_FROZEN, SHAPE, 10, 1)
    del initial["model/fc1.bias"]
    with pytest.raises(PayloadError, match=r"'fc1\.bias' first"):
        make_clients(federation, data={"format": "digits"}, partition="iid", run_seed=1, initial=initial)


# ---- tied parameters


def test_a_parameter_with_two_names_has_the_first() -> None:
    model = resolve_model(TIED, SHAPE, 10)
    assert model["tied"] == {"second.weight": "first.weight"}
    assert "second.weight" not in model["parameters"]
    assert tied_names(model, SHAPE, 10) == model["tied"]
    net = build_model(model, SHAPE, 10, plugins=ANY_PLUGIN)
    assert find_tied(net) == model["tied"]
    arrays = initial_parameters(model, SHAPE, 10, 1, plugins=ANY_PLUGIN)
    assert arrays.keys() == model["parameters"].keys()
    load_parameters(net, arrays | {"first.weight": np.ones((16, 16), np.float32)})
    assert float(net.state_dict()["second.weight"].sum()) == 256.0
    load_parameters(net, arrays | {"second.weight": np.zeros((16, 16), np.float32)})  # as a model file has it
    assert np.array_equal(dump_parameters(net)["first.weight"], arrays["first.weight"])
    copied = copy_model(net)
    assert copied.get_parameter("second.weight") is copied.get_parameter("first.weight")


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"tied": {"second.weight": "none.weight"}}, "model.tied", "further names of arrays that are known"),
        ({"tied": {"first.weight": "first.weight"}}, "model.tied", "further names of arrays that are known"),
        ({"tied": ["second.weight"]}, "model.tied", "a name for each further name"),
        ({"tied": {"second weight": "first.weight"}}, "model.parameters", "cannot be sent"),
        ({"frozen_arrays": {"head.bias": [10]}}, "model.frozen_arrays", "names of nothing that is sent"),
        ({"frozen_arrays": {"base": [0]}}, "model.frozen_arrays", "a list of sizes each"),
        ({"frozen_arrays": [4]}, "model.frozen_arrays", "shapes by name"),
        ({"frozen": ["begin.*"]}, "model.frozen", "'begin.[a-z]+', which is in model.parameters"),
    ],
)
def test_a_genesis_that_cannot_be_is_refused_by_its_place(change: dict[str, Any], path: str, message: str) -> None:
    model = resolve_model(TIED, SHAPE, 10)
    with pytest.raises(SpecError, match=message) as caught:
        parameter_shapes({**model, **change}, SHAPE, 10)
    assert caught.value.path == path


# ---- methods

QUICK = ("dfpl", "fednova")  # of each way of sharing, parameters and prototypes


def _federate(method: str, model: dict[str, Any]) -> Federation:
    classes = get_classes({"format": "digits"})
    settings = {"name": method, "local_iterations": 2}
    input_ = {"shape": list(SHAPE), "mean": [0.0], "std": [1.0]}
    return Federation(method=settings, model=model, classes=classes, input=input_, rounds=4, num_members=3)


@pytest.mark.parametrize("model", [FIRST_FROZEN, ADAPTERS, TIED], ids=["layer", "adapters", "tied"])
@pytest.mark.parametrize(
    "method",
    [
        *QUICK,
        *(pytest.param(name, marks=pytest.mark.long) for name in sorted(METHODS) if name not in (*QUICK, "fedbn")),
    ],
)
def test_every_method_leaves_what_is_frozen_alone_and_sends_none_of_it(method: str, model: dict[str, Any]) -> None:
    settings = EDS if method == "fededs" else {"name": method, "local_iterations": 2}
    config = SimulationConfig(method=settings, model=model, clients=3, rounds=2, partition="iid")
    clients, initial, _ = begin_simulation(config)
    frozen = clients[0].spec.task.layout.frozen
    before = [_get_all(client) for client in clients]
    run = Rounds(clients, [bytes([i]) * 32 for i in range(3)], initial, None, batched=False)
    for height in (1, 2):
        played = run.play(height, bytes([height]) * 32)
        assert played is not None
    for client, was in zip(clients, before, strict=True):
        now = _get_all(client)
        assert all(np.array_equal(now[name], was[name]) for name in frozen)
        assert any(not np.array_equal(now[name], was[name]) for name in client.spec.task.parameter_schema.arrays)
        assert not any(name.partition("/")[2] in frozen for name in client.state_arrays())
        if model is TIED:
            assert find_tied(client.state.model) == {"second.weight": "first.weight"}
    for schema in clients[0].spec.schemas(3).values():
        assert not schema.arrays.keys() & frozen.keys()


def _get_all(client: Client) -> dict[str, Array]:
    return dump_parameters(client.state.model, with_frozen=True)


def test_adapters_alone_are_sent() -> None:
    spec = get_spec({"name": "fedavg"}, resolve_model(ADAPTERS, SHAPE, 10), 10, SHAPE)
    whole = count_numbers(spec.task.initial_schema)
    arrays = spec.schemas(1)["model"].arrays
    sent = {name: np.zeros(tuple(map(int, array.shape)), np.float32) for name, array in arrays.items()}
    assert spec.task.num_parameters == 4 * 2 * 64 + 650
    assert len(encode_arrays(sent)) < 4 * whole / 5


@pytest.mark.parametrize(
    ("method", "frozen", "message"),
    [
        ("fedper", ["*", "!fc3.*"], "fedper expects parameters before the classifier that train"),
        ("uapdfl", ["fc3.*"], "uapdfl expects parameters in the classifier that train"),
    ],
)
def test_a_method_that_sends_a_part_must_have_some_of_it_train(method: str, frozen: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        get_spec({"name": method}, {"name": "mlp", "hidden": [8, 4], "frozen": frozen}, 10, SHAPE)


def test_a_part_of_which_nothing_trains_is_not_sent() -> None:
    spec = get_spec({"name": "fedavg_p2p"}, HEAD_ONLY, 10, SHAPE)
    assert list(spec.schemas(1)) == ["h"]
