"""A site's own model, which it may lend: the state that a run left its client with, if it is on this disk."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from chain.calendar import Place
from ml.errors import DataError, MlError
from node.errors import NodeError, NotFound
from node.training.checkpoint import CHECKPOINTS, Checkpoint, Phase, get_run_dir, read_checkpoint
from node.training.kept_rounds import get_kept_path, read_kept
from node.training.privacy_ledger import PRIVACY_FILE, read_account

if TYPE_CHECKING:
    from ml.clients.client import Client
    from node.config.node_config import NodeConfig

_log = logging.getLogger(__name__)


def explain_not_lent(config: NodeConfig, place: Place) -> str | None:
    """Returns why this site does not lend its own model of a round; None where it can."""
    if (why := explain_hidden(config, place.run)) is not None:
        return why
    try:
        read_own(get_run_dir(config.node.data_dir / CHECKPOINTS, place.run), place.round)
    except (NodeError, OSError) as error:
        return str(error)
    return None


def explain_hidden(config: NodeConfig, run: int) -> str | None:
    """Returns why noise keeps this site from lending its own model of a run; None where there is no noise."""
    if config.training.privacy.get_own():
        return "this site hides its samples by noise of its own (training.privacy), and weights would tell of them"
    try:
        account = read_account(config.node.data_dir / PRIVACY_FILE)
    except MlError as error:
        return str(error)
    if run in account.runs:
        return f"this site has hidden its samples by noise in run {run}, and weights would tell of them"
    return None


def read_own(run_dir: Path, number: int) -> Checkpoint:
    """Returns the client's state after a round of the run whose checkpoints are in `run_dir`. Raises NotFound, and
    VerificationFailed where the kept state is damaged."""
    if get_kept_path(run_dir, number).exists():
        return read_kept(run_dir, number)
    newest = read_checkpoint(run_dir, Phase.APPLIED)
    if newest is None or newest.round_number != number:
        raise NotFound(f"this site's own model after round {number} is not kept here (training.keep_models)")
    return newest


def take_own_model(client: Client, run_dir: Path, number: int, *, lends: bool) -> None:
    """Has a client load its own model of that round, and lend it if it `lends`. If that fails, the log says why."""
    try:
        client.take_own(read_own(run_dir, number).arrays, lends=lends)
    except (NodeError, DataError, OSError) as error:
        _log.warning("This site %s: %s", "lends no model" if lends else "answers by no model of its own", error)
