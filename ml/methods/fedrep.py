"""FedRep: a common representation, and a head of each client's own that is trained before it.

Collins et al., *Exploiting Shared Representations for Personalized Federated Learning*, 2021, algorithm 1. phi is the
representation, the layers before the classifier, and h_i the client's own classifier. A local phase is

    h_i   <- h_i - alpha grad_h f_i(h_i, phi)             tau_h times, phi being the mean of all
    phi_i <- phi_i - alpha grad_phi f_i(h_i, phi_i)       then, with the trained h_i
    phi   <- mean of phi_i                                by the members of the block

The personal model, h_i on phi, is the one to evaluate.

Where we deviate: the mean is weighted by samples, as everywhere here (`weights: uniform` is the paper's). For CIFAR the
paper makes ten head epochs for each of the representation; `head_work` sets that, and by default there are as many of
either. Momentum begins empty in each half. Running statistics of batch norm see the head's batches, too.
"""

from __future__ import annotations

from ml.methods.base import Round, State
from ml.methods.common.sharing import SharesPart
from ml.specs.methods.fedrep import FedRepSpec
from ml.training.loop import Prepared, Schedule
from ml.training.optimizers import InTurn, make_optimizer


class FedRep(SharesPart[FedRepSpec]):
    """Trains by cross-entropy; the first steps change the head alone, the others all layers before it."""

    def prepare(self, state: State, round_: Round, schedule: Schedule) -> Prepared:
        hyper, num_steps = self.spec.hyperparameters, len(schedule.batches)
        lr, num_head = (
            self.spec.compute_lr(round_.number, num_steps),
            self.spec.count_head_steps(schedule.num_iterations, num_steps),
        )
        names = set(self.spec.task.classifier_names)
        head = [weight for name, weight in state.model.named_parameters() if name in names]
        body = [weight for name, weight in state.model.named_parameters() if name not in names]
        later = lr * hyper.decay_by_step**num_head
        of_head, of_body = make_optimizer(hyper, head, lr, None), make_optimizer(hyper, body, later, None)
        return Prepared(optimizer=InTurn([(of_head, num_head), (of_body, num_steps - num_head)]))
