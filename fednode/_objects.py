"""Data and models that are objects, as the names and files that a command line has for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from fednode._settings import write_settings
from ml.data.objects import LABEL, Written, count_sites, name_object, write_object
from ml.errors import DataError
from node.errors import ConfigError, NodeError

_FIND = """
import importlib.util, os, sys
sys.path.append(os.getcwd())
print(importlib.util.find_spec(sys.argv[1]).origin)
"""

BY_SITE = "domains"  # the partition in which each site has its own data


@dataclass(frozen=True, slots=True)
class DataOptions:
    """The options of a command line that stand for `data=` and `settings=`."""

    data: str
    settings: tuple[str, ...]


def choose_sites(data: object, nodes: int, partition: str, usual: tuple[int, str]) -> tuple[int, str]:
    """Returns the number of nodes and the partition of the data; a list of data has one item for each site. `usual` are
    the defaults where the caller chose neither. Raises ConfigError."""
    sites = count_sites(data)
    if nodes < 1:
        raise ConfigError(f"nodes: expected at least 1 (got {nodes})")
    if sites is None:
        return nodes, partition
    if sites < 2:
        raise ConfigError(f"data: expected at least 2 sites in a list, with an object for each (got {sites})")
    if nodes not in (sites, usual[0]):
        raise ConfigError(f"nodes: expected {sites}, as data has one object for each site (got {nodes})")
    if partition not in (BY_SITE, usual[1]):
        raise ConfigError(f"partition: expected none, as data has one object for each site (got {partition!r})")
    return sites, BY_SITE


def is_written(data: object) -> bool:
    """Says whether data are an object, which first has to be written to files."""
    return not isinstance(data, str | PathLike)


@contextmanager
def reading_data(data: object, directory: Path, settings: Mapping[str, Any] | None, seed: int) -> Iterator[DataOptions]:
    """Yields the options for data under `settings`; an object is written into `directory`. Where there is one object
    for each site, their splits follow from the run's seed. Raises ConfigError that describes a fault in the object's
    own terms."""
    if isinstance(data, str | PathLike):
        yield DataOptions(os.fspath(data), write_settings(settings))
        return
    try:
        written = write_object(data, directory)
        added = _add_labels(written, settings or {})
        if count_sites(data) is not None:
            added = {"data.split_seed": seed} | added
        yield DataOptions(f"{written.format}:{written.path}", write_settings(added))
    except DataError as error:
        raise ConfigError(name_object(str(error), directory)) from error
    except ConfigError as error:
        problems = [name_object(problem, directory) for problem in error.problems]
        raise ConfigError(name_object(str(error), directory), problems=problems, source=error.source) from error
    except NodeError as error:
        raise type(error)(name_object(str(error), directory)) from error


def _add_labels(written: Written, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with the columns of a table that hold the labels. Raises ConfigError where no column
    does."""
    labels = list(written.labels) if len(written.labels) > 1 else next(iter(written.labels), None)
    added = ({} if labels is None else {"data.columns.label": labels}) | dict(settings)
    named = added.get("data.columns.label", LABEL)
    if written.columns and not set(named if isinstance(named, list) else [named]) <= set(written.columns):
        raise ConfigError(
            f"data: expected a column {named!r} of labels, or the name of another beside the frame, as in (frame, "
            f"'outcome'): one of {', '.join(written.columns)}"
        )
    return added


def name_model(model: object) -> str:
    """Returns the value of `--model` for a model: its name, or `module:name` of a class or a factory, by which nodes
    import it. Raises ConfigError."""
    if isinstance(model, str):
        return model
    name, module = getattr(model, "__qualname__", None), getattr(model, "__module__", None)
    if not callable(model) or not isinstance(name, str) or not isinstance(module, str):
        raise ConfigError(
            f"model: expected a name, or the class or factory of a torch.nn.Module (got {_describe(model)})"
        )
    remedy = "write it at the top of a file such as nets.py, and import it from there"
    if module == "__main__":
        raise ConfigError(f"model: expected what nodes can import by its name, and {name} is this program's: {remedy}")
    if getattr(import_module(module), name, None) is not model:
        raise ConfigError(f"model: expected what nodes can import by its name, and {module} has no {name}: {remedy}")
    return f"{module}:{name}"


def check_importable(model: str) -> None:
    """Raises ConfigError where another process on this machine cannot import the module of a model that is loaded here:
    it searches PYTHONPATH, the installed packages, and last the working directory."""
    package = model.partition(":")[0].partition(".")[0]
    loaded = getattr(sys.modules.get(package), "__file__", None) if ":" in model else None
    if loaded is None:
        return
    command = [sys.executable, "-P", "-c", _FIND, package]
    found = subprocess.run(command, capture_output=True, text=True).stdout.strip()  # noqa: S603 - our own words
    if not found or not os.path.exists(found) or not os.path.samefile(found, loaded):
        place = Path(loaded).absolute()
        root = place.parent.parent if place.stem == "__init__" else place.parent
        raise ConfigError(
            f"model: expected {package} in the working directory or on PYTHONPATH, as nodes are processes of their own "
            f"(got {found or 'none'}): start in {root}, or with PYTHONPATH={root}"
        )


def _describe(model: Any) -> str:
    kind = type(model).__name__
    return f"an instance: {kind} is its class" if hasattr(model, "state_dict") else repr(model)
