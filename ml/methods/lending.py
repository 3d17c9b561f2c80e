"""Lending: the common model and the models that sites lend are measured on the client's own test samples
(`ml.specs.methods.lending`). The model that the client itself lends is in its state until then, under "lent/". If there
is no common model, the client answers by its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ml.errors import DataError, PayloadError
from ml.methods.base import Round, State
from ml.methods.evaluation import Evaluation
from ml.models.base import dump_parameters, load_parameters
from ml.payload import Array, Arrays, make_empty_arrays
from ml.specs import add_kind, get_kind
from ml.specs.methods.evaluation import EVALUATION
from ml.specs.methods.lending import LENDING, LENT, LendingSpec
from ml.specs.privacy import HIDDEN


class Lending(Evaluation):
    """Sends the client's lent model, then its measures of all lent models."""

    spec: LendingSpec

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        if round_.height == LENDING:
            own = get_kind(state.arrays, LENT)
            return 1, {LENT: make_empty_arrays(self.spec.lent_schema) if own is None else _make_payload(own)}
        least = self.spec.hyperparameters.min_samples
        rows: list[Arrays] = [self.measure(state, least)] if self.spec.num_common else []
        for offer in self.spec.list_lenders(round_.offers):
            lent = round_.blobs.get(offer.digests[LENT])
            rows.append(self.spec.tell_nothing() if lent is None else self._measure_lent(state, lent, least))
        state.arrays = {}
        return 1, {EVALUATION: self.spec.stack(rows)}

    @torch.no_grad()
    def _measure_lent(self, state: State, lent: Arrays, least: int) -> dict[str, Array]:
        """Returns the row of a lent model. The client's own model stays as it is."""
        own = dump_parameters(state.model)
        load_parameters(state.model, {name: array[0] for name, array in lent.items()})
        try:
            return self.measure(state, least)
        finally:
            load_parameters(state.model, own)


def take_own(state: State, spec: LendingSpec, trained: Arrays, *, lends: bool) -> None:
    """Makes a client answer by the model in `trained`, its state after a run, if there is no common model, and lend it
    if `lends`. Raises DataError if that model is not of the run's shapes, or if it should be lent though its training
    has hidden samples, about which its weights would reveal something."""
    model = get_kind(trained, "model") or {}
    own = {name: model[name] for name in spec.lent_schema.arrays if name in model}
    try:
        spec.validate_payload(LENT, _make_payload(own), LENDING)
    except PayloadError as error:
        raise DataError(str(error)) from error
    if not spec.num_common:
        load_parameters(state.model, own)
    if not lends:
        return
    if get_kind(trained, HIDDEN) is not None:
        raise DataError("its training has hidden samples by noise, of which its weights would tell")
    state.arrays = state.arrays | add_kind(LENT, own)


def _make_payload(lent: Arrays) -> dict[str, Array]:
    return {name: array[None] for name, array in lent.items()}
