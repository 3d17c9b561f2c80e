"""`fednode chain import`: takes an exported chain into a stopped node's store."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import print_json, show_id
from node.cli.target import read_store
from node.errors import ConfigError, NodeError, NotFound, VerificationFailed

if TYPE_CHECKING:
    from chain.genesis import Genesis


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What fednode chain export wrote, in either format.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The stopped node's configuration.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Its data directory, if it has run before.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Verify the file and say what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify an exported chain and add it to a stopped node. It appends what extends the node's store.

    Links, proof of work, every signature and every certificate are checked before anything is written: a file that is
    damaged, of another chain, or that leaves a gap changes nothing (exit code 5). With --config the data directory may
    be a new one.

    Examples: fednode chain import chain.bin -c node3.yaml --dry-run; fednode chain import chain.bin --data-dir
    data/node3
    """
    from chain.errors import ChainError, StoreLocked
    from chain.store.sqlite import SqliteStore
    from node.ledger.importing import import_chain

    genesis, path, is_new = _find_store(config, data_dir)
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(file.open("rb"))
            if not stream.seekable():
                raise NodeError(f"{file}: expected a file, as it is read twice")
            store = None
            if is_new and not dry_run:  # a file that is refused must leave nothing behind
                import_chain(genesis, None, stream, dry_run=True)
                stream.seek(0)
            if not (dry_run and is_new):
                store = stack.enter_context(SqliteStore.open(path, genesis, readonly=dry_run))
            done = import_chain(genesis, store, stream, dry_run=dry_run)
    except OSError as error:
        raise NodeError(f"{file}: cannot be read ({error.strerror})") from error
    except StoreLocked as error:
        raise NodeError(f"{path}: a node is running on it; stop it first") from error
    except ChainError as error:
        raise NodeError(str(error)) from error
    except VerificationFailed as error:
        raise VerificationFailed(f"{file}: {error}") from error
    if as_json:
        facts = {"file": str(file), "from": done.first, "to": done.last, "known": done.known, "dry_run": dry_run}
        print_json(facts | {"appended": done.appended, "height": done.height, "head": done.head.hex()})
        return
    did = "would append" if dry_run else "appended"
    print(f"{file}: heights {done.first} to {done.last} hold; {done.known} known, {did} {done.appended}")
    print(f"{path}: {'would end' if dry_run else 'ends'} at height {done.height}  {show_id(done.head.hex())}")


def _find_store(config: Path | None, data_dir: Path | None) -> tuple[Genesis, Path, bool]:
    """Returns genesis, the data directory, and whether nothing was ever stored there."""
    from chain.errors import ChainError, StoreLocked
    from chain.genesis import Genesis
    from chain.store.sqlite import SqliteStore

    path, genesis = read_store(config, data_dir)
    try:
        stored = SqliteStore.stored_genesis(path)
    except StoreLocked as error:
        raise NodeError(f"{path}: a node is running on it; stop it first") from error
    except ChainError as error:
        raise VerificationFailed(str(error)) from error
    if stored is None and genesis is None:
        raise NotFound(f"{path}: expected a node's data directory, but no node has run there; --config begins one")
    if stored is not None and genesis is not None and Genesis.from_mapping(stored) != genesis:
        raise ConfigError(f"{path}: expected the chain of the configuration's genesis, {genesis.chain_id.hex()}")
    return genesis or Genesis.from_mapping(stored or {}), path, stored is None
