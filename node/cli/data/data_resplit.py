"""`fednode data resplit`: splits a site's own samples anew into those that train and those that test."""

from __future__ import annotations

import os
import secrets
import sys
from typing import Annotated

import typer

from node.cli.options import AsJson, ConfigFile
from node.cli.output import print_json
from node.errors import ConfigError, NodeError

SHOWN = 10


def resplit(
    config: ConfigFile,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where nobody can be asked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Choose anew which of a site's samples are held out.

    They are known by data.group or data.id of its configuration, or by what they are, and data.held_out is how many.
    data.val of the others are held out of training, to compare rounds by: a tenth in a run that selects a round.
    The node has to be stopped. It keeps the split that it has trained by, also that of a release before, until this is
    asked for. Which of the new test samples were trained on is said: until a run begins anew its figures on these are
    too good.

    Example: fednode data resplit --config node.yaml
    """
    from chain.errors import ChainError
    from chain.store.rows import lock_directory
    from ml.data import split_anew
    from ml.data.base import InputFormat
    from ml.data.split import SEED_BYTES, Sides, complete_val
    from ml.errors import DataError
    from node.config.federation import load_federation
    from node.config.genesis_members import read_head_state
    from node.config.node_config import load_config
    from node.training.own_split import OwnSplit

    loaded = load_config(config, (), os.environ)
    if loaded.data.partition is not None:
        raise ConfigError(f"{config}: data.partition: expected a site's own data, got a part of a data set")
    genesis = load_federation(loaded).genesis
    run = (read_head_state(loaded, genesis) or genesis.state).run
    own, data_dir = OwnSplit(loaded.node.data_dir), loaded.node.data_dir
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        lock = lock_directory(data_dir, readonly=False)
    except ChainError as error:
        raise NodeError(f"{data_dir}: a node is running on it; stop it first") from error
    try:
        try:
            before: Sides | None = own.open()
        except DataError as error:
            print(f"fednode: {error}", file=sys.stderr)
            before = None
        after = Sides(secrets.token_bytes(SEED_BYTES))
        made = split_anew(
            complete_val(loaded.get_data(), selects=run.select is not None),
            before,
            after,
            classes=run.classes,
            task=run.task,
            table=InputFormat.from_mapping(run.input).table,
            meaning=run.labels,
        )
        has_trained = own.has_trained()
        trained_on = made.trained_on if has_trained else ()
        if not yes and has_trained:
            _ask(made.num_test, trained_on)
        own.replace(after)
    except DataError as error:
        raise NodeError(str(error)) from error
    finally:
        if lock is not None:
            os.close(lock)
    if as_json:
        facts = {"train": made.num_train, "test": made.num_test, "val": made.num_val}
        print_json({**facts, "trained_on": None if trained_on is None else list(trained_on)})
        return
    print(f"{made.num_train} train, {made.num_test} test{f', {made.num_val} val' if made.num_val else ''}")
    print(_describe(made.num_test, trained_on))
    for place in (trained_on or ())[:SHOWN]:
        print(f"  {place}")
    if trained_on is not None and len(trained_on) > SHOWN:
        print(f"  and {len(trained_on) - SHOWN} more; --json has them all")


def _describe(num_test: int, trained_on: tuple[str, ...] | None) -> str:
    if trained_on is None:
        return f"which of the {num_test} were trained on before cannot be told: as many as all of them"
    return f"{len(trained_on)} of the {num_test} were trained on before"


def _ask(num_test: int, trained_on: tuple[str, ...] | None) -> None:
    if not sys.stdin.isatty():
        raise NodeError(f"{_describe(num_test, trained_on)}: say --yes to split anew")
    typer.confirm(f"{_describe(num_test, trained_on)}. Split anew?", abort=True)
