"""The conformance kit: fednode's own methods conform, the examples do, and what does not is told apart."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fednode.testing import DoesNotConform, check_method, check_model
from ml.methods.base import Round, State
from ml.methods.common.sharing import SharesModel
from ml.payload import Arrays, ArraySchema, ArraySpec
from ml.specs import METHODS
from ml.specs.own import LoopSpec
from ml.specs.sharing import ModelSpec
from ml.training.loop import Batch, Prepared, Schedule, Tensors
from support.data.plugins import LOOP, METHOD, MODEL, put_plugin

pytestmark = [pytest.mark.slow, pytest.mark.outer]

QUICK: Mapping[str, Any] = {"local_iterations": 2}
OUTSIDE = "specs_of_this_test_alone"  # no module, so that none is imported to see whether it loads torch
SLOW = {"fededs"}  # whose members learn to transform samples first


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    for name in (METHOD, MODEL, LOOP):
        put_plugin(tmp_path, name)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("example_"):
            del sys.modules[name]


@pytest.mark.parametrize("method", [pytest.param(m, marks=[pytest.mark.long] if m in SLOW else []) for m in METHODS])
def test_fednodes_own_methods_conform(method: str) -> None:
    model = {"name": "support.data.user_models:make_small"} if method == "fedbn" else None
    check_method(method, settings={} if method in SLOW else QUICK, nodes=2 if method in SLOW else 3, model=model)


@pytest.mark.parametrize("method", ["anchored", "adamw"])
def test_the_examples_conform(examples: Path, method: str) -> None:
    check_method(method, settings=QUICK)


def test_a_lightning_module_trains_by_its_own_hooks(examples: Path) -> None:
    model = {"name": "example_loop.lightning_model:make"}
    check_method("lightning", settings=QUICK, model=model)


def test_the_example_of_a_model_conforms(examples: Path) -> None:
    check_model("tiny", input_shape=(1, 8, 8), num_classes=10, args={"width": 5})


# ---- methods that do not


class _Plain(SharesModel[Any]):
    pass


class _Draws(SharesModel[Any]):
    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        noise = torch.rand((), generator=torch.Generator().manual_seed(id(state) % 10_000 + len(_SEEN)))
        _SEEN.append(1)
        return Prepared({"noise": noise})

    def compute_loss(self, model: Any, batch: Batch, context: Tensors) -> Tensor:
        return nn.functional.cross_entropy(model(batch.x), batch.y) * (1 + context["noise"])


_SEEN: list[int] = []


class _Remembers(SharesModel[Any]):
    """Keeps a number beside the state, where no checkpoint finds it."""

    rounds = 0

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        self.rounds += 1
        return Prepared({"scale": torch.tensor(float(self.rounds))})

    def compute_loss(self, model: Any, batch: Batch, context: Tensors) -> Tensor:
        return nn.functional.cross_entropy(model(batch.x), batch.y) * context["scale"]


class _SendsMore(SharesModel[Any]):
    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        weight, payloads = super().finish(state, round_)
        return weight, {**payloads, "auxiliary": payloads["model"]}


def make_spec(training: type, **members: Any) -> type[ModelSpec]:
    place = f"{__name__}:{training.__name__}"
    members = {"name": "tried", "training": place, "__module__": OUTSIDE, **members}
    return type("TriedSpec", (ModelSpec,), members)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest imports this file under a name that is no module's to find."""
    module = types.ModuleType(__name__)
    module.__dict__.update({c.__name__: c for c in (_Plain, _Draws, _Remembers, _SendsMore, _BadLoop, _NoLoss)})
    monkeypatch.setitem(sys.modules, __name__, module)


def test_a_method_of_a_class_alone_conforms() -> None:
    check_method(make_spec(_Plain), settings=QUICK)


def test_a_method_that_draws_by_itself_is_found() -> None:
    with pytest.raises(DoesNotConform, match="expected the same bytes of two clients of one seed"):
        check_method(make_spec(_Draws), settings=QUICK)


def test_a_method_that_remembers_beside_its_state_is_found() -> None:
    with pytest.raises(DoesNotConform, match=r"all that a method remembers belongs into State\.arrays"):
        check_method(make_spec(_Remembers), settings=QUICK)


def test_a_payload_that_no_schema_has_is_found() -> None:
    with pytest.raises(DoesNotConform, match="payload 'auxiliary'"):
        check_method(make_spec(_SendsMore), settings=QUICK)


def test_a_schema_of_integers_in_a_mean_is_found() -> None:
    def schemas(self: Any, height: int) -> Mapping[str, ArraySchema]:
        return {"model": ArraySchema({"a": ArraySpec("int64", (3,))})}

    with pytest.raises(DoesNotConform, match=r"expected float32 for weighted_mean"):
        check_method(make_spec(_Plain, schemas=schemas), settings=QUICK)


def test_a_spec_that_loads_torch_is_found() -> None:
    with pytest.raises(DoesNotConform, match=r"ml\.models\.mlp: expected a module of specs that does not import torch"):
        check_method(make_spec(_Plain, __module__="ml.models.mlp"), settings=QUICK)


def test_a_rule_of_ones_own_is_found() -> None:
    with pytest.raises(DoesNotConform, match=r"my_rule"):
        check_method(make_spec(_Plain, rules=lambda self, height: {"model": "my_rule"}), settings=QUICK)


def test_what_a_daemon_would_have_to_run_is_found() -> None:
    with pytest.raises(DoesNotConform, match="expected no wanted of its own"):
        check_method(make_spec(_Plain, wanted=lambda self, *rest: ()), settings=QUICK)


def test_settings_that_are_none_are_found() -> None:
    with pytest.raises(DoesNotConform, match=r"method\.no_such: unknown key"):
        check_method("fedavg", settings={"no_such": 1})
    with pytest.raises(DoesNotConform, match="unknown method 'no-such-method'"):
        check_method("no-such-method")


# ---- loops that do not


class _BadLoop:
    def train(self, model: Any, data: Any, round: Any) -> Any:  # noqa: A002
        raise KeyError("lost")


class _NoLoss:
    def train(self, model: Any, data: Any, round: Any) -> Any:  # noqa: A002
        return {"accuracy": 1.0}


@dataclass(frozen=True)
class _OwnLoopSpec(LoopSpec):
    name: ClassVar[str] = "looped"
    loop: ClassVar[str] = "set below:X"


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (f"{__name__}:_BadLoop", "_BadLoop: KeyError: 'lost'"),
        (f"{__name__}:_NoLoss", "expected train to return numbers by name, `loss` among them"),
        (f"{__name__}:nothing", "importing .*:nothing: AttributeError"),
        ("no_such_module_here:X", "ModuleNotFoundError"),
    ],
)
def test_a_loop_that_fails_is_told_with_its_name(loop: str, message: str) -> None:
    spec = type("LoopedSpec", (_OwnLoopSpec,), {"loop": loop, "__module__": OUTSIDE})
    with pytest.raises(DoesNotConform, match=message):
        check_method(spec, settings=QUICK)


# ---- models that do not


@pytest.mark.parametrize(
    ("factory", "message"), [("make_broken", "KeyError: 'no such thing'"), ("not_callable", "expected a callable")]
)
def test_a_model_that_does_not_build_is_told(factory: str, message: str) -> None:
    with pytest.raises(DoesNotConform, match=message):
        check_model(f"support.data.user_models:{factory}", input_shape=(1, 8, 8), num_classes=10)
