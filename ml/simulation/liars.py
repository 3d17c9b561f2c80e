"""The members of a simulation that lie: their choice, the changes to their samples, and their answers.

The choice of liars follows from the run's seed and the numbers of clients and liars alone. So they are the same clients
for any method, rule and attack, and a smaller number of liars is a subset of a larger one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from ml.attacks import Attack, make_attack
from ml.attacks.base import Scene
from ml.clients.client import Client
from ml.errors import PayloadError
from ml.methods.base import Samples, Trained
from ml.models.base import dump_parameters
from ml.payload import Arrays
from ml.seeding import numpy_rng
from ml.simulation.exchange import validate_contribution

_log = logging.getLogger(__name__)


def choose_liars(num_clients: int, num_liars: int, seed: int) -> tuple[int, ...]:
    """Draws the places of the clients that lie, ascending."""
    return tuple(sorted(map(int, numpy_rng(seed, "liars").permutation(num_clients)[:num_liars])))


@dataclass(slots=True, eq=False)
class Liars:
    """The clients that lie. `places` are their places among the clients; `starts` has the model that each one's current
    local phase began with."""

    attack: Attack
    places: tuple[int, ...]
    clients: Sequence[Client]
    seed: int
    starts: dict[int, Arrays]

    @classmethod
    def make(cls, mapping: Mapping[str, Any], clients: Sequence[Client], seed: int) -> Self:
        """Returns the liars of a run before its first round, and changes the labels of their samples as the attack
        says. Raises SpecError."""
        attack = make_attack(mapping, clients[0].method.spec, len(clients))
        places = choose_liars(len(clients), attack.liars, seed)
        for i in places:
            state = clients[i].state
            state.data = replace(state.data, train=_relabel(attack, state.data.train, state.data.num_classes))
        return cls(attack, places, clients, seed, {})

    @property
    def honest(self) -> list[int]:
        """The places of all other clients."""
        return [i for i in range(len(self.clients)) if i not in self.places]

    def begin(self) -> None:
        """Saves the liars' models; to be called before the local phases of a round."""
        self.starts = {i: dump_parameters(self.clients[i].state.model) for i in self.places}

    def answer(self, height: int, trained: Sequence[Trained | None], common: Arrays | None) -> list[Trained | None]:
        """Returns the contributions of all, given what each has trained and the parent's aggregate: None for a client
        that sends none, or whose lie validators refuse."""
        honest = [made.payloads for i in self.honest if (made := trained[i]) is not None]
        answers = list(trained)
        for i in self.places:
            made = trained[i]
            answers[i] = None if made is None else self._lie(i, height, made, honest, common)
        return answers

    def _lie(
        self, i: int, height: int, made: Trained, honest: Sequence[Mapping[str, Arrays]], common: Arrays | None
    ) -> Trained | None:
        attack, client = self.attack, self.clients[i]
        spec, own_height = client.method.spec, client.to_method_height(height)
        if own_height is None:  # a height for statistics, which these attacks do not change
            return made
        rng = numpy_rng(self.seed, "attack", attack.name, i, height)
        scene = Scene(spec, own_height, made.payloads, honest, self.starts[i], common, len(self.clients), rng)
        payloads = attack.lie(scene)
        if payloads is None:
            return None
        weight = made.weight if attack.weight is None or spec.max_weight_is_one else attack.weight
        lie = replace(made, weight=weight, payloads=attack.claim(scene, payloads))
        try:
            validate_contribution(spec, own_height, lie)
        except PayloadError as error:
            _log.info("refused the contribution of client %d at height %d: %s", i, height, error)
            return None
        return lie


def _relabel(attack: Attack, samples: Samples, num_classes: int) -> Samples:
    labels_N = attack.change_labels(samples.y.cpu().numpy(), num_classes)
    return Samples(samples.x, torch.from_numpy(labels_N).to(samples.y.device))
