"""A federation of two, played to its end: a site whose samples of each class are counted, and an attacker who reads all
that members read.

The samples of a data set are dealt again for that: to the site as many of each class as the caller asks for, to the
attacker `OWN` of each, and up to `OWN` of each are held out. Site and attacker run the method as nodes do, and all that
the site sends is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.clients.client import Client
from ml.methods.base import ClientData, Samples, State
from ml.methods.common.contrast import freeze
from ml.models.base import Model, dump_parameters
from ml.payload import Arrays
from ml.seeding import numpy_rng
from ml.simulation.rounds import Rounds
from ml.simulation.run import SimulationConfig, begin_simulation
from node.errors import ConfigError

OWN = 35  # samples of each class that the attacker has, and at most as many are held out
MIN_HELD_OUT = 10  # of each class
IDS = tuple(i.to_bytes(32, "big") for i in range(2))


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """One round of the site: the attacker's model before it, which in methods with a common model is the site's too,
    and the site's payloads."""

    parent: Arrays
    payloads: Mapping[str, Arrays]

    @property
    def model(self) -> Arrays:
        """The model that was sent, whole or in two parts; empty where none was sent."""
        return {name: array for kind in ("model", "g", "h") for name, array in self.payloads.get(kind, {}).items()}


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Both clients after the last round, what the site has sent in each round, and the samples that neither has."""

    site: Client
    attacker: Client
    sent: Sequence[Sending]
    held_out: Samples

    @property
    def last(self) -> Sending:
        return self.sent[-1]

    def get_model(self) -> Model:
        """Returns the model that the site sent last."""
        return freeze(self.site.state.model, self.last.model).eval()

    def represent(self, model: Model, x: Tensor) -> Tensor:
        """Returns the vectors [N, D] of samples that the method compares with prototypes, by this model."""
        return self.site.method.represent(State(model.eval(), self.site.state.data), x)


def play(config: SimulationConfig, counts: NDArray[np.int64] | int) -> Played:
    """Plays all rounds of `config` between a site with so many samples of each class and the attacker. Raises
    ConfigError for data that have too few, and as `simulate`."""
    clients, initial, _ = begin_simulation(config)
    first, second = (client.state.data for client in clients)
    parts = (first.train, second.train, first.everyone)
    samples = Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    num_classes = first.num_classes
    of_each = np.broadcast_to(np.asarray(counts, np.int64), num_classes)
    dealt = deal(samples.y.cpu().numpy(), of_each, numpy_rng(config.seed, "leak"))
    own, others, held_out = (samples.take(rows) for rows in dealt)
    site, attacker = (
        Client(
            client.method,
            client.state.model,
            ClientData(train, held_out, held_out, num_classes),
            seed=client.seed,
            engine=client.engine,
        )
        for client, train in zip(clients, (own, others), strict=True)
    )
    rounds = Rounds([site, attacker], IDS, initial)
    sent = []
    for height in range(1, config.rounds + 1):
        parent = dump_parameters(attacker.state.model)
        rounds.play(height, numpy_rng(config.seed, "beacon", height).bytes(32))
        trained = rounds.trained[0]
        assert trained is not None  # noqa: S101 - nobody lies, so none is left out
        sent.append(Sending(parent, trained.payloads))
    return Played(site, attacker, sent, held_out)


def deal(
    y: NDArray[np.int64], counts: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns the rows of the site, of the attacker, and those held out. Raises ConfigError where a class has too few
    samples."""
    site, attacker, nobody = [], [], []
    for c, count in enumerate(counts.tolist()):
        rows = rng.permutation(np.flatnonzero(y == c))
        if len(rows) < count + OWN + MIN_HELD_OUT:
            raise ConfigError(
                f"--data: class {c}: expected at least {count + OWN + MIN_HELD_OUT} samples, {count} for the site, "
                f"{OWN} for the attacker and {MIN_HELD_OUT} held out (got {len(rows)})"
            )
        site.append(rows[:count])
        attacker.append(rows[count : count + OWN])
        nobody.append(rows[count + OWN : count + 2 * OWN])
    return np.concatenate(site), np.concatenate(attacker), np.concatenate(nobody)


def list_played(
    config: SimulationConfig, methods: Sequence[str], sizes: Sequence[int], repeats: int, report: Callable[[str], None]
) -> Iterator[tuple[int, int, Played]]:
    """Plays each of `methods` with each number of samples in each class, `repeats` times. Yields that number, the seed,
    which counts from that of `config`, and what was played. Raises as `play`."""
    for size in sizes:
        for method in methods:
            report(f"{method}, {size} of each class")
            for seed in range(config.seed, config.seed + repeats):
                yield size, seed, play(dataclasses.replace(config, method={"name": method}, seed=seed), size)


def list_embeddings(played: Played) -> dict[str, Model]:
    """Returns the models that an attacker may embed with, by words that say whose they are and follow a name; the words
    are empty where the site has sent its own model."""
    if played.last.model:
        return {"": played.get_model()}
    return {", own model": played.attacker.state.model, ", the site's model": played.site.state.model}


def read_prototypes(played: Played) -> tuple[Tensor, Tensor]:
    """Returns the classes and vectors of the prototypes that the site sent last."""
    sent, device = played.last.payloads["prototypes"], played.site.device
    classes, prototypes = (torch.from_numpy(sent[name].copy()).to(device) for name in ("classes", "prototypes"))
    return classes, prototypes


def describe_job(config: SimulationConfig, *, sizes: Sequence[int], repeats: int) -> dict[str, Any]:
    """Describes what was run, for JSON."""
    return {
        "data": dict(config.data),
        "model": dict(config.model),
        "rounds": config.rounds,
        "own": OWN,
        "seeds": list(range(config.seed, config.seed + repeats)),
        "sizes": list(sizes),
    }
