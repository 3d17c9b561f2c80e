"""`fednode unsafe-reset`: begins anew with an empty chain, without contradicting what was signed before."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import print_json
from node.cli.target import read_data_dir
from node.errors import NodeError, NotFound, VerificationFailed


def register(app: typer.Typer) -> None:
    app.command("unsafe-reset")(reset)


def reset(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The stopped node's configuration.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Its data directory.")] = None,
    keep_model: Annotated[
        bool, typer.Option("--keep-model", help="Keep the checkpoints of what was trained here.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where nobody can be asked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a stopped node's chain and model; keep its key. Rounds, evidence and blobs go too. The node fetches the
    chain from its peers again.

    Kept are the key, the configuration with its addresses, bans and tokens, who is held out of training, every row this
    node has signed, and what its operator has answered to changes. At a height where it signed before it repeats itself
    and never signs anything else, so a reset is no equivocation; it trains where its operator has agreed to that, and
    nowhere else. Not a way to begin a federation anew: for that all members need another genesis. A directory that is
    deleted by hand, or put back from a backup, has no such memory; the node must then not run under its old key.

    Examples: fednode unsafe-reset -c node3.yaml; fednode unsafe-reset --data-dir data/node3 --keep-model --yes
    """
    from chain.errors import ChainError, StoreCorrupted, StoreLocked
    from chain.store.sqlite import SqliteStore
    from node.training.checkpoint import CHECKPOINTS

    data_dir = read_data_dir(config, data_dir)
    try:
        if SqliteStore.stored_genesis(data_dir) is None:
            raise NotFound(f"{data_dir}: expected a node's data directory, but no node has run there")
        if not yes:
            _ask(data_dir, keep_model)
        signed_height, kept_answers = SqliteStore.reset(data_dir)
    except StoreLocked as error:
        raise NodeError(f"{data_dir}: a node is running on it; stop it first") from error
    except StoreCorrupted as error:
        raise VerificationFailed(
            f"{error}; nothing was reset: what this node signed cannot be read, and without it the node could "
            "contradict itself"
        ) from error
    except ChainError as error:
        raise NodeError(str(error)) from error
    try:
        if not keep_model and (data_dir / CHECKPOINTS).exists():
            shutil.rmtree(data_dir / CHECKPOINTS)
    except OSError as error:
        raise NodeError(f"{error.filename}: cannot be deleted ({error.strerror})") from error
    if not kept_answers:
        print(
            "fednode: what this site answered to changes is damaged and gone: approve again what it is to train in, "
            "and take back again what it took back (fednode proposals)",
            file=sys.stderr,
        )
    if as_json:
        facts = {"data_dir": str(data_dir), "kept_model": keep_model, "signed_height": signed_height}
        facts["kept_answers"] = kept_answers
        print_json(facts)
        return
    print(f"{data_dir}: reset; {'the model is kept' if keep_model else 'the model is gone'}")
    if signed_height:
        print(f"what it signed up to height {signed_height} is kept: there it repeats itself, and signs nothing else")


def _ask(data_dir: Path, keep_model: bool) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("expected --yes, as there is nobody here to be asked")
    what = "chain and state" if keep_model else "chain, state and model"
    if not typer.confirm(f"Delete {what} in {data_dir}?", default=False, err=True):
        raise NodeError("nothing was reset")
