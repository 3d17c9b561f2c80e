"""The check of the code of others that a node runs: the plugins that it allows, those that the run asks for, and the
model, where that is a user's own: it is imported and built as the worker will do it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout

from chain.genesis import Genesis
from chain.run import Run
from ml.errors import SpecError
from ml.plugins import GROUPS, PluginRefused, list_offered, make_record, normalise
from ml.specs.architectures import is_user_model
from node.cli.doctor.findings import Finding, fail, ok, warn
from node.config.genesis_members import read_head_state
from node.config.node_config import NodeConfig
from node.config.plugins import explain_refusal, list_records


def check_model(config: NodeConfig, genesis: Genesis) -> Iterator[Finding]:
    """Checks the code of the run in force, as far as it is known here."""
    run = (read_head_state(config, genesis) or genesis.state).run
    yield from _check_plugins(config, run)
    refusal = None if config.node.observer else explain_refusal(run, config.plugins)
    if refusal is not None:
        advice = "read that code, then install and allow it (training.plugins); until then this node only votes"
        yield fail("plugins", refusal, advice)
    if not is_user_model(run.model):
        yield ok("model", f"{run.model['name']}, which comes with fednode")
    elif refusal is None and not config.node.observer:
        yield _build_model(config, run)


def _check_plugins(config: NodeConfig, run: Run) -> Iterator[Finding]:
    """Checks the plugins that the configuration allows. None of them is imported."""
    offered = [entry for group in GROUPS for entry in list_offered(group)]
    asked = {record.name for record in list_records(run).values()}
    for name in config.training.plugins:
        try:
            record = make_record(name)
        except PluginRefused as error:
            advice = f"install {name}, or take it out of training.plugins"
            yield (fail if normalise(name) in asked else warn)("plugins", f"{name} is allowed, and {error}", advice)
            continue
        offers = [f"{entry.group} {entry.name}" for entry in offered if entry.plugin == record.name]
        yield ok("plugins", f"{record} is allowed; it offers {', '.join(offers) or 'no entry point'}")


def _build_model(config: NodeConfig, run: Run) -> Finding:
    from ml.models import build_model

    name = run.model["name"]
    try:
        with redirect_stdout(sys.stderr):  # the module's own output is no finding
            model = build_model(run.model, run.input["shape"], len(run.classes), plugins=config.plugins)
    except SpecError as error:
        advice = "put the module that all members have where this node starts, or on PYTHONPATH, with what it imports"
        return fail("model", str(error), advice)
    count = sum(parameter.numel() for parameter in model.parameters())
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    return ok("model", f"{name} of {file}, {count:,} parameters")
