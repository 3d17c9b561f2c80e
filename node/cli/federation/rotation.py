"""`fednode key rotate`: another key for the same seat, while the old one is still there to agree."""

from __future__ import annotations

import os
import sys

import typer

from node.cli.federation.propose import propose, replace_key
from node.cli.options import AsJson, ConfigFile, join_options, make_group
from node.cli.output import print_json
from node.cli.target import open_node


def register(app: typer.Typer) -> None:
    group = make_group("Give a seat another key.")
    group.command("rotate")(rotate)
    group.command("replace")(join_options(replace_key, propose))
    app.add_typer(group, name="key")


def rotate(config: ConfigFile, as_json: AsJson = False) -> None:
    """Make a new key and put it in force. Nobody else has to agree, and a seat may do so once in 1,000 heights.

    The key (mode 0600) goes where node.next_key_file says, by default beside the old one. The running node proposes it,
    and goes over to it by itself once that is final. Keep the old one until then; afterwards put the new one in its
    place. To be said again where it was interrupted: the key that is there is taken.

    Example: fednode key rotate --config node.yaml
    """
    from node.config.identity import create_identity, read_passphrase
    from node.config.node_config import load_config

    node = load_config(config, (), os.environ).node
    passphrase_file, path = node.identity_passphrase_file, node.spare_key_file
    with open_node(None, config) as client:
        client.get_version()  # raises before a key is made, if the node does not answer
        if not path.exists():
            create_identity(path, read_passphrase(passphrase_file) if passphrase_file else None)
        reply = client.rotate_key()
    if as_json:
        print_json({"change": reply.change, "id": reply.id, "key": str(path)})
        return
    print(f"change {reply.change[:8]}: {reply.id} takes the place of the key in {node.identity_key_file}")
    print(f"fednode: {path} holds the new key; back it up, and see fednode status", file=sys.stderr)
