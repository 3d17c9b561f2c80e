"""The specs of methods that plugins offer. They are found by name, imported if that is allowed, and checked: members
without the plugin have to be able to judge them.

A loop of one's own (`fednode.loops`) is a method as well: its spec is FedAvg's, and needs no import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ml.aggregation import compute_max_liars
from ml.errors import AggregationError, PayloadError, SpecError
from ml.plugins import Offered, PluginRecord, PluginRefused, Plugins, list_offered, make_record
from ml.specs.base import MethodSpec
from ml.specs.by_schema import SchemaSpec
from ml.specs.peers import PeerSpec
from ml.specs.run_schema import describe_payloads
from ml.specs.sharing import ModelSpec
from ml.specs.task import Task

_DAEMONS = (
    "get_kept",
    "carried",
    "carry",
    "list_stale",
    "closing",
    "wanted",
    "get_streamed",
    "get_shared_height",
    "wanted_in_training",
    "needed_until",
    "get_lent",
    "get_collect_s",
)
_PEERS_OWN = ("wanted", "draw", "get_num_peers")


@dataclass(frozen=True)
class LoopSpec(ModelSpec):
    """FedAvg, whose local training is a user's code: `loop` is package.module:Class of it, not imported here."""

    training: ClassVar[str] = "ml.methods.own_loop:OwnLoop"
    loop: ClassVar[str]


def load_spec(method: Mapping[str, Any], task: Task, plugins: Plugins) -> MethodSpec:
    """Loads the spec of a plugin's method from the plugin itself. If `method` records a plugin, only that one is
    accepted.

    Raises SpecError if the plugin is not installed, not allowed or not the run's, or if fednode cannot judge the spec.
    """
    recorded = None
    if "plugin" in method:
        recorded = PluginRecord.from_mapping("method.plugin", method["plugin"])
    try:
        spec_class = load_spec_class(str(method["name"]), plugins, recorded)
    except PluginRefused as error:
        raise SpecError("method.name", str(error)) from error
    spec = spec_class.from_mapping(method, task)
    if task.num_members:
        check_judgeable(spec)
    return spec


def is_offered(name: str) -> bool:
    """Says whether an installed plugin has a method or a loop of this name."""
    return any(entry.name == name for entry in (*list_offered("methods"), *list_offered("loops")))


def load_spec_class(name: str, plugins: Plugins, recorded: PluginRecord | None = None) -> type[MethodSpec]:
    """Loads the class of specs that an entry point of this name refers to. Raises PluginRefused, and SpecError if the
    plugin's code fails or returns something else."""
    offered = _find(name, plugins, None if recorded is None else recorded.name)
    record = recorded or make_record(offered.plugin)
    if offered.group == "loops":
        plugins.require(repr(name), offered.plugin)
        return _named(LoopSpec, name, record, loop=offered.value)
    try:
        found = plugins.load(offered, recorded)
    except (PluginRefused, SpecError):
        raise
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        raise SpecError("method.name", f"importing {offered.value}: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, MethodSpec) and found.training):
        raise SpecError(
            "method.name", f"expected {offered.value} to be a subclass of MethodSpec with `training`, got {found!r}"
        )
    return _named(found, name, record)


def check_judgeable(spec: MethodSpec) -> None:
    """Raises SpecError unless a member without the method's code judges its rounds as the method itself does."""
    for name in _DAEMONS:
        theirs = getattr(type(spec), name)
        if all(theirs is not getattr(base, name) for base in (MethodSpec, PeerSpec, ModelSpec)):
            raise SpecError("method.name", f"{spec.name}: expected no {name} of its own: members without its code vote")
    if isinstance(spec, PeerSpec) and any(getattr(type(spec), n) is not getattr(PeerSpec, n) for n in _PEERS_OWN):
        raise SpecError("method.name", f"{spec.name}: expected peers to be drawn as PeerSpec does it")
    if spec.shares_samples:
        raise SpecError("method.name", f"{spec.name}: expected a method that shares no samples")
    try:
        judge = SchemaSpec.read({**spec.to_mapping(), "plugin": _get_record(spec)}, describe_judged(spec), spec.task)
        liars = spec.rule_settings.max_liars
    except (AggregationError, PayloadError) as error:
        raise SpecError("method", str(error)) from error
    if liars not in (0, compute_max_liars(spec.task.num_members)):
        raise SpecError("method.name", f"{spec.name}: expected rules that are told of f liars as quorum: bft has it")
    for height in range(1, spec.sharing_heights + 3):
        if dict(judge.schemas(height)) != dict(spec.schemas(height)) or judge.rules(height) != dict(spec.rules(height)):
            raise SpecError("method.name", f"{spec.name}: its schema says something else of round {height}")


def describe_judged(spec: MethodSpec) -> dict[str, Any]:
    """Returns the schema of a run by this method, with the settings by which members judge it without its code."""
    return {**describe_payloads(spec), "judging": spec.describe_judging().to_mapping()}


def _get_record(spec: MethodSpec) -> Mapping[str, str]:
    """Returns the record of the spec's plugin; for a class that came by no entry point a placeholder."""
    return (spec.record or PluginRecord("unnamed", "", "0" * 64)).to_mapping()


def _find(name: str, plugins: Plugins, plugin: str | None) -> Offered:
    """Finds the entry point of a method or a loop. Raises PluginRefused."""
    is_loop = any(offered.name == name and plugin in (None, offered.plugin) for offered in list_offered("loops"))
    is_method = any(offered.name == name for offered in list_offered("methods"))
    return plugins.find("loops" if is_loop and not is_method else "methods", name, plugin)


def _named(base: type[MethodSpec], name: str, record: PluginRecord, **more: Any) -> type[MethodSpec]:
    """Returns the class under its entry point's name, with the record of its plugin."""
    return type(base.__name__, (base,), {"name": name, "record": record, "__module__": base.__module__, **more})
