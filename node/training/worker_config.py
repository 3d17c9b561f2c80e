"""The configuration of a worker: all that it needs to build its client, as sent in the call that starts it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml.aggregation import MAX_WEIGHT
from ml.data.split import complete_val
from ml.errors import SpecError
from ml.seeding import derive_seed
from ml.specs.task import MAX_ABS
from ml.tasks import CLASSIFICATION
from node.config.own_noise import get_trained_method
from node.host.child import make_arguments
from node.training.checkpoint import CHECKPOINTS, get_run_dir
from node.training.frames import Frame
from node.training.kept_rounds import keeps_rounds
from node.training.lending import explain_hidden
from node.training.privacy_ledger import PRIVACY_FILE
from node.training.trainer import RunTask, WorkerFailed

if TYPE_CHECKING:
    from node.config.node_config import NodeConfig

log = logging.getLogger(__name__)

TERMS = ("method", "model", "classes", "input", "task", "target", "labels")  # of a run, passed on to the worker
WORKER = "node.training.worker_child"
LOADS = ("torch", "ml.clients.answering", "ml.clients.build", "ml.data.own_transform")  # slow to import
WORKER_ARGUMENTS = make_arguments(WORKER)  # modules in the daemon's working directory are not imported
DEFAULT_COMMAND = (sys.executable, *WORKER_ARGUMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Holds all that a worker needs to build its client. Mappings are the run's and the node configuration's, as in
    JSON.

    `engine` has the fields of `ml.training.loop.Engine`; with `threads` None torch chooses the number. `outgoing_dir`,
    on the store's filesystem and used by nothing else, is for payloads too large to pass. `data_dir` is the node's,
    where decoded images are kept. `before_dir` has the checkpoints of the run that this one continues, if its last
    round was `before_round`. `own_dir` has those of the run whose model after `own_round` is the site's own, which it
    `lends` or not. `plugins` are those that may be imported; `schema` is the run's where its method is a plugin's.
    Where samples or the site are hidden, `privacy_file` is the account of what was revealed, `privacy_budget` its
    bound, and `privacy_set_aside` what is not counted against it; with `hides_itself` the noise is the site's alone and
    not the run's. `site_dir` keeps how the site's own data are split, and what was trained on. `python` and `arguments`
    name the worker's program.
    """

    method: Mapping[str, Any]
    model: Mapping[str, Any]
    classes: tuple[str, ...]
    input: Mapping[str, Any]
    task: str = CLASSIFICATION
    target: Mapping[str, Any] | None = None
    labels: Mapping[str, Any] | None = None
    data: Mapping[str, Any]
    seed: int
    initial_model: Path | bytes = field(repr=False)
    checkpoint_dir: Path
    outgoing_dir: Path
    data_dir: Path | None = None
    device: str = "auto"
    threads: int | None = 1
    engine: Mapping[str, Any] = field(default_factory=dict)
    max_weight: int = MAX_WEIGHT
    max_abs: float = MAX_ABS
    rounds: int = 0
    num_members: int = 0
    checkpoint_every: int = 1
    keeps_rounds: bool = False
    run: int = 1
    before_dir: Path | None = None
    before_round: int | None = None
    own_dir: Path | None = None
    own_round: int | None = None
    lends: bool = False
    plugins: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    max_loss_ratio: float | None = None
    compare_local: bool = False
    privacy_budget: float | None = None
    privacy_set_aside: str | None = None
    privacy_file: Path | None = None
    site_dir: Path | None = None
    hides_itself: bool = False
    niceness: int = 0
    python: str = sys.executable
    arguments: tuple[str, ...] = WORKER_ARGUMENTS

    @property
    def command(self) -> tuple[str, ...]:
        return self.python, *self.arguments

    def encode(self) -> Frame:
        """Returns the call that starts a worker."""
        apart = ("initial_model", "python", "arguments")
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in apart}
        config = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        if isinstance(self.initial_model, bytes):
            return Frame({"call": "start", "config": config}, {"initial_model": self.initial_model})
        return Frame({"call": "start", "config": {**config, "initial_model": str(self.initial_model)}})


def make_worker_config(config: NodeConfig, task: RunTask) -> WorkerConfig:
    """Makes the configuration of a site's worker in a run: the run says what it trains, the node's configuration on
    which data and how. Each run after the first draws from seeds of its own. Raises WorkerFailed where the run's method
    cannot have the site's own noise."""
    training, run = config.training, task.run
    try:
        method = get_trained_method(training.privacy.get_own(), run, task.limits, task.num_members)
    except SpecError as error:
        raise WorkerFailed(str(error)) from error
    checkpoints, lends = config.node.data_dir / CHECKPOINTS, task.lends
    if lends and task.own is not None and (why := explain_hidden(config, task.own.run)) is not None:
        log.warning("this site lends no model: %s", why)
        lends = False
    return WorkerConfig(
        method=method,
        model=run.model,
        classes=run.classes,
        input=run.input,
        task=run.task,
        target=run.target,
        labels=run.labels,
        data=complete_val(config.get_data(), selects=run.select is not None),
        seed=training.seed if run.number == 1 else derive_seed(training.seed, "run", run.number),
        initial_model=task.initial_model,
        checkpoint_dir=get_run_dir(checkpoints, run.number),
        outgoing_dir=config.node.data_dir / "blobs" / "outgoing",  # on the filesystem of the blobs
        data_dir=config.node.data_dir,
        device=training.device,
        threads=None if training.threads == "auto" else training.threads,
        engine={
            "precision": training.precision,
            "channels_last": training.channels_last,
            "compiled": training.compile,
            "deterministic": training.deterministic,
            "graphs": training.cuda_graphs,
        },
        max_weight=task.limits.max_weight,
        max_abs=task.limits.max_abs,
        rounds=run.rounds,
        num_members=task.num_members,
        run=run.number,
        before_dir=None if task.goes_on_after is None else get_run_dir(checkpoints, run.number - 1),
        before_round=task.goes_on_after,
        own_dir=None if task.own is None else get_run_dir(checkpoints, task.own.run),
        own_round=None if task.own is None else task.own.round,
        lends=lends,
        checkpoint_every=training.checkpoint_every,
        keeps_rounds=keeps_rounds(training.keep_models, run),
        plugins=training.plugins,
        schema=run.schema if "plugin" in run.method else None,
        max_loss_ratio=training.max_loss_ratio,
        compare_local=training.compare_local,
        privacy_budget=training.privacy_budget,
        privacy_set_aside=training.privacy_set_aside,
        privacy_file=config.node.data_dir / PRIVACY_FILE,
        site_dir=None if config.data.partition is not None else config.node.data_dir,
        hides_itself="dp_noise" in method and "dp_noise" not in run.method,
    )
