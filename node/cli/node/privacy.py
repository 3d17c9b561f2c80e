"""`fednode privacy`: what a site has told of any of its samples, and will have told after more rounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ml.accountant import MAX_EPSILON, MOST_PHASES
from node.cli.model.own_client import load_own_run, make_own_client
from node.cli.options import AsJson
from node.cli.output import print_json, print_table
from node.errors import NodeError

if TYPE_CHECKING:
    from ml.accountant import Release, Told
    from ml.specs.hyperparameters import Hyperparameters
    from ml.specs.privacy import DpSettings

ROUNDS = (1, 10, 100, 1000)  # rounds that the command looks ahead


def register(app: typer.Typer) -> None:
    app.command("privacy")(show)


def show(
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The node's configuration.")],
    rounds: Annotated[
        list[int] | None,
        typer.Option(
            "--rounds", metavar="R", min=1, max=MOST_PHASES, help="Look so many rounds ahead; again for more."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            metavar="EPSILON",
            min=0.0,
            max=MAX_EPSILON,
            help="How many rounds epsilon stays within it. By default training.privacy_budget.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Epsilon: what this site has told of any sample. Where the run hides samples (dp_noise), or whole sites
    (dp_update_noise), or the site does so itself (training.privacy): an upper bound of what anyone can find out about
    one of them, from all that the site has sent, and after more rounds. Works beside a running node and for a stopped
    one.

    Example: fednode privacy --config node.yaml --budget 8
    """
    from ml.accountant import compute_epsilon, count_phases_within
    from ml.errors import MlError
    from ml.specs.privacy import strengthen
    from node.training.privacy_ledger import PRIVACY_FILE, describe_guessable, read_told

    own = load_own_run(config)
    try:
        client = make_own_client(own)
        # neither of which may be a round of its own, of keys or of statistics
        has_other = own.run.is_masked or own.run.input.get("normalize") == "agreed"
        has_one = own.run.rounds == 1 and not own.run.is_masked  # which may be of statistics alone
        release = client.plan_release(1 if has_one or (own.run.rounds == 2 and not has_other) else 2)
        hyper, told = client.spec.hyperparameters, read_told(own.config.node.data_dir / PRIVACY_FILE)
        if release is None and not told.phases:
            raise NodeError(
                "privacy: expected a run that hides samples, by dp_noise, or sites, by dp_update_noise, or a site that "
                f"does so itself, by training.privacy (got {own.run.method['name']} without)"
            )
        is_own = strengthen(own.run.method, own.config.training.privacy.get_own()) != own.run.method
        is_set_aside = own.config.training.privacy_set_aside is not None
        counted = told.set_aside() if is_set_aside else told
        spent = compute_epsilon(counted, hyper.delta)
        within = own.config.training.privacy_budget if budget is None else budget
        ahead, left = dict[int, float](), None
        if release is not None:
            ahead = {num: compute_epsilon(counted.plus(release, num), hyper.delta) for num in sorted(rounds or ROUNDS)}
            left = None if within is None else count_phases_within(within, hyper.delta, counted, release)
    except MlError as error:
        raise NodeError(f"privacy: {error}") from error
    if as_json:
        shown = _to_json(hyper, release, told, spent, ahead, within, left)
        print_json(shown | {"is_own": is_own, "set_aside": is_set_aside})
        return
    if is_own:
        print("by this site's own noise, which is more than the run asks for")
    _print(hyper, release, client.num_train, told, spent, ahead)
    if told.guessable:
        what = "set aside: " if is_set_aside else "epsilon has no bound: "
        print(f"{what}{describe_guessable(told)}")
    if within is not None and left is not None:
        least = "at least " if left == MOST_PHASES else ""
        print(f"epsilon stays within {within:g} for {least}{left} rounds more")


def _to_json(
    hyper: Hyperparameters,
    release: Release | None,
    told: Told,
    spent: float,
    ahead: dict[int, float],
    budget: float | None,
    left: int | None,
) -> dict[str, Any]:
    return {
        "delta": hyper.delta,
        **{key: getattr(release, key, None) for key in ("steps", "rate", "noise", "prototype_noise", "update_noise")},
        "told": {"phases": told.phases, "epsilon": spent, "guessable": told.guessable},
        "ahead": [{"rounds": num, "epsilon": epsilon} for num, epsilon in ahead.items()],
        "budget": budget,
        "rounds_left": left,
    }


def _print_samples(dp: DpSettings, release: Release, num_samples: int) -> None:
    if not release.steps:
        print(f"a round of statistics: noise {dp.statistics_noise:g} by what a sample has in all its numbers at most")
        return
    print(f"a round: {release.steps} steps, each with any of {num_samples} samples by chance {release.rate:.3g}")
    print(f"noise {dp.noise:g} by a gradient of {dp.clip:g} at most", end="")
    if release.prototype_noise is not None:
        print(f"; in prototypes {dp.prototype_noise:g} by an embedding of {dp.prototype_clip:g} at most", end="")
    print()


def _print(
    hyper: Hyperparameters, release: Release | None, num_samples: int, told: Told, spent: float, ahead: dict[int, float]
) -> None:
    from ml.specs.sharing import ModelHyperparameters

    if release is None:
        print("the first run of the chain hides nothing: what was told was told in others")
    elif isinstance(hyper, ModelHyperparameters) and hyper.update_noise is not None:
        print(f"a round: one update of the model, of {num_samples} samples, which hides the site as a whole")
        print(f"noise {hyper.update_noise:g} by a length of {hyper.update_clip:g} at most")
    else:
        _print_samples(hyper.dp, release, num_samples)
    print(f"told so far, in {told.phases} local phases: epsilon {_show(spent)}, delta {hyper.delta:g}")
    if ahead:
        print()
        print_table((">rounds more", ">epsilon"), [(str(num), _show(epsilon)) for num, epsilon in ahead.items()])


def _show(epsilon: float) -> str:
    return f"{epsilon:.2f}" if math.isfinite(epsilon) else "infinite"
