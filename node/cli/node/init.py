"""`fednode init`: writes the files that an organisation begins with."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import AsJson, PassphraseFile


def register(app: typer.Typer) -> None:
    app.command("init")(init)


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the node is to live; made if need be.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What people call the node; by default DIR's name.")
    ] = None,
    genesis: Annotated[
        Path | None,
        typer.Option(
            "--genesis", metavar="FILE", help="The genesis all members share; by default a genesis.yaml to come in DIR."
        ),
    ] = None,
    join: Annotated[
        Path | None,
        typer.Option(
            "--join", metavar="FILE", help="Join a federation that is there: its join file, or its founders' genesis."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where peers reach the node on this machine; by default on all its addresses, at the port they dial.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="HOST:PORT",
            help="What peers dial; by default this machine's name, and the port of --listen or 7050.",
        ),
    ] = None,
    dial_out: Annotated[
        bool, typer.Option("--dial-out", help="Nobody can dial the node: it dials the others, and opens no port.")
    ] = False,
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="What it trains on: digits, or FORMAT:PATH.")
    ] = "digits",
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="COLUMN",
            help="The labels' column, where --data is a table; of several labels or targets, each time one. Default: "
            "label, or the columns that the run calls its labels or targets.",
        ),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="An identity there is already, instead of a new one.")
    ] = None,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a site's identity key and its node.yaml. Prints id@host:port, which the others put into genesis; the id
    alone with --dial-out.

    The key (mode 0600) lies in DIR/keys and never leaves the machine. No file that is there is written over.

    With --join it prints a join request instead, one line for a member, who proposes it to the others. The node can be
    started at once: it takes the chain, stands ready, and takes part from the block on that admits it.

    Examples: fednode init hospital-a --advertise fed.hospital-a.example:7050 --data imagefolder:/srv/scans, fednode
    init hospital-b --data csv:/srv/patients.csv --label diagnosis, or fednode init hospital-d --join federation.join
    """
    from node.config.init import DEFAULT_PORT, SiteSpec, make_site

    if genesis is not None and join is not None:
        raise typer.BadParameter("expected --genesis of a founder, or --join, not both")
    if dial_out and advertise is not None:
        raise typer.BadParameter("expected --advertise of a node that peers dial, or --dial-out, not both")
    if not dial_out and advertise is None:
        advertise = f"{socket.gethostname()}:{DEFAULT_PORT if listen is None else listen.rpartition(':')[2]}"
    spec = SiteSpec(
        name=name or directory.absolute().name,
        genesis_file=genesis,
        join_file=join,
        listen=listen,
        advertise=advertise,
        dial_out=dial_out,
        data=data,
        label=None if label is None else tuple(label),
        key_file=key,
        passphrase_file=passphrase_file,
    )
    made = make_site(directory, spec, time.time_ns() // 1_000_000)
    if as_json:
        facts = {"id": made.id, "name": spec.name, "address": made.address, "config": str(made.config_file)}
        joining: dict[str, object] = {}
        if made.joined is not None:
            trusted = {"height": made.joined.checkpoint.height, "id": made.joined.checkpoint.id.hex()}
            joining = {"request": made.request, "join_hash": made.joined.describe_digest(), "checkpoint": trusted}
        print(json.dumps({**facts, "key": str(made.key_file), **joining}))
        return
    print(made.request or made.peer)
    print(f"fednode: wrote {made.config_file} and {made.key_file}; back the key up", file=sys.stderr)
    if made.joined is not None:
        shown, checkpoint = made.joined.describe_digest(), made.joined.checkpoint
        print(f"fednode: compare by voice with the member who gave you {join}: {shown}", file=sys.stderr)
        print(
            "fednode: no node can tell whether that member lies; have another one, whose number you do not have from "
            f"it, read out what fednode chain show {checkpoint.height} says there: {checkpoint.id.hex()}",
            file=sys.stderr,
        )
