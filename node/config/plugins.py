"""The plugins that a run needs, checked against those that a node's own configuration allows and those installed.

A plugin runs with the rights of the node: it can read its data and its key. So only the node's own operator allows one,
in `training.plugins`; no genesis, change or peer does. Nothing is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chain.run import Run
from ml.plugins import PluginRecord, PluginRefused, Plugins, check_record
from ml.specs.architectures import is_user_model


def list_records(run: Run) -> dict[str, PluginRecord]:
    """Returns the plugins of a run by their use, `method` and `model`; none for a run with fednode's own code only.
    Raises SpecError."""
    parts: dict[str, Mapping[str, Any]] = {"method": run.method, "model": run.model}
    return {
        what: PluginRecord.from_mapping(f"{what}.plugin", part["plugin"])
        for what, part in parts.items()
        if "plugin" in part
    }


def explain_refusal(run: Run, plugins: Plugins) -> str | None:
    """Returns why a node that may import `plugins` does not train in a run, though it votes in it; None where it
    can."""
    for what, record in list_records(run).items():
        name = run.method["name"] if what == "method" else run.model["name"]
        package = str(name).partition(":")[0].partition(".")[0] if is_user_model({"name": name}) else None
        try:
            plugins.require(f"{what} {name}", record.name, *([] if package is None else [package]))
            check_record(record, package)
        except PluginRefused as error:
            return f"{what}.name: {error}"
    return None


def list_names(run: Run, data: Mapping[str, Any]) -> list[str]:
    """Returns the plugins that a run and its data need, for the configurations of a new network's nodes."""
    return sorted({*(record.name for record in list_records(run).values()), *data.get("plugins", ())})


def split_data(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Splits the plugins off from `data`, which a person typed. Returns `data` for a configuration, and the plugins."""
    return {key: value for key, value in data.items() if key != "plugins"}, list(data.get("plugins", ()))


def add_plugins(data: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns `data` with the plugins that may be imported for it, for those who read the data."""
    allowed = sorted(names)
    return dict(data) | ({"plugins": allowed} if allowed else {})
