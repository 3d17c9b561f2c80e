"""Plugins: what is imported and what is not, what a run records of them, and who judges a plugin's method by what."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.errors import DataError, PayloadError, SpecError
from ml.payload import Arrays
from ml.plugins import (
    ANY_PLUGIN,
    NO_PLUGINS,
    PluginRecord,
    PluginRefused,
    Plugins,
    check_record,
    find_plugin,
    list_offered,
    make_record,
    normalise,
)
from ml.specs import METHODS, AuthorPayloads, MethodSpec, Task, compute_aggregate, get_judge, get_spec
from ml.specs.by_schema import SchemaSpec
from ml.specs.methods.mpfedcl import MpFedClSpec
from ml.specs.own import check_judgeable, describe_judged
from ml.specs.run_schema import describe_payloads
from support.data.normed import fit_model
from support.data.plugins import LOOP, METHOD, MODEL, READER, put_plugin

MLP: Mapping[str, Any] = {"name": "mlp", "hidden": [3]}
PLUGIN = {"name": "tried", "version": "1.0", "sha256": "0" * 64}
JUDGED = [name for name in METHODS if name not in ("fededs", "uapdfl", "dfedavgm", "criticalfl", "scaffold", "feddbe")]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("example_"):
            del sys.modules[name]


def ask(plugins: Plugins, name: str = "anchored", **settings: Any) -> MethodSpec:
    model = fit_model(name, MLP, 2)
    return get_spec({"name": name, **settings}, model, 2, (1, 4, 4), rounds=5, num_members=4, plugins=plugins)


def make_payload(spec: MethodSpec, kind: str, height: int = 1, seed: int = 0) -> dict[str, Any]:
    """One that fits its schema, with as many rows as may be."""
    rng, arrays = np.random.default_rng(seed), {}
    schema = spec.schemas(height)[kind]
    for name, array in schema.arrays.items():
        shape = tuple(n if isinstance(n, int) else schema.bounds[n][1] for n in array.shape)
        if array.dtype == "int64":
            low, high = array.range or (0, 1)
            arrays[name] = np.arange(shape[0]) % (high - low + 1) + low if shape else np.array(low)
        else:
            arrays[name] = rng.random(shape).astype(array.dtype)
    return arrays


# ---- what is imported


def test_nothing_of_a_plugin_is_imported_that_is_not_allowed(target: Path) -> None:
    put_plugin(target, METHOD)
    assert [entry.plugin for entry in list_offered("methods") if entry.name == "anchored"] == [METHOD]
    for plugins in (NO_PLUGINS, Plugins.of(["another"])):
        with pytest.raises(SpecError, match=r"anchored"):
            ask(plugins)
    assert "example_method" not in sys.modules
    assert ask(Plugins.of([METHOD])).name == "anchored"
    assert "example_method.spec" in sys.modules
    assert "example_method.training" not in sys.modules


def test_a_name_is_allowed_in_any_spelling(target: Path) -> None:
    put_plugin(target, METHOD)
    assert Plugins.of(["Fednode_Example.Method"]).allows(METHOD)
    assert normalise("A__b.C") == "a-b-c"
    assert ask(Plugins.of(["FEDNODE_example_method"])).name == "anchored"


def test_fednodes_own_methods_are_never_a_plugins() -> None:
    with pytest.raises(SpecError, match="expected none: fedavg is fednode's own"):
        ask(ANY_PLUGIN, "fedavg", plugin=PLUGIN)


def test_of_two_plugins_that_offer_one_name_the_allowed_one_is_taken(target: Path) -> None:
    put_plugin(target, METHOD)
    put_plugin(target, METHOD, as_name="its-twin")
    with pytest.raises(SpecError, match="offered by fednode-example-method, its-twin: expected one"):
        ask(ANY_PLUGIN)
    record = ask(Plugins.of(["its-twin"])).record
    assert record is not None
    assert record.name == "its-twin"


def test_code_that_fails_is_an_error_of_the_method(target: Path) -> None:
    place = put_plugin(target, METHOD)
    (place / "spec.py").write_text("raise ValueError('not today')\n")
    with pytest.raises(SpecError, match=r"importing example_method.spec:AnchoredSpec: ValueError: not today"):
        ask(ANY_PLUGIN)


def test_a_loop_is_a_method_whose_spec_needs_no_import(target: Path) -> None:
    put_plugin(target, LOOP)
    spec = ask(Plugins.of([LOOP]), "adamw", lr=0.05)
    assert dict(spec.rules(1)) == {"model": "weighted_mean"}
    assert "example_loop" not in sys.modules


# ---- what a run records


def test_a_record_follows_every_file_and_no_bytecode(target: Path) -> None:
    place = put_plugin(target, METHOD)
    record = make_record(METHOD)
    assert (record.name, record.version) == (METHOD, "1.0")
    (place / "__pycache__").mkdir()
    (place / "__pycache__/spec.cpython-311.pyc").write_bytes(b"x")
    assert make_record(METHOD) == record
    check_record(record)
    (place / "training.py").write_text("# nothing\n")
    with pytest.raises(PluginRefused, match=r"the run is of the plugin .* and installed here is .*: expected the same"):
        check_record(record)
    with pytest.raises(SpecError, match="expected the same"):
        ask(ANY_PLUGIN, plugin=record.to_mapping())


def test_a_module_that_was_never_installed_has_a_record_of_its_source(target: Path) -> None:
    (target / "Nets_x.py").write_text("made = 1\n")
    assert find_plugin("Nets_x") == "nets-x"
    record = make_record("nets-x", "Nets_x")
    assert record.version == ""
    (target / "Nets_x.py").write_text("made = 2\n")
    assert make_record("nets-x", "Nets_x") != record
    assert "Nets_x" not in sys.modules


def test_a_plugin_that_is_not_installed_is_named(target: Path) -> None:
    with pytest.raises(PluginRefused, match="which is not installed here"):
        check_record(PluginRecord("nothing-of-the-kind", "1.0", "0" * 64))


@pytest.mark.parametrize(
    "change",
    [{"name": "../x"}, {"name": 5}, {"version": "1\n"}, {"sha256": "0" * 63}, {"more": 1}, {"name": "x" * 129}],
)
def test_a_record_that_cannot_be_one_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"method\.plugin"):
        PluginRecord.from_mapping("method.plugin", {**PLUGIN, **change})


def test_a_method_writes_its_plugin_down_and_a_built_in_one_does_not(target: Path) -> None:
    put_plugin(target, METHOD)
    spec = ask(ANY_PLUGIN, mu=0.5)
    written = spec.to_mapping()
    assert written["plugin"] == make_record(METHOD).to_mapping()
    assert written["mu"] == 0.5
    assert describe_payloads(spec)["judging"] == {"weights": "samples"}
    own = ask(ANY_PLUGIN, "fedavg")
    assert "plugin" not in own.to_mapping()
    assert "judging" not in describe_payloads(own)


# ---- readers


def test_a_reader_is_asked_where_it_may_be(target: Path) -> None:
    from ml.data import open_dataset

    put_plugin(target, READER)
    file = target / "images.txt"
    file.write_text("".join(f"{'ab'[i % 2]}: {i} 2 3 {250 - i}\n" for i in range(20)))
    data: dict[str, Any] = {"format": "pixels", "path": str(file)}
    with pytest.raises(DataError, match=r"training\.plugins"):
        open_dataset(data, shape=(1, 2, 2), classes=("a", "b"))
    train, test = open_dataset({**data, "plugins": [READER]}, shape=(1, 2, 2), classes=("a", "b"))
    assert (len(train) + len(test), train.x.shape[1:]) == (20, (1, 2, 2))
    file.write_text("a: 1 2 3 4\nb: 1 2 x 4\n")
    with pytest.raises(DataError, match=r"images.txt:2: expected pixels"):
        open_dataset({**data, "plugins": [READER]}, shape=(1, 2, 2), classes=("a", "b"))
    with pytest.raises(DataError, match="unknown format 'pixel': "):
        open_dataset({**data, "format": "pixel"}, shape=(1, 2, 2), classes=("a", "b"))


def test_a_transform_of_a_sites_own_changes_values_and_nothing_else(target: Path) -> None:
    from ml.data.own_transform import load_transform

    place = put_plugin(target, READER)
    data: dict[str, Any] = {"transform": {"own": "stretched"}}
    with pytest.raises(DataError, match=r"training\.plugins"):
        load_transform(data)
    assert "example_reader" not in sys.modules
    x = np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2)
    assert load_transform({})(x) is x
    made = load_transform({**data, "plugins": [READER]})(x)
    assert np.allclose(made.reshape(2, 4), [[0, 1 / 3, 2 / 3, 1]] * 2)
    del sys.modules["example_reader"]
    source = (place / "__init__.py").read_text()
    (place / "__init__.py").write_text(source.replace("return stretched", "return stretched[:1]"))
    with pytest.raises(DataError, match=r"stretched: expected float32 \[2, 1, 2, 2\], got float32 \[1, 1, 2, 2\]"):
        load_transform({**data, "plugins": [READER]})(x)


def test_training_and_prediction_go_through_the_same_transform(target: Path) -> None:
    from ml.clients.build import Federation, make_client, make_initial_aggregate

    put_plugin(target, READER)
    input_: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]}
    model = {"name": "mlp", "hidden": [4]}
    classes = [str(i) for i in range(10)]
    federation = Federation(method={"name": "local"}, model=model, classes=classes, input=input_)
    initial = make_initial_aggregate(model, input_["shape"], 10, 1)
    own = {"format": "digits", "transform": {"own": "stretched"}, "plugins": [READER]}
    plain, changed = (
        make_client(federation, data=data, seed=1, initial=initial) for data in ({"format": "digits"}, own)
    )
    assert plain.state.data.train.x.shape == changed.state.data.train.x.shape
    assert not plain.state.data.train.x.equal(changed.state.data.train.x)
    assert not plain.state.data.matched.x.equal(changed.state.data.matched.x)


# ---- judging by the schema alone


def judge(spec: MethodSpec) -> SchemaSpec:
    return SchemaSpec.read({**spec.to_mapping(), "plugin": PLUGIN}, describe_judged(spec), spec.task)


class _KeepsNothing(MpFedClSpec):
    get_kept = MethodSpec.get_kept
    closing = MethodSpec.closing


@pytest.mark.parametrize("method", JUDGED)
def test_whoever_has_no_code_comes_to_the_same_aggregate(method: str) -> None:
    spec = ask(NO_PLUGINS, method)
    if method == "mpfedcl":  # of which a last round without a model, of prototypes alone, needs the code
        spec = _KeepsNothing.from_mapping(spec.to_mapping(), spec.task)
    check_judgeable(spec)
    told = judge(spec)
    assert (told.max_weight_is_one, told.sharing_heights) == (spec.max_weight_is_one, spec.sharing_heights)
    assert describe_payloads(told) == describe_judged(spec)
    if not spec.rules(1):
        return
    authors = []
    for i in range(4):
        payloads = {kind: make_payload(spec, kind, seed=i) for kind in spec.schemas(1)}
        if method == "fednova":
            payloads["model"] |= spec.make_numbers(20)  # type: ignore[attr-defined]
        for kind, arrays in payloads.items():
            told.validate_payload(kind, arrays, 1)
        authors.append(AuthorPayloads(bytes([i]) * 32, 1, payloads))
    parent = {f"model/{name}": np.zeros(array.shape, np.float32) for name, array in _list_initial(spec)}
    assert compute_aggregate(told, 1, authors, parent) == compute_aggregate(spec, 1, authors[::-1], parent)


def _list_initial(spec: MethodSpec) -> list[tuple[str, Any]]:
    return list(spec.task.initial_schema.arrays.items())


@pytest.mark.parametrize("method", ["fededs", "uapdfl", "scaffold", "feddbe"])
def test_what_a_schema_cannot_say_is_no_plugins(method: str) -> None:
    with pytest.raises(SpecError, match="members without its code vote"):
        check_judgeable(ask(NO_PLUGINS, method))


def test_a_closing_round_is_no_plugins() -> None:
    spec = ask(NO_PLUGINS, "fedavg")
    check_judgeable(spec)
    closing = property(lambda self: None)
    ending = type("EndingSpec", (type(spec),), {"closing": closing})(spec.task, spec.hyperparameters)
    with pytest.raises(SpecError, match="expected no closing of its own: members without its code vote"):
        check_judgeable(ending)


def test_robust_rules_are_told_how_many_may_lie() -> None:
    spec = ask(NO_PLUGINS, "fedavg", aggregation="clipped_mean", clip=0.5)
    told = judge(spec)
    assert told.rule_settings == spec.rule_settings
    assert told.rule_settings.max_liars == 1
    assert describe_judged(spec)["judging"]["clip"] == 0.5


def test_peers_are_drawn_alike() -> None:
    from ml.specs import Offer

    spec = ask(NO_PLUGINS, "fedavg_p2p", num_peers=2)
    digests = {i: {"g": bytes([i]) * 32, "h": bytes([i + 100]) * 32} for i in range(6)}
    offers = [Offer(bytes([i]) * 32, 1, digests[i]) for i in range(6)]
    told = judge(spec)
    for me in (bytes([2]) * 32, b"nobody"):
        asked = (1, b"beacon", me, offers, None, frozenset([bytes([3]) * 32]))
        assert sorted(told.wanted(*asked)) == sorted(spec.wanted(*asked))


def test_payloads_are_held_to_the_schema() -> None:
    told = judge(ask(NO_PLUGINS, "fedproto"))
    good = {"classes": np.array([0, 1]), "prototypes": np.zeros((2, 3), np.float32)}
    told.validate_payload("prototypes", good, 1)
    bad: list[Arrays] = [
        {**good, "classes": np.array([1, 0])},
        {**good, "classes": np.array([0, 2])},
        {**good, "prototypes": np.zeros((2, 4), np.float32)},
        {**good, "prototypes": np.full((2, 3), np.nan, np.float32)},
        {**good, "more": np.zeros(1, np.float32)},
    ]
    for arrays in bad:
        with pytest.raises(PayloadError):
            told.validate_payload("prototypes", arrays, 1)
    nova = judge(ask(NO_PLUGINS, "fednova"))
    model = make_payload(nova, "model") | {"local_steps": np.array([20]), "norm": np.array([21.0])}
    with pytest.raises(PayloadError, match="expected norm"):
        nova.validate_payload("model", model, 1)


GONE = object()


def _edit(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(schema: dict[str, Any]) -> None:
        place = schema
        for key in path[:-1]:
            place = place[key]
        if value is GONE:
            del place[path[-1]]
        else:
            place[path[-1]] = value

    return edit


PAYLOAD = ("rounds", "1..", "model")
HOSTILE: dict[str, Callable[[dict[str, Any]], None]] = {
    "no judging": _edit("judging", value=GONE),
    "weights of another kind": _edit("judging", "weights", value="all"),
    "an unknown key": _edit("judging", "liars", value=3),
    "a cap below 1": _edit("judging", "weight_cap", value=0),
    "a cap that is true": _edit("judging", "weight_cap", value=True),
    "a momentum of 1": _edit("judging", "momentum", value=1.0),
    "a clip of nothing": _edit("judging", "clip", value=0.0),
    "a rule of its own": _edit(*PAYLOAD, "rule", value="my_rule"),
    "no rule": _edit(*PAYLOAD, "rule", value=GONE),
    "a rule that is a list": _edit(*PAYLOAD, "rule", value=["median"]),
    "a rule by class for a model": _edit(*PAYLOAD, "rule", value="class_mean"),
    "a pool of a model": _edit(*PAYLOAD, "rule", value="pool"),
    "a sum of a model": _edit(*PAYLOAD, "rule", value="sum"),
    "a mean of masked models": _edit(*PAYLOAD, "rule", value="fixed_mean"),
    "nova without its numbers": _edit(*PAYLOAD, "rule", value="nova"),
    "on demand without a draw": _edit(*PAYLOAD, "rule", value=None),
    "more bytes than fit": _edit(*PAYLOAD, "max_bytes", value=1 << 40),
    "bytes that are true": _edit(*PAYLOAD, "max_bytes", value=True),
    "a kind that is none": _edit("rounds", "1..", value={"weights": {"arrays": {"a": "float32[1]"}, "rule": "stack"}}),
    "sets of samples": _edit(
        "rounds", "1..", value={"encrypted_set": {"arrays": {"x": "float32[1]"}, "rule": "stack"}}
    ),
    "no rounds": _edit("rounds", value={}),
    "rounds from 2 on": _edit("rounds", value={"2..": {}}),
    "far rounds": _edit("rounds", "99", value={}),
    "a span that is text": _edit("rounds", "x", value={}),
    "arrays that are a list": _edit(*PAYLOAD, "arrays", value=["a"]),
    "no arrays": _edit(*PAYLOAD, "arrays", value={}),
    "a huge array": _edit(*PAYLOAD, "arrays", value={"a": "float32[9999999999,9999999999,9999999999]"}),
    "a type that is none": _edit(*PAYLOAD, "arrays", value={"a": "object[1]"}),
    "integers in a mean": _edit(*PAYLOAD, "arrays", value={"a": "int64[1]"}),
    "a dimension without bounds": _edit(*PAYLOAD, "arrays", value={"a": "float32[n]"}),
    "an aggregate of something else": _edit("aggregate", value={"model/a": "float32[7]"}),
    "one more key": _edit("more", value=1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_could_not_be_judged_is_refused(name: str) -> None:
    spec = ask(NO_PLUGINS, "fedavg")
    schema = copy.deepcopy(describe_judged(spec))
    HOSTILE[name](schema)
    with pytest.raises(SpecError, match=r"schema"):
        SchemaSpec.read({**spec.to_mapping(), "plugin": PLUGIN}, schema, spec.task)


def test_rows_of_all_members_may_differ_only_where_the_rule_stands_it() -> None:
    spec = ask(NO_PLUGINS, "fedproto")
    for rule in ("stack", "weighted_mean", "median"):
        schema = copy.deepcopy(describe_judged(spec))
        schema["rounds"]["1.."]["prototypes"]["rule"] = rule
        with pytest.raises(SpecError, match="expected fixed shapes"):
            SchemaSpec.read({**spec.to_mapping(), "plugin": PLUGIN}, schema, spec.task)


def test_a_judge_of_a_run_imports_no_plugin(target: Path) -> None:
    put_plugin(target, METHOD)
    spec = ask(ANY_PLUGIN)
    schema, method = describe_payloads(spec), spec.to_mapping()
    for name in ("example_method.spec", "example_method"):
        del sys.modules[name]
    told = get_judge(method, schema, MLP, 2, (1, 4, 4), rounds=5, num_members=4)
    assert isinstance(told, SchemaSpec)
    assert (told.name, told.to_mapping()) == ("anchored", method)
    assert "example_method" not in sys.modules
    with pytest.raises(SpecError):
        get_judge(method, {}, MLP, 2, (1, 4, 4))


@pytest.mark.parametrize(
    "input_", [{"normalize": "agreed"}, {"normalize": "agreed", "class_counts": True}, {"normalize": "inherited"}]
)
def test_a_judge_knows_the_round_of_agreed_statistics(target: Path, input_: dict[str, Any]) -> None:
    put_plugin(target, METHOD)
    terms: dict[str, Any] = {"rounds": 5, "num_members": 4, "input_": input_}
    spec = get_spec({"name": "anchored"}, MLP, 2, (1, 4, 4), plugins=ANY_PLUGIN, **terms)
    schema, method = describe_payloads(spec), spec.to_mapping()
    told = get_judge(method, schema, MLP, 2, (1, 4, 4), **terms)
    assert describe_payloads(told) == schema
    for height in (1, 2, 3):
        assert dict(told.schemas(height)) == dict(spec.schemas(height))
        assert dict(told.rules(height)) == dict(spec.rules(height))
        assert set(told.get_kept(height)) == set(spec.get_kept(height))
    for wrong in ({**schema, "rounds": {"1..": schema["rounds"]["1.." if "1.." in schema["rounds"] else "2.."]}}, {}):
        if wrong != schema:
            with pytest.raises(SpecError, match="schema"):
                get_judge(method, wrong, MLP, 2, (1, 4, 4), **terms)


def test_the_task_of_a_judge_is_the_runs() -> None:
    spec = ask(NO_PLUGINS, "fedavg")
    other = Task({"name": "mlp", "hidden": [5]}, (1, 4, 4), 2, num_members=4)
    told = SchemaSpec.read({**spec.to_mapping(), "plugin": PLUGIN}, describe_judged(spec), other)
    assert told.schemas(1)["model"].arrays["fc1.bias"].shape == (3,)  # what is sent is the schema's to say


def test_models_have_short_names(target: Path) -> None:
    from ml.specs.architectures import find_model

    put_plugin(target, MODEL)
    assert find_model("tiny") == "example_model:make"
    assert find_model("mlp") == "mlp"
    assert find_model("a.b:c") == "a.b:c"
