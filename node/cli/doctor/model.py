"""The check of the model that this node is to train: where it is a user's own module, that is imported and built as the
worker will do it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout

from chain.genesis import Genesis
from ml.specs.architectures import is_user_model
from node.cli.doctor.findings import Finding, fail, ok
from node.config.genesis_members import read_head_state
from node.config.node_config import NodeConfig


def check_model(config: NodeConfig, genesis: Genesis) -> Iterator[Finding]:
    """Of the run in force, as far as it is known here. That a module is not allowed is said at the members."""
    run = (read_head_state(config, genesis) or genesis.state).run
    name = run.model["name"]
    if not is_user_model(run.model):
        yield ok("model", f"{name}, which comes with fednode")
        return
    if not config.training.user_models or config.node.observer:
        return
    from ml.errors import SpecError
    from ml.models import build_model

    try:
        with redirect_stdout(sys.stderr):  # what the module prints is no finding
            model = build_model(run.model, run.input["shape"], len(run.classes), user_models=True)
    except SpecError as error:
        advice = "put the module that all members have where this node starts, or on PYTHONPATH, with what it imports"
        yield fail("model", str(error), advice)
        return
    count = sum(parameter.numel() for parameter in model.parameters())
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    yield ok("model", f"{name} of {file}, {count:,} parameters")
