"""`fednode join-file`: what a member gives to a site that is to join."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import print_json
from node.cli.target import DataDir, NodeConfigFile, Socket, open_ledger
from node.host.whole_file import writing_whole


def register(app: typer.Typer) -> None:
    app.command("join-file")(make)


def make(
    file: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to; nothing is written over.")
    ] = Path("federation.join"),
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write the file by which a new site joins. It holds genesis, a late block to trust, and members' addresses.

    Its hash is printed: read it to whoever takes the file, by voice. Who joins by another file may join others.

    Example: fednode join-file -o federation.join --config node.yaml
    """
    from chain.join_file import JoinFile

    with open_ledger(socket, config, data_dir) as ledger:
        data = ledger.make_join_file()
    joined = JoinFile.decode(data)
    with writing_whole(file, over=False) as whole:
        whole.write(data)
    height, shown = joined.checkpoint.height, joined.describe_digest()
    if as_json:
        chain_id = joined.genesis.chain_id.hex()
        print_json({"file": str(file), "chain_id": chain_id, "height": height, "hash": shown, "bytes": len(data)})
        return
    print(shown)
    print(f"fednode: wrote {file}, with block {height} for a checkpoint; read the hash to its taker", file=sys.stderr)
