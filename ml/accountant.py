"""The accountant of differential privacy: how much a client's local phases have revealed about any one of its samples.

A phase with `dp_noise` is DP-SGD (Abadi et al., *Deep Learning with Differential Privacy*, 2016): each step includes
each sample with the same probability, a sample's gradient has a length of at most 1 in units of the noise, and Gaussian
noise is added to their sum. Prototypes are sums of embeddings with noise of their own. What anyone who reads the chain
can learn from all phases together is bounded by (epsilon, delta): the probability of any outcome with a sample differs
from that without it by a factor of at most e^epsilon, except for a probability of delta. *Without* means that the
sample's gradient and its embedding are zero; the number of samples, and their classes, are not hidden.

Composition is that of privacy loss distributions (Koskela et al., *Computing Tight Differential Privacy Guarantees
Using FFT*, 2020), by Google's dp-accounting, which the extra `privacy` has.

Noise that can be guessed hides nothing: whoever guesses the numbers can subtract them. Earlier releases made noise with
generators that were not made for secrets; a phase with such noise counts as one without: epsilon is infinite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Self

from ml.errors import MlError

MAX_EPSILON = 100.0  # the largest budget: a larger one protects nothing
ROUGH_EPSILON = 4 * MAX_EPSILON  # above it a Renyi bound suffices: an exact value would take gigabytes, or fail
LEAST_NOISE = 1e-6  # less noise hides nothing, and its square is nearly zero
ORDERS = range(2, 65)  # orders of the Renyi bound
MOST_PHASES = 10_000  # the most phases to look ahead


@dataclass(frozen=True, slots=True)
class Release:
    """One local phase's use of noise: `steps` with noise of standard deviation `noise`, each of which included a sample
    with probability `rate`, and the noise of the prototypes made after it, None where there were none. For a phase
    whose whole update has noise only `update_noise` is set: its epsilon protects the client as the others protect one
    sample."""

    steps: int
    rate: float
    noise: float
    prototype_noise: float | None = None
    update_noise: float | None = None

    @classmethod
    def of_update(cls, noise: float) -> Self:
        return cls(0, 0.0, 0.0, None, noise)


@dataclass(slots=True)
class Told:
    """The total of what a client has revealed: the number of phases, of steps by their (rate, noise), and how often
    prototypes and whole updates were sent, by their noise. A client that hides its updates reveals as much about itself
    as about each of its samples. In `guessable` of the phases the noise can be guessed."""

    phases: int = 0
    steps: Counter[tuple[float, float]] = field(default_factory=Counter)
    prototypes: Counter[float] = field(default_factory=Counter)
    updates: Counter[float] = field(default_factory=Counter)
    guessable: int = 0

    @classmethod
    def of(cls, releases: Iterable[Release]) -> Self:
        told = cls()
        for release in releases:
            told.add(release)
        return told

    def add(self, release: Release, times: int = 1) -> None:
        self.phases += times
        if release.update_noise is not None:
            self.updates[release.update_noise] += times
        else:
            self.steps[release.rate, release.noise] += times * release.steps
        if release.prototype_noise is not None:
            self.prototypes[release.prototype_noise] += times

    def plus(self, release: Release, times: int = 1) -> Told:
        """Returns the total with so many phases more."""
        more = Told(self.phases, self.steps.copy(), self.prototypes.copy(), self.updates.copy(), self.guessable)
        more.add(release, times)
        return more

    def set_aside(self) -> Told:
        """Returns the same total, as if the noise of no phase could be guessed."""
        return replace(self, guessable=0)

    def to_json(self) -> dict[str, Any]:
        return {
            "phases": self.phases,
            "steps": [[*how, count] for how, count in sorted(self.steps.items())],
            "prototypes": [[noise, count] for noise, count in sorted(self.prototypes.items())],
            **({"updates": [[noise, count] for noise, count in sorted(self.updates.items())]} if self.updates else {}),
            **({"guessable": self.guessable} if self.guessable else {}),
        }

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Reads what `to_json` returns. Raises ValueError for anything else."""
        try:
            steps = Counter({(float(rate), float(noise)): int(count) for rate, noise, count in values["steps"]})
            prototypes = Counter({float(noise): int(count) for noise, count in values["prototypes"]})
            updates = Counter({float(noise): int(count) for noise, count in values.get("updates", ())})
            told = cls(int(values["phases"]), steps, prototypes, updates, int(values.get("guessable", 0)))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ValueError(f"expected phases, steps and prototypes, got {str(values)[:100]}") from error
        counts = (told.phases, told.guessable, *steps.values(), *prototypes.values(), *updates.values())
        noises = (*(noise for _, noise in steps), *prototypes, *updates)
        if (
            min(counts) < 0
            or told.guessable > told.phases
            or not all(0 < noise < math.inf for noise in noises)
            or not all(0 <= q <= 1 for q, _ in steps)
        ):
            raise ValueError(f"expected counts, rates up to 1 and noise above 0, got {str(values)[:100]}")
        return told


def has_accountant() -> bool:
    """Says whether dp-accounting is installed, which computes epsilon."""
    return find_spec("dp_accounting") is not None


def check_accountant() -> None:
    """Raises MlError without dp-accounting."""
    if not has_accountant():
        raise MlError("epsilon: expected dp-accounting, which pip install 'fednode[privacy]' brings")


def compute_epsilon(told: Told, delta: float) -> float:
    """Computes epsilon of all that was revealed, 0 for nothing; above some hundreds only a rough upper bound, and
    infinity where noise can be guessed, or hides nothing. Takes a second or more. Raises MlError without
    dp-accounting."""
    check_accountant()
    if told.guessable:
        return math.inf
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    if min((*(noise for _, noise in told.steps), *told.prototypes, *told.updates), default=math.inf) < LEAST_NOISE:
        return math.inf
    rough = _add_up(RdpAccountant(ORDERS, NeighboringRelation.REPLACE_SPECIAL), told, delta)
    if rough > ROUGH_EPSILON:
        return rough
    return _add_up(PLDAccountant(NeighboringRelation.REPLACE_SPECIAL), told, delta)


def _add_up(accountant: Any, told: Told, delta: float) -> float:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    for (rate, noise), count in sorted(told.steps.items()):
        if count and rate:
            accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), count)
    for noise, count in (*sorted(told.prototypes.items()), *sorted(told.updates.items())):
        accountant.compose(GaussianDpEvent(noise), count)
    return float(accountant.get_epsilon(delta))


def count_phases_within(budget: float, delta: float, told: Told, release: Release, most: int = MOST_PHASES) -> int:
    """Returns how many more phases like this one leave epsilon within the budget, at most `most`. Takes some seconds,
    and longer the larger the budget is. Raises as `compute_epsilon` does."""
    low, high = 0, 1  # low fits
    while high <= most and compute_epsilon(told.plus(release, high), delta) <= budget:
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        fits = compute_epsilon(told.plus(release, middle), delta) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low


def compute_worst_epsilon(clients: Sequence[Sequence[Release]], delta: float) -> float:
    """Computes the largest epsilon of any client. If one client has the highest sampling rate and the most steps in
    every phase, only its epsilon is computed."""
    different = set(map(tuple, clients))
    worst = [one for one in different if all(_tells_more(one, other) for other in different)]
    return max((compute_epsilon(Told.of(one), delta) for one in worst[:1] or different), default=0.0)


def _tells_more(one: Sequence[Release], other: Sequence[Release]) -> bool:
    """Says whether no phase of `other` can have revealed more than the same phase of `one`."""
    return len(one) == len(other) and all(
        _get_noises(a) == _get_noises(b) and a.rate >= b.rate and a.steps >= b.steps
        for a, b in zip(one, other, strict=True)
    )


def _get_noises(release: Release) -> tuple[float, float | None, float | None]:
    return release.noise, release.prototype_noise, release.update_noise
