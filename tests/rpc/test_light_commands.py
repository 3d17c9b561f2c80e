"""The imports of a command before it answers: people and probes run `fednode status` every few seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from node.pb import admin_pb2 as pb
from node.pb import admin_pb2_grpc
from support.federation.real_nodes import run_command

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "safetensors", "PIL", "pyarrow", "cryptography", "sqlite3")
# Each command is forked off one process that has loaded what all of them load.
PROGRAM = f"""
import os, sys
from node.cli import main
from node.cli.app import make_app
make_app()
for line in sys.stdin:
    if os.fork() == 0:
        code = main(line.split())
        print(code, *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
        sys.exit(0)
    os.wait()
"""
COMMANDS = ("status", "peers list", "proposals", "members", "runs", "status --json")


class _Node(admin_pb2_grpc.AdminServicer):
    def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.NodeStatus:  # noqa: N802
        return pb.NodeStatus(name="alice", height=7, members=4, quorum=3)

    def ListPeers(self, request: pb.ListPeersRequest, context: Any) -> pb.ListPeersReply:  # noqa: N802
        return pb.ListPeersReply(peers=[pb.PeerView(id="b" * 52, name="bob", connected=True)])

    def ListProposals(self, request: pb.ListProposalsRequest, context: Any) -> pb.ListProposalsReply:  # noqa: N802
        difference = pb.Difference(path="rules.keep_heights", old="2", new="3")
        return pb.ListProposalsReply(proposals=[pb.ProposalView(id="3f" * 32, differences=[difference])])

    def ListMembers(self, request: pb.ListMembersRequest, context: Any) -> pb.ListMembersReply:  # noqa: N802
        return pb.ListMembersReply(members=[pb.MemberView(id="b" * 52, name="bob")])

    def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsReply:  # noqa: N802
        return pb.ListRunsReply(runs=[pb.RunView(number=1, method="dfpl", model="mlp")])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """The admin socket of something that answers as a node does."""
    with ThreadPoolExecutor(max_workers=2) as threads:
        server = grpc.server(threads)
        admin_pb2_grpc.add_AdminServicer_to_server(_Node(), server)  # type: ignore[abstract]  # says the rest is not there
        socket = tmp_path / "node.sock"
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        yield socket
        server.stop(None).wait()


def test_what_asks_a_node_loads_neither_arrays_nor_signatures(node: Path) -> None:
    lines = "".join(f"{words} --socket {node}\n" for words in COMMANDS)
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=lines, capture_output=True, text=True)
    assert done.returncode == 0
    assert dict(zip(COMMANDS, done.stderr.splitlines(), strict=True)) == dict.fromkeys(COMMANDS, "0")
    assert json.loads(done.stdout[done.stdout.index("{") :])["height"] == 7


def test_an_answer_has_no_colour_and_no_box_in_a_pipe(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    out = run_command("status", "--socket", node).out + run_command("peers", "list", "--socket", node).out
    assert "alice" in out
    assert "bob" in out
    assert "\x1b" not in out
    assert not set(out) & set("│─┌┐└┘╭╮╰╯┃━")
