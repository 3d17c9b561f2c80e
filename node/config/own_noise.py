"""A site's own noise: how `training.privacy` changes a run's method, for this node's own local phases alone.

Nothing that others check depends on it: a model with noise is a model. Where the run's rule is stronger, the run's
holds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chain.rules import Limits
from chain.run import Run
from chain.state import State
from ml.errors import SpecError
from ml.specs import METHODS, get_spec
from ml.specs.privacy import strengthen
from node.errors import ConfigError

if TYPE_CHECKING:
    from node.config.node_config import NodeConfig

log = logging.getLogger(__name__)


def get_trained_method(own: Mapping[str, float], run: Run, limits: Limits, num_members: int) -> dict[str, Any]:
    """Returns the method of `run` as a site with the noise `own` trains it. Raises SpecError, with the place in
    node.yaml, where the method cannot have that noise."""
    method = strengthen(run.method, own)
    if method == run.method:
        return method
    noise = "dp_update_noise" if "dp_update_noise" in own else "dp_noise"
    if run.method["name"] not in METHODS:
        raise SpecError(f"training.privacy.{noise}", f"expected none: {run.method['name']} sends what has no noise")
    try:
        get_spec(
            method,
            run.model,
            len(run.classes),
            run.input["shape"],
            max_weight=limits.max_weight,
            max_abs=limits.max_abs,
            rounds=run.rounds,
            num_members=num_members,
            input_=run.input,
            kind=run.task,
            target=run.target,
        )
    except SpecError as error:
        key = error.path.removeprefix("method.")
        place = f"training.privacy.{key if key in own else noise}"
        said = error.message if key in own else f"expected none: {error}"
        if error.message.startswith("unknown key"):
            said = f"expected none: {run.method['name']} cannot hide that"
        raise SpecError(place, said) from error
    return method


def explain_not_hidden(config: NodeConfig, state: State) -> str | None:
    """Returns why this site does not train in the run in force: its method cannot have the site's own noise. None where
    it can, or where the site has none."""
    own = config.training.privacy.get_own()
    if not own:
        return None
    try:
        get_trained_method(own, state.run, state.rules.limits, state.n)
    except SpecError as error:
        return str(error)
    return None


def validate_own_noise(config: NodeConfig, state: State, *, is_behind: bool = False) -> None:
    """Raises ConfigError where the first run cannot have the site's own noise. In a later run the node goes on and
    votes: the others chose that run. Where its chain may be behind, as for a node that joins or was restored, the run
    in force may be a later one, and only a warning is logged."""
    if state.run.number != 1 or (why := explain_not_hidden(config, state)) is None:
        return
    if config.join_file is None and not is_behind:
        raise ConfigError(why)
    log.warning("%s; this node votes, and trains in a run that can have it", why)
