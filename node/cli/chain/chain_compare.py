"""`fednode chain diff` and `fednode chain evidence`: compares chains, and names members that signed two things."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import print_json, print_table, show_id, show_time
from node.cli.target import DataDir, NodeConfigFile, Socket, choose_data_dir, open_ledger, open_node
from node.errors import VerificationFailed

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb


def diff(
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    peer: Annotated[
        str | None, typer.Option("--peer", metavar="ID|NAME", help="A peer, which the running node asks for blocks.")
    ] = None,
    other: Annotated[
        Path | None, typer.Option("--other", metavar="DIR", help="Another stopped node's data directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find where two nodes' chains differ. Final blocks never do; exit code 5 if they do.

    Examples: fednode chain diff --peer node2 -c node0.yaml; fednode chain diff --data-dir data/node0 --other data/node2
    """
    from node.admin.json_view import to_json

    if (peer is None) == (other is None):
        raise typer.BadParameter("expected either --peer ID|NAME or --other DIR")
    if peer is not None:
        if data_dir is not None:
            raise typer.BadParameter("expected --other DIR with --data-dir, as only a running node can ask a peer")
        with open_node(socket, config) as node:
            shown = node.compare(peer)
        name = shown.peer_name
    else:
        from node.admin.offline import compare_data_dirs

        assert other is not None  # noqa: S101 (one of the two was given)
        left = choose_data_dir(socket, config, data_dir)
        if left is None:
            raise typer.BadParameter("expected --data-dir DIR with --other, as both nodes have to be stopped")
        shown, name = compare_data_dirs(left, other), str(other)
    if as_json:
        print_json({"same": not shown.HasField("ours")} | to_json(shown))
    else:
        print("\n".join(describe_comparison(shown, name)))
    if shown.HasField("ours"):
        raise VerificationFailed(f"the chains part at height {shown.ours.height}")


def describe_comparison(shown: pb.ChainComparison, name: str) -> list[str]:
    if not shown.HasField("ours"):
        ends = {
            shown.height == shown.other_height: "where both end",
            shown.height > shown.other_height: f"where {name} ends; ours goes on to height {shown.height}",
            shown.height < shown.other_height: f"where ours ends; {name} goes on to height {shown.other_height}",
        }[True]
        return [f"the same up to height {shown.common}, {ends}; finalised blocks never part"]
    lines = [f"the same up to height {shown.common}"]
    for who, block in (("ours", shown.ours), (name, shown.theirs)):
        proof = f"certified by {block.votes} votes" if block.certified else "NOT certified"
        lines.append(f"{who}: block {block.height}  {block.id}  by {block.miner_name}, {proof}")
    if shown.ours.certified and shown.theirs.certified:
        names = ", ".join(f"{voter.name} {voter.id}" for voter in shown.guilty) or "nobody"
        lines.append(f"two finalised blocks at one height: more members lied than the quorum allows; in both: {names}")
    else:
        lines.append("only what is certified is final: the other one's store is damaged, or it does not tell the truth")
    return lines


def list_evidence(
    socket: Socket = None, config: NodeConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List what members signed twice. This is as far as the node knows; such authors are left out of blocks for a
    while.

    Examples: fednode chain evidence -c node0.yaml; fednode chain evidence --data-dir data/node0 --json
    """
    with open_ledger(socket, config, data_dir) as ledger:
        evidence = ledger.list_evidence().evidence
    if as_json:
        print_json({"evidence": evidence})
        return
    if not evidence:
        print("none: no member is known to have signed two things for one slot")
        return
    rows = [
        (
            str(entry.height),
            f"{entry.name} {show_id(entry.author)}",
            f"{entry.phase} of view {entry.view}" if entry.HasField("view") else entry.slot,
            _show_digest(entry.first),
            _show_digest(entry.second),
            show_time(entry.seen) if entry.HasField("seen") else "-",
        )
        for entry in evidence
    ]
    print_table((">HEIGHT", "MEMBER", "SLOT", "FIRST", "SECOND", "SEEN (UTC)"), rows)


def _show_digest(digest: str) -> str:
    return show_id(digest) if digest.strip("0") else "nil"
