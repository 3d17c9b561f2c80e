"""The results of a simulation: what each round came to, and each client after the last one."""

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

OWN_METRICS = ("peers", "similar", "dropout", "divergence", "aux_loss")  # of some methods


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round: means over honest clients of the accuracy and the loss on matched test sets (`taa`, `tal`) and on
    everyone's (`global_`, `tal_global`), and of the matched accuracy before anything was exchanged (`taa_local`); of a
    regression R2 stands where the accuracy would. And what clients sent and received, summed over all: numbers in
    floating-point arrays, and bytes of encoded payloads. A payload that is voted on is sent once and received by all
    others, one on demand as often as it is pulled. `train_s` is the mean over clients of the seconds that their local
    phases took, and `aggregate_s` what one client needs to aggregate; being the machine's, they make no two rounds
    unequal.

    Of peer-to-peer methods also means over honest clients: how many `peers` each took something of, and where a method
    says so, how many of them were `similar`, how far they were apart (`divergence`), and the share of clients that took
    over a peer's whole model (`dropout`); of DFPL how far prototypes were from the global ones (`aux_loss`). None of
    other methods. `divergences` [N, N] says that of each pair, where
    clients are few (`MAX_PAIRED`).

    Where clients have val samples, `val` is what each client's show once the round was applied, None of one without,
    and `val_accuracy` the mean of their accuracies on them. `sent_prototypes` are the numbers sent that are of
    prototypes, where a method sends some. What was not measured in a round is no number.

    Under an attack also how many contributions the round went without (`left_out`), and how many of the honest it left
    without a finite loss (`spoiled`).
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
        """All but seconds, and what the method does not have; None for what is no finite number."""
        seconds = ("train_s", "aggregate_s")
        values = {name.rstrip("_"): value for name, value in asdict(self).items() if name not in seconds}
        tuples = {name: values.pop(name) for name in ("divergences", "val")}
        told = {name: to_finite(value) for name, value in values.items() if value is not None}
        return told | {name: value for name, value in tuples.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ClientResult:
    """One client after the last round; `local_accuracy` is the matched one before anything was exchanged in it, None
    where the client did not train."""

    id: int
    accuracy: float
    global_accuracy: float
    local_accuracy: float | None
    num_train: int
    num_test: int


@dataclass(frozen=True, slots=True)
class PriorResult:
    """The answers after the last round, adjusted by `kappa` to each client's own prior (`ml.training.prior`), None for
    the kappa that each client chooses: means over honest clients of the matched and the global accuracy."""

    kappa: float | None
    taa: float
    global_: float

    def to_json(self) -> dict[str, Any]:
        return {"kappa": self.kappa, "taa": to_finite(self.taa), "global": to_finite(self.global_)}


def measure_round(played: Played, honest: Sequence[int], *, attacked: bool) -> RoundResult:
    """The round's figures, means over the honest."""
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
    """The mean over the clients that say so; None where none does."""
    known = [metrics[name] for metrics in told if name in metrics]
    return compute_mean(known) if known else None


def measure_prior_results(honest: Sequence[Client]) -> tuple[PriorResult, ...]:
    """The answers of the honest over kappa; nothing where the method's answers have no prior."""
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
    """A round that was saved, where tuples have become lists, and measures mappings."""

    def freeze(value: Any) -> Any:
        if isinstance(value, Mapping):
            return ValMeasures(**value)
        return tuple(map(freeze, value)) if isinstance(value, list) else value

    return RoundResult(**{name: freeze(value) for name, value in row.items()})
