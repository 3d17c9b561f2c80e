"""One member of masked sums that sets the mean, and what a `masked_radius` leaves of that: the accuracy of the common
model, round by round.

After some honest rounds one of four begins to lie. It signs weight 1, and sends what the sum lacks of the model that it
wants: the honest mean with its last layer turned round, which finds for each sample what it is the least. Either it
knows what the others send, or it takes the mean before for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ml.methods.base import Trained
from ml.payload import Array, Arrays
from ml.seeding import numpy_rng
from ml.simulation.exchange import validate_contribution
from ml.simulation.liars import Liars
from ml.simulation.rounds import Rounds
from ml.simulation.run import SimulationConfig, begin_simulation, use_threads
from ml.training.metrics import compute_mean

CLIENTS, HONEST_ROUNDS, LYING_ROUNDS = 4, 20, 200
LOOKED_AT = (1, 2, 5, 10, 20, 50, 200)  # rounds of lying
RADII = (None, 0.2, 0.05, 0.02, 0.005)
METHOD: dict[str, Any] = {"name": "fedavg", "aggregation": "masked_sum"}


@dataclass(slots=True, eq=False)
class SetsTheMean(Liars):
    """The liar; it is honest up to the round `first`. `moves` are by round how far each number of the common model went
    that the round before has made."""

    first: int = 0
    guesses: bool = False
    before: Arrays | None = None
    moves: list[Array] = field(default_factory=list)

    def answer(self, height: int, trained: Sequence[Trained | None], common: Arrays | None) -> list[Trained | None]:
        assert common is not None
        if self.before is not None:
            now, then = (np.concatenate([each[name].ravel() for name in common]) for each in (common, self.before))
            self.moves.append(np.abs(now.astype(np.float64) - then))
        self.before = common
        answers = list(trained)
        (liar,) = self.places
        made = answers[liar]
        if height < self.first or made is None:
            return answers
        honest = [other for i in self.honest if (other := trained[i]) is not None]
        if self.guesses:
            guess = {name.removeprefix("model/"): array for name, array in common.items()}
            honest = [replace(other, payloads={"model": guess}) for other in honest]
        answers[liar] = lie = replace(made, weight=1, payloads={"model": set_mean(honest)})
        client = self.clients[liar]
        validate_contribution(client.method.spec, height, lie)  # nothing is wrong with it by itself
        return answers


def set_mean(honest: Sequence[Trained]) -> Arrays:
    """What a member of weight 1 sends, so that the mean is the model that it wants."""
    weights = [made.weight for made in honest]
    models = [made.payloads["model"] for made in honest]
    sent = {}
    for name in models[0]:
        total = sum(w * model[name].astype(np.float64) for w, model in zip(weights, models, strict=True))
        wanted = total / sum(weights) * (-1 if name.startswith("fc3.") else 1)
        sent[name] = np.asarray((sum(weights) + 1) * wanted - total, np.float32)
    return sent


def measure_lies(
    seed: int, honest_rounds: int = HONEST_ROUNDS, lying_rounds: int = LYING_ROUNDS, radii: Sequence[Any] = RADII
) -> list[dict[str, Any]]:
    """By radius: the accuracy before the lies and after so many rounds of them; in the first rounds, and after as many
    rounds as all these without a liar; after one lie that is a guess; and the share of numbers that an honest round
    moves to the side of the box."""
    return [_measure(seed, radius, honest_rounds, lying_rounds) for radius in radii]


def _measure(seed: int, radius: float | None, honest_rounds: int, lying_rounds: int) -> dict[str, Any]:
    lying, _ = _play(seed, radius, honest_rounds + lying_rounds, first=honest_rounds + 1)
    honest, moves = _play(seed, radius, honest_rounds + lying_rounds, first=honest_rounds + lying_rounds + 1)
    guessed, _ = _play(seed, radius, honest_rounds + 1, first=honest_rounds + 1, guesses=True)
    looked_at = [number for number in LOOKED_AT if number <= lying_rounds]
    return {
        "radius": radius,
        "before": lying[honest_rounds - 1],
        "after": {number: lying[honest_rounds + number - 1] for number in looked_at},
        "early": {number: honest[number - 1] for number in (1, 5, 20) if number <= honest_rounds},
        "without": honest[-1],
        "guessed": guessed[-1],
        "clipped": {
            n: float((moves[n - 1] > 0.999 * radius).mean()) for n in (1, 5, 20) if radius and n <= honest_rounds
        },
    }


def _play(
    seed: int, radius: float | None, rounds: int, *, first: int, guesses: bool = False
) -> tuple[list[float], list[Array]]:
    """The accuracy of the common model on everyone's test samples after each round, and how far that moved it."""
    method = METHOD if radius is None else {**METHOD, "masked_radius": radius}
    config = SimulationConfig(method=method, partition="iid", clients=CLIENTS, rounds=rounds, seed=seed)
    accuracies = []
    with use_threads(config.threads):
        clients, initial, _ = begin_simulation(config)
        attack = Liars.make({"name": "silent"}, clients, seed).attack
        liars = SetsTheMean(attack, (CLIENTS - 1,), clients, seed, {}, first, guesses)
        run = Rounds(clients, [bytes([i]) * 32 for i in range(CLIENTS)], initial, liars)
        for height in range(1, rounds + 1):
            played = run.play(height, numpy_rng(seed, "beacon", height).bytes(32))
            if played is None:
                raise RuntimeError(f"round {height} came to no block")
            accuracies.append(compute_mean([played.on_all[i]["accuracy"] for i in liars.honest]))
    return accuracies, liars.moves
