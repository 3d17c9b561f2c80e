"""What a table's cell can hold: one number made of one run's rounds (ALGORITHMS §8.2), and how it is written.

Accuracies are kept in 0..1 and shown in percent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ml.metrics import compute_mean, count_rounds_to
from node.experiments.results import Result, RoundRow

Kind = Literal["accuracy", "loss", "rounds", "count", "bytes", "seconds"]
Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True)
class Value:
    """A number of a run. `compute(result, target)` is None where the run has no such number."""

    label: str
    kind: Kind
    better: Better
    compute: Callable[[Result, float], float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """A number of each round."""

    label: str
    kind: Kind
    compute: Callable[[RoundRow], float | None]


SERIES: Mapping[str, Series] = {
    "taa": Series("TAA", "accuracy", lambda row: row.taa),
    "taa_local": Series("TAA before the exchange", "accuracy", lambda row: row.taa_local),
    "global": Series("accuracy on all classes", "accuracy", lambda row: row.global_),
    "tal": Series("TAL", "loss", lambda row: row.tal),
    "tal_global": Series("loss on all classes", "loss", lambda row: row.tal_global),
}


def _best(series: str) -> Callable[[Result, float], float | None]:
    take = SERIES[series].compute
    choose = min if SERIES[series].kind == "loss" else max

    def compute(result: Result, target: float) -> float | None:
        known = [value for row in result.rounds if (value := take(row)) is not None]
        return choose(known) if known else None

    return compute


def _final(series: str) -> Callable[[Result, float], float | None]:
    take = SERIES[series].compute
    return lambda result, target: take(result.rounds[-1])


def _rounds_to(result: Result, target: float) -> float | None:
    return count_rounds_to(target, [row.taa for row in result.rounds])


def _sent(name: Literal["sent_params", "sent_bytes"], *, per_client: bool) -> Callable[[Result, float], float | None]:
    def compute(result: Result, target: float) -> float | None:
        mean = compute_mean(getattr(row, name) for row in result.rounds)
        return mean / result.num_clients if per_client else mean

    return compute


VALUES: Mapping[str, Value] = {
    "best_taa": Value("best TAA", "accuracy", "higher", _best("taa")),
    "final_taa": Value("final TAA", "accuracy", "higher", _final("taa")),
    "best_taa_local": Value("best TAA before the exchange", "accuracy", "higher", _best("taa_local")),
    "final_taa_local": Value("final TAA before the exchange", "accuracy", "higher", _final("taa_local")),
    "best_global": Value("best on all classes", "accuracy", "higher", _best("global")),
    "final_global": Value("final on all classes", "accuracy", "higher", _final("global")),
    "best_tal": Value("lowest TAL", "loss", "lower", _best("tal")),
    "final_tal": Value("final TAL", "loss", "lower", _final("tal")),
    "rounds_to": Value("rounds to target", "rounds", "lower", _rounds_to),
    "sent_params": Value("numbers a round, all clients", "count", "neither", _sent("sent_params", per_client=False)),
    "sent_params_per_client": Value(
        "numbers a round, one client", "count", "neither", _sent("sent_params", per_client=True)
    ),
    "sent_bytes": Value("bytes a round, all clients", "bytes", "neither", _sent("sent_bytes", per_client=False)),
    "sent_bytes_per_client": Value(
        "bytes a round, one client", "bytes", "neither", _sent("sent_bytes", per_client=True)
    ),
    "seconds": Value("seconds a run", "seconds", "neither", lambda result, target: result.seconds),
}


def show_number(kind: Kind, value: float, *, spread: bool = False) -> str:
    """`98.16` of an accuracy of 0.9816, `12.3 kB` of 12,345 bytes. Rounds are whole unless there is a `spread`."""
    match kind:
        case "accuracy":
            return f"{100 * value:.2f}"
        case "loss":
            return f"{value:.3f}"
        case "rounds":
            return f"{value:.1f}" if spread or not float(value).is_integer() else f"{value:.0f}"
        case "seconds":
            return f"{value:.1f}"
        case "bytes":
            return show_bytes(value)
        case "count":
            return f"{value:,.0f}"


def show_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
