"""`fednode keygen` and `fednode id`: the identity key that is the node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import AsJson, PassphraseFile

SHORT_ID_CHARS = 8


def register(app: typer.Typer) -> None:
    app.command("keygen")(generate_key)
    app.command("id")(show_id)


def generate_key(
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the key goes; never overwritten.")
    ] = Path("node.key"),
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a new identity key and print its node id. The key is Ed25519, its file PKCS#8 PEM of mode 0600.

    Example: fednode keygen -o keys/hospital-a.key --passphrase-file /run/secrets/passphrase
    """
    from chain.signing import encode_id
    from node.config.identity import create_identity, read_passphrase

    passphrase = read_passphrase(passphrase_file) if passphrase_file else None
    text = encode_id(create_identity(out, passphrase).id)
    print(json.dumps({"id": text, "key": str(out)}) if as_json else text)


def show_id(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The configuration that names the key.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="A key file, instead.")] = None,
    passphrase_file: PassphraseFile = None,
    short: Annotated[bool, typer.Option("--short", help=f"The first {SHORT_ID_CHARS} characters.")] = False,
    peer: Annotated[bool, typer.Option("--peer", help="id@host:port, as others write it under network.peers.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the node id of a configuration or of a key file.

    Examples: fednode id --config node.yaml --peer, or fednode id --key keys/hospital-a.key --short
    """
    from chain.signing import encode_id
    from node.config.identity import open_identity, open_key
    from node.config.node_config import load_config

    name = address = None
    if config is not None and key is None:
        loaded = load_config(config, (), os.environ)
        name, network = loaded.node.name, loaded.network
        address = None if network.dial_out else network.advertise or network.listen
        text = encode_id(open_identity(loaded).id)
    elif key is not None and config is None:
        text = encode_id(open_key(key, passphrase_file).id)
    else:
        raise typer.BadParameter("expected either --config FILE or --key FILE")
    if peer and address is None:
        raise typer.BadParameter("--peer expects --config FILE of a node that peers dial, which has the address")
    if as_json:
        print(json.dumps({"id": text, "name": name, "address": address}))
    elif peer:
        print(f"{text}@{address}")
    else:
        print(text[:SHORT_ID_CHARS] if short else text)
