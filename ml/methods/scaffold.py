"""SCAFFOLD: FedAvg whose local steps are corrected by control variates (ALGORITHMS §16).

Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, 2020, algorithm 1, option II. A
local phase of K steps at learning rate eta goes from the common model x to y, with c the common control variate and c_i
the client's own, both 0 in the first round:

    y      <- y - eta (grad(y) - c_i + c)
    c_i'    = c_i - c + (x - y) / (K eta)
    sends     y  and  c_i' - c_i = (x - y) / (K eta) - c

c_i' is the client's from then on only if its contribution is in the block (`ml.specs.methods.scaffold`).

Where we deviate: gradients are clipped, if `clip_norm` is set, before they are corrected. A client that no longer knows
what it has sent, such as one that is set up again on another machine, uses c as its own and is not corrected in its
next phase; what it had sent stays in c until the run ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ml.methods.base import Blobs, Round, State
from ml.methods.common.sharing import SharesModel, get_agreed
from ml.models.base import dump_parameters
from ml.payload import Array, Arrays
from ml.specs import add_kind, get_kind
from ml.specs.methods.scaffold import CONTROL, ScaffoldSpec, read_last_rounds
from ml.training.loop import Prepared, Schedule

_COMMON, _OWN, _NEXT, _START = "common", "own", "next", "start"  # c, c_i, c_i' of the last phase, and x of a phase


class Scaffold(SharesModel[ScaffoldSpec]):
    """Trains by corrected steps. The state besides the model: c under "common/" and c_i under "own/", absent if they
    are 0, c_i' of the last phase under "next/", and int64 `own_height` and `next_height`, when the two were made; in a
    phase x under "start/" and float64 `way`, K eta."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        if round_.number <= 1:
            state.arrays = {}
        common, own = (get_kind(state.arrays, kind) or {} for kind in (_COMMON, _OWN))
        num_steps = len(schedule.batches)
        way = num_steps * self.spec.compute_lr(round_.number, num_steps)
        start = {name: array for name, array in dump_parameters(state.model).items() if name in self._trained}
        state.arrays = {**state.arrays, **add_kind(_START, start), "way": np.array([way])}
        if not common and not own:
            return Prepared()
        corrections = [
            torch.tensor(_get(common, name, start) - _get(own, name, start), device=parameter.device)
            for name, parameter in state.model.named_parameters()
            if parameter.requires_grad
        ]

        def correct(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
            return torch._foreach_add(list(gradients), corrections)

        return Prepared(on_gradients=correct)

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        weight, payloads = super().finish(state, round_)
        common, own, start = (get_kind(state.arrays, kind) or {} for kind in (_COMMON, _OWN, _START))
        way = float(state.arrays["way"][0])
        changed, reached = dict[str, Array](), dict[str, Array]()
        for name, x in start.items():
            y, c = payloads["model"][name].astype(np.float64), _get(common, name, start).astype(np.float64)
            change = (x - y) / way - c if way else np.zeros_like(c)
            changed[name] = change.astype(np.float32)
            reached[name] = (_get(own, name, start) + change).astype(np.float32)
        kept = {name: array for name, array in state.arrays.items() if not name.startswith((f"{_START}/", "way"))}
        kept = {name: array for name, array in kept.items() if not name.startswith(f"{_NEXT}/")}
        state.arrays = kept | add_kind(_NEXT, reached) | {"next_height": np.array([round_.height], np.int64)}
        return weight, {**payloads, CONTROL: changed}

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        super().apply(state, round_, aggregate, blobs)
        common = {name: np.array(array) for name, array in get_agreed(aggregate, CONTROL, round_).items()}
        arrays, counted = state.arrays, read_last_rounds(aggregate).get(round_.me)
        own: Arrays = {}
        if counted is not None:
            own = common  # this client no longer knows its own
            for kind in (_NEXT, _OWN):
                if _get_height(arrays, kind) == counted:
                    own = get_kind(arrays, kind) or {}
                    break
        state.arrays = add_kind(_COMMON, common) | add_kind(_OWN, own)
        if counted is not None:
            state.arrays["own_height"] = np.array([counted], np.int64)
        if _get_height(arrays, _NEXT) > round_.height:  # made on an older aggregate, its block still to come
            state.arrays |= add_kind(_NEXT, get_kind(arrays, _NEXT) or {}) | {"next_height": arrays["next_height"]}

    @property
    def _trained(self) -> Mapping[str, object]:
        return self.spec.task.parameter_schema.arrays


def _get(arrays: Arrays, name: str, like: Arrays) -> Array:
    """Returns an array of a control variate; zeros if the variate is 0."""
    found = arrays.get(name)
    return np.zeros_like(like[name]) if found is None else found


def _get_height(arrays: Arrays, kind: str) -> int:
    """Returns the height at which a client's control variate was made; 0 if there is none."""
    found = arrays.get(f"{kind}_height")
    return 0 if found is None else int(found[0])
