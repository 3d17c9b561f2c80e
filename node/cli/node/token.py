"""`fednode token`: makes, lists and revokes the tokens that give access to a node over TCP."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson, make_group
from node.cli.output import print_json, print_table, show_time
from node.cli.target import read_data_dir
from node.errors import NodeError

if TYPE_CHECKING:
    from node.admin.tokens import Tokens


class RoleName(StrEnum):
    READ = "read"
    PREDICT = "predict"
    ADMIN = "admin"


_Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The configuration of the node to be asked.")
]
_DataDir = Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Its data directory, instead.")]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="What the token is called.")]


def register(app: typer.Typer) -> None:
    group = make_group("Make, list and revoke the tokens for admin calls over TCP.")
    group.command("new")(make)
    group.command("list")(list_all)
    group.command("revoke")(revoke)
    app.add_typer(group, name="token")


def make(
    name: _Name,
    config: _Config = None,
    data_dir: _DataDir = None,
    role: Annotated[
        RoleName, typer.Option("--role", help="read asks, predict also has samples answered, admin also changes.")
    ] = RoleName.READ,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there, mode 0600, not to stdout.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, once. The node keeps only its hash. The token is valid at once, also while the node
    runs.

    Example: fednode token new grafana --role read -c node3.yaml -o grafana.token; then, where it is used,
    FEDNODE_TOKEN_FILE=grafana.token fednode status --address ID@host:port
    """
    import time

    from chain.schema import format_time
    from node.admin.tokens import Role
    from node.host.private_file import write_private

    tokens = _open(config, data_dir)
    if output is not None and output.exists():
        raise NodeError(f"{output}: expected no such file")
    text = tokens.add(name, Role(role.value), format_time(time.time_ns() // 1_000_000))
    if output is not None:
        try:
            write_private(output, text.encode() + b"\n")
        except NodeError:
            tokens.revoke(name)  # or a token would be valid that nobody has
            raise
    if as_json:
        print_json({"name": name, "role": role.value, "token": None if output else text})
    elif output is None:
        print(text)
    else:
        print(f"{output}: token {name}, role {role.value}")


def list_all(config: _Config = None, data_dir: _DataDir = None, as_json: AsJson = False) -> None:
    """List the valid tokens: names, roles, when they were made.

    Example: fednode token list -c node3.yaml --json
    """
    tokens = _open(config, data_dir).get_all()
    if as_json:
        print_json({"tokens": [{"name": t.name, "role": t.role.value, "created": t.created} for t in tokens]})
    else:
        print_table(("NAME", "ROLE", "MADE (UTC)"), [(t.name, t.role.value, show_time(t.created)) for t in tokens])


def revoke(name: _Name, config: _Config = None, data_dir: _DataDir = None, as_json: AsJson = False) -> None:
    """Revoke a token. It is refused from the next call on, also while the node runs.

    Example: fednode token revoke grafana -c node3.yaml
    """
    _open(config, data_dir).revoke(name)
    if as_json:
        print_json({"name": name, "revoked": True})
    else:
        print(f"{name}: revoked")


def _open(config: Path | None, data_dir: Path | None) -> Tokens:
    from node.admin.tokens import Tokens
    from node.host.private_file import make_private_folder

    path = read_data_dir(config, data_dir)
    if config is not None:
        make_private_folder(path)
    return Tokens(path)
