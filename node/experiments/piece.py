"""One run, in the process that makes it: its configuration, its state meanwhile, and what is kept of it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from node.experiments.measured import name_device
from node.experiments.plan import Run, compute_id
from node.experiments.pool import Report
from node.experiments.results import Kept, get_state_path
from node.host.machine import get_machine

if TYPE_CHECKING:
    from ml.simulation.run import SimulationConfig
    from ml.simulation.saved import StateFile

_LAST_FRAMES = 3


def make_config(run: Run, data_root: Path, device: str | None = None) -> SimulationConfig:
    """Makes the configuration of a simulation, its paths absolute, perhaps on another device. Raises DataError."""
    from ml.simulation.run import SimulationConfig

    data, pretrained = dict(run.config["data"]), run.config["pretrained"]
    if isinstance(data.get("path"), str):
        data["path"] = str(data_root / Path(data["path"]).expanduser())
    if pretrained is not None:
        pretrained = str(data_root / Path(pretrained).expanduser())
    device = device or run.config["device"]
    return SimulationConfig(**{**run.config, "data": data, "pretrained": pretrained, "device": device})


class Saved(NamedTuple):
    """The directory that the states of unfinished runs are kept in, and how often they are saved."""

    directory: Path
    every_s: float

    def get_file(self, run: Run, device: str) -> StateFile:
        """Returns the state file of a run. On another device the run restarts, as its numbers would differ."""
        from ml.simulation.saved import StateFile

        return StateFile(get_state_path(self.directory, run.id), f"{run.id} on {name_device(device)}", self.every_s)


class Piece(NamedTuple):
    """A run to be done: the directory its paths are relative to, the clients to take snapshots of, the device if it
    differs from the file's, and where its state is kept, if anywhere."""

    run: Run
    data_root: Path
    snapshots: tuple[int, ...]
    device: str | None = None
    saved: Saved | None = None


class Outcome(NamedTuple):
    """The part of a run that is kept."""

    document: Mapping[str, Any]
    kept: Mapping[int, Kept] | None = None


def simulate_run(piece: Piece, report: Report) -> Outcome:
    """Makes one run in a process of its own, and returns what is kept of it, also if it fails."""
    from ml.data import get_classes
    from ml.errors import MlError
    from ml.simulation.run import simulate

    run = piece.run
    began_s = time.monotonic()
    try:
        if compute_id(run.config) != run.id:
            raise MlError(f"another fednode than the one that asks has got run {run.id}: they expect the same version")
        config = make_config(run, piece.data_root, piece.device)
        saved = None if piece.saved is None else piece.saved.get_file(run, config.device)
        result = simulate(config, on_round=lambda row: report(row.round), snapshots=piece.snapshots, saved=saved)
        names = get_classes(config.data) if result.snapshots else ()
        kept = {client: Kept(snapshot, names) for client, snapshot in result.snapshots.items()}
    except MlError as error:
        return Outcome({"error": str(error), **describe_end(time.monotonic() - began_s)})
    except Exception as error:  # noqa: BLE001 - a fault in one run is that run's result; the others go on
        frames = traceback.format_tb(error.__traceback__)[-_LAST_FRAMES:]
        said = f"{type(error).__name__}: {error}\n{''.join(frames)}".rstrip()
        return Outcome({"error": said, **describe_end(time.monotonic() - began_s)})
    rows = [
        {
            **row.to_json(),
            "round": number,
            "train_s": round(row.train_s, 6),
            "aggregate_s": round(row.aggregate_s, 6),
        }
        for number, row in enumerate(result.rounds, start=1 - run.sharing_heights)
    ]
    document = {
        "input": result.config.input,
        **({"sharing": rows[: run.sharing_heights]} if run.sharing_heights else {}),
        "rounds": rows[run.sharing_heights :],
        "clients": [asdict(client) for client in result.clients],
        **({"priors": [row.to_json() for row in result.priors]} if result.priors else {}),
        **({} if config.attack is None else {"liars": result.liars, "halted_at": result.halted_at}),
        **({} if result.epsilon is None else {"epsilon": result.epsilon}),
        **describe_end(result.seconds, config.device),
    }
    return Outcome(document, kept)


def describe_end(seconds: float, device: str | None = None) -> dict[str, Any]:
    """Returns how long a run took, when it ended, and on which machine."""
    machine = get_machine()
    if device is not None:
        import torch

        machine |= {"torch": torch.__version__.partition("+")[0], "device": name_device(device)}
    return {"seconds": round(seconds, 3), "finished": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "machine": machine}
