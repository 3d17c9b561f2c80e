"""The values of a table's cells: each is one number computed from one run's rounds (ALGORITHMS §8.2), with the way it
is written.

Accuracies and shares are kept in 0..1 and shown in percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from ml.training.metrics import compute_mean
from ml.training.prior import KAPPAS
from node.experiments.local_work import compute_epochs
from node.experiments.network import compute_network_seconds
from node.experiments.results import ClientRow, PriorRow, Result, RoundRow
from node.experiments.sections import NetworkSection

Kind = Literal["accuracy", "share", "loss", "number", "rounds", "count", "bytes", "seconds"]
Better = Literal["higher", "lower", "neither"]

PERCENT: tuple[Kind, ...] = ("accuracy", "share")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that some values are read at: the accuracy in 0..1 to reach, the seconds of local training to use, and
    the network that other seconds are reckoned by."""

    target: float = 0.9
    seconds: float | None = None
    network: NetworkSection | None = field(default=None, kw_only=True)


Compute = Callable[[Result, Limits], float | None]
Ends = Callable[[Result, Limits], Sequence[float]]  # of each round, how far the run has come by its end


@dataclass(frozen=True, slots=True)
class Value:
    """A number of a run. `compute` gives None where the run has no such number, which a table calls `absent`.

    One that `needs_seconds` is read at a limit of training time, one that `needs_network` at a network; one with
    `to_reach`, at what that series is to reach. `newer_field` is what it reads of rounds that results of
    earlier versions do not have.
    `of_client` gives a single client's, where it is kept.
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
        """The number of a run, or of one of its clients."""
        if client is None:
            return self.compute(result, limits)
        return None if self.of_client is None else self.of_client(result.clients[client])

    def read_loss(self, result: Result, baseline: Result, limits: Limits) -> float | None:
        """The loss of accuracy against `baseline`. Where accuracy is kept for each client, it is of those that do not
        lie in `result` both times, so that nobody's own difficulty counts."""
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
    "dropout": Series("clients in the dropout branch", "share", lambda row: row.dropout),
    "divergence": Series("divergence from the peers", "number", lambda row: row.divergence),
    "peers": Series("peers", "number", lambda row: row.peers),
    "similar": Series("similar peers", "number", lambda row: row.similar),
    "val_accuracy": Series("validation accuracy", "accuracy", lambda row: row.val_accuracy),
    "aux_loss": Series("auxiliary loss", "loss", lambda row: row.aux_loss),
    "left_out": Series("contributions left out", "number", lambda row: row.left_out),
    "spoiled": Series("honest clients that did not take the aggregate", "number", lambda row: row.spoiled),
}


def _best(series: str) -> Compute:
    take = SERIES[series].compute
    choose = min if SERIES[series].kind == "loss" else max

    def compute(result: Result, limits: Limits) -> float | None:
        known = [value for row in result.rounds if (value := take(row)) is not None]
        return choose(known) if known else None

    return compute


def _final(series: str) -> Compute:
    take = SERIES[series].compute
    return lambda result, limits: take(result.rounds[-1]) if result.rounds else None


def _make_rounds_to(label: str, series: str) -> Value:
    take = SERIES[series].compute

    def compute(result: Result, limits: Limits) -> float | None:
        reached = (row.round for row in result.rounds if (value := take(row)) is not None and value >= limits.target)
        return next(reached, None)

    return Value(label, "rounds", "lower", compute, to_reach=series)


def _make_until(label: str, series: str, compute_ends: Ends, *, in_seconds: bool = False) -> Value:
    """What it took until the round that reaches the target had ended, where `compute_ends` says so of each round."""
    count = _make_rounds_to(label, series).compute

    def compute(result: Result, limits: Limits) -> float | None:
        num, ends = count(result, limits), compute_ends(result, limits)
        return None if num is None or not ends else ends[int(num) - 1]

    return Value(
        label, "seconds" if in_seconds else "rounds", "lower", compute, to_reach=series, needs_network=in_seconds
    )


def _reckon(result: Result, limits: Limits) -> Sequence[float]:
    return () if limits.network is None else compute_network_seconds(result, limits.network)


def _at_seconds(series: str, *, best: bool) -> Compute:
    """Of the rounds that end within the limit: the last, or the best."""
    take = SERIES[series].compute

    def compute(result: Result, limits: Limits) -> float | None:
        if limits.seconds is None:
            return None
        ends = compute_train_seconds(result)
        known = [take(row) for row, end in zip(result.rounds, ends, strict=False) if end <= limits.seconds]
        values = [value for value in known if value is not None]
        return None if not values else max(values) if best else values[-1]

    return compute


def compute_train_seconds(result: Result) -> tuple[float, ...]:
    """The local training until the end of each round, mean over clients, from the run's beginning on; nothing where it
    was not timed."""
    rows = (*result.sharing, *result.rounds)
    own = [row.train_s for row in rows if row.train_s is not None]
    return tuple(accumulate(own))[len(result.sharing) :] if len(own) == len(rows) else ()


def compute_sent_bytes(result: Result) -> tuple[float, ...]:
    """The bytes that a client has sent until the end of each round, from the run's beginning on."""
    sent = accumulate(row.sent_bytes for row in (*result.sharing, *result.rounds))
    return tuple(count / result.num_clients for count in sent)[len(result.sharing) :]


def _mean(take: Callable[[RoundRow], float | None], *, per_client: bool = False) -> Compute:
    """The mean over all rounds, of one client where a round's number is that of all; None unless all have it."""

    def compute(result: Result, limits: Limits) -> float | None:
        known = [value for row in result.rounds if (value := take(row)) is not None]
        if not known or len(known) < len(result.rounds):
            return None
        return compute_mean(known) / (result.num_clients if per_client else 1)

    return compute


def _before(take: Callable[[RoundRow], float | None], *, per_client: bool = False) -> Compute:
    """The sum over the heights before round 1, of one client where a height's number is that of all."""

    def compute(result: Result, limits: Limits) -> float | None:
        known = [value for row in result.sharing if (value := take(row)) is not None]
        if not known or len(known) < len(result.sharing):
            return None
        return sum(known) / (result.num_clients if per_client else 1)

    return compute


def _make_timed(label: str, series: str, *, best: bool) -> Value:
    compute = _at_seconds(series, best=best)
    return Value(
        f"{label} at equal time",
        "accuracy",
        "higher",
        compute,
        "no round in time",
        needs_seconds=True,
        newer_field="train_s",
    )


def _sum_received(result: Result, limits: Limits) -> float | None:
    """The bytes that a client has received in the whole run, what comes before round 1 included."""
    known = [row.received_bytes for row in (*result.sharing, *result.rounds) if row.received_bytes is not None]
    if not known or len(known) < len(result.sharing) + len(result.rounds):
        return None
    return sum(known) / result.num_clients


def _compute_prototype_share(result: Result, limits: Limits) -> float | None:
    """The numbers sent as prototypes for each other one."""
    sent = sum(row.sent_params for row in result.rounds)
    prototypes = sum(row.sent_prototypes or 0 for row in result.rounds)
    return prototypes / (sent - prototypes) if sent > prototypes else None


def _at_prior(kappa: float | None, take: Callable[[PriorRow], float]) -> Compute:
    return lambda result, limits: next((take(row) for row in result.priors if row.kappa == kappa), None)


def _make_priors() -> dict[str, Value]:
    """`taa_at_prior_0.25` and `global_at_prior_0.25`, and with `_own` at each client's own kappa."""
    values = {}
    for kappa in (*KAPPAS, None):
        name, label = ("own", "its own kappa") if kappa is None else (f"{kappa:g}", f"kappa {kappa:g}")
        for series, text, take in (("taa", "TAA", _get_taa), ("global", "on all classes", _get_global)):
            compute = _at_prior(kappa, take)
            values[f"{series}_at_prior_{name}"] = Value(f"{text} at {label}", "accuracy", "higher", compute, "–")
    return values


def _get_taa(row: PriorRow) -> float:
    return row.taa


def _get_global(row: PriorRow) -> float:
    return row.global_


def _is_halted(result: Result, limits: Limits) -> float | None:
    return float(result.halted_at is not None) if result.is_attacked else None


VALUES: Mapping[str, Value] = {
    "best_taa": Value("best TAA", "accuracy", "higher", _best("taa")),
    "final_taa": Value("final TAA", "accuracy", "higher", _final("taa"), of_client=lambda row: row.accuracy),
    "best_taa_local": Value("best TAA before the exchange", "accuracy", "higher", _best("taa_local")),
    "final_taa_local": Value(
        "final TAA before the exchange",
        "accuracy",
        "higher",
        _final("taa_local"),
        of_client=lambda row: row.local_accuracy,
    ),
    "best_global": Value("best on all classes", "accuracy", "higher", _best("global")),
    "final_global": Value(
        "final on all classes", "accuracy", "higher", _final("global"), of_client=lambda row: row.global_accuracy
    ),
    "best_tal": Value("lowest TAL", "loss", "lower", _best("tal")),
    "final_tal": Value("final TAL", "loss", "lower", _final("tal")),
    "best_val_accuracy": Value("best validation accuracy", "accuracy", "higher", _best("val_accuracy"), "–"),
    "final_val_accuracy": Value("final validation accuracy", "accuracy", "higher", _final("val_accuracy"), "–"),
    "final_aux_loss": Value("final auxiliary loss", "loss", "neither", _final("aux_loss"), "–"),
    "rounds_to": _make_rounds_to("rounds to target", "taa"),
    "rounds_to_global": _make_rounds_to("rounds to target on all classes", "global"),
    "epochs_to": _make_until("local epochs to target", "taa", lambda result, limits: compute_epochs(result)),
    "epochs_to_global": _make_until(
        "local epochs to target on all classes", "global", lambda result, limits: compute_epochs(result)
    ),
    "seconds_to": _make_until("seconds to target", "taa", _reckon, in_seconds=True),
    "seconds_to_global": _make_until("seconds to target on all classes", "global", _reckon, in_seconds=True),
    "network_seconds": Value(
        "seconds over the network",
        "seconds",
        "neither",
        lambda result, limits: max(_reckon(result, limits), default=None),
        "not known",
        needs_network=True,
    ),
    "sent_params": Value("numbers sent a round, all clients", "count", "neither", _mean(lambda row: row.sent_params)),
    "sent_params_per_client": Value(
        "numbers sent a round, one client", "count", "neither", _mean(lambda row: row.sent_params, per_client=True)
    ),
    "sent_bytes": Value("bytes sent a round, all clients", "bytes", "neither", _mean(lambda row: row.sent_bytes)),
    "sent_bytes_per_client": Value(
        "bytes sent a round, one client", "bytes", "neither", _mean(lambda row: row.sent_bytes, per_client=True)
    ),
    "received_params_per_client": Value(
        "numbers received a round, one client",
        "count",
        "neither",
        _mean(lambda row: row.received_params, per_client=True),
        "not counted",
        newer_field="received_params",
    ),
    "received_bytes_per_client": Value(
        "bytes received a round, one client",
        "bytes",
        "neither",
        _mean(lambda row: row.received_bytes, per_client=True),
        "not counted",
        newer_field="received_bytes",
    ),
    "total_received_bytes_per_client": Value(
        "bytes received in the whole run, one client",
        "bytes",
        "neither",
        _sum_received,
        "not counted",
        newer_field="received_bytes",
    ),
    "sent_prototypes_per_client": Value(
        "numbers of prototypes sent a round, one client",
        "count",
        "neither",
        _mean(lambda row: row.sent_prototypes, per_client=True),
        "–",
    ),
    "prototype_share": Value(
        "prototypes sent for each other number", "number", "neither", _compute_prototype_share, "–"
    ),
    "sharing_sent_bytes_per_client": Value(
        "bytes sent before round 1, one client",
        "bytes",
        "neither",
        _before(lambda row: row.sent_bytes, per_client=True),
        "–",
    ),
    "sharing_received_bytes_per_client": Value(
        "bytes received before round 1, one client",
        "bytes",
        "neither",
        _before(lambda row: row.received_bytes, per_client=True),
        "–",
    ),
    "sharing_seconds": Value(
        "seconds of local training before round 1, one client",
        "seconds",
        "neither",
        _before(lambda row: row.train_s),
        "–",
    ),
    "halted": Value("runs that came to a halt", "share", "lower", _is_halted, "–"),
    "left_out": Value("contributions left out a round", "number", "neither", _mean(SERIES["left_out"].compute), "–"),
    "spoiled": Value("aggregates not taken a round", "number", "lower", _mean(SERIES["spoiled"].compute), "–"),
    "epsilon": Value("epsilon", "number", "lower", lambda result, limits: result.epsilon, "–"),
    "dropout_share": Value("dropout branch", "share", "neither", _mean(SERIES["dropout"].compute), "–"),
    "seconds": Value("seconds a run", "seconds", "neither", lambda result, limits: result.seconds),
    "train_seconds": Value(
        "seconds of local training, one client",
        "seconds",
        "neither",
        lambda result, limits: max(compute_train_seconds(result), default=None),
        "not timed",
        newer_field="train_s",
    ),
    "train_seconds_per_round": Value(
        "seconds of local training a round",
        "seconds",
        "neither",
        _mean(lambda row: row.train_s),
        "not timed",
        newer_field="train_s",
    ),
    "aggregate_seconds_per_round": Value(
        "seconds of aggregation a round",
        "seconds",
        "neither",
        _mean(lambda row: row.aggregate_s),
        "not timed",
        newer_field="aggregate_s",
    ),
    "taa_at_seconds": _make_timed("TAA", "taa", best=False),
    "best_taa_at_seconds": _make_timed("best TAA", "taa", best=True),
    "global_at_seconds": _make_timed("on all classes", "global", best=False),
    "best_global_at_seconds": _make_timed("best on all classes", "global", best=True),
    **_make_priors(),
}


def needs_network(names: Iterable[str]) -> bool:
    """Whether one of these values, or what a figure has across, is reckoned by a network."""
    return any(VALUES[name].needs_network for name in names if name in VALUES)


def show_number(kind: Kind, value: float, *, spread: bool = False) -> str:
    """`98.16` of an accuracy of 0.9816, `12.3 kB` of 12,345 bytes. Rounds are whole unless there is a `spread`."""
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


def show_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
