"""`fednode backup` and `fednode restore`: a node's data directory in one file, and back."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import print_json
from node.cli.target import DataDir, NodeConfigFile, Socket, choose_data_dir, open_node, read_store
from node.errors import NodeError

if TYPE_CHECKING:
    from node.ledger.backup import Manifest, OnProgress


def register(app: typer.Typer) -> None:
    app.command("backup")(backup)
    app.command("restore")(restore)


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; nothing is written over.")],
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Put the identity key and the configuration in, too; needs --config.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a node's data directory into one file. Its rounds go on meanwhile; a stopped node is read as it lies.

    In it are the chain, what was signed, blobs, checkpoints, who is held out of training, addresses, bans and the
    digests of tokens, each with its SHA-256; the file is read back before it gets its name. It is a tar archive of mode
    0600. With --with-key it holds the node's identity: whoever has the file can then sign for the member, so keep it as
    you keep the key.

    Examples: fednode backup node3.tar -c node3.yaml; fednode backup node3.tar --data-dir data/node3
    """
    from node.ledger.backup import write_archive

    if with_key and config is None:
        raise typer.BadParameter("expected --config FILE with --with-key: it names the key")
    if file.exists() or file.is_symlink():
        raise NodeError(f"{file}: expected no file, as nothing is written over")
    site = {} if config is None or not with_key else read_site(config)
    with _progress() as on_progress, _open_body(file, socket, config, data_dir, on_progress) as (manifest, body):
        manifest = write_archive(file, manifest, body, site, on_progress)
    num_bytes = file.stat().st_size
    if as_json:
        facts = {"file": str(file), "bytes": num_bytes, "files": len(manifest.members), "with_key": with_key}
        print_json(facts | {"chain_id": manifest.chain_id, "height": manifest.height, "head": manifest.head})
        return
    print(f"{file}: {_describe(manifest)}, {num_bytes} bytes")
    if with_key:
        print("the identity key is in it: whoever has this file can sign for the member")


@contextmanager
def _open_body(
    file: Path, socket: str | None, config: Path | None, data_dir: Path | None, on_progress: OnProgress
) -> Iterator[tuple[Manifest, Iterator[bytes]]]:
    """Opens the backup of a running node, or of what a stopped one has left."""
    from node.admin.offline import OfflineNode

    left = choose_data_dir(socket, config, data_dir)
    if left is None:
        with open_node(socket, config) as client:
            yield client.backup()
        return
    with (
        OfflineNode(left) as node,
        tempfile.TemporaryDirectory(prefix=".backup-", dir=file.absolute().parent) as folder,
    ):
        snapshot = node.take_snapshot(Path(folder), on_progress)
        yield snapshot.manifest, snapshot.read()


def read_site(path: Path) -> dict[str, bytes]:
    from node.config.identity import open_identity, open_spare
    from node.config.node_config import load_config
    from node.ledger.backup import SITE_CONFIG, SITE_KEY, SITE_SPARE_KEY

    config = load_config(path, (), os.environ)
    open_identity(config)  # raises where others may read the key, or the file holds none
    site = {SITE_CONFIG: path.read_bytes(), SITE_KEY: config.node.identity_key_file.read_bytes()}
    if open_spare(config) is not None:  # after a rotation this one is in force
        site[SITE_SPARE_KEY] = config.node.spare_key_file.read_bytes()
    return site


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What fednode backup wrote.")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="The data directory to make; it has to be empty.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="The configuration that names it, and whose chain it is."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a data directory of a backup. Every byte is checked before anything is written (exit code 5).

    A backup does not know what the node signed after it. So the node that starts on it signs nothing until it has
    caught up with the others and two heights have passed without it, which takes a quorum of them; status says so. See
    that the node runs nowhere else. A key that was backed up lies in DIR/site: move it to where it belongs.

    Examples: fednode restore node3.tar --data-dir data/node3; fednode restore node3.tar -c node3.yaml
    """
    from node.ledger.backup import SITE_KEY, SITE_SPARE_KEY
    from node.ledger.restoring import restore as restore_directory

    data_dir, genesis = read_store(config, data_dir)
    with _progress() as on_progress:
        manifest = restore_directory(file, data_dir, genesis, on_progress)
    has_key = any(member.name == SITE_KEY for member in manifest.members)
    if as_json:
        facts = {"file": str(file), "data_dir": str(data_dir), "files": len(manifest.members), "with_key": has_key}
        print_json(facts | {"chain_id": manifest.chain_id, "height": manifest.height, "head": manifest.head})
        return
    print(f"{data_dir}: {_describe(manifest)}")
    print("the node that starts on it signs nothing until it has caught up and two heights have passed without it")
    if (size := _find_size_where_all_vote(data_dir)) is not None:
        print(
            f"fednode: at the end of this backup all {size} members have to vote. Where that is so still, no height "
            "passes while this one signs nothing, so none ever will: if the directory it had is there, put that back "
            "instead",
            file=sys.stderr,
        )
    if has_key:
        print(f"its identity key lies in {data_dir / SITE_KEY}: move it to where its configuration says")
    if any(member.name == SITE_SPARE_KEY for member in manifest.members):
        print(f"so does its other key, in {data_dir / SITE_SPARE_KEY}: it is in force if it was rotated to")


def _find_size_where_all_vote(data_dir: Path) -> int | None:
    """Returns the number of members where every block needs the vote of all; else None."""
    from chain.errors import ChainError
    from chain.genesis import Genesis
    from chain.store.sqlite import SqliteStore

    try:
        mapping = SqliteStore.stored_genesis(data_dir)
        if mapping is None:
            return None
        with SqliteStore.open(data_dir, Genesis.from_mapping(mapping), readonly=True) as store:
            state = store.get_state(store.head_height)
    except ChainError:  # of another release: the node itself reports it
        return None
    return state.n if state.q == state.n > 1 else None


def _describe(manifest: Manifest) -> str:
    return f"{manifest.chain_name} up to height {manifest.height}, {len(manifest.members)} files"


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Shows a bar on stderr, where that is a terminal."""
    from rich.console import Console

    from node.ledger.backup import ignore_progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield ignore_progress
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), console=console) as bar:
        task = bar.add_task("reading", total=1.0)
        yield lambda done, what: bar.update(task, completed=done, description=what)
