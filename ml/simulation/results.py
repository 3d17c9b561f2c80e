"""The results of a simulation: of each round, and of each client after the last one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ml.clients.client import Client
from ml.clients.priors import measure_priors
from ml.errors import MlError
from ml.measures.val import ValMeasures
from ml.methods.base import Metrics, Trained
from ml.simulation.rounds import Played
from ml.training.metrics import compute_mean, get_score

OWN_METRICS = ("peers", "similar", "dropout", "divergence", "aux_loss")  # metrics of some methods


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The results of one round. `taa` and `tal` are the means over honest clients of accuracy and loss on matched test
    sets, `global_` and `tal_global` those on everyone's test set, and `taa_local` is the mean of the matched accuracy
    before the exchange; for a regression R2 takes the place of accuracy. `sent_*` and `received_*` are sums over all
    clients: numbers in floating-point arrays, and bytes of encoded payloads. A payload that is voted on is sent once
    and received by all others, one on demand as often as it is pulled. `train_s` is the mean over clients of the
    seconds of their local phases, and `aggregate_s` the time that one client needs to aggregate; these depend on the
    machine, and are left out when rounds are compared.

    Peer-to-peer methods also have means over honest clients: how many `peers` each took something from and, where a
    method reports it, how many of them were `similar`, how far apart they were (`divergence`), and the share of clients
    that adopted a peer's whole model (`dropout`); for DFPL, how far prototypes were from the global ones (`aux_loss`).
    These are None for other methods. `divergences` [N, N] has the divergence of each pair, where clients are few
    (`MAX_PAIRED`).

    Where clients have val samples, `val` has each client's measures on them after the round, None for one without, and
    `val_accuracy` the mean of their accuracies. `sent_prototypes` counts the numbers that were sent as prototypes,
    where a method sends some. A figure that was not measured in a round is NaN.

    Under an attack `left_out` counts the contributions that the round went without, and `spoiled` the honest clients
    that it left without a finite loss.
    """

    round: int
    taa: float
    tal: float
    taa_local: float
    global_: float
    tal_global: float
    sent_params: int
    sent_bytes: int
    received_params: int
    received_bytes: int
    peers: float | None = None
    similar: float | None = None
    dropout: float | None = None
    divergence: float | None = None
    aux_loss: float | None = None
    divergences: tuple[tuple[float, ...], ...] | None = None
    left_out: int | None = None
    spoiled: int | None = None
    val: tuple[ValMeasures | None, ...] | None = None
    val_accuracy: float | None = None
    sent_prototypes: int | None = None
    train_s: float = field(default=0.0, compare=False)
    aggregate_s: float = field(default=0.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Returns all but seconds, without what the method does not have; None for a figure that is no finite
        number."""
        seconds = ("train_s", "aggregate_s")
        values = {name.rstrip("_"): value for name, value in asdict(self).items() if name not in seconds}
        tuples = {name: values.pop(name) for name in ("divergences", "val")}
        told = {name: to_finite(value) for name, value in values.items() if value is not None}
        return told | {name: value for name, value in tuples.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The results of one client after the last round; `local_accuracy` is the matched one before that round's exchange,
    None where the client did not train."""

    id: int
    accuracy: float
    global_accuracy: float
    local_accuracy: float | None
    num_train: int
    num_test: int


@dataclass(frozen=True, slots=True)
class PriorResult:
    """The results of the answers after the last round, adjusted by `kappa` to each client's own prior
    (`ml.training.prior`): means over honest clients of the matched and the global accuracy. `kappa` is None for the
    value that each client chooses."""

    kappa: float | None
    taa: float
    global_: float

    def to_json(self) -> dict[str, Any]:
        return {"kappa": self.kappa, "taa": to_finite(self.taa), "global": to_finite(self.global_)}


def measure_round(played: Played, honest: Sequence[int], *, attacked: bool) -> RoundResult:
    """Computes the round's figures, as means over the honest clients."""
    before = [made.metrics for i in honest if (made := played.trained[i]) is not None]
    after = [played.applied[i] for i in honest]
    on_all = [played.on_all[i] for i in honest]
    val = tuple(map(ValMeasures.from_metrics, played.applied))
    return RoundResult(
        round=played.height,
        taa=compute_mean(map(get_score, after)),
        tal=compute_mean(metrics["loss"] for metrics in after),
        taa_local=compute_mean(map(get_score, before)),
        global_=compute_mean(map(get_score, on_all)),
        tal_global=compute_mean(metrics["loss"] for metrics in on_all),
        sent_params=played.sent.params,
        sent_bytes=played.sent.bytes,
        received_params=played.received.params,
        received_bytes=played.received.bytes,
        **{name: _compute_known_mean(after, name) for name in OWN_METRICS},
        divergences=played.divergences,
        left_out=played.num_left_out if attacked else None,
        spoiled=len(played.spoiled.intersection(honest)) if attacked else None,
        val=val if any(val) else None,
        val_accuracy=compute_mean(known) if (known := [v for v in played.val_accuracies if v is not None]) else None,
        sent_prototypes=played.sent_prototypes,
        train_s=compute_mean(metrics["seconds"] for metrics in before),
        aggregate_s=played.aggregate_s,
    )


def _compute_known_mean(told: Sequence[Metrics], name: str) -> float | None:
    """Returns the mean over the clients that have this metric; None where none has."""
    known = [metrics[name] for metrics in told if name in metrics]
    return compute_mean(known) if known else None


def measure_prior_results(honest: Sequence[Client]) -> tuple[PriorResult, ...]:
    """Measures the honest clients' answers for each kappa; returns nothing where the method's answers have no prior."""
    try:
        measured = [measure_priors(client) for client in honest]
    except MlError:
        return ()
    return tuple(
        PriorResult(kappa, compute_mean(row[i][1] for row in measured), compute_mean(row[i][2] for row in measured))
        for i, (kappa, _, _) in enumerate(measured[0])
    )


def describe_client(i: int, client: Client, made: Trained | None) -> ClientResult:
    accuracy, global_accuracy = get_score(client.evaluate()), get_score(client.evaluate("global"))
    local_accuracy = None if made is None or not made.metrics["steps"] else get_score(made.metrics)
    return ClientResult(i, accuracy, global_accuracy, local_accuracy, client.num_train, client.num_test)


def to_finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def read_round(row: Mapping[str, Any]) -> RoundResult:
    """Restores a saved round, in which tuples have become lists, and measures mappings."""

    def freeze(value: Any) -> Any:
        if isinstance(value, Mapping):
            return ValMeasures(**value)
        return tuple(map(freeze, value)) if isinstance(value, list) else value

    return RoundResult(**{name: freeze(value) for name, value in row.items()})
