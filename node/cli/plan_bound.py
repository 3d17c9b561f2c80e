"""`fednode plan --bound`: what FedProto's corollary 1, which covers DFPL's loss, asks of lambda and of the learning
rate, by constants that are measured on the node's own samples.

The first run of the chain counts, from its initial model, with cross-entropy alone (`ml.clients.loss_constants`). All
iterations of a round are taken to have gradients as long as the mean of those measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import NodeError

EPOCHS = "--bound: expected local iterations, got epochs"

if TYPE_CHECKING:
    from ml.clients.loss_constants import Measured


@dataclass(frozen=True, slots=True)
class Bound:
    """What was measured on so many samples, beside the learning rate and the lambda of the run."""

    measured: Measured
    num_train: int
    lr: float
    lambda_: float

    @property
    def square(self) -> float:
        """Of the length of the loss's gradient, mean over the places where it was measured."""
        squares = self.measured.squares
        return sum(squares) / len(squares)

    def compute_limits(self, iterations: int) -> tuple[float, float, float]:
        """What lambda has to be below in a round of E iterations, and eta with the run's lambda, and without."""
        from ml.bounds import compute_max_lambda, compute_max_lr

        constants, total = self.measured.constants, self.square * iterations
        return (
            compute_max_lambda(self.square, iterations, constants),
            compute_max_lr(total, iterations, self.lambda_, constants),
            compute_max_lr(total, iterations, 0.0, constants),
        )

    def to_json(self) -> dict[str, Any]:
        constants = self.measured.constants
        return {
            "l1": constants.l1,
            "l2": constants.l2,
            "sigma": constants.sigma,
            "g": constants.g,
            "squares": list(self.measured.squares),
            "num_train": self.num_train,
            "lr": self.lr,
            "lambda": self.lambda_,
        }


def measure_bound(config_file: Path) -> Bound:
    """By the client that the node's worker would build. Raises ConfigError or NodeError."""
    from ml.clients.loss_constants import measure_constants
    from ml.errors import MlError
    from ml.specs import DfplHyperparameters
    from node.cli.own_client import load_own_run, make_own_client

    own = load_own_run(config_file)
    name, aux = own.run.method["name"], own.run.method.get("aux", "l2")
    if name != "dfpl" or aux != "l2":
        got = f"{name} with aux {aux}" if name == "dfpl" else name
        raise NodeError(f"--bound: expected a chain of dfpl with aux l2 (got {got})")
    try:
        client = make_own_client(own)
        if not client.has_samples:
            raise NodeError("--bound: expected samples as the model takes them, and members have yet to agree on that")
        hyper, state = client.spec.hyperparameters, client.state
        assert isinstance(hyper, DfplHyperparameters)  # noqa: S101 - by its name
        if hyper.counts_epochs:
            raise NodeError(EPOCHS)
        measured = measure_constants(
            state.model,
            state.data.train.x,
            state.data.train.y,
            lr=hyper.lr,
            batch_size=hyper.batch_size,
            seed=client.seed,
        )
    except MlError as error:
        raise NodeError(f"--bound: {error}") from error
    return Bound(measured, len(state.data.train.y), hyper.lr, hyper.lambda_)


def show_bound(bound: Bound, plans: Iterable[tuple[int, int]]) -> None:
    """A line for each (R, E)."""
    from node.cli.output import print_table

    constants = bound.measured.constants
    print(
        f"\nmeasured on {bound.num_train} samples: L1 {constants.l1:.3g}, L2 {constants.l2:.3g}, "
        f"sigma {constants.sigma:.3g}, G {constants.g:.3g}, squared gradient {bound.square:.3g}\n"
        f"for the loss to fall in every round (the run has lambda {bound.lambda_:g} and eta {bound.lr:g}):"
    )
    print_table(
        (">R", ">E", ">lambda below", f">eta below, lambda {bound.lambda_:g}", ">eta below, lambda 0"),
        [
            (str(rounds), str(iterations), *(f"{limit:.3g}" if limit else "none" for limit in limits))
            for rounds, iterations in plans
            for limits in (bound.compute_limits(iterations),)
        ],
    )
