"""FedNova: FedAvg for clients that make different numbers of steps (ALGORITHMS §9).

Wang et al., *Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization*, 2020. With tau_k
local steps at learning rate eta and momentum rho, from the common model w_G to w_k, and p_k = n_k / n,

    ||a_k||_1 = (tau_k - rho * (1 - rho^tau_k) / (1 - rho)) / (1 - rho)          (rho = 0: tau_k)
    d_k       = (w_G - w_k) / (eta * ||a_k||_1)
    tau_eff   = sum_k p_k ||a_k||_1
    w_G      <- w_G - eta * tau_eff * sum_k p_k d_k

which is FedAvg if all tau_k are equal. All members have the same eta in a round, so it cancels and is not used. The
formula is the rule `nova`, with the parent block's aggregate as w_G; local training is FedAvg's.

FedEDS prints it as algorithm 4 with the sign reversed, without eta in the last line and with 1/K for p_k (E6, E8), and
counts epochs (E7): `unit: epochs`. This file uses the paper's own signs, weights and steps.

Where we deviate: the running statistics of batch norm are averaged as by FedAvg, or with `bn_buffers: local` are not
sent. tau_k is a member's own: it differs with `budget_s`, which is what FedNova is for, and with `local_epochs`, by the
number of samples.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ml.aggregation.nova import MAX_STEPS
from ml.methods.base import Round, State
from ml.methods.common.sharing import SharesModel
from ml.payload import Arrays
from ml.specs.methods.fednova import FedNovaSpec
from ml.training.loop import Prepared, Schedule


class FedNova(SharesModel[FedNovaSpec]):
    """Trains as FedAvg, and sends its number of steps. The state besides the model is `local_steps` int64[1], tau of
    the local phase that is running; between phases nothing."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        by_epoch = self.spec.hyperparameters.unit == "epochs"
        num_steps = schedule.num_iterations if by_epoch else len(schedule.batches)
        state.arrays = {"local_steps": np.array([num_steps], np.int64)}
        return super().prepare(state, round_, schedule)

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        num_steps = min(int(state.arrays["local_steps"][0]), MAX_STEPS)
        state.arrays = {}
        weight, payloads = super().finish(state, round_)
        return weight, {"model": {**payloads["model"], **self.spec.make_numbers(num_steps)}}
