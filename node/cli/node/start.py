"""`fednode --config node3.yaml` and `fednode start`: runs the node, or checks that it could run."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import ConfigFile, LogFormat, Overrides
from node.errors import ConfigError, NodeError

if TYPE_CHECKING:
    from chain.genesis import Genesis
    from node.config.node_config import NodeConfig

_Check = Annotated[bool, typer.Option("--check", help="Load everything the node needs, say so, and exit.")]
_AfterRestore = Annotated[
    bool,
    typer.Option(
        "--after-restore",
        help="The data directory was put back from a backup, or lost: sign nothing until two heights have passed.",
    ),
]
_LogFormatOption = Annotated[LogFormat | None, typer.Option("--log-format", help="Format of the log on stderr.")]


def register(app: typer.Typer) -> None:
    app.callback(invoke_without_command=True)(start_by_option)
    app.command("start")(start)


def start_by_option(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Start the node this file configures.")
    ] = None,
    overrides: Overrides = None,
    log_format: _LogFormatOption = None,
    check: _Check = False,
    after_restore: _AfterRestore = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Train a model together with no server, no shared data and no trusted party."""
    if version:
        from node.cli.node.version import show_version

        show_version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        if config is None:
            raise typer.BadParameter("expected --config FILE or a command; see fednode --help", ctx=context)
        start(config, overrides, log_format, check, after_restore)
    elif config is not None or overrides or log_format is not None or check or after_restore:
        raise typer.BadParameter(
            f"expected options after the command, as in fednode {context.invoked_subcommand} --config FILE", ctx=context
        )


def start(
    config: ConfigFile,
    overrides: Overrides = None,
    log_format: _LogFormatOption = None,
    check: _Check = False,
    after_restore: _AfterRestore = False,
) -> None:
    """Start a node in the foreground, until SIGTERM or Ctrl-C.

    Where the method of a genesis shares samples in a transformed form (fededs), the node trains only if its
    configuration says consensus.approves_genesis: true; it votes in either case.

    After a backup was put back a node does not know what it has signed since, and would be convicted of signing twice.
    Say --after-restore once: it outlives restarts until enough heights have passed, which takes a quorum of others.

    Examples: fednode start --config node.yaml --set log.level=debug, or with --check to see whether it would start
    """
    from node.config.node_config import load_config, load_config_source

    settings = [*(overrides or ()), *([f"log.format={log_format.value}"] if log_format else ())]
    source = load_config_source(config, settings, os.environ)
    loaded = source.config
    if check:
        check_node(loaded, config)
        return
    from node.daemon import run_daemon
    from node.host.notify import Notifier
    from node.log import setup_logging

    setup_logging(loaded.log.level, loaded.log.format, loaded.log.file, env=os.environ)
    os.umask(0o077)  # a node's files are its own, also in a data directory that others may enter
    load = partial(load_config, config.absolute(), settings, os.environ)
    notifier = Notifier.from_env(os.environ)
    done = run_daemon(
        loaded,
        notifier=notifier,
        load=load,
        after_restore=after_restore,
        origins=source.list_origins(),
        options=["--config", str(config.absolute()), *(word for each in settings for word in ("--set", each))],
    )
    raise typer.Exit(done)


def check_node(config: NodeConfig, path: Path) -> None:
    """Reads every file the node would, and prints its role and settings. Raises NodeError."""
    from chain.errors import ChainError, StoreLocked
    from chain.genesis import Genesis
    from chain.signing import encode_id
    from chain.store.sqlite import SqliteStore
    from ml.data.checks import log_findings
    from ml.errors import DataError
    from ml.specs.architectures import is_user_model
    from node.config.federation import load_federation
    from node.config.genesis_file import describe_sharing
    from node.config.genesis_members import read_head_state, validate_membership, was_put_back
    from node.config.identity import open_identity
    from node.config.own_noise import explain_not_hidden, validate_own_noise
    from node.config.plugins import explain_refusal
    from node.telemetry.sinks.opening import validate_sinks
    from node.training.own_data import OwnData

    identity = open_identity(config)
    genesis = load_federation(config).genesis
    state = read_head_state(config, genesis) or genesis.state
    index = state.index_of(identity.id)
    validate_membership(config, genesis, identity.id, f"{path}: network.peers", state)
    validate_own_noise(config, state, is_behind=was_put_back(config, genesis))
    refusal = explain_refusal(state.run, config.plugins) or explain_not_hidden(config, state)
    note = describe_sharing(config.federation_file, genesis, is_approved=config.consensus.approves_genesis)
    for text in (note, refusal and f"{config.federation_file}: {refusal}; this node votes and does not train"):
        if text:
            print(f"note: {text}", file=sys.stderr)
    validate_sinks(config.sinks)
    if refusal is None and is_user_model(genesis.run.model):
        _build_user_model(genesis, config)
    try:
        stored = SqliteStore.stored_genesis(config.node.data_dir)
        if stored is not None and Genesis.from_mapping(stored) != genesis:
            other = Genesis.from_mapping(stored).chain_id.hex()
            raise ConfigError(
                f"{config.node.data_dir}: expected the chain of {config.federation_file}, {genesis.chain_id.hex()} "
                f"(got {other})"
            )
    except StoreLocked as error:
        raise ConfigError(str(error)) from error
    except ChainError as error:
        raise NodeError(str(error)) from error
    on_chain = f"on chain {genesis.chain_name} ({genesis.chain_id.hex()})"
    if index is None and config.node.observer:
        print(f"ok: {config.node.name} ({encode_id(identity.id)}) observes the {state.n} members {on_chain}")
        return
    try:
        own = OwnData.open(config.get_data(), config.node.data_dir, genesis.run)
    except DataError as error:
        raise ConfigError(f"{path}: {error}") from error
    log_findings(own.findings)
    who = f"{config.node.name} ({encode_id(identity.id)}) is no member and joins the {state.n}"
    if index is not None:
        name = state.members[index].name
        who = f"{config.node.name} is {name} ({encode_id(identity.id)}), member {index + 1} of {state.n},"
    samples = f"{own.describe()} samples of {config.data.format}"
    print(f"ok: {who} {on_chain}, with {samples}")


def _build_user_model(genesis: Genesis, config: NodeConfig) -> None:
    """Builds the model as the worker would. Raises ConfigError if that fails, or the model differs from genesis."""
    from ml.errors import SpecError
    from ml.models import build_model

    try:
        build_model(genesis.run.model, genesis.run.input["shape"], len(genesis.run.classes), plugins=config.plugins)
    except SpecError as error:
        raise ConfigError(f"{config.federation_file}: {error}") from error
