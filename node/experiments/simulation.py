"""One simulation, asked for in plain words: by the command `fednode simulate`, by `fednode.simulate` in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.errors import GenesisError
from chain.schema import Section
from chain.select import Select
from ml.clients.client import Client
from ml.data import get_classes, open_once
from ml.data.split import complete_val
from ml.simulation.results import RoundResult
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.specs.task import USUAL_MAX_WEIGHT
from ml.tasks import CLASSIFICATION, TASKS
from node.config.genesis_file import translate_errors
from node.config.recommended import AUTO, choose_method, choose_model
from node.config.settings import (
    apply_settings,
    complete_data,
    have_features,
    make_attack,
    make_data,
    make_input,
    make_model,
    make_sites,
    split_classes,
)
from node.errors import ConfigError
from node.experiments.selected import SelectedRounds


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """The terms of a simulation. `data` is `digits` or `FORMAT:PATH`; `sites` are the paths of data of single sites, in
    its place. `attack` is `NAME:COUNT` with its settings after commas. A `method` or `model` of `auto` is chosen to
    suit the data; one that is named has its paper's settings. `settings` are `KEY=VALUE` of the method (`lr=0.05`), or
    of a section (`model.hidden=[32]`).

    The other fields are those of `SimulationConfig`.
    """

    method: str = "dfpl"
    data: str = "digits"
    partition: str = "classes:3,1"
    shots: int | None = None
    model: str = "mlp"
    size: int | None = None
    clients: int = 10
    rounds: int = 10
    seed: int = 1
    settings: tuple[str, ...] = ()
    device: str = "cpu"
    pretrained: Path | None = None
    batched: str = "auto"
    max_loss_ratio: float | None = None
    attack: str | None = None
    task: str = CLASSIFICATION
    participation: float = 1.0
    sites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The end of a simulation: its clients as the last round left them, and the names of their classes."""

    config: SimulationConfig
    classes: tuple[str, ...]
    clients: Sequence[Client]


def run_simulation(
    spec: SimulationSpec,
    on_round: Callable[[RoundResult], None] | None = None,
    on_end: Callable[[Outcome], None] | None = None,
) -> SimulationResult:
    """Runs all rounds. Raises ConfigError for what cannot be run, NodeError for a fault in the run."""
    asked = {
        "method": {},
        "model": {},
        "data": make_sites(spec.sites, spec.seed) if spec.sites else make_data(spec.data),
        "input": {},
        "task": spec.task,
        "target": None,
        "classes": None,
        "select": None,
    }
    lies = {} if spec.attack is None else {"attack": make_attack(spec.attack)}
    source = apply_settings({**asked, **lies}, spec.settings, tuple(asked))
    own = complete_data(source.value["data"])
    task = source.value["task"]
    if task not in TASKS:
        raise ConfigError(f"--task: expected one of {', '.join(TASKS)} (got {task!r})")
    classes = split_classes(source.value["classes"])
    labels = classes.get("labels")
    if labels is None and classes["classes"] is not None:
        raise ConfigError("--set classes: expected the labels of each class, as in {no: [0], yes: [1, 2]}")
    with translate_errors(source), open_once():
        method, model = _choose(spec, source.value, own, task)
        config = SimulationConfig(
            method=method,
            data=complete_val(own, selects=source.value["select"] is not None),
            model=model,
            input=make_input(own, model, spec.size, source.value["input"], task=task, labels=labels),
            partition=spec.partition,
            shots=spec.shots,
            clients=spec.clients,
            rounds=spec.rounds,
            seed=spec.seed,
            device=spec.device,
            pretrained=None if spec.pretrained is None else str(spec.pretrained),
            batched=spec.batched,
            max_loss_ratio=spec.max_loss_ratio,
            attack=source.value.get("attack"),
            task=task,
            target=source.value["target"],
            participation=spec.participation,
            labels=labels,
            select=source.value["select"],
        )
        names = get_classes(own, task) if labels is None else tuple(labels)

        def end(clients: Sequence[Client]) -> None:
            if on_end is not None:
                on_end(Outcome(config, names, clients))

        return simulate(config, on_round=on_round, on_end=end, selector=make_selector(config))


def make_selector(config: SimulationConfig) -> SelectedRounds | None:
    """Makes the follower of the best round, where the configuration selects one. Raises ConfigError."""
    if config.select is None:
        return None
    try:
        select = Select.read(Section("", {"select": config.select}, ("select",)))
    except GenesisError as error:
        raise ConfigError(f"--set {error}") from error
    return None if select is None else SelectedRounds(select, config.clients, USUAL_MAX_WEIGHT)


def _choose(spec: SimulationSpec, asked: Mapping[str, Any], data: Mapping[str, Any], task: str) -> tuple[Any, Any]:
    """Chooses genesis' `method` and `model`; a method that is named has its paper's settings. Raises ConfigError."""
    is_table = AUTO in (spec.method, spec.model) and have_features(data, task)
    method = {"name": spec.method, **asked["method"]}
    if spec.method == AUTO:
        method = choose_method(AUTO, asked["method"], task, is_table=is_table)
    return method, make_model(choose_model(spec.model, asked["model"], method, is_table=is_table))
