"""Local: everyone trains alone; no messages (ALGORITHMS §9). Every method that exchanges something has to be better."""

from __future__ import annotations

from collections.abc import Mapping

from ml.aggregation.outer import OuterSettings
from ml.methods.base import Blobs, Round, State
from ml.methods.common.sharing import Classifies
from ml.models.base import dump_parameters, load_parameters
from ml.payload import Arrays
from ml.specs import add_kind
from ml.specs.methods.local import LocalSpec
from ml.specs.outer import OUTER, OuterHyperparameters, carry_outer


class Local(Classifies[LocalSpec]):
    """Trains by cross-entropy on the client's own samples. With an outer optimiser `state.arrays` has the model from
    which the next step starts, under "model/", and its moments, none before the first."""

    @property
    def _outer(self) -> OuterSettings | None:
        hyper = self.spec.hyperparameters
        return hyper.outer if isinstance(hyper, OuterHyperparameters) else None

    def init(self, state: State) -> None:
        if self._outer is not None:
            state.arrays = add_kind("model", dump_parameters(state.model))

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        return 1, {}

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        if self._outer is None:
            return
        made, trained = dump_parameters(state.model), self.spec.task.parameter_schema.arrays
        is_first = not any(name.startswith(f"{OUTER}/") for name in state.arrays)
        carried = carry_outer(self._outer, trained, add_kind("model", made), state.arrays, is_first=is_first)
        state.arrays = {**add_kind("model", made), **carried}
        load_parameters(state.model, {name: state.arrays[f"model/{name}"] for name in made})
