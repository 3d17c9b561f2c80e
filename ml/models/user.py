"""A user's own network as a model: imported by name, examined once, and recorded in genesis (INTERFACES §6).

`--model package.module:factory` names it. The module is installed, on PYTHONPATH, or in the working directory, which
is searched last. The factory is a function of this signature:

    def factory(input_shape: tuple[int, ...], num_classes: int, **args: Any) -> torch.nn.Module

`input_shape` is [channels, height, width], or [features, 1, 1] of tables; `num_classes` is how many classes the
federation has; `args` are what `--set model.args.KEY=VALUE` says. It is called wherever the model is needed, and has
to return the same parameters and shapes each time. The module has two methods, and may have a third:

    embed(x: Tensor) -> Tensor               x is float32 [batch, *input_shape]; returns the embedding, [batch, D]
    classify(z: Tensor) -> Tensor            z is what embed returns; returns logits, [batch, num_classes]
    embed_layers(x: Tensor) -> list[Tensor]  for methods that compare layers: [batch, D_l] each, and embed(x) last

The model is classify(embed(x)); a `forward` of the module is not used. Each trained parameter belongs to one of the
two, and all are float32. A parameter that has requires_grad=False, or is named by `model.frozen`, is sent once, in the
initial model, and never changes. A parameter with two names is sent under the first. For example, in `nets.py`, as
`--model nets:make --set model.args.width=32`:

    class Net(torch.nn.Module):
        def __init__(self, channels, num_classes, width):
            super().__init__()
            self.conv = torch.nn.Conv2d(channels, width, 3)
            self.head = torch.nn.Linear(width, num_classes)

        def embed(self, x):
            return self.conv(x).relu().mean((2, 3))

        def classify(self, z):
            return self.head(z)

    def make(input_shape, num_classes, width=16):
        return Net(input_shape[0], num_classes, width)

Errors of the module's own code are reported with the user's file and line.

Making a federation builds the model once, by `resolve_model`, and records what validators need, and the plugin that
the module belongs to (`ml.plugins`). A node builds it for training by `build_user_model`: only if its own configuration
allows that plugin, since it runs its code, and only with the same files. A plugin may offer a factory under a short
name, as an entry point in `fednode.models`; genesis then has the module that the entry point names.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ml.errors import SpecError
from ml.models.base import Model, find_tied
from ml.plugins import (
    PluginRecord,
    PluginRefused,
    Plugins,
    check_record,
    find_plugin,
    make_record,
    search_working_directory,
)
from ml.specs.architectures import complete_model, get_layout, is_user_model
from ml.specs.architectures.frozen import check_patterns, list_resting, match_patterns
from ml.specs.architectures.user import FOUND_WHERE_THERE

OUR_PACKAGES = ("fednode", "node", "chain", "ml")  # a user's module with such a name is never found

_SEED = 0  # seed of the check's images
_BATCH = 2


def resolve_model(model: Mapping[str, Any], input_shape: Sequence[int], num_classes: int) -> dict[str, Any]:
    """Returns `model` as genesis has it, with all defaults; a user's model is built, and the result has what that
    showed: its shapes, its split and its plugin.

    Raises SpecError where it cannot be built or does not split into g and h.
    """
    complete = complete_model(model)
    if not is_user_model(complete):
        return complete
    shape = tuple(input_shape)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        net = _make_model(complete, shape, num_classes)
        found = _examine(net, complete["name"], shape, num_classes)
        again = _make_model(complete, shape, num_classes)
    _check_same(complete["name"], found, _get_shapes(again))
    with _translated("reading the module's files"):
        package = _get_package(complete["name"])
        record = make_record(find_plugin(package), package)
    resolved: dict[str, Any] = {key: complete[key] for key in ("name", "args", "frozen") if key in complete}
    resolved |= {**found, "plugin": record.to_mapping()}
    get_layout(resolved, shape, num_classes)
    return resolved


def build_user_model(model: Mapping[str, Any], input_shape: Sequence[int], num_classes: int, plugins: Plugins) -> Model:
    """Builds the module that genesis' `model` names, from one of `plugins`. Raises SpecError, also where the plugin's
    files or the module's shapes differ from those in genesis."""
    package = _get_package(model["name"])
    recorded = PluginRecord.from_mapping("model.plugin", model["plugin"])
    try:
        plugins.require(model["name"], find_plugin(package), package)
        check_record(recorded, package)
    except PluginRefused as error:
        raise _fail(str(error)) from error
    net = _make_model(model, tuple(input_shape), num_classes)
    _check_same(model["name"], model, _get_shapes(net))
    return net


# ---- building


def _make_model(model: Mapping[str, Any], shape: tuple[int, ...], num_classes: int) -> Model:
    name: str = model["name"]
    package, _, attribute = name.partition(":")
    module = _import(package)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        got = f"got {factory!r}" if hasattr(module, attribute) else "which has none of that name"
        raise _fail(f"expected a callable {attribute!r} in {package!r}, {got} ({module.__file__})")
    with _translated(f"{name}{(shape, num_classes)}"):
        net = factory(shape, num_classes, **model.get("args", {}))
    if not isinstance(net, nn.Module):
        raise _fail(f"expected {name} to return a torch.nn.Module, got {type(net).__name__}")
    for part in ("embed", "classify"):
        if not callable(getattr(net, part, None)):
            raise _fail(f"expected {type(net).__name__} to have a method {part!r}: a model is classify(embed(x))")
    if not isinstance(net, Model):
        net.__class__ = _as_model(type(net))
    assert isinstance(net, Model)  # noqa: S101 - its class is one now
    _freeze(net, check_patterns(model))
    return net


def _freeze(net: Model, patterns: Sequence[str]) -> None:
    """Freezes the parameters that the user's code has frozen or `patterns` name, and the statistics that belong to
    them."""
    parameters = dict(net.named_parameters())
    frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    frozen |= match_patterns(patterns, parameters)
    if frozen:
        net.freeze(frozen.union(list_resting((name for name, _ in net.named_buffers()), parameters, frozen)))


def _import(package: str) -> ModuleType:
    """Imports the user's module. Adds the working directory to the search path first, as its last entry."""
    search_working_directory()
    with _translated(f"importing {package!r}"):
        try:
            return import_module(package)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{package}.".startswith(f"{error.name}."):
                raise  # the user's module itself imports it
            told = f"importing {package!r}: no module named {error.name!r}"
            first = error.name.partition(".")[0]
            if first in OUR_PACKAGES:
                raise _fail(f"{told}: {first!r} is fednode's own package; expected another name for yours") from error
            raise _fail(f"{told}; expected it installed, on PYTHONPATH, or in the working directory") from error


def _get_package(name: str) -> str:
    """Returns the top-level package of package.module:factory."""
    return name.partition(":")[0].partition(".")[0]


def _as_model(user_class: type[nn.Module]) -> type[Model]:
    """Makes the user's class a `Model` too, so that its parameters keep the names that the user chose."""
    return type(user_class.__name__, (user_class, Model), {"forward": Model.forward, "__module__": __name__})


# ---- examining


def _examine(net: Model, name: str, shape: tuple[int, ...], num_classes: int) -> dict[str, Any]:
    """Returns the mapping's other keys. Raises SpecError for any property of the model that methods cannot work
    with."""
    _check_tensors(net)
    parameters = dict(net.named_parameters())
    x = torch.rand((_BATCH, *shape), generator=torch.Generator().manual_seed(_SEED))
    before = x.clone()
    net.eval()
    with _translated(f"{name}: embed"):
        z = net.embed(x)
    _check_output("embed", z, (_BATCH, None))
    z = z.detach()
    with _translated(f"{name}: classify"):
        logits = net.classify(z.clone())
    _check_output("classify", logits, (_BATCH, num_classes))
    with _translated(f"{name}: one sample alone, in eval mode"):
        net.classify(net.embed(x[:1]))
    with _translated(f"{name}: embed_layers"):
        layers = net.embed_layers(x)
    if not isinstance(layers, list | tuple) or not layers:
        raise _fail(f"expected embed_layers to return a list of tensors, got {type(layers).__name__}")
    for layer in layers:
        _check_output("embed_layers", layer, (_BATCH, None))
    _check_repeatable(net, x, before, z, logits, layers[-1])
    classifier = _split(net, x, z, parameters)
    net.train()
    with _translated(f"{name}: training"):
        net.classify(net.embed(x)).sum().backward()  # type: ignore[no-untyped-call]
    return {
        **_get_shapes(net),
        "embedding": z.shape[1],
        "layers": [layer.shape[1] for layer in layers],
        "classifier": classifier,
    }


def _check_tensors(net: Model) -> None:
    once = dict(net.named_parameters())
    for name, parameter in once.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise _fail(f"parameter {name!r}: expected a shape, got one that the first batch decides")
        if parameter.dtype != torch.float32:
            raise _fail(f"parameter {name!r}: expected float32, got {parameter.dtype}")
    if not any(parameter.requires_grad for parameter in once.values()):
        raise _fail("expected some parameters that are trained, got none")
    for name, tensor in net.state_dict().items():
        if not tensor.is_floating_point():
            continue
        if name not in once and tensor.dtype != torch.float32:
            raise _fail(f"buffer {name!r}: expected float32 or whole numbers, got {tensor.dtype}")
        if not bool(tensor.isfinite().all()):
            got = float(tensor[~tensor.isfinite()][0])
            remedy = "" if name in once else "; register_buffer(..., persistent=False) keeps a constant out of that"
            what = "parameter" if name in once else "buffer"
            raise _fail(
                f"{what} {name!r}: expected finite numbers, as members send and average it, got {got:g}{remedy}"
            )


def _check_output(method: str, output: Any, shape: tuple[int | None, ...]) -> None:
    wanted = f"[{', '.join('D' if n is None else str(n) for n in shape)}]"
    if not isinstance(output, Tensor):
        raise _fail(f"expected {method} to return tensors, got {type(output).__name__}")
    fits = len(output.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, output.shape, strict=True))
    if not fits or output.dtype != torch.float32:
        raise _fail(f"expected {method} to return float32 {wanted}, got {output.dtype} {list(output.shape)}")


def _check_repeatable(net: Model, x: Tensor, before: Tensor, z: Tensor, logits: Tensor, last: Tensor) -> None:
    again = net.embed(x)
    if not torch.equal(x, before):
        raise _fail("expected embed to leave its images as they are; it changed them in place")
    if not torch.equal(again, z):
        raise _fail("expected embed to give the same twice in eval mode")
    given = z.clone()
    if not torch.equal(net.classify(given), logits):
        raise _fail("expected classify to give the same twice in eval mode")
    if not torch.equal(given, z):
        raise _fail("expected classify to leave the embedding as it is; it changed it in place")
    if not torch.equal(last, z):
        raise _fail("expected embed_layers to end in what embed returns")


def _split(net: Model, x: Tensor, z: Tensor, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """Returns the names of h's trained parameters. Checks first that g and h have some each, unless something is
    frozen, none in common and none left over."""
    parameters = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    in_g, in_h = _get_reached(net.embed(x), parameters), _get_reached(net.classify(z), parameters)
    for part, reached in (("embed", in_g), ("classify", in_h)):
        if not reached and not net.has_frozen:
            raise _fail(f"expected {part} to use parameters, got none: the model does not split into g and h")
    if both := [name for name in parameters if name in in_g and name in in_h]:
        raise _fail(f"expected embed and classify to share no parameter, got {', '.join(both)} in both")
    if neither := [name for name in parameters if name not in in_g and name not in in_h]:
        raise _fail(f"expected every parameter in embed or classify, got {', '.join(neither)} in neither")
    return [name for name in parameters if name in in_h]


def _get_reached(output: Tensor, parameters: Mapping[str, nn.Parameter]) -> set[str]:
    if not output.requires_grad:
        return set()
    gradients = torch.autograd.grad(output.sum(), list(parameters.values()), allow_unused=True)
    return {name for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None}


# ---- shapes


def _get_shapes(net: Model) -> dict[str, dict[str, Any]]:
    """Returns the shapes of the parameters, the float buffers, and the frozen arrays, in `state_dict()` order, and the
    further names of arrays. The last two only where there are some."""
    parameters, tied = dict(net.named_parameters()), find_tied(net)
    found: dict[str, dict[str, Any]] = {"parameters": {}, "buffers": {}, "frozen_arrays": {}, "tied": {}}
    for name, tensor in net.state_dict().items():
        if not tensor.is_floating_point():
            continue
        if name in tied:
            found["tied"][name] = tied[name]
        elif net.is_frozen(name):
            found["frozen_arrays"][name] = list(tensor.shape)
        else:
            found["parameters" if name in parameters else "buffers"][name] = list(tensor.shape)
    return {key: value for key, value in found.items() if value or key not in FOUND_WHERE_THERE}


def _check_same(name: str, expected: Mapping[str, Any], got: Mapping[str, Mapping[str, Any]]) -> None:
    for key in ("parameters", "buffers", *FOUND_WHERE_THERE):
        was, now = (
            {n: v if isinstance(v, str) else tuple(v) for n, v in each.get(key, {}).items()} for each in (expected, got)
        )
        for n in sorted(was.keys() | now.keys()):
            if was.get(n) != now.get(n):
                raise _fail(f"{name} built again has other {key}: {n!r} was {was.get(n)}, now is {now.get(n)}")


# ---- errors of a user's code

_OURS = Path(__file__).parents[1]
_LIBRARIES = (Path(torch.__file__).parents[1], *(Path(sysconfig.get_path(key)) for key in ("stdlib", "purelib")))


def _fail(message: str) -> SpecError:
    return SpecError("model.name", message)


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Translates any error of the user's code into a SpecError that says where it was raised."""
    try:
        yield
    except SpecError:
        raise
    except PluginRefused as error:
        raise _fail(f"{doing}: {error}") from error
    except SyntaxError as error:  # in the user's file, or one that it imports
        raise _fail(f"{doing}: {type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})") from error
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        place = _find_place(error.__traceback__)
        raise _fail(f"{doing}: {type(error).__name__}: {error} ({place})") from error


def _find_place(raised: TracebackType | None) -> str:
    """Returns the last line of the user's code that was run, as FILE:LINE, however deep in a library the error was
    raised."""
    frames = [frame for frame in traceback.extract_tb(raised) if not frame.filename.startswith("<")]
    called = [frame for frame in frames if not _is_below(frame.filename, _OURS)] or frames
    theirs = [frame for frame in called if not any(_is_below(frame.filename, place) for place in _LIBRARIES)]
    # An installed module of the user's is the first that was called.
    last = (theirs or [frame for frame in called if frame.filename == called[0].filename])[-1]
    return f"{last.filename}:{last.lineno}"


def _is_below(file: str, directory: Path) -> bool:
    return directory in Path(file).parents
