"""`fednode compose-setup`: the service of `docker-compose.yml` that runs before the nodes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import AsJson


def register(app: typer.Typer) -> None:
    app.command("compose-setup", hidden=True)(setup)


def setup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the nodes' volumes are mounted.")],
    as_json: AsJson = False,
) -> None:
    """Write what docker-compose.yml needs, unless it is there.

    That is keys, a genesis and configurations. Each node's files go into DIR/node0, DIR/node1 ..., which are volumes of
    their own, and a token for metrics into DIR/metrics. FEDNODE_METHOD, FEDNODE_MODEL, FEDNODE_DATA, FEDNODE_PARTITION,
    FEDNODE_ROUNDS, FEDNODE_SEED, FEDNODE_SET and FEDNODE_I_UNDERSTAND say what to make, as the options of fednode
    testnet do. COMPOSE_PROFILES=nodes-7 says that 7 nodes start instead of 4; FEDNODE_NODES, if set, has to agree.

    Example: FEDNODE_METHOD=fedavg fednode compose-setup /sites
    """
    from node.testnet.volumes import make_volumes

    made = make_volumes(directory, os.environ)
    if as_json:
        facts = {"chain_id": made.chain_id, "nodes": made.num_nodes, "settings": made.settings, "new": made.is_new}
        print(json.dumps(facts))
        return
    print(f"{made.num_nodes} nodes on chain {made.chain_id}, {'made now' if made.is_new else 'as they were'}")
