"""An evaluation for which sites lend their own models: two rounds, in which nothing is trained.

In the first each member sends `lent`: the model that its training left after the round that is evaluated, if its
operator has agreed to lend it; else the same arrays with nothing in them. In the second each member measures the common
model, unless there is none (`only_lent`), and all lent models, on its own test samples, and sends a row of
`ml.specs.told` for each: the common model first, then the lent ones in the order of their authors, MAX_MODELS rows at
most. The confusion of classes is left out, so that no payload is long.

Both kinds are voted on, so that lent models have the shapes of the run's model and finite numbers within the run's
limits. The aggregate stays as it was. Everyone who has the block knows who lent, without the models: an empty payload
always has the same digest. A member may lend another's model as its own: then both have one digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from ml.errors import PayloadError, SpecError
from ml.payload import Array, Arrays, ArraySchema, ArraySpec, encode_arrays, make_empty_arrays
from ml.specs.methods.evaluation import EVALUATION, EvaluationSpec
from ml.specs.selection import Authors, Offer, Offers
from ml.specs.task import Task
from ml.specs.told import describe_arrays, tell_nothing, validate_told

LENT = "lent"  # the kind
LENDING, MEASURING = 1, 2  # the rounds
MAX_MODELS = 64  # measured at most
_CONFUSION = "confusion"


@dataclass(frozen=True)
class LendingSpec(EvaluationSpec):
    """The spec of an evaluation with lent models. It has two voted kinds, neither of which goes into the aggregate:
    `lent` in the first round, `evaluation` in the second.

    `lent` has each array of the model with a dimension in front, which is 1, or 0 from a member that lends nothing.
    """

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], task: Task) -> Self:
        if task.rounds != MEASURING:
            raise SpecError("rounds", f"expected {MEASURING} of {EVALUATION} with lend, got {task.rounds}")
        return super(EvaluationSpec, cls).from_mapping(method, task)

    # ---- payloads

    @cached_property
    def lent_schema(self) -> ArraySchema:
        """The schema of a lent model."""
        arrays = self.task.model_schema.arrays
        shapes = {name: ArraySpec(one.dtype, ("lent", *one.shape)) for name, one in arrays.items()}
        return ArraySchema(shapes, {"lent": (0, 1)})

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        told = describe_arrays(self.task.kind, self.task.num_classes)
        arrays = {name: replace(of, shape=("models", *of.shape)) for name, of in told.items() if name != _CONFUSION}
        return {EVALUATION: ArraySchema(arrays, {"models": (0, MAX_MODELS)})}

    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        return {LENT: self.lent_schema} if height == LENDING else self._schemas

    def rules(self, height: int) -> Mapping[str, str]:
        return dict.fromkeys(self.schemas(height), "carry")

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        return {}

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super(EvaluationSpec, self).validate_payload(kind, arrays, height)
        if kind != EVALUATION:
            return
        hyper = self.hyperparameters
        for i, row in enumerate(split_rows(arrays)):
            try:
                validate_told(row, self.task.kind, min_samples=hyper.min_samples, min_count=hyper.min_count)
            except PayloadError as error:
                raise PayloadError(f"payload {kind!r}, row {i}: {error}") from error

    # ---- readers of lent models

    @property
    def sharing_heights(self) -> int:
        return LENDING

    def get_shared_height(self, height: int) -> int | None:
        return LENDING if height == MEASURING else None

    def needed_until(self, height: int) -> int | None:
        return MEASURING if height == LENDING else height

    def get_lent(self, height: int) -> Collection[str]:
        return (LENT,) if height == LENDING else ()

    def wanted_in_training(
        self, height: int, beacon: bytes, me: bytes, offers: Offers, gone: Authors = ()
    ) -> Sequence[bytes]:
        return tuple(offer.digests[LENT] for offer in self.list_lenders(offers) if offer.author not in gone)

    @cached_property
    def nothing_lent(self) -> bytes:
        """The digest of the payload of a member that lends nothing."""
        return hashlib.sha256(encode_arrays(make_empty_arrays(self.lent_schema))).digest()

    def list_lenders(self, offers: Offers) -> Sequence[Offer]:
        """Returns the offers of the first round, in author order, whose models are measured."""
        lenders = [offer for offer in offers if offer.digests.get(LENT) not in (None, self.nothing_lent)]
        return lenders[: MAX_MODELS - self.num_common]

    @property
    def num_common(self) -> int:
        """The number of rows before those of lent models."""
        return 0 if self.hyperparameters.only_lent else 1

    def stack(self, rows: Sequence[Arrays]) -> dict[str, Array]:
        """Returns the payload of these rows, each as `ml.specs.told` makes it."""
        names = self._schemas[EVALUATION].arrays
        if not rows:
            return {name: array[:0] for name, array in self.stack([self.tell_nothing()]).items()}
        return {name: np.stack([row[name] for row in rows]) for name in names}

    def tell_nothing(self) -> dict[str, Array]:
        """Returns the row of a model that is not measured."""
        return tell_nothing(self.task.kind, self.task.num_classes)


def split_rows(arrays: Arrays) -> list[dict[str, Array]]:
    """Returns the rows of a second round's payload."""
    return [{name: array[i] for name, array in arrays.items()} for i in range(len(arrays["samples"]))]
