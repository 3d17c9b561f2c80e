"""A user's own network: taken apart where a federation is made, imported nowhere else unless a site says so."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.genesis import Genesis
from ml.clients.build import Federation, make_client
from ml.errors import SpecError
from ml.models import build_model, dump_parameters, initial_parameters, load_parameters, resolve_model
from ml.payload import decode_arrays
from ml.plugins import ANY_PLUGIN, NO_PLUGINS, Plugins, make_record
from ml.simulation.run import SimulationConfig, simulate
from ml.specs.architectures import (
    buffer_shapes,
    classifier_names,
    embedding_dim,
    is_batchable,
    layer_dims,
    parameter_shapes,
    validate_model,
)
from node.cli.node.start import check_node
from node.config.genesis_file import load_genesis
from node.config.node_config import load_config
from node.config.plugins import explain_refusal
from node.errors import ConfigError
from node.testnet.layout import TestnetSpec, make_testnet

SHAPE = (1, 8, 8)
SMALL = {"name": "support.data.user_models:make_small", "args": {"width": 4}}


def test_what_validators_need_is_found_by_building_once() -> None:
    model = resolve_model(SMALL, SHAPE, 10)
    assert model == {
        **SMALL,
        "parameters": {
            "scale": [4],
            "conv.weight": [4, 1, 3, 3],
            "conv.bias": [4],
            "norm.weight": [4],
            "norm.bias": [4],
            "fc.weight": [10, 4],
            "fc.bias": [10],
        },
        "buffers": {"norm.running_mean": [4], "norm.running_var": [4]},
        "embedding": 4,
        "layers": [4],
        "classifier": ["fc.weight", "fc.bias"],
        "plugin": make_record("support").to_mapping(),
    }
    assert resolve_model(model, SHAPE, 10) == model
    assert embedding_dim(model, SHAPE) == 4
    assert classifier_names(model, SHAPE) == ("fc.weight", "fc.bias")
    assert not is_batchable(model)


def test_resolving_leaves_torchs_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    resolve_model(SMALL, SHAPE, 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_of_our_models_has_its_defaults_written_out() -> None:
    assert resolve_model({"name": "mlp"}, SHAPE, 10) == {"name": "mlp", "hidden": [64, 32]}
    assert resolve_model({"name": "vgg11"}, SHAPE, 10) == {"name": "vgg11"}


def test_it_is_built_with_the_names_the_user_gave_and_every_part_of_a_model() -> None:
    model = resolve_model(SMALL, SHAPE, 10)
    net = build_model(model, SHAPE, 10, plugins=ANY_PLUGIN).eval()
    x = torch.rand(3, *SHAPE)
    assert {name: tuple(p.shape) for name, p in net.named_parameters()} == parameter_shapes(model, SHAPE, 10)
    assert torch.equal(net(x), net.classify(net.embed(x)))
    assert [z.shape for z in net.embed_layers(x)] == [(3, 4)]
    arrays = dump_parameters(net)
    assert arrays.keys() == parameter_shapes(model, SHAPE, 10).keys() | buffer_shapes(model, SHAPE, 10).keys()
    twin = copy.deepcopy(net)
    load_parameters(twin, {name: np.zeros_like(array) for name, array in arrays.items()})
    assert not torch.equal(twin(x), net(x))
    swapped = torch.func.functional_call(net, dict(twin.named_parameters()), (x,))
    assert torch.equal(swapped, torch.zeros(3, 10))


def test_layers_are_shown_and_a_forward_of_its_own_is_not_used() -> None:
    model = resolve_model({"name": "support.data.user_models:make_layered"}, SHAPE, 10)
    assert layer_dims(model, SHAPE) == (4, 4)
    net = build_model(model, SHAPE, 10, plugins=ANY_PLUGIN)
    assert net(torch.rand(2, *SHAPE)).shape == (2, 10)


def test_initial_parameters_come_from_the_seed() -> None:
    model = resolve_model(SMALL, SHAPE, 10)
    first, again, other = (initial_parameters(model, SHAPE, 10, seed, plugins=ANY_PLUGIN) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["fc.weight"], other["fc.weight"])


def test_a_constant_of_infinite_numbers_is_for_the_module_to_keep() -> None:
    masked = {"name": "support.data.user_models:make_masked"}
    assert "mask" not in resolve_model(masked, SHAPE, 10)["buffers"]
    with pytest.raises(SpecError, match=r"buffer 'mask': expected finite numbers, .* got -inf; .*persistent=False"):
        resolve_model({**masked, "args": {"is_sent": True}}, SHAPE, 10)


def test_a_layer_that_cannot_answer_one_sample_is_refused() -> None:
    normed = {"name": "support.data.user_models:Normed"}
    resolve_model(normed, SHAPE, 10)
    with pytest.raises(SpecError, match="one sample alone, in eval mode: ValueError: Expected more than 1 value"):
        resolve_model({**normed, "args": {"keeps_statistics": False}}, SHAPE, 10)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("make_absent", "expected a callable 'make_absent'"),
        ("not_callable", "expected a callable 'not_callable' in 'support.data.user_models', got 3"),
        ("make_nothing", "to return a torch.nn.Module, got str"),
        ("make_broken", r"KeyError: 'no such thing' \(.*user_models.py:\d+\)"),
        ("make_whole", "to have a method 'embed'"),
        ("make_double", "parameter 'scale': expected float32, got torch.float64"),
        ("make_half_buffer", "buffer 'table': expected float32 or whole numbers, got torch.float16"),
        ("make_frozen", "expected some parameters that are trained, got none"),
        ("make_growing", "built again has other parameters"),
        ("make_maps", r"expected embed to return float32 \[2, D\], got torch.float32 \[2, 4, 8, 8\]"),
        ("make_too_few", r"expected classify to return float32 \[2, 10\], got torch.float32 \[2, 9\]"),
        ("make_shared", "expected embed and classify to share no parameter, got scale in both"),
        ("make_spare", "expected every parameter in embed or classify, got spare.weight, spare.bias in neither"),
        ("make_headless", "expected embed to use parameters, got none"),
        ("make_noisy", "expected embed to give the same twice in eval mode"),
        ("make_in_place", "expected embed to leave its images as they are"),
        ("make_misnamed", "array name 'fc.head é.bias': expected 1 to 128 letters"),
        ("make_astray", "expected embed_layers to end in what embed returns"),
    ],
)
def test_a_network_that_no_method_could_train_is_refused(factory: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        resolve_model({"name": f"support.data.user_models:{factory}"}, SHAPE, 10)


@pytest.mark.parametrize(
    ("model", "path", "message"),
    [
        (
            {"name": "no.such_package:make"},
            "model.name",
            "no module named 'no'; expected it installed, on PYTHONPATH, or in the working directory",
        ),
        ({"name": "support.data.user_models:"}, "model.name", "expected package.module:factory"),
        ({"name": "../evil.py:make"}, "model.name", "expected package.module:factory"),
        ({"name": "a:b:c"}, "model.name", "expected package.module:factory"),
        ({**SMALL, "args": {"width": 4, "depth": 2}}, "model.name", "unexpected keyword argument 'depth'"),
        ({**SMALL, "args": [4]}, "model.args", "expected arguments by name"),
        ({**SMALL, "arg": {}}, "model.arg", "did you mean 'args'"),
    ],
)
def test_what_names_no_factory_is_refused_by_its_place(model: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        resolve_model(model, SHAPE, 10)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"parameters": None}, "model.parameters", "is missing"),
        ({"parameters": {}}, "model.parameters", "at least one"),
        ({"parameters": [4]}, "model.parameters", "expected shapes by name"),
        ({"parameters": {"scale": 4}}, "model.parameters", "list of sizes"),
        ({"parameters": {"scale": [0]}}, "model.parameters", "list of sizes"),
        ({"parameters": {"scale": [True]}}, "model.parameters", "list of sizes"),
        ({"parameters": {"sca le": [4]}}, "model.parameters", "cannot be sent: array name 'sca le'"),
        ({"parameters": {"fc.weight": [1 << 31] * 3}}, "model.parameters", "cannot be sent: .*too large"),
        ({"buffers": {"scale": [4]}}, "model.buffers", "no parameters'"),
        ({"layers": []}, "model.layers", "expected a list of 1"),
        ({"layers": [4.0]}, "model.layers", "expected a list of 1"),
        ({"embedding": 5}, "model.embedding", "expected the last of model.layers, 4, got 5"),
        ({"classifier": []}, "model.classifier", "expected a list of names"),
        ({"classifier": ["fc.weight", "fc.weight"]}, "model.classifier", "each once"),
        ({"classifier": ["norm.running_mean"]}, "model.classifier", "names of model.parameters"),
    ],
)
def test_a_validator_refuses_what_genesis_says_wrongly(change: dict[str, Any], path: str, message: str) -> None:
    model = {key: value for key, value in (resolve_model(SMALL, SHAPE, 10) | change).items() if value is not None}
    with pytest.raises(SpecError, match=message) as caught:
        validate_model(model, SHAPE)
    assert caught.value.path == path


def test_a_node_imports_a_users_module_only_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    model = resolve_model(SMALL, SHAPE, 10)
    monkeypatch.delitem(sys.modules, "support.data.user_models")
    with pytest.raises(SpecError, match=r"expected training\.plugins to name it"):
        build_model(model, SHAPE, 10)
    validate_model(model, SHAPE)
    assert "support.data.user_models" not in sys.modules


def test_a_module_that_has_changed_since_genesis_is_refused() -> None:
    model = resolve_model(SMALL, SHAPE, 10)
    with pytest.raises(SpecError, match=r"other parameters: '\S+' was \(.*4.*\), now is \(.*5.*\)"):
        build_model({**model, "args": {"width": 5}}, SHAPE, 10, plugins=ANY_PLUGIN)


# ---- in a federation


@pytest.fixture(scope="module")
def spec() -> TestnetSpec:
    return TestnetSpec(
        num_nodes=2,
        method="fedavg",
        model=SMALL["name"],  # type: ignore[arg-type]
        partition="iid",
        rounds=1,
        settings=("local_iterations=1", "model.args.width=3"),
    )


def test_genesis_holds_all_of_it_and_the_nodes_that_were_made_for_it_may_import_it(
    tmp_path: Path, spec: TestnetSpec
) -> None:
    made = make_testnet(tmp_path / "cluster", spec)
    genesis, initial = load_genesis(tmp_path / "cluster/genesis.yaml")
    assert genesis.run.model["parameters"]["conv.weight"] == [3, 1, 3, 3]
    assert Genesis.from_mapping(genesis.to_mapping()) == genesis
    config = load_config(made.nodes[0].config_file)
    assert config.training.plugins == ("support",)
    federation = Federation(
        method=genesis.run.method, model=genesis.run.model, classes=genesis.run.classes, input=genesis.run.input
    )
    own: dict[str, Any] = {
        "data": config.data.model_dump(mode="json"),
        "seed": config.training.seed,
        "initial": decode_arrays(initial.read_bytes(), 1 << 20),
    }
    client = make_client(replace(federation, plugins=config.plugins), **own)
    trained = client.train(1, b"beacon")
    client.spec.validate_payload("model", trained.payloads["model"], 1)
    with pytest.raises(SpecError, match=r"training\.plugins"):
        make_client(federation, **own)


def test_a_node_that_may_not_import_it_votes_and_says_so(
    tmp_path: Path, spec: TestnetSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_testnet(tmp_path / "cluster", spec)
    run, path = made.genesis.run, made.nodes[0].config_file
    assert explain_refusal(run, Plugins.of(["support"])) is None
    why = explain_refusal(run, NO_PLUGINS)
    assert why is not None
    assert "support.data.user_models:make_small is code of the plugin support" in why
    check_node(load_config(path, ["training.plugins=[]"]), path)
    assert f"{why}; this node votes and does not train" in capsys.readouterr().err
    plain = make_testnet(tmp_path / "plain", replace(spec, model="mlp", settings=())).genesis
    assert explain_refusal(plain.run, NO_PLUGINS) is None


def test_a_module_whose_files_have_changed_is_not_trained_with() -> None:
    model = resolve_model(SMALL, SHAPE, 10)
    other = {**model, "plugin": {**model["plugin"], "sha256": "0" * 64}}
    with pytest.raises(SpecError, match=r"installed here is support .*expected the same"):
        build_model(other, SHAPE, 10, plugins=ANY_PLUGIN)


def test_checking_a_node_builds_the_model_it_would_train(
    tmp_path: Path, spec: TestnetSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_testnet(tmp_path / "cluster", spec)
    path = made.nodes[0].config_file
    check_node(load_config(path), path)
    monkeypatch.setitem(sys.modules, "support.data.user_models", None)
    with pytest.raises(ConfigError, match=r"genesis\.yaml: model\.name: .*support\.data\.user_models"):
        check_node(load_config(path), path)


def test_a_network_that_does_not_split_stops_a_testnet_in_one_line(tmp_path: Path, spec: TestnetSpec) -> None:
    with pytest.raises(ConfigError, match=r"^--model: model.name: expected embed to use parameters") as caught:
        make_testnet(tmp_path / "cluster", replace(spec, model="support.data.user_models:make_headless", settings=()))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cluster").exists()


def test_a_simulation_takes_it_by_name() -> None:
    config = SimulationConfig(
        method={"name": "fedavg", "local_iterations": 1}, model=SMALL, partition="iid", clients=2, rounds=1
    )
    assert simulate(config).rounds[0].sent_params == 2 * (4 * 9 + 4 + 4 * 3 + 4 * 10 + 10 + 8)
