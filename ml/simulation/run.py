"""The simulation: runs any method for N clients in one process, without a network. A real federation with the same seed
must compute the same numbers.

Clients train one after the other, or on a GPU all at once (`ml.clients.batched`). Their payloads are checked,
aggregated and applied by the very functions that validators use, in the order of the authors' ids. Given a federation's
seed, its members' ids and its block ids, the aggregate digests of every round are the federation's own.

With an `attack` some clients lie (`ml.attacks`), and all means are over the others. Then a local phase that diverges,
like a contribution that validators refuse, is left out of its round; and a run ends where a federation would halt, with
fewer than n - f contributions.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from ml.accountant import Release, check_accountant, compute_worst_epsilon
from ml.clients.batched import explain_unbatchable
from ml.clients.build import Compute, Federation, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.clients.embedding_snapshot import Snapshot, take_snapshot
from ml.data import forget_sources, get_classes, get_default_input, measure_target, open_once
from ml.errors import DataError
from ml.models import Pretrained, load_pretrained, resolve_model
from ml.payload import Array
from ml.plugins import ANY_PLUGIN
from ml.simulation.closing import EndEvaluation, Evaluated
from ml.simulation.liars import Liars
from ml.simulation.measuring import Measuring, check_measuring
from ml.simulation.participation import draw_present
from ml.simulation.results import (
    ClientResult,
    PriorResult,
    RoundResult,
    describe_client,
    measure_prior_results,
    measure_round,
    read_round,
    to_finite,
)
from ml.simulation.rounds import Rounds
from ml.simulation.saved import StateFile
from ml.specs.architectures import MLP_HIDDEN
from ml.specs.privacy import DELTA
from ml.specs.task import USUAL_MAX_WEIGHT
from ml.tasks import CLASSIFICATION, REGRESSION

BATCHED = ("auto", "on", "off")
ZERO_DIGEST = bytes(32)  # the digest of a method that votes on nothing


class Selector(Protocol):
    """Keeps track of a run's best round."""

    @property
    def best(self) -> int | None:
        """The best round so far; None where there is none."""

    def add(self, number: int, measured: Sequence[Mapping[str, float] | None]) -> bool:
        """Adds what clients have measured after a round, None for those that do not train in the next. Returns whether
        the run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """The configuration of a run. `method` is genesis's: a name and the hyper-parameters that differ from its defaults.

    `shots` limits each client's samples per class; `input` is by default what suits data and model; `pretrained` is a
    file with the initial model. `batched` says whether all clients train in one pass: auto does on a GPU where the
    model allows it. One thread on a CPU, not batched, computes the same bytes as a node's worker. `max_loss_ratio` is
    that of `Client`; nodes have 4. `attack` has a name in `ml.attacks.ATTACKS`, the number of `liars`, and the settings
    that differ from its defaults. `target` is by default that of the data, for task regression; `labels` has the labels
    in the data that stand for each class, where they are not its name. With `participation` below 1 only that share of
    the clients, drawn in each round, takes part in it. `select` is genesis's: the figure that the best round is chosen
    by. Measures are taken every `eval_every` rounds, on `test_samples` of the test set, by default on all of it. With
    `alone_until` clients of a peer-to-peer method take nothing from each other, and each trains until its model has
    that accuracy.
    """

    method: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=lambda: {"format": "digits"})
    model: Mapping[str, Any] = field(default_factory=lambda: {"name": "mlp", "hidden": list(MLP_HIDDEN)})
    input: Mapping[str, Any] | None = None
    partition: str = "classes:3,1"
    shots: int | None = None
    clients: int = 10
    rounds: int = 10
    seed: int = 1
    threads: int = 1
    device: str = "cpu"
    pretrained: str | None = None
    batched: str = "auto"
    max_loss_ratio: float | None = None
    attack: Mapping[str, Any] | None = None
    task: str = CLASSIFICATION
    target: Mapping[str, Any] | None = None
    participation: float = 1.0
    labels: Mapping[str, Sequence[str]] | None = None
    select: Mapping[str, Any] | None = None
    eval_every: int = 1
    test_samples: int | None = None
    alone_until: float | None = None

    def __post_init__(self) -> None:
        check_measuring(self)
        if not 0 < self.participation <= 1:
            raise DataError(f"participation: expected a number in (0, 1], got {self.participation}")
        if self.participation < 1 and self.attack is not None:
            raise DataError("participation: expected 1 beside an attack, in which the liars may keep silent")
        if self.batched not in BATCHED:
            raise DataError(f"batched: expected {', '.join(BATCHED)}, got {self.batched!r}")
        if self.max_loss_ratio is not None and not 1 <= self.max_loss_ratio < math.inf:
            raise DataError(f"max_loss_ratio: expected a number of at least 1, got {self.max_loss_ratio}")
        for name in ("clients", "rounds", "threads"):
            if getattr(self, name) < 1:
                raise DataError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.method.get("budget_s") is not None:
            raise DataError(
                "method.budget_s: expected none in a simulation, where no node's clock decides; "
                "fednode plan says which local_iterations fit"
            )
        if self.input is None:
            object.__setattr__(self, "input", get_default_input(self.data, self.model, self.task))
        if self.task == REGRESSION and self.target is None:
            object.__setattr__(self, "target", measure_target(self.data))

    def to_json(self) -> dict[str, Any]:
        """Returns every setting; of those that few runs have, only what is set."""
        rare = {"task": CLASSIFICATION, "target": None, "participation": 1.0, "labels": None, "select": None}
        rare |= {"eval_every": 1, "test_samples": None, "alone_until": None}
        return {name: value for name, value in asdict(self).items() if name not in rare or value != rare[name]}


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The results of a whole run. `aggregate_digests[r - 1]` is round r's, 32 zero bytes where nothing is voted on;
    `pretrained` describes what was loaded from the file of that name. `snapshots` are those that were requested, after
    the last round, by client. Under an attack the clients in `liars` lie, and `halted_at` is the height at which no
    block could be made. `epsilon` is that of the client that revealed most about any sample (`ml.accountant`), None
    without noise to hide samples."""

    config: SimulationConfig
    method: Mapping[str, Any]  # every hyper-parameter, defaults written out
    rounds: tuple[RoundResult, ...]
    clients: tuple[ClientResult, ...]
    aggregate_digests: tuple[bytes, ...]
    seconds: float
    pretrained: str | None = None
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)
    liars: tuple[int, ...] = ()
    halted_at: int | None = None
    priors: tuple[PriorResult, ...] = ()
    epsilon: float | None = None
    best_round: int | None = None  # by val samples, where the configuration selects
    evaluation: Evaluated | None = None  # of that round's model, where the configuration asks for it

    @property
    def delta(self) -> float | None:
        """The probability with which `epsilon` may not hold."""
        return None if self.epsilon is None else float(self.method.get("dp_delta", DELTA))

    @property
    def best_taa(self) -> float:
        """The best `taa` of any round, NaN without rounds; so are the two properties below."""
        return max((result.taa for result in self.rounds if not math.isnan(result.taa)), default=math.nan)

    @property
    def final_taa(self) -> float:
        return self.rounds[-1].taa if self.rounds else math.nan

    @property
    def final_global(self) -> float:
        return self.rounds[-1].global_ if self.rounds else math.nan

    def to_json(self) -> dict[str, Any]:
        """Returns all but `evaluation`. The objects of equal configurations are equal."""
        return {
            "config": {**self.config.to_json(), "method": dict(self.method)},
            "rounds": [result.to_json() for result in self.rounds],
            "best_taa": to_finite(self.best_taa),
            "final_taa": to_finite(self.final_taa),
            "final_global": to_finite(self.final_global),
            "clients": [asdict(result) for result in self.clients],
            **({"priors": [result.to_json() for result in self.priors]} if self.priors else {}),
            **({} if self.config.attack is None else {"liars": list(self.liars), "halted_at": self.halted_at}),
            **({} if self.epsilon is None else {"epsilon": to_finite(self.epsilon)}),
            **({} if self.config.select is None else {"best_round": self.best_round}),
        }


def simulate(
    config: SimulationConfig,
    *,
    ids: Sequence[bytes] | None = None,
    beacons: Callable[[int], bytes] | None = None,
    present: Callable[[int], Collection[int]] | None = None,
    on_round: Callable[[RoundResult], None] | None = None,
    on_end: Callable[[Sequence[Client]], None] | None = None,
    snapshots: Sequence[int] = (),
    saved: StateFile | None = None,
    selector: Selector | None = None,
) -> SimulationResult:
    """Runs all rounds. `ids[i]` is the author id of client i, `beacons(height)` the block id that height builds on, and
    `present(height)` the clients that take part in its round, by default drawn by `participation`. `snapshots` requests
    the snapshots of these clients at the end, counted among the honest. Where a run of this configuration has `saved`
    its state, resumes from there with the same numbers; `on_round` also receives the rounds before. `on_end` receives
    all clients after the last round. A `selector` can end the run early.

    Raises SpecError or DataError for an impossible configuration, and PayloadError when what a client made of its round
    does not fit the method's own schema (numbers that are not finite, above all).
    """
    start = time.perf_counter()
    if ids is None:
        ids = [i.to_bytes(32, "big") for i in range(config.clients)]
    if len(set(ids)) != config.clients:
        raise ValueError(f"ids: expected {config.clients} different ones, got {len(set(ids))}")
    with use_threads(config.threads):
        clients, initial, pretrained = begin_simulation(config)
        spec, batched = clients[0].spec, _is_batched(config, clients)
        hyper = spec.hyperparameters
        if hyper.is_counted:
            check_accountant()  # before any work is done
        told: list[list[Release]] = [[] for _ in clients]
        liars = None if config.attack is None else Liars.make(config.attack, clients, config.seed)
        if present is None and config.participation < 1:
            present = partial(draw_present, config.participation, config.clients, config.seed)
        measuring = Measuring(config.rounds, config.eval_every, config.alone_until)
        run = Rounds(clients, ids, initial, liars, batched=batched, get_present=present, measuring=measuring)
        evaluates = selector is not None and bool((config.select or {}).get("evaluate"))
        ending = EndEvaluation(clients) if evaluates else None
        rounds: list[RoundResult] = []
        digests: list[bytes] = []
        halted_at = None
        spent_s = 0.0
        measured: Sequence[Mapping[str, float]] = ()  # by all clients, in the round before
        if saved is not None and (tree := saved.load()) is not None:
            run.load_tree(tree["run"])
            rounds += [read_round(row) for row in tree["rounds"]]
            digests += tree["digests"]
            told = [[Release(**row) for row in rows] for rows in tree.get("told", ())] or told
            spent_s = tree["seconds"]
            if on_round is not None:
                for result in rounds:
                    on_round(result)
        for height in range(1 + len(rounds), config.rounds + 1):
            played = run.play(height, beacons(height) if beacons else _make_beacon(config.seed, height))
            if played is None:
                halted_at = height
                break
            for client_told, made in zip(told, run.trained, strict=True):
                client_told += [made.release] if made is not None and made.release is not None else []
            digests.append(ZERO_DIGEST if played.digest is None else played.digest)
            rounds.append(measure_round(played, run.honest, attacked=liars is not None))
            if on_round is not None:
                on_round(rounds[-1])
            if selector is not None:
                told_now = [
                    None if made is None else metrics for made, metrics in zip(run.trained, measured, strict=False)
                ]
                measured = played.applied
                has_ended = height > 1 and selector.add(height - 1, told_now)
                if ending is not None:
                    ending.keep(height, run.aggregate, selector.best)
                if has_ended:
                    break
            if saved is not None and height < config.rounds and saved.is_due():
                so_far = {"rounds": [asdict(row) for row in rounds], "digests": digests}
                if hyper.is_counted:
                    so_far |= {"told": [[asdict(release) for release in releases] for releases in told]}
                saved.save({**so_far, "run": run.to_tree(), "seconds": spent_s + time.perf_counter() - start})
        if selector is not None and rounds:
            selector.add(len(rounds), measured)
        evaluation = None if ending is None or selector is None or not rounds else ending.make(selector.best)
        shown = {k: take_snapshot(clients[run.honest[k]], config.seed) for k in snapshots}
        priors = measure_prior_results([clients[i] for i in run.honest])
        epsilon = compute_worst_epsilon(told, hyper.delta) if hyper.is_counted else None
        results = [
            describe_client(i, client, made) for i, (client, made) in enumerate(zip(clients, run.trained, strict=True))
        ]
        if on_end is not None:
            on_end(clients)
    seconds = spent_s + time.perf_counter() - start
    return SimulationResult(
        config,
        spec.to_mapping(),
        tuple(rounds),
        tuple(results),
        tuple(digests),
        seconds,
        None if pretrained is None else pretrained.describe(),
        shown,
        () if liars is None else liars.places,
        halted_at,
        priors,
        epsilon,
        None if selector is None else selector.best,
        evaluation,
    )


def begin_simulation(config: SimulationConfig) -> tuple[list[Client], dict[str, Array], Pretrained | None]:
    """Returns the clients of a run before its first round, block 0's aggregate, and what was loaded of a pretrained
    file. Imports the code of plugins that the run names.

    Raises SpecError, DataError, or MlError for a device that does not exist.
    """
    assert config.input is not None  # noqa: S101 - set when the configuration was made
    shape = config.input["shape"]
    with open_once():
        classes = get_classes(config.data, config.task) if config.labels is None else tuple(config.labels)
        model = resolve_model(config.model, shape, len(classes))
        pretrained = None
        if config.pretrained is not None:
            pretrained = load_pretrained(Path(config.pretrained), model, shape, len(classes))
        initial = make_initial_aggregate(model, shape, len(classes), config.seed, pretrained=pretrained)
        federation = Federation(
            method=config.method,
            model=model,
            classes=classes,
            input=config.input,
            rounds=config.rounds,
            num_members=config.clients,
            max_weight=USUAL_MAX_WEIGHT,
            plugins=ANY_PLUGIN,
            task=config.task,
            target=config.target,
            labels=config.labels,
        )
        clients = make_clients(
            federation,
            data=config.data,
            partition=config.partition,
            run_seed=config.seed,
            shots=config.shots,
            initial=initial,
            compute=Compute(config.device),
            max_loss_ratio=config.max_loss_ratio,
            test_samples=config.test_samples,
        )
        forget_sources()  # even if an outer context would keep them
    return clients, initial, pretrained


def _is_batched(config: SimulationConfig, clients: Sequence[Client]) -> bool:
    """Says whether all clients train in one pass. Raises DataError where that is set but impossible."""
    if config.batched == "off" or (config.batched == "auto" and clients[0].device.type != "cuda"):
        return False
    reason = explain_unbatchable(clients)
    if config.alone_until is not None:
        reason = "clients that train alone each stop at a round of their own"
    if reason is not None and config.batched == "on":
        raise DataError(f"batched: {reason}")
    return reason is None


def _make_beacon(seed: int, height: int) -> bytes:
    return hashlib.sha256(f"simulated block {seed} {height - 1}".encode("ascii")).digest()


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Sets torch to `count` threads on a CPU within the context, and restores the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
