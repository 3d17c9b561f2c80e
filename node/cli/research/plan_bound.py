"""`fednode plan --bound`: what DFPL's theorem 1 and its corollaries say of a time budget, by constants that are
measured on the node's own samples.

The first run of the chain counts, from its initial model, with cross-entropy alone (`ml.clients.loss_constants`). Every
round is taken to begin with gradients as long as those measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.cli.model.own_client import load_own_run, make_own_client
from node.cli.output import print_table
from node.errors import NodeError

EPOCHS = "--bound: expected local iterations, got epochs"
MAX_SEARCHED = 1000  # numbers of rounds that are tried to find the best

if TYPE_CHECKING:
    from ml.bounds.dfpl import Budget
    from ml.clients.loss_constants import Measured


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal for the mean squared gradient: `target` (chi), from a loss that is `gap` above its least (Delta)."""

    target: float
    gap: float


@dataclass(frozen=True, slots=True)
class Bound:
    """The measurements on so many samples, with the learning rate and the lambda of the run."""

    measured: Measured
    num_train: int
    lr: float
    lambda_: float

    def to_json(self) -> dict[str, Any]:
        own = {"squares": list(self.measured.squares), "num_train": self.num_train, "lr": self.lr}
        return {**asdict(self.measured.constants), **own, "lambda": self.lambda_}


@dataclass(frozen=True, slots=True)
class Limits:
    """The bound for one number of rounds: the limits of lambda and eta for the loss to fall, and its largest change.
    With a goal, also the bound on the mean square (None where eta is too high for any bound), and whether that is low
    enough."""

    iterations: int  # in a round
    lambda_below: float
    lr_below_first: float
    lr_below: float
    lr_below_without_lambda: float
    change: float
    total_change: float
    mean_square: float | None = None
    is_enough: bool | None = None

    def to_json(self) -> dict[str, Any]:
        left_out = {"iterations"} | ({"mean_square", "is_enough"} if self.is_enough is None else set())
        return {key: value for key, value in asdict(self).items() if key not in left_out}


@dataclass(frozen=True, slots=True)
class Theory:
    """A bound within a budget: by number of rounds, and which of them lowers the loss most, None where none is certain
    to. With a goal, also the limit of the number of rounds, or None, and why."""

    bound: Bound
    by_rounds: Mapping[int, Limits]
    best_rounds: int | None
    goal: Goal | None
    max_rounds: float | None
    why_none: str

    def to_json(self) -> dict[str, Any]:
        goal = self.goal
        asked = {} if goal is None else {"target": goal.target, "gap": goal.gap, "max_rounds": self.max_rounds}
        return {**self.bound.to_json(), "best_rounds": self.best_rounds, **asked}


def measure_bound(config_file: Path) -> Bound:
    """Measures with the client that the node's worker would build. Raises ConfigError or NodeError."""
    from ml.clients.loss_constants import measure_constants
    from ml.errors import MlError
    from ml.specs.methods.dfpl import DfplHyperparameters

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


def apply_bound(bound: Bound, times_s: tuple[float, float, float], rounds: Iterable[int], goal: Goal | None) -> Theory:
    """Applies the bound where `times_s` are t_sum, alpha and beta. Raises NodeError."""
    from ml.bounds.dfpl import Budget, compute_max_rounds_to, compute_totals, find_best_rounds, list_rounds
    from ml.errors import BoundError, MlError

    numbers, constants = list(rounds), bound.measured.constants
    given = (bound.lr, bound.lambda_, constants)
    max_rounds, enough, why_none = None, list[int](), ""
    try:
        budget = Budget(*times_s)
        searched = {*numbers, *range(1, min(budget.max_rounds, MAX_SEARCHED) + 1)}
        totals = compute_totals(bound.measured.squares, *given, budget, sorted(searched))
        if goal is not None:
            try:
                max_rounds = compute_max_rounds_to(goal.gap, goal.target, *given, budget)
                enough = list_rounds(goal.gap, goal.target, *given, budget, numbers)
            except BoundError as error:
                why_none = str(error)
        by_rounds = {
            number: _limit(bound, budget, number, totals[number], goal, number in enough) for number in numbers
        }
    except MlError as error:
        raise NodeError(f"--bound: {error}") from error
    best, total = find_best_rounds(totals)
    return Theory(bound, by_rounds, best if total < 0 else None, goal, max_rounds, why_none)


def _limit(bound: Bound, budget: Budget, rounds: int, total: float, goal: Goal | None, is_enough: bool) -> Limits:
    from ml.bounds.dfpl import compute_lr_limits, compute_mean_square
    from ml.bounds.fedproto import compute_max_lambda
    from ml.errors import BoundError

    squares, constants, iterations = bound.measured.squares, bound.measured.constants, budget.count_iterations(rounds)
    mean = None
    if goal is not None:
        try:
            mean = compute_mean_square(goal.gap, rounds * iterations, bound.lr, bound.lambda_, constants)
        except BoundError:  # eta is not below 2 / L1
            mean = None
    return Limits(
        iterations,
        compute_max_lambda(squares[0], iterations, constants),
        *compute_lr_limits(squares, rounds, bound.lambda_, constants, budget),
        compute_lr_limits(squares, rounds, 0.0, constants, budget)[1],
        total / rounds,
        total,
        mean,
        None if goal is None else is_enough,
    )


def show_bound(theory: Theory) -> None:
    """Prints two tables with a line for each number of rounds."""
    bound, goal = theory.bound, theory.goal
    constants, squares = bound.measured.constants, bound.measured.squares
    print(
        f"\nmeasured on {bound.num_train} samples, of cross-entropy alone: L1 {constants.l1:.3g}, "
        f"L2 {constants.l2:.3g}, sigma {constants.sigma:.3g}, G {constants.g:.3g}, squared gradient "
        f"{squares[0]:.3g} at first and {squares[-1]:.3g} after {len(squares) - 1} steps\n"
        f"for the loss to fall in every round (the run has lambda {bound.lambda_:g} and eta {bound.lr:g}):"
    )
    print_table(
        (">R", ">E", ">lambda below", ">eta below, first step", ">whole round", ">whole round, lambda 0"),
        [
            (
                str(rounds),
                str(each.iterations),
                *(
                    f"{limit:.3g}" if limit else "none"
                    for limit in (each.lambda_below, each.lr_below_first, each.lr_below, each.lr_below_without_lambda)
                ),
            )
            for rounds, each in theory.by_rounds.items()
        ],
    )
    print("\nwhat the loss changes by at most, where every round begins like the first:")
    mean = () if goal is None else (f">mean square, gap {goal.gap:g}",)
    print_table(
        (">R", ">E", ">R*E", ">a round", ">all rounds", *mean, ""),
        [
            (
                str(rounds),
                str(each.iterations),
                str(rounds * each.iterations),
                f"{each.change:.4g}",
                f"{each.total_change:.4g}",
                *(() if goal is None else ("none" if each.mean_square is None else f"{each.mean_square:.4g}",)),
                ", ".join(
                    (["best"] if rounds == theory.best_rounds else [])
                    + ([f"below {goal.target:g}"] if goal is not None and each.is_enough else [])
                ),
            )
            for rounds, each in theory.by_rounds.items()
        ],
    )
    best = "no R makes the loss certain to fall" if theory.best_rounds is None else f"R = {theory.best_rounds} is best"
    print(f"by this bound {best}; what exchange brings is not in it")
    if goal is not None:
        limit = theory.max_rounds
        print(
            f"a mean squared gradient below {goal.target:g}: "
            + (theory.why_none if limit is None else f"R below {limit:.4g}, where E is not rounded down")
        )
