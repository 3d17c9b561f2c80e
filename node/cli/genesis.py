"""`fednode genesis`: the file that all members share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import AsJson, make_group

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A genesis.yaml, its initial model beside it.")]


def register(app: typer.Typer) -> None:
    group = make_group("Show the file that all members of a federation share.")
    group.command("show")(show)
    group.command("hash")(show_hash)
    app.add_typer(group, name="genesis")


def show(file: _File, as_json: AsJson = False) -> None:
    """Check a genesis file and print it in full, defaults written out."""
    from node.genesis_file import load_genesis
    from node.yaml_source import dump_yaml

    genesis, _ = load_genesis(file)
    if as_json:
        print(json.dumps({"chain_id": genesis.chain_id.hex(), "genesis": genesis.to_mapping()}))
    else:
        print(f"# chain {genesis.chain_id.hex()}, {genesis.n} members, quorum {genesis.q}")
        print(dump_yaml(genesis.to_mapping()), end="")


def show_hash(file: _File, as_json: AsJson = False) -> None:
    """Check a genesis file and print its hash, which is the chain id."""
    from node.genesis_file import load_genesis

    genesis, _ = load_genesis(file)
    print(json.dumps({"chain_id": genesis.chain_id.hex()}) if as_json else genesis.chain_id.hex())
