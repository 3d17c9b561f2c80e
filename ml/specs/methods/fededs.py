"""FedEDS: encrypted samples are shared once, and local epochs grow fewer (ALGORITHMS §4, §11 E1 to E12).

Each client trains an encoder of its own, which turns its samples x into images x' that its model classifies as before,
but only through a random layer that it made up as well. It sends x', its model's answers to them, and the layer: its
*encrypted set*. The others train on it beside their own samples, less from round to round, Eq. (8) to (10), and all
make fewer epochs from round to round, Eq. (5). What is sent each round, and how it combines, is that of `base`.

It is called encryption and is not: x' is a learned transformation of x, and nothing prevents a receiver from undoing
it.

Height 1 is the sharing round, whose aggregate is block 0's again; the paper's round t makes the block at t + 1. Without
`share` there is no such round, and only the epochs are annealed. Nobody can choose whose set a client trains on: for
each draw the other clients are ranked by

    SHA-256("fednode.sets" | beacon | me | number of the draw | other)

and the first whose set can be fetched is drawn. The beacon follows from the block before, so anyone can repeat the
draw.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ml.errors import PayloadError, SpecError
from ml.payload import BLOCK_ELEMENTS, Array, Arrays, ArraySchema, ArraySpec, count_chunks
from ml.specs.hyperparameters import MAX_COUNT, Hyperparameters, choice, count, flag, number
from ml.specs.methods import fednova
from ml.specs.selection import Authors, Offer, Offers
from ml.specs.sharing import ModelHyperparameters, ModelSpec
from ml.tasks import CLASSIFICATION

DRAW = b"fednode.sets"
MAX_MAGNITUDE = 1e4  # of a number of x' or of the layer: far above usual values, far below an overflow
MAGNITUDES = (-MAX_MAGNITUDE, MAX_MAGNITUDE)
SUM_TOLERANCE = 1e-3  # of soft labels: a softmax in float32, in whatever order it was summed
POOLED_TWICE = 4  # the encoder halves an image twice, so its sides are multiples of this


# ---- schedules and draws


def compute_epochs(t: int, e_max: int, e_min: int, t_a: int, t_b: int) -> int:
    """Computes E_t of round t, from 1 on: e_max up to t_a, e_min after t_b, and a straight line between them, Eq.
    (5)."""
    if t <= t_a:
        return e_max
    if t > t_b:
        return e_min
    return e_max - (e_max - e_min) * (t - t_a) // (t_b - t_a)


def compute_lambdas(t: int, m: float, eps: float, rounds: int | None = None) -> tuple[float, float]:
    """Computes (lambda_c, lambda_dis) of round t, from 1 on: the weights in a client's loss of its own samples, and of
    the others' sets, Eq. (9) and (10). With `rounds`, time is counted in fractions of them."""
    s = math.exp(-m * (t - 1) / (rounds or 1))
    lambda_dis = s / (1 + s)
    return (1.0, 0.0) if lambda_dis < eps else (1 / (1 + s), lambda_dis)


def compute_last_round(m: float, eps: float, rounds: int | None = None) -> int | None:
    """Computes the last round whose lambda_dis is above 0; 0 if there is none, and None if there is no end to them."""

    def is_over(t: int) -> bool:
        return compute_lambdas(t, m, eps, rounds)[1] == 0

    first_over = bisect_left(range(1, MAX_COUNT), True, key=is_over) + 1
    return None if first_over == MAX_COUNT else first_over - 1


def rank_peers(beacon: bytes, me: bytes, draw_index: int, others: Iterable[bytes]) -> tuple[bytes, ...]:
    """Returns `others` in the order of their rank in one draw; `me` is never among them."""
    seed = DRAW + beacon + me + draw_index.to_bytes(4, "big")
    ranked = sorted((hashlib.sha256(seed + other).digest(), other) for other in set(others) if other != me)
    return tuple(other for _, other in ranked)


# ---- the spec


@dataclass(frozen=True, kw_only=True)
class FedEdsHyperparameters(ModelHyperparameters):
    """Settings of FedEDS. `base` is the method that FedEDS is added to; of its own settings, `mu` is fedprox's and
    `unit` is fednova's.

    Epochs fall from `local_epochs`, E_max, to `min_epochs`, E_min, between the rounds `anneal_from`, T_a, and
    `anneal_to`, T_b, Eq. (5). `m` and `eps` set how fast and down to what value lambda_dis falls, Eq. (9) and (10), by
    the `round`, or by the `fraction` of the planned rounds. `draw` is when another client's set is drawn.

    `layer` is the random layer: a matrix (`gaussian`, `orthogonal`, or a `conv1x1` as it would be initialised), one
    factor for each feature (`diag`), or none at all (`identity`). A set is made by `warmup_epochs`, E_c, of plain
    training and `encryptor_epochs`, E_g, of a UNet of `unet_width` channels with AdamW, whose output is as it is or
    goes through a sigmoid or a tanh (`unet_out`).

    A set has at most `share_max` samples, and of each class `share_per_class`, in `share_dtype`; a member that trains
    on a set enforces the limit of each class again, by its soft labels. In the sharing round nodes wait
    `share_collect_s` for contributions. Sets are deleted when no round will train on them any more, unless `keep_sets`,
    which keeps them for ever. Without `share` there are none.

    The paper's own values are lr 0.01, momentum 0.9 and weight decay 1e-4 (it does not state its batch size); where
    they are not written out, the defaults are those of all methods.
    """

    local_iterations: int | None = count(None)
    local_epochs: int | None = count(5)
    base: str = choice("fedavg", "fedprox", "fednova")
    mu: float = number(0.1, "[0, inf)")
    unit: str = choice("steps", "epochs")
    share: bool = flag(True)
    min_epochs: int = count(1)
    anneal_from: int = count(1)
    anneal_to: int = count(3)
    m: float = number(3.0, "[0, inf)")
    eps: float = number(0.01, "[0, 1]")
    lambda_clock: str = choice("round", "fraction")
    draw: str = choice("epoch", "batch", "round")
    layer: str = choice("gaussian", "orthogonal", "diag", "conv1x1", "identity")
    warmup_epochs: int = count(5)
    encryptor_epochs: int = count(20)
    encryptor_lr: float = number(0.001, "(0, 1e38]")
    encryptor_weight_decay: float = number(0.01, "[0, inf)")
    unet_width: int = count(64)
    unet_out: str = choice("linear", "sigmoid", "tanh")
    share_dtype: str = choice("float32", "float16", "uint8")
    share_max: int = count(10_000)
    share_per_class: int | None = count(None)
    share_collect_s: float = number(3600.0, "(0, 604800]")
    keep_sets: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_epochs is None:
            raise SpecError(
                "method.local_iterations", f"fededs expects local_epochs, which it anneals, got {self.local_iterations}"
            )
        if self.budget_s is not None:
            raise SpecError("method.budget_s", f"fededs expects none, for its epochs are annealed; got {self.budget_s}")
        if self.min_epochs > self.local_epochs:
            raise SpecError(
                "method.min_epochs", f"expected local_epochs, {self.local_epochs}, at most, got {self.min_epochs}"
            )
        if self.anneal_to < self.anneal_from:
            raise SpecError(
                "method.anneal_to", f"expected anneal_from, {self.anneal_from}, at least, got {self.anneal_to}"
            )
        if self.base == "fednova":
            fednova.check_settings(self, self.local_epochs if self.unit == "epochs" else None)
            if self.is_robust:
                raise SpecError(
                    "method.aggregation",
                    f"expected mean with base fednova, a rule of its own, got {self.aggregation!r}",
                )


@dataclass(frozen=True)
class FedEdsSpec(ModelSpec):
    """FedEDS's spec: at the sharing height `encrypted_set` and `chunk_digests`, at all others what `base` sends: the
    model, and with fednova the two numbers of its steps.

    `encrypted_set` has `x` [n, channels, height, width] of `share_dtype`, with uint8 also `scale` and `offset`
    float32[channels], for a number is offset + scale * x; the soft labels `y` float32[n, C] of these very numbers, Eq.
    (4); and the random layer as `layer` float32, a matrix [d, d] or a vector [d], unless it is `identity`.
    `chunk_digests` has `digests` uint8[m, 32]: of each MiB of the other's encoding, so that a node that pulls it
    detects a wrong chunk when it comes.
    """

    name: ClassVar[str] = "fededs"
    tasks: ClassVar[tuple[str, ...]] = (CLASSIFICATION,)  # soft labels are distributions over classes
    settings: ClassVar[type[Hyperparameters]] = FedEdsHyperparameters

    hyperparameters: FedEdsHyperparameters

    def __post_init__(self) -> None:
        if self.task.layout.features:
            raise SpecError(
                "model", f"fededs expects one that sees images, got {self.task.model['name']}, whose encoder is frozen"
            )
        if self.hyperparameters.base == "fednova":
            fednova.check_names(self.task)
        if not self.hyperparameters.share:
            return
        if any(side % POOLED_TWICE for side in self.task.input_shape[1:]):
            raise SpecError(
                "input.shape",
                f"fededs expects a height and a width that are multiples of {POOLED_TWICE} to share sets, "
                f"got {list(self.task.input_shape)}",
            )
        if self.hyperparameters.lambda_clock == "fraction" and self.task.rounds <= self.sharing_heights:
            raise SpecError(
                "rounds", f"fededs expects 2 at least with lambda_clock fraction, got {self.task.rounds or 'no end'}"
            )
        try:
            self._sharing_schemas  # noqa: B018 - raises for what is too large
        except PayloadError as error:
            raise SpecError("method.share_max", f"such a set cannot be sent: {error}") from error

    # ---- rounds

    @property
    def sharing_heights(self) -> int:
        return 1 if self.hyperparameters.share else 0

    def is_sharing(self, height: int) -> bool:
        """Says whether contributions of this height carry sets."""
        return 1 <= height <= self.sharing_heights

    def get_local_work(self, height: int) -> int:
        """Returns E_c at the sharing height, then E_t."""
        hyper = self.hyperparameters
        if self.is_sharing(height):
            return hyper.warmup_epochs
        t = self.get_round_number(height)
        return compute_epochs(t, hyper.local_work, hyper.min_epochs, hyper.anneal_from, hyper.anneal_to)

    def compute_lambdas(self, height: int) -> tuple[float, float]:
        """Computes (lambda_c, lambda_dis) of this height's local phase; (1, 0) if no sets are shared, or not yet."""
        t = self.get_round_number(height)
        return compute_lambdas(t, *self._clock) if self.hyperparameters.share and t >= 1 else (1.0, 0.0)

    @property
    def _clock(self) -> tuple[float, float, int | None]:
        hyper = self.hyperparameters
        is_by_round = hyper.lambda_clock == "round"
        return hyper.m, hyper.eps, None if is_by_round else self.task.rounds - self.sharing_heights

    def get_collect_s(self, height: int, default: float) -> float:
        return self.hyperparameters.share_collect_s if self.is_sharing(height) else default

    # ---- sets

    @property
    def shares_samples(self) -> bool:
        return self.hyperparameters.share

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """The shape of the random layer; () if there is none."""
        return (self.task.slot_dim,) * {"identity": 0, "diag": 1}.get(self.hyperparameters.layer, 2)

    def get_streamed(self, height: int) -> Mapping[str, str]:
        return {"encrypted_set": "chunk_digests"} if self.is_sharing(height) else {}

    def get_shared_height(self, height: int) -> int | None:
        """Returns the sharing height, as long as lambda_dis is above 0."""
        return self.sharing_heights if self.compute_lambdas(height)[1] > 0 else None

    def needed_until(self, height: int) -> int | None:
        if not self.is_sharing(height):
            return height
        last = compute_last_round(*self._clock)
        return None if last is None else last + self.sharing_heights

    @property
    def keeps_shared(self) -> bool:
        return self.hyperparameters.share and self.hyperparameters.keep_sets

    def draw(self, beacon: bytes, me: bytes, offers: Offers, index: int, gone: Authors = ()) -> Offer | None:
        """Draws the offer whose set `me` trains on: by `index` in the epoch or the step, from 0 on, or in the round,
        which is draw 0. None if there is nobody left to draw."""
        by_author = {offer.author: offer for offer in offers}
        ranked = rank_peers(beacon, me, index, by_author)
        return next((by_author[peer] for peer in ranked if peer not in gone), None)

    def get_drawn(self, height: int, beacon: bytes, me: bytes, offers: Offers, gone: Authors = ()) -> tuple[Offer, ...]:
        """Returns all offers that the local phase of `me` may draw, once each: in the order of the draws, or if each
        batch has a draw of its own, all others in author order."""
        if self.get_shared_height(height) is None:
            return ()
        others = tuple(offer for offer in offers if offer.author != me and offer.author not in gone)
        if self.hyperparameters.draw == "batch":
            return others
        drawn: dict[bytes, Offer] = {}
        for index in range(self.get_local_work(height) if self.hyperparameters.draw == "epoch" else 1):
            if len(drawn) == len(others):
                break
            if (offer := self.draw(beacon, me, others, index)) is not None:
                drawn[offer.author] = offer
        return tuple(drawn.values())

    def wanted_in_training(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, gone: Authors = ()
    ) -> Sequence[bytes]:
        """Returns the digests of the sets that are drawn."""
        return tuple(offer.digests["encrypted_set"] for offer in self.get_drawn(height, beacon, me, offers, gone))

    def explain(
        self, height: int, beacon: bytes, offers: Offers, aggregate: Arrays | None, *, shared: Offers = ()
    ) -> Mapping[str, Any] | None:
        """Returns `epochs`, which is E_t; `lambda_c` and `lambda_dis`; and with `shared`, for each author in author
        order, `peers`: the peers it was to draw that are authors of this block too, as places in it. Sets that an
        author could not fetch are not known here."""
        if self.is_sharing(height):
            return None
        lambda_c, lambda_dis = self.compute_lambdas(height)
        told = {"epochs": self.get_local_work(height), "lambda_c": lambda_c, "lambda_dis": lambda_dis}
        if not shared:
            return told
        place = {offer.author: i for i, offer in enumerate(offers)}
        drawn = [self.get_drawn(height, beacon, offer.author, shared) for offer in offers]
        nodes = [{"peers": [place[peer.author] for peer in peers if peer.author in place]} for peers in drawn]
        return {**told, "nodes": nodes}

    # ---- payloads

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        schema = self._make_schema()
        return {"model": fednova.add_numbers(schema) if self.hyperparameters.base == "fednova" else schema}

    @cached_property
    def _sharing_schemas(self) -> Mapping[str, ArraySchema]:
        hyper, shape = self.hyperparameters, self.task.input_shape
        is_quantised = hyper.share_dtype == "uint8"
        arrays = {
            "x": ArraySpec(hyper.share_dtype, ("n", *shape), None if is_quantised else MAGNITUDES),
            "y": ArraySpec("float32", ("n", self.task.num_classes), (0.0, 1.0)),
        }
        if is_quantised:
            arrays["scale"] = ArraySpec("float32", (shape[0],), (0.0, MAX_MAGNITUDE))
            arrays["offset"] = ArraySpec("float32", (shape[0],), MAGNITUDES)
        if self.layer_shape:
            arrays["layer"] = ArraySpec("float32", self.layer_shape, MAGNITUDES)
        encrypted_set = ArraySchema(arrays, {"n": (1, hyper.share_max)})
        digests = ArraySpec("uint8", ("m", 32))
        most = count_chunks(encrypted_set.max_bytes)
        return {"encrypted_set": encrypted_set, "chunk_digests": ArraySchema({"digests": digests}, {"m": (1, most)})}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return self._sharing_schemas if self.is_sharing(height) else self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        if self.is_sharing(height):
            return dict.fromkeys(self._sharing_schemas, "carry")
        return {"model": "nova"} if self.hyperparameters.base == "fednova" else super().rules(height)

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        if kind == "encrypted_set":
            _validate_labels(arrays["y"])
        elif kind == "model" and self.hyperparameters.base == "fednova":
            fednova.validate_numbers(arrays, self.get_fixed_steps(height), self.hyperparameters.momentum)

    def get_fixed_steps(self, height: int) -> int | None:
        """Returns FedNova's tau of every author, E_t; None if steps are counted, whose number an author claims."""
        return self.get_local_work(height) if self.hyperparameters.unit == "epochs" else None

    def make_numbers(self, num_steps: int) -> Arrays:
        """Returns the numbers of a payload besides the model, with fednova."""
        return fednova.make_numbers(num_steps, self.hyperparameters.momentum)


def _validate_labels(labels: Array) -> None:
    """Raises PayloadError for rows that are no distributions. It reads them in blocks, since a set is large and may be
    a mapped file."""
    rows = max(1, BLOCK_ELEMENTS // labels.shape[1])
    for start in range(0, len(labels), rows):
        # A running sum has one order, and so the same bits for all who vote.
        totals = labels[start : start + rows].cumsum(1, dtype=np.float64)[:, -1]
        wrong = np.abs(totals - 1) > SUM_TOLERANCE
        if wrong.any():
            raise PayloadError(
                f"payload 'encrypted_set': array 'y': expected rows that sum to 1, got {totals[wrong][0]:g}"
            )
