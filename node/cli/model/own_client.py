"""The client that a node's worker would build for the first run of its chain, for commands that ask it something."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from node.errors import NodeError

if TYPE_CHECKING:
    from chain.run import Run
    from ml.clients.client import Client
    from node.config.node_config import NodeConfig
    from node.training.trainer import RunTask


@dataclass(frozen=True, slots=True)
class OwnRun:
    """A node's configuration, and the first run of its chain as its worker receives it."""

    config: NodeConfig
    task: RunTask

    @property
    def run(self) -> Run:
        return self.task.run


def load_own_run(config_file: Path) -> OwnRun:
    """Loads the configuration and the run. Raises ConfigError, or NodeError without the initial model."""
    from node.config.federation import load_federation
    from node.config.node_config import load_config
    from node.training.trainer import RunTask

    config = load_config(config_file, (), os.environ)
    federation = load_federation(config)
    genesis, initial_model = federation.genesis, federation.initial_model
    if initial_model is None:
        raise NodeError(f"{config.federation_file}: expected the initial model beside it")
    return OwnRun(config, RunTask(genesis.run, genesis.state.rules.limits, genesis.state.n, initial_model))


def make_own_client(own: OwnRun) -> Client:
    """Makes a client with the samples that the node has. Raises MlError."""
    from ml.clients.build import Compute, Federation, make_client
    from ml.data.image_cache import ImageCache
    from ml.payload import decode_arrays
    from ml.plugins import Plugins
    from node.training.own_split import open_own_sides
    from node.training.worker_config import TERMS, make_worker_config

    settings, initial = make_worker_config(own.config, own.task), own.task.initial_model
    data = initial if isinstance(initial, bytes) else initial.read_bytes()
    terms = {name: getattr(settings, name) for name in (*TERMS, "max_weight", "max_abs", "rounds", "num_members")}
    own_sides = None if settings.site_dir is None else open_own_sides(settings.site_dir, settings.data)
    return make_client(
        Federation(**terms, plugins=Plugins.of(settings.plugins)),
        data=settings.data,
        seed=settings.seed,
        initial=decode_arrays(data, len(data)),
        compute=Compute(settings.device, settings.engine),
        sides=own_sides,
        cache=ImageCache.of_node(settings.data, settings.data_dir),
    )
