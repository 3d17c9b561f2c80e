"""`fednode health`: for HEALTHCHECK, exec probes, and scripts that wait for a node.

Exit code 0 when all is well, 6 when the node answers and something is not, 4 when no node answers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import print_json
from node.cli.target import NodeConfigFile, Socket, open_node
from node.errors import HealthProblem, NodeUnreachable

if TYPE_CHECKING:
    from node.admin.client import AdminClient

POLL_S = 0.1


def register(app: typer.Typer) -> None:
    app.command("health")(check)


def check(
    socket: Socket = None,
    config: NodeConfigFile = None,
    ready: Annotated[
        bool,
        typer.Option(
            "--ready",
            help="Also ask whether it can take part: its worker is ready, a quorum in sight, its chain caught up.",
        ),
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="Wait this long for a good answer.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Ask whether a node is up, or with --ready can take part. Exit code 0 if so, 6 if not, 4 without an answer.

    Example: fednode health --ready --config node.yaml
    """
    until_s = time.monotonic() + wait_s
    while True:
        unreachable: NodeUnreachable | None = None
        try:
            with open_node(socket, config) as node:
                live, is_ready, reason = ask(node)
        except NodeUnreachable as error:
            live, is_ready, reason, unreachable = False, False, str(error), error
        good = live and (is_ready or not ready)
        if good or time.monotonic() >= until_s:
            break
        time.sleep(POLL_S)
    if as_json:
        print_json({"live": live, "ready": is_ready, "reason": reason})
    elif good:
        print("ready" if is_ready else f"live, not ready: {reason}")
    if unreachable is not None:
        raise unreachable
    if not good:
        raise HealthProblem(reason or "the node is stopping")


def ask(node: AdminClient) -> tuple[bool, bool, str | None]:
    """Returns whether the node is live, whether it is ready, and why not."""
    live = node.is_serving("fednode.admin.v1")
    if node.is_serving("readiness"):
        return live, live, None
    status = node.get_status()
    if status.ready:  # since the last request
        return live, live, None
    return live, False, status.unready_reason
