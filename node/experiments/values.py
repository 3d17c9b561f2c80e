"""The values of a table's cells: each is one number computed from one run's rounds (ALGORITHMS §8.2), with the way it
is written.

Accuracies and shares are kept in 0..1 and shown in percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import Any, Literal

from ml.training.metrics import compute_mean
from ml.training.prior import KAPPAS
from node.experiments.local_work import compute_epochs
from node.experiments.network import compute_network_seconds
from node.experiments.results import ClientRow, Result, RoundRow
from node.experiments.sections import NetworkSection
from node.report.elements import show_bytes

Kind = Literal["accuracy", "share", "loss", "number", "rounds", "count", "bytes", "seconds"]
Better = Literal["higher", "lower", "neither"]

PERCENT: tuple[Kind, ...] = ("accuracy", "share")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that some values are read at: the accuracy in 0..1 to reach, the seconds of local training to use, and
    the network that seconds are computed for."""

    target: float = 0.9
    seconds: float | None = None
    network: NetworkSection | None = field(default=None, kw_only=True)


Compute = Callable[[Result, Limits], float | None]
Ends = Callable[[Result, Limits], Sequence[float]]  # for each round, a total up to its end


@dataclass(frozen=True, slots=True)
class Value:
    """A number of a run. `compute` returns None where the run has no such number, which a table shows as `absent`.

    With `needs_seconds` it is read at a limit of training time, with `needs_network` at a network; `to_reach` is the
    series that it reads against a target. `newer_field` is the field of rounds it reads that results of earlier
    versions lack. `of_client` computes a single client's number, where that is kept.
    """

    label: str
    kind: Kind
    better: Better
    compute: Compute
    absent: str = "never"
    to_reach: str | None = None
    needs_seconds: bool = False
    needs_network: bool = False
    newer_field: str | None = None
    of_client: Callable[[ClientRow], float | None] | None = None

    def read(self, result: Result, limits: Limits, client: int | None = None) -> float | None:
        """Returns the number of a run, or of one of its clients."""
        if client is None:
            return self.compute(result, limits)
        return None if self.of_client is None else self.of_client(result.clients[client])

    def read_loss(self, result: Result, baseline: Result, limits: Limits) -> float | None:
        """Returns the loss of accuracy against `baseline`. Where accuracy is kept for each client, both are averaged
        over the clients that are honest in `result`, so that the same clients are compared."""
        if self.of_client is None or not result.liars or baseline.num_clients != result.num_clients:
            own, there = self.compute(result, limits), self.compute(baseline, limits)
            if own is None or there is None:
                return None
            return own - there if self.better == "lower" else there - own
        honest = [i for i in range(result.num_clients) if i not in result.liars]
        pairs = [(self.of_client(baseline.clients[i]), self.of_client(result.clients[i])) for i in honest]
        lost = [there - own for there, own in pairs if there is not None and own is not None]
        return compute_mean(lost) if lost else None


@dataclass(frozen=True, slots=True)
class Series:
    """A number of each round: the field of its row."""

    label: str
    kind: Kind
    field: str

    def compute(self, row: RoundRow) -> float | None:
        value: float | None = getattr(row, self.field)
        return value


SERIES: Mapping[str, Series] = {
    "taa": Series("TAA", "accuracy", "taa"),
    "taa_local": Series("TAA before the exchange", "accuracy", "taa_local"),
    "global": Series("accuracy on all classes", "accuracy", "global_"),
    "tal": Series("TAL", "loss", "tal"),
    "tal_global": Series("loss on all classes", "loss", "tal_global"),
    "dropout": Series("clients in the dropout branch", "share", "dropout"),
    "divergence": Series("divergence from the peers", "number", "divergence"),
    "peers": Series("peers", "number", "peers"),
    "similar": Series("similar peers", "number", "similar"),
    "val_accuracy": Series("validation accuracy", "accuracy", "val_accuracy"),
    "aux_loss": Series("auxiliary loss", "loss", "aux_loss"),
    "left_out": Series("contributions left out", "number", "left_out"),
    "spoiled": Series("honest clients that did not take the aggregate", "number", "spoiled"),
}


def compute_train_seconds(result: Result) -> tuple[float, ...]:
    """Computes the seconds of local training until the end of each round, mean over clients, from the run's beginning
    on; empty where they were not timed."""
    rows = (*result.sharing, *result.rounds)
    own = [row.train_s for row in rows if row.train_s is not None]
    return tuple(accumulate(own))[len(result.sharing) :] if len(own) == len(rows) else ()


def compute_sent_bytes(result: Result) -> tuple[float, ...]:
    """Computes the bytes that a client has sent by the end of each round, from the run's beginning on."""
    sent = accumulate(row.sent_bytes for row in (*result.sharing, *result.rounds))
    return tuple(count / result.num_clients for count in sent)[len(result.sharing) :]


def _list_known(result: Result, series: str) -> list[float]:
    return [value for row in result.rounds if (value := SERIES[series].compute(row)) is not None]


def _best(series: str) -> Compute:
    choose = min if SERIES[series].kind == "loss" else max
    return lambda result, limits: choose(_list_known(result, series), default=None)


def _final(series: str) -> Compute:
    return lambda result, limits: SERIES[series].compute(result.rounds[-1]) if result.rounds else None


def _until(label: str, series: str, ends: Ends, kind: Kind = "rounds") -> Value:
    """Makes a value that is the total, by `ends`, at the end of the round that reaches the target."""

    def compute(result: Result, limits: Limits) -> float | None:
        values = map(SERIES[series].compute, result.rounds)
        reached = (r for r, value in enumerate(values) if value is not None and value >= limits.target)
        num, known = next(reached, None), ends(result, limits)
        return None if num is None or not known else known[num]

    return Value(label, kind, "lower", compute, to_reach=series, needs_network=kind == "seconds")


def _count_rounds(result: Result, limits: Limits) -> Sequence[float]:
    return [row.round for row in result.rounds]


def _count_epochs(result: Result, limits: Limits) -> Sequence[float]:
    return compute_epochs(result)


def _reckon(result: Result, limits: Limits) -> Sequence[float]:
    return () if limits.network is None else compute_network_seconds(result, limits.network)


def _timed(label: str, series: str, *, best: bool) -> Value:
    """Makes a value over the rounds that end within the limit of seconds: that of the last, or the best."""

    def compute(result: Result, limits: Limits) -> float | None:
        pairs = zip(map(SERIES[series].compute, result.rounds), compute_train_seconds(result), strict=False)
        values = [value for value, end in pairs if value is not None and end <= (limits.seconds or 0.0)]
        return None if not values else max(values) if best else values[-1]

    named = f"{label} at equal time"
    return Value(named, "accuracy", "higher", compute, "no round in time", needs_seconds=True, newer_field="train_s")


_NEWER = ("received_params", "received_bytes", "train_s", "aggregate_s")  # results of earlier versions lack these


def _of_rows(
    label: str,
    kind: Kind,
    field: str,
    absent: str = "–",
    *,
    total: bool = False,
    sharing: bool = False,
    rounds: bool = True,
    per_client: bool = False,
    better: Better = "neither",
) -> Value:
    """Makes a value that is the mean of a field over all rounds, or its `total`, with the heights before them where
    `sharing`; the same for one client where a row's number holds for each. None unless all rows have the field."""

    def compute(result: Result, limits: Limits) -> float | None:
        rows = [*(result.sharing if sharing else ()), *(result.rounds if rounds else ())]
        known = [value for row in rows if (value := getattr(row, field)) is not None]
        if not known or len(known) < len(rows):
            return None
        return (sum(known) if total else compute_mean(known)) / (result.num_clients if per_client else 1)

    return Value(label, kind, better, compute, absent, newer_field=field if rounds and field in _NEWER else None)


def _share_prototypes(result: Result, limits: Limits) -> float | None:
    """Computes the ratio of numbers sent as prototypes to all other numbers sent."""
    sent = sum(row.sent_params for row in result.rounds)
    prototypes = sum(row.sent_prototypes or 0 for row in result.rounds)
    return prototypes / (sent - prototypes) if sent > prototypes else None


def _at_prior(label: str, kappa: float | None, field: str) -> Value:
    named = f"{label} at {'its own kappa' if kappa is None else f'kappa {kappa:g}'}"

    def compute(result: Result, limits: Limits) -> float | None:
        return next((getattr(row, field) for row in result.priors if row.kappa == kappa), None)

    return Value(named, "accuracy", "higher", compute, "–")


def _accuracy(label: str, compute: Compute, absent: str = "never", field: str | None = None) -> Value:
    """Makes a value that is an accuracy; `field` is where a single client's is kept."""
    return Value(label, "accuracy", "higher", compute, absent, of_client=attrgetter(field) if field else None)


_ONE: Mapping[str, Any] = {"per_client": True}
_BEFORE: Mapping[str, Any] = {"total": True, "sharing": True, "rounds": False}

VALUES: Mapping[str, Value] = {
    "best_taa": _accuracy("best TAA", _best("taa")),
    "final_taa": _accuracy("final TAA", _final("taa"), field="accuracy"),
    "best_taa_local": _accuracy("best TAA before the exchange", _best("taa_local")),
    "final_taa_local": _accuracy("final TAA before the exchange", _final("taa_local"), field="local_accuracy"),
    "best_global": _accuracy("best on all classes", _best("global")),
    "final_global": _accuracy("final on all classes", _final("global"), field="global_accuracy"),
    "best_tal": Value("lowest TAL", "loss", "lower", _best("tal")),
    "final_tal": Value("final TAL", "loss", "lower", _final("tal")),
    "best_val_accuracy": _accuracy("best validation accuracy", _best("val_accuracy"), "–"),
    "final_val_accuracy": _accuracy("final validation accuracy", _final("val_accuracy"), "–"),
    "final_aux_loss": Value("final auxiliary loss", "loss", "neither", _final("aux_loss"), "–"),
    "rounds_to": _until("rounds to target", "taa", _count_rounds),
    "rounds_to_global": _until("rounds to target on all classes", "global", _count_rounds),
    "epochs_to": _until("local epochs to target", "taa", _count_epochs),
    "epochs_to_global": _until("local epochs to target on all classes", "global", _count_epochs),
    "seconds_to": _until("seconds to target", "taa", _reckon, "seconds"),
    "seconds_to_global": _until("seconds to target on all classes", "global", _reckon, "seconds"),
    "network_seconds": Value(
        "seconds over the network",
        "seconds",
        "neither",
        lambda result, limits: max(_reckon(result, limits), default=None),
        "not known",
        needs_network=True,
    ),
    "sent_params": _of_rows("numbers sent a round, all clients", "count", "sent_params", "never"),
    "sent_params_per_client": _of_rows("numbers sent a round, one client", "count", "sent_params", "never", **_ONE),
    "sent_bytes": _of_rows("bytes sent a round, all clients", "bytes", "sent_bytes", "never"),
    "sent_bytes_per_client": _of_rows("bytes sent a round, one client", "bytes", "sent_bytes", "never", **_ONE),
    "received_params_per_client": _of_rows(
        "numbers received a round, one client", "count", "received_params", "not counted", **_ONE
    ),
    "received_bytes_per_client": _of_rows(
        "bytes received a round, one client", "bytes", "received_bytes", "not counted", **_ONE
    ),
    "total_received_bytes_per_client": _of_rows(
        "bytes received in the whole run, one client",
        "bytes",
        "received_bytes",
        "not counted",
        total=True,
        sharing=True,
        per_client=True,
    ),
    "sent_prototypes_per_client": _of_rows(
        "numbers of prototypes sent a round, one client", "count", "sent_prototypes", **_ONE
    ),
    "prototype_share": Value("prototypes sent for each other number", "number", "neither", _share_prototypes, "–"),
    "sharing_sent_bytes_per_client": _of_rows(
        "bytes sent before round 1, one client", "bytes", "sent_bytes", **_BEFORE, **_ONE
    ),
    "sharing_received_bytes_per_client": _of_rows(
        "bytes received before round 1, one client", "bytes", "received_bytes", **_BEFORE, **_ONE
    ),
    "sharing_seconds": _of_rows(
        "seconds of local training before round 1, one client", "seconds", "train_s", **_BEFORE
    ),
    "halted": Value(
        "runs that came to a halt",
        "share",
        "lower",
        lambda result, limits: float(result.halted_at is not None) if result.is_attacked else None,
        "–",
    ),
    "left_out": _of_rows("contributions left out a round", "number", "left_out"),
    "spoiled": _of_rows("aggregates not taken a round", "number", "spoiled", better="lower"),
    "epsilon": Value("epsilon", "number", "lower", lambda result, limits: result.epsilon, "–"),
    "dropout_share": _of_rows("dropout branch", "share", "dropout"),
    "seconds": Value("seconds a run", "seconds", "neither", lambda result, limits: result.seconds),
    "train_seconds": _of_rows(
        "seconds of local training, one client", "seconds", "train_s", "not timed", total=True, sharing=True
    ),
    "train_seconds_per_round": _of_rows("seconds of local training a round", "seconds", "train_s", "not timed"),
    "aggregate_seconds_per_round": _of_rows("seconds of aggregation a round", "seconds", "aggregate_s", "not timed"),
    "taa_at_seconds": _timed("TAA", "taa", best=False),
    "best_taa_at_seconds": _timed("best TAA", "taa", best=True),
    "global_at_seconds": _timed("on all classes", "global", best=False),
    "best_global_at_seconds": _timed("best on all classes", "global", best=True),
    **{
        f"{series}_at_prior_{'own' if kappa is None else f'{kappa:g}'}": _at_prior(label, kappa, field)
        for kappa in (*KAPPAS, None)
        for series, label, field in (("taa", "TAA", "taa"), ("global", "on all classes", "global_"))
    },
}


def needs_network(names: Iterable[str]) -> bool:
    """Says whether one of these values, or of these x of a figure, is computed for a network."""
    return any(VALUES[name].needs_network for name in names if name in VALUES)


def show_number(kind: Kind, value: float, *, spread: bool = False) -> str:
    """Returns a number as text: `98.16` for an accuracy of 0.9816, `12.3 kB` for 12,345 bytes. Rounds are whole unless
    the number is a `spread`."""
    match kind:
        case "accuracy":
            return f"{100 * value:.2f}"
        case "share":
            return f"{100 * value:.1f}"
        case "loss":
            return f"{value:.3f}"
        case "number":
            return f"{value:.3g}"
        case "rounds":
            return f"{value:.1f}" if spread or not float(value).is_integer() else f"{value:.0f}"
        case "seconds":
            return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
        case "bytes":
            return show_bytes(value)
        case "count":
            return f"{value:,.0f}"
