"""Plugins: packages of others that offer methods, loops, models, readers of data and transforms by entry points.

A plugin has the name of its distribution, as `pip list` shows it; a module that was never installed has its own. Its
code runs with the rights of the process that imports it, so a process gets the `Plugins` that it may import, and
imports no others. A run has a `PluginRecord` of each: with it every member finds out, without importing anything,
whether it has the same code.

    group              what an entry point names
    fednode.methods    a subclass of MethodSpec (numpy alone), whose `training` names the class that trains
    fednode.loops      a class with train(model, data, round) -> metrics: local training of FedAvg's kind
    fednode.models     a factory of models, as in `ml.models.user`
    fednode.data       a function open_parts(source) -> Parts, as in the modules of `ml.data.readers`
    fednode.transforms a function that changes samples [N, C, H, W]
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

from ml.errors import MlError, SpecError

Group = Literal["methods", "loops", "models", "data", "transforms"]
GROUPS: tuple[Group, ...] = ("methods", "loops", "models", "data", "transforms")
MAX_NAME_CHARS = 128
MAX_VERSION_CHARS = 128

_SEPARATORS = re.compile(r"[-_.]+")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*|[a-z0-9_]+", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]*", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class PluginRefused(MlError):
    """A plugin is not installed, is not allowed, or differs from that of the run."""


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """A run's record of a plugin: its name, its version ("" for a module that was never installed) and a hash of its
    files."""

    name: str
    version: str
    sha256: str

    @classmethod
    def from_mapping(cls, path: str, value: object) -> Self:
        """Reads a record. Raises SpecError below `path` for a value that cannot be one."""
        if not isinstance(value, Mapping) or sorted(map(str, value)) != ["name", "sha256", "version"]:
            raise SpecError(path, f"expected {{name, version, sha256}}, got {_show(value)}")
        rules = (("name", _NAME, MAX_NAME_CHARS), ("version", _VERSION, MAX_VERSION_CHARS), ("sha256", _DIGEST, 64))
        for key, pattern, longest in rules:
            text = value[key]
            if not isinstance(text, str) or len(text) > longest or not pattern.fullmatch(text):
                raise SpecError(f"{path}.{key}", f"expected a plugin's {key}, got {_show(text)}")
        return cls(value["name"], value["version"], value["sha256"])

    def to_mapping(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version, "sha256": self.sha256}

    def __str__(self) -> str:
        return f"{self.name} {self.version or '(not installed)'} ({self.sha256[:8]})"


@dataclass(frozen=True, slots=True)
class Offered:
    """An entry point of an installed plugin, of which nothing has been imported yet."""

    group: Group
    name: str
    value: str
    plugin: str
    entry: EntryPoint


@dataclass(frozen=True, slots=True)
class Plugins:
    """The names of plugins that may be imported; with `any_` all may, for a command that a person types."""

    names: frozenset[str] = frozenset()
    any_: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        return cls(frozenset(map(normalise, names)))

    def allows(self, *names: str) -> bool:
        """Says whether a plugin with one of these names may be imported."""
        return self.any_ or not self.names.isdisjoint(map(normalise, names))

    def require(self, what: str, *names: str) -> None:
        """Raises PluginRefused unless `what`, of a plugin with one of these names, may be imported."""
        if not self.allows(*names):
            raise PluginRefused(
                f"{what} is code of the plugin {names[0]}: expected training.plugins to name it where it may run here"
            )

    def find(self, group: Group, name: str, plugin: str | None = None) -> Offered:
        """Returns the entry point of this name that may be imported, of `plugin` if that is given. Raises
        PluginRefused."""
        offered = [entry for entry in list_offered(group) if entry.name == name and plugin in (None, entry.plugin)]
        allowed = [entry for entry in offered if self.allows(entry.plugin)]
        if len(allowed) == 1:
            return allowed[0]
        if allowed:
            raise PluginRefused(f"{name!r} is offered by {_list(entry.plugin for entry in allowed)}: expected one")
        if offered:
            self.require(repr(name), offered[0].plugin)
        of = "" if plugin is None else f" of the plugin {plugin}"
        raise PluginRefused(f"no installed plugin offers {name!r}{of} under fednode.{group}")

    def load(self, offered: Offered, recorded: PluginRecord | None = None) -> Any:
        """Imports the object of an entry point. Raises PluginRefused, and any error of the plugin's code."""
        self.require(repr(offered.name), offered.plugin)
        if recorded is not None:
            check_record(recorded)
        return offered.entry.load()


NO_PLUGINS = Plugins()
ANY_PLUGIN = Plugins(any_=True)


def normalise(name: str) -> str:
    """Returns a distribution's name in its one normal spelling; a module's name that begins with an underscore changes
    only in case."""
    text = _SEPARATORS.sub("-", name).lower()
    return text if _NAME.fullmatch(text) else name.lower()


def list_offered(group: Group) -> list[Offered]:
    """Returns the entry points of a group, by name. Reads which plugins are installed, and imports none."""
    found = {
        (entry.name, normalise(entry.dist.name)): Offered(
            group, entry.name, entry.value, normalise(entry.dist.name), entry
        )
        for entry in entry_points(group=f"fednode.{group}")
        if entry.dist is not None
    }
    return [found[key] for key in sorted(found)]


# ---- installed plugins


def check_record(recorded: PluginRecord, package: str | None = None) -> None:
    """Raises PluginRefused unless the plugin of a run is installed here, with the same files."""
    try:
        here = make_record(recorded.name, package)
    except PluginRefused as error:
        raise PluginRefused(f"the run is of the plugin {recorded}, which is not installed here") from error
    if here != recorded:
        raise PluginRefused(f"the run is of the plugin {recorded}, and installed here is {here}: expected the same")


def make_record(name: str, package: str | None = None) -> PluginRecord:
    """Makes the record of what is installed under a plugin's name; `package` is the module's, where it is known.
    Imports nothing. Raises PluginRefused."""
    distribution = find_distribution(name)
    if distribution is None:
        return PluginRecord(normalise(name), "", hash_files(_list_module_files(package or name)))
    files = {str(file): Path(str(file.locate())) for file in distribution.files or () if _is_code(file.parts)}
    if not files:  # an editable installation, with its files elsewhere
        for package in sorted(_list_packages(distribution)):
            files |= _list_module_files(package)
    return PluginRecord(normalise(distribution.name), distribution.version, hash_files(files))


def find_plugin(package: str) -> str:
    """Returns the name of the plugin that a module's top-level package belongs to."""
    for distribution in distributions():
        if _brings(distribution, package):
            return normalise(distribution.name)
    return normalise(package)


def find_distribution(name: str) -> Distribution | None:
    """Returns the installed distribution of this name, in any spelling."""
    return next(iter(distributions(name=normalise(name))), None)


def hash_files(files: Mapping[str, Path]) -> str:
    """Computes the SHA-256 of the names and contents of files, in the order of their names. Raises PluginRefused."""
    whole = hashlib.sha256()
    for name in sorted(files):
        try:
            content = hashlib.sha256(files[name].read_bytes()).digest()
        except OSError as error:
            raise PluginRefused(f"{files[name]}: cannot be read ({error.strerror or error})") from error
        whole.update(len(name.encode()).to_bytes(4, "big") + name.encode() + content)
    return whole.hexdigest()


def search_working_directory() -> None:
    """Adds the working directory to the search path of modules, after all other places."""
    with suppress(FileNotFoundError):  # a directory that was removed
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())


def _list_module_files(package: str) -> dict[str, Path]:
    """Returns the files of a top-level module or package. Raises PluginRefused where there is none."""
    search_working_directory()
    found = _find_module(package)
    if found is None:
        raise PluginRefused(f"no module named {package!r}")
    origin, locations = found
    if not locations:
        return {origin.name: origin} if origin is not None else {}
    return {
        f"{package}/{path.relative_to(place).as_posix()}": path
        for place in locations
        for path in sorted(place.rglob("*"))
        if path.is_file() and _is_code(path.relative_to(place).parts)
    }


def _find_module(package: str) -> tuple[Path | None, list[Path]] | None:
    """Finds a top-level module without importing it: by its own spelling, or by its spelling as a plugin's name."""
    for spelling in dict.fromkeys((package, package.replace("-", "_"))):
        try:
            spec = find_spec(spelling) if spelling.isidentifier() else None
        except (ImportError, ValueError):  # a module that is being imported, or has no spec
            spec = None
        if spec is not None:
            origin = Path(spec.origin) if spec.origin is not None and spec.has_location else None
            return origin, [Path(place) for place in spec.submodule_search_locations or ()]
    return None


def _brings(distribution: Distribution, package: str) -> bool:
    """Says whether a top-level module is one of `_list_packages`. Does not parse the list of files, which in an
    environment with torch has tens of thousands."""
    record = distribution.read_text("RECORD")
    if record is None:  # not installed from a wheel
        return package in _list_packages(distribution)
    is_listed = re.search(rf'^"?{re.escape(package)}(?:/.*)?\.py"?,', record, re.MULTILINE) is not None
    return is_listed or package in _list_named(distribution)


def _list_packages(distribution: Distribution) -> set[str]:
    """Returns the top-level modules that a distribution installs."""
    listed = {file.parts[0] for file in distribution.files or () if len(file.parts) > 1 and file.suffix == ".py"}
    single = {file.stem for file in distribution.files or () if len(file.parts) == 1 and file.suffix == ".py"}
    return {*_list_named(distribution), *listed, *single}


def _list_named(distribution: Distribution) -> set[str]:
    """Returns the top-level modules that a distribution names in its metadata."""
    named = (distribution.read_text("top_level.txt") or "").split()
    if "[fednode." not in (distribution.read_text("entry_points.txt") or ""):
        return {*named}
    entered = {
        entry.module.partition(".")[0] for entry in distribution.entry_points if entry.group.startswith("fednode.")
    }
    return {*named, *entered}


def _is_code(parts: tuple[str, ...]) -> bool:
    """Says whether a file of a distribution is its own, not one that the installation adds."""
    is_added = parts[0] == ".." or parts[0].endswith((".dist-info", ".egg-info")) or "__pycache__" in parts
    return not is_added and not parts[-1].endswith((".pyc", ".pth")) and not parts[-1].startswith("__editable__")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
