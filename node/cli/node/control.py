"""`fednode pause`, `resume`, `stop`, `log-level`, `reload`: changes what a running node does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import MAX_HEIGHT, AsJson
from node.cli.output import print_json
from node.cli.target import NodeConfigFile, Socket, open_node
from node.errors import ConfigError

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb


def register(app: typer.Typer) -> None:
    app.command("pause")(pause)
    app.command("resume")(resume)
    app.command("stop")(stop)
    app.command("log-level")(set_log_level)
    app.command("reload")(reload)


def pause(socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """Stop contributing from the next round on, until resumed. A pause outlives restarts; fednode resume ends it.

    It goes on voting, mining (unless consensus.mine is off), syncing, and taking in what the others agree on. Rounds go
    on while a quorum of members contributes; with fewer they wait until one resumes.

    Example: fednode pause --config node.yaml
    """
    with open_node(socket, config) as node:
        part = node.pause()
    _print(part, as_json)


def resume(socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """Have a paused node contribute again. It contributes to the current round if that is not over.

    Example: fednode resume --config node.yaml
    """
    with open_node(socket, config) as node:
        part = node.resume()
    _print(part, as_json)


def stop(
    after_round: Annotated[
        int | None,
        typer.Option(
            "--after-round", metavar="R", min=0, max=MAX_HEIGHT, help="Once this round is final; 0: the one in hand."
        ),
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Stop after no round: take --after-round back.")] = False,
    grace_s: Annotated[
        float | None,
        typer.Option("--grace", metavar="SECONDS", help="What has not ended by then is killed. 30 by default."),
    ] = None,
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """End a node cleanly, at once or after a round. It ends as on SIGTERM and exits with 0, which systemd does not
    restart.

    A restart forgets --after-round. Where whatever ends is started again, as in Kubernetes, scale to 0 instead.

    Examples: fednode stop --config node.yaml, or fednode stop --after-round 50 -c node.yaml
    """
    if sum((after_round is not None, withdraw, grace_s is not None)) > 1:
        raise typer.BadParameter("expected at most one of --after-round, --withdraw and --grace")
    with open_node(socket, config) as node:
        if withdraw:
            part = node.withdraw_stop()
        elif after_round is not None:
            part = node.stop_after(after_round)
        else:
            part = node.shut_down(grace_s)
    _print(part, as_json)


def _print(part: pb.TakingPart, as_json: bool) -> None:
    if as_json:
        print_json(part)
    else:
        print(describe(part))


def describe(part: pb.TakingPart) -> str:
    """Returns what a node is about to do, in a line."""
    if part.stopping:
        return f"{part.name} ends"
    words = [part.name]
    if not part.paused:
        words.append(f"contributes to round {part.round}" if part.contributes else "is not paused")
    elif part.contributes:
        words.append(f"is paused: it contributes to round {part.round} still, and to none after that")
    else:
        words.append(f"is paused: it contributes nothing, from round {part.round} on")
    if part.HasField("stops_after"):
        words.append(f"and ends after round {part.stops_after}")
    return " ".join(words)


def set_log_level(
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="debug, info, warning or error.")],
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Change how much a node logs, until it is restarted.

    Example: fednode log-level debug --config node.yaml
    """
    with open_node(socket, config) as node:
        changed = node.set_log_level(level)
    if as_json:
        print_json(changed)
    else:
        print(f"{changed.level}; it was {changed.before}")


def reload(socket: Socket = None, config: NodeConfigFile = None, as_json: AsJson = False) -> None:
    """Have a node read its configuration again. It does so on SIGHUP too. Says which changes need a restart.

    log.level, network.peers, consensus.mine, http.token_file and what is in that file change at once. A node that does
    not train, as it had no samples, reads its data again. A configuration with problems changes nothing: they are
    printed, and the exit code is 78.

    Example: fednode reload --config node.yaml
    """
    with open_node(socket, config) as node:
        reply = node.reload()
    if as_json:
        print_json(reply)
    if reply.problems:
        count = f"{len(reply.problems)} problem{'s' if len(reply.problems) != 1 else ''}"
        raise ConfigError(f"{count} in the node's configuration; nothing was applied", problems=reply.problems)
    if not as_json:
        print(f"applied: {', '.join(reply.applied) or 'nothing'}")
        if reply.needs_restart:
            print(f"needs a restart: {', '.join(reply.needs_restart)}")
