"""The target of a command: a running node, by its admin socket or over TCP, or the data directory of a stopped one.

In this order: `--socket` (or `--address`; `host:port` on this machine, `ID@host:port` on another), FEDNODE_ADDRESS, the
admin section of `--config`, the only socket in `./run` (of several the only one that is served). Whatever takes
`--socket` also takes `--token-file`, which counts before FEDNODE_TOKEN_FILE. The commands that read the ledger also
take `--data-dir`, and under `--config` they read the data directory it names when no daemon answers, saying so on
stderr.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
import typer.main

from node.cli.options import give_signature, make_group
from node.errors import NodeUnreachable

if TYPE_CHECKING:
    from chain.genesis import Genesis
    from node.admin.address import AdminAddress
    from node.admin.client import AdminClient
    from node.admin.ledger_client import LedgerClient
    from node.admin.place import Configured

ADDRESS_VARIABLE = "FEDNODE_ADDRESS"
RUN_DIRECTORY = Path("run")

_token_file: ContextVar[str | None] = ContextVar("token_file", default=None)  # of the command that runs

Socket = Annotated[
    str | None,
    typer.Option(
        "--socket",
        "--address",
        metavar="PATH|ADDRESS",
        help="The node's admin socket; or host:port, ID@host:port beyond this machine, with a token, which is in "
        f"--token-file. Default: ${ADDRESS_VARIABLE}.",
    ),
]
NodeConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The configuration of the node that is asked.")
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="Read a stopped node's data directory instead.")
]


def make_listing(summary: str, list_all: Callable[..., None]) -> typer.Typer:
    """Returns a group of commands that lists where no command is named: `fednode members` is `fednode members list`,
    with the same options."""

    def list_by_default(context: typer.Context, **given: Any) -> None:
        if context.invoked_subcommand is None:
            list_all(**given)
        else:
            refuse_options_before(context)

    own = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    give_signature(list_by_default, [own, *inspect.signature(list_all, eval_str=True).parameters.values()])
    group = make_group(summary)
    group.callback(help=summary, invoke_without_command=True, no_args_is_help=False)(list_by_default)
    group.command("list")(list_all)
    return group


def refuse_options_before(context: typer.Context) -> None:
    """Refuses options of a group that have no effect on the command after them: an operator would expect one."""
    sources = (context.get_parameter_source(name) for name in context.params)
    if any(source is not None and source.name == "COMMANDLINE" for source in sources):
        command = f"{context.command_path} {context.invoked_subcommand}"
        raise typer.BadParameter(f"expected options after the command, as in {command} --json", ctx=context)


def read_data_dir(config: Path | None, data_dir: Path | None) -> Path:
    """Returns the data directory of a node that need not run: as given, or as its configuration names it."""
    if (config is None) == (data_dir is None):
        raise typer.BadParameter("expected either --config FILE or --data-dir DIR")
    if config is None:
        return cast(Path, data_dir)
    from node.config.node_config import load_config

    return load_config(config, (), os.environ).node.data_dir


def read_store(config: Path | None, data_dir: Path | None) -> tuple[Path, Genesis | None]:
    """Returns the data directory as `read_data_dir` does, and the genesis that its configuration names."""
    path = read_data_dir(config, data_dir)
    if config is None:
        return path, None
    from node.config.federation import load_federation
    from node.config.node_config import load_config

    return path, load_federation(load_config(config, (), os.environ)).genesis


def offer_token_file(command: Any) -> None:
    """Adds `--token-file` to each command below this one that takes `--socket`."""
    for below in getattr(command, "commands", {}).values():
        offer_token_file(below)
    if any(parameter.name == "socket" for parameter in command.params):
        holder = typer.Typer(add_completion=False)
        holder.command()(_hold)
        command.params.append(typer.main.get_command(holder).params[0])


def _keep(value: str | None) -> None:
    _token_file.set(value)


def _hold(
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="A file whose first line is a token, for an address over TCP. Default: $FEDNODE_TOKEN_FILE.",
            expose_value=False,
            callback=_keep,
        ),
    ] = None,
) -> None:
    """Holds the option as typer makes it; never called."""


def _get_environment() -> Mapping[str, str]:
    """Returns the variables of the environment, with those that the command line sets."""
    given = _token_file.get()
    if given is None:
        return os.environ
    from node.admin.address import TOKEN_FILE_VARIABLE

    return {**os.environ, TOKEN_FILE_VARIABLE: given}


def find_socket(socket: str | None, config: Path | None) -> AdminAddress:
    """Returns the address of the node to ask. Raises NodeUnreachable, ConfigError or a usage error when there is none,
    or several."""
    if address := socket or os.environ.get(ADDRESS_VARIABLE):
        return _read_address(address)
    if config is not None:
        return _read_config(config).place
    found = sorted(RUN_DIRECTORY.glob("*.sock"))
    if not found:
        raise NodeUnreachable(
            f"expected --socket PATH, --config FILE or {ADDRESS_VARIABLE}: there is no socket in {Path.cwd() / 'run'}"
        )
    if len(found) > 1:
        from node.admin.client import is_served

        served = [path for path in found if is_served(path)]
        if len(served) == 1:
            return served[0]
        names = ", ".join(str(path) for path in served or found)
        raise typer.BadParameter(f"expected --socket PATH or --config FILE, as there are several sockets here: {names}")
    return found[0]


def _read_address(text: str) -> AdminAddress:
    from node.admin.place import read_place

    try:
        return read_place(text, _get_environment())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _read_config(path: Path) -> Configured:
    from node.admin.place import read_configured_place

    return read_configured_place(path, _get_environment())


@contextmanager
def open_node(socket: str | None, config: Path | None) -> Iterator[AdminClient]:
    """Opens a client of a running node."""
    with open_place(find_socket(socket, config)) as client:
        yield client


@contextmanager
def open_place(place: AdminAddress) -> Iterator[AdminClient]:
    """Opens a client of the running node at a place. Raises NodeUnreachable."""
    from node.admin.client import AdminClient
    from node.admin.place import validate_socket

    if isinstance(place, Path):
        validate_socket(place)
    with AdminClient(place) as client:
        yield client


@contextmanager
def open_ledger(socket: str | None, config: Path | None, data_dir: Path | None) -> Iterator[LedgerClient]:
    """Opens the ledger of a running node, or the one a stopped node has left."""
    left = choose_data_dir(socket, config, data_dir)
    if left is None:
        with open_node(socket, config) as client:
            yield client
    else:
        from node.admin.offline import OfflineNode

        with OfflineNode(left) as node:
            yield node


def choose_data_dir(socket: str | None, config: Path | None, data_dir: Path | None) -> Path | None:
    """Returns the data directory to read, or None when a running node is to be asked."""
    if data_dir is not None:
        if socket or config is not None:
            raise typer.BadParameter("expected --data-dir alone, without --socket or --config")
        return data_dir
    if config is None or socket or os.environ.get(ADDRESS_VARIABLE):
        return None
    from node.admin.client import is_served

    node = _read_config(config)
    if is_served(node.place):
        return None
    print(f"fednode: no node answers at {node.place}; reading {node.data_dir}", file=sys.stderr)
    return node.data_dir
