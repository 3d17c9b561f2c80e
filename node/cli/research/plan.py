"""`fednode plan`: how many local iterations a round can have in a given time, DFPL's Eq. (11). What an iteration and a
block take is given, or measured, or follows from a processor's cycles, Eqs. (8) and (9)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.federation.rounds import get_work_unit
from node.cli.options import AsJson
from node.cli.output import print_facts, print_json, print_table
from node.cli.research.plan_bound import EPOCHS, Goal, apply_bound, measure_bound, show_bound
from node.cli.target import DataDir, NodeConfigFile, Socket, open_ledger
from node.errors import NodeError

if TYPE_CHECKING:
    from ml.budget import Plan
    from node.cli.research.plan_bound import Theory

BATCH = 32  # DFPL's default
UNITS_HZ = {"hz": 1.0, "": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}
UNITS_S = {"ms": "0.001", "s": "1", "": "1", "m": "60", "min": "60", "h": "3600"}
MAX_ROWS = 20
MEASURED_ROUNDS = 64  # rounds that measurements are taken from


def register(app: typer.Typer) -> None:
    app.command("plan")(show)


def parse_duration(text: str) -> float:
    """Returns the seconds in `100s`, `5m`, `1.5h`, `250ms`, or a bare number of seconds. Raises typer.BadParameter."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12}) ?([a-z]*)", text.strip().lower())
    if found is None or found[2] not in UNITS_S:
        raise typer.BadParameter(f"expected a time, as in 100s, 5m or 1.5h (got {text!r})")
    return float(Decimal(found[1]) * Decimal(UNITS_S[found[2]]))  # so that 300ms is 0.3 s, to the last bit


def parse_frequency(text: str) -> float:
    """Returns the cycles a second in `2.5GHz`, `32 MHz`, `1e9`. Raises typer.BadParameter."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{0,12})?(?:e[0-9]{1,2})?) ?([a-z]*)", text.strip().lower())
    if found is None or found[2] not in UNITS_HZ:
        raise typer.BadParameter(f"expected a frequency, as in 2.5GHz or 32MHz (got {text!r})")
    return float(found[1]) * UNITS_HZ[found[2]]


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts that a plan is made from. `rounds` is how many genesis sets, 0 for no end or when no node was asked."""

    alpha_s: float
    beta_s: float
    unit: str = "iteration"
    rounds: int = 0


def show(
    budget_s: Annotated[
        float, typer.Option("--budget", metavar="TIME", parser=parse_duration, help="For all rounds, as in 100s or 5m.")
    ],
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="R", min=1, help="How many rounds; by default a table of choices.")
    ] = None,
    alpha_s: Annotated[
        float | None,
        typer.Option(
            "--alpha", metavar="TIME", parser=parse_duration, help="A local iteration; by default as measured."
        ),
    ] = None,
    beta_s: Annotated[
        float | None,
        typer.Option("--beta", metavar="TIME", parser=parse_duration, help="Mining a block; by default as measured."),
    ] = None,
    cycles: Annotated[
        float | None, typer.Option("--cycles", metavar="RHO", help="For alpha: cycles that a sample takes in training.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", metavar="N", min=1, help=f"Beside --cycles: samples of a local iteration, else {BATCH}."
        ),
    ] = None,
    hash_cycles: Annotated[
        float | None, typer.Option("--hash-cycles", metavar="TAU", help="For beta: cycles that a hash takes.")
    ] = None,
    difficulty: Annotated[
        float | None,
        typer.Option("--difficulty", metavar="MU", help="For beta: hashes that a block is expected to take."),
    ] = None,
    clients: Annotated[
        int | None, typer.Option("--clients", "-n", metavar="K", min=1, help="For beta: how many mine.")
    ] = None,
    frequency_hz: Annotated[
        float | None,
        typer.Option(
            "--frequency", metavar="F", parser=parse_frequency, help="Cycles of a processor a second, as in 2.5GHz."
        ),
    ] = None,
    bound: Annotated[
        bool,
        typer.Option(
            "--bound",
            help="Also measure, on the samples of --config, which lambda and learning rate theory allows (dfpl), "
            "and how far a round changes the loss.",
        ),
    ] = False,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="CHI", min=0, help="Beside --bound: a mean squared gradient to come below."),
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(
            "--gap", metavar="DELTA", min=0, help="Beside --target: how far the loss is above its least at first."
        ),
    ] = None,
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compute the local iterations that fit a time budget. It goes by the time that training and mining take: as given,
    as it follows from a processor's cycles, or else as a node has measured it.

    Example: fednode plan --budget 100s --rounds 20 --config node.yaml
    """
    if bound and config is None:
        raise typer.BadParameter("expected --config beside --bound: whose samples it is measured on")
    if (target is None) != (gap is None) or (target is not None and not bound):
        raise typer.BadParameter("expected --bound, --target and --gap together")
    goal = None if target is None or gap is None else Goal(target, gap)
    _check_given(
        {"--cycles": cycles},
        {"--hash-cycles": hash_cycles, "--difficulty": difficulty, "--clients": clients},
        frequency_hz,
        {"--alpha": alpha_s, "--beta": beta_s},
    )
    if samples is not None and cycles is None:
        raise typer.BadParameter("expected --cycles beside --samples")
    if frequency_hz is not None:
        alpha_s, beta_s = _follow_from_cycles(
            frequency_hz, cycles, samples or BATCH, (hash_cycles, difficulty, clients), alpha_s, beta_s
        )
    if alpha_s is not None and beta_s is not None:
        facts = _Facts(alpha_s, beta_s)
    else:
        facts = _measure(alpha_s, beta_s, socket, config, data_dir)
    if bound and facts.unit != "iteration":
        raise NodeError(EPOCHS)
    plans = _compute_plans(facts, budget_s, rounds)
    theory = None
    if bound and config is not None:
        theory = apply_bound(measure_bound(config), (budget_s, facts.alpha_s, facts.beta_s), plans, goal)
    if as_json:
        _print_plans(facts, budget_s, plans, theory)
        return
    if rounds is not None:
        _show_one(facts, rounds, plans[rounds])
    else:
        _show_table(facts, budget_s, plans)
    if theory is not None:
        show_bound(theory)


def _check_given(
    training: Mapping[str, float | None],
    mining: Mapping[str, float | None],
    frequency_hz: float | None,
    times: Mapping[str, float | None],
) -> None:
    """Raises typer.BadParameter where a time is given twice, or only half of what it is computed from."""
    named = {}
    for time, parts in zip(times, (training, mining), strict=True):
        given = [name for name, value in parts.items() if value is not None]
        named[time] = given
        if given and times[time] is not None:
            raise typer.BadParameter(f"expected {time} or {given[0]}, not both")
        if given and frequency_hz is None:
            raise typer.BadParameter(f"expected --frequency beside {given[0]}")
        if given and len(given) < len(parts):
            missing = ", ".join(name for name in parts if name not in given)
            raise typer.BadParameter(f"expected {missing} beside {given[0]}")
    if frequency_hz is not None and not any(named.values()):
        raise typer.BadParameter(f"expected {', '.join((*training, *mining))} beside --frequency")


def _follow_from_cycles(
    frequency_hz: float,
    cycles: float | None,
    samples: int,
    mining: tuple[float | None, float | None, int | None],
    alpha_s: float | None,
    beta_s: float | None,
) -> tuple[float | None, float | None]:
    """Computes alpha and beta from cycles; each stays as it was where its inputs are missing. Raises NodeError."""
    from ml.budget import compute_alpha, compute_beta
    from ml.errors import BudgetError

    hash_cycles, difficulty, clients = mining
    try:
        if cycles is not None:
            alpha_s = compute_alpha(samples, cycles, frequency_hz)  # Eq. (8)
        if hash_cycles is not None and difficulty is not None and clients is not None:
            beta_s = compute_beta(difficulty, hash_cycles, clients, frequency_hz)  # Eq. (9)
    except BudgetError as error:
        raise NodeError(str(error)) from error
    return alpha_s, beta_s


def _measure(
    alpha_s: float | None, beta_s: float | None, socket: str | None, config: Path | None, data_dir: Path | None
) -> _Facts:
    """Reads the times that are not given, as the node measured them. Raises NodeError when it has not measured them."""
    from node.training.local_work import LocalWork

    local_work = LocalWork()
    with open_ledger(socket, config, data_dir) as ledger:
        entries = list(ledger.list_rounds(None, MEASURED_ROUNDS, reverse=False).rounds)
        of_run = [entry for entry in entries if entry.run == entries[0].run]  # a step of another run costs other work
        for entry in reversed(of_run):
            local_work.add(entry.train.get("alpha_s"), entry.beta_s if entry.HasField("beta_s") else None)
        unit = get_work_unit(of_run[0]) if of_run else "iteration"
        rounds = ledger.genesis.run.rounds if of_run and of_run[0].run == 1 else 0
        place = ledger.place
    alpha_s = local_work.alpha_s if alpha_s is None else alpha_s
    beta_s = local_work.beta_s if beta_s is None else beta_s
    if alpha_s is None or beta_s is None:
        missing = "--alpha TIME" if alpha_s is None else "--beta TIME"
        raise NodeError(f"{place}: expected a round that was measured there, or {missing}")
    return _Facts(alpha_s, beta_s, unit, rounds)


def _compute_plans(facts: _Facts, budget_s: float, rounds: int | None) -> dict[int, Plan]:
    """Computes plans by their number of rounds: the one asked for, or a choice. Raises NodeError when nothing fits."""
    from ml.budget import compute_max_rounds, compute_plan
    from ml.errors import BudgetError

    try:
        if rounds is None:
            numbers = _choose_rounds(compute_max_rounds(budget_s, facts.alpha_s, facts.beta_s), facts.rounds)
        else:
            numbers = [rounds]
        return {number: compute_plan(budget_s, number, facts.alpha_s, facts.beta_s) for number in numbers}
    except BudgetError as error:
        raise NodeError(str(error)) from error


def _choose_rounds(most: int, usual: int) -> list[int]:
    """Chooses numbers of rounds for a table: all that are possible while they are few, else some, at growing
    distances."""
    most = max(most, 1)
    if most <= MAX_ROWS:
        return list(range(1, most + 1))
    spread = {round(most ** (row / (MAX_ROWS - 1))) for row in range(MAX_ROWS)}
    return sorted(spread | ({usual} if 1 <= usual <= most else set()))


def _print_plans(facts: _Facts, budget_s: float, plans: Mapping[int, Plan], theory: Theory | None) -> None:
    """Prints the plans as JSON."""
    print_json(
        {
            "budget_s": budget_s,
            "alpha_s": facts.alpha_s,
            "beta_s": facts.beta_s,
            "unit": facts.unit,
            "plans": [
                {
                    "rounds": rounds,
                    "local_iterations": plan.local_iterations,
                    "available_s": plan.available_s,
                    "used_s": plan.used_s,
                    **({} if theory is None else theory.by_rounds[rounds].to_json()),
                }
                for rounds, plan in plans.items()
            ],
            **({} if theory is None else {"bound": theory.to_json()}),
        }
    )


def _show_one(facts: _Facts, rounds: int, plan: Plan) -> None:
    iterations = f"{plan.local_iterations} local {facts.unit}{'s' if plan.local_iterations != 1 else ''} a round"
    print_facts(
        [
            ("E", iterations),
            ("t_sum - R*beta", f"{plan.available_s:g} s of training, in {rounds} round{'s' if rounds != 1 else ''}"),
            ("E*alpha*R", f"{plan.used_s:g} s of it used"),
            ("alpha", f"{facts.alpha_s:g} s a local {facts.unit}"),
            ("beta", f"{facts.beta_s:g} s of mining a round"),
        ]
    )


def _show_table(facts: _Facts, budget_s: float, plans: Mapping[int, Plan]) -> None:
    print(
        f"{budget_s:g} s, of which a local {facts.unit} takes {facts.alpha_s:g} s (alpha) "
        f"and mining {facts.beta_s:g} s a round (beta)"
    )
    print_table(
        (">R", ">E", ">t_sum - R*beta", ">E*alpha*R", ""),
        [
            (
                str(rounds),
                str(plan.local_iterations),
                f"{plan.available_s:g}",
                f"{plan.used_s:g}",
                "as genesis sets" if rounds == facts.rounds else "",
            )
            for rounds, plan in plans.items()
        ],
    )
