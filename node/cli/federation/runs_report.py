"""`fednode runs report`: a run as one page for those who have to answer for it, an ethics board above all."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.chain.chain import describe_fault, show_progress
from node.cli.options import AsJson
from node.cli.output import print_json
from node.cli.target import DataDir, NodeConfigFile, Socket, open_ledger
from node.errors import NodeError, VerificationFailed

if TYPE_CHECKING:
    from node.admin.ledger_client import LedgerClient
    from node.report.record import RunReport

STDOUT = Path("-")


def report(
    number: Annotated[int, typer.Argument(metavar="[N]", min=0, help="Its number; 0 is the newest.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to; never written over. - is stdout."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify", help="Verify the whole chain for it, deeply, or have it say that it was not."
        ),
    ] = True,
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a report of a run, as one page that can be printed.

    It has what was proposed and who approved it, who trained in which rounds with how many samples, the settings, this
    site's measures with their intervals beside those of training alone, what was refused, who was convicted of what,
    and the head's hash. The chain is verified for it as chain verify --deep does; where that finds a fault, the page
    says so and the exit code is 5. The page is HTML without a script and fetches nothing.

    Examples: fednode runs report 2 -o report.html --config node.yaml, or with --data-dir data of a stopped node;
    fednode runs report --json > report.json
    """
    from node.report.page import render_report
    from node.report.record import gather

    if out is None and not as_json:
        raise typer.BadParameter("expected -o FILE, or --json")
    if as_json and out == STDOUT:
        raise typer.BadParameter("expected --json or -o -, as both are for stdout")
    if out is not None and out != STDOUT and (out.exists() or out.is_symlink()):
        raise NodeError(f"{out}: expected no file, as nothing is written over")
    with open_ledger(socket, config, data_dir) as ledger, show_progress(as_json) as progress:
        made = gather(
            ledger,
            number,
            node=_find_name(ledger, config),
            data_dir=_find_data_dir(config, data_dir),
            verify=verify,
            on_progress=progress,
        )
    if as_json:
        print_json(made.to_mapping())
    if out is not None:
        _write(out, render_report(made))
        if out != STDOUT:
            print(f"{out}: {_describe(made)}", file=sys.stderr if as_json else sys.stdout)
    if made.verified is not None and not made.verified.ok:
        raise VerificationFailed(describe_fault(made.verified.fault))


def _find_name(ledger: LedgerClient, config: Path | None) -> str:
    """Returns the name of the site that measured; empty for a data directory without a configuration."""
    from node.admin.offline import OfflineNode

    if not isinstance(ledger, OfflineNode):
        from node.admin.client import AdminClient

        return ledger.get_status().name if isinstance(ledger, AdminClient) else ""
    if config is None:
        return ""
    from node.config.node_config import load_config

    return load_config(config, (), os.environ).node.name


def _find_data_dir(config: Path | None, data_dir: Path | None) -> Path | None:
    if data_dir is not None or config is None:
        return data_dir
    from node.config.node_config import load_config

    return load_config(config, (), os.environ).node.data_dir


def _write(out: Path, page: str) -> None:
    """Writes the whole file or none. Raises NodeError."""
    if out == STDOUT:
        sys.stdout.write(page)
        return
    from node.host.whole_file import writing_whole

    with writing_whole(out, over=False) as file:
        file.write(page.encode())


def _describe(made: RunReport) -> str:
    history = made.history
    rounds = f"{len(history.rounds)} round{'s' if len(history.rounds) != 1 else ''}"
    checked = "not verified" if made.verified is None else "verified" if made.verified.ok else "the chain does not hold"
    return f"run {history.run.number}, {rounds}, {checked}"
