"""`fednode doctor`: each precondition that is broken is the one that fails, and nothing is touched."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from chain.changes.members import AddMember
from chain.genesis import PROTOCOL_VERSION
from chain.signing import SigningKey, encode_id
from chain.store.sqlite import SqliteStore
from node.cli import main
from node.cli.doctor import checks as doctor
from node.cli.output import paint
from node.config.genesis_file import load_genesis
from node.config.identity import open_identity, open_key
from node.config.node_config import load_config
from node.p2p.probe import Greeting, NotReached, ProbeFailed, WrongPeer
from node.p2p.tls import MutualTls
from node.pb import admin_pb2 as pb
from node.version import get_version
from support.data.chains import make_keys
from support.data.changes import LivingChain
from support.federation.ports import find_free_ports

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Federations of one and of three, nothing of them started."""
    path = tmp_path_factory.mktemp("doctor")
    for n in (1, 3):
        assert main(["testnet", "-n", str(n), "-o", str(path / str(n)), "--base-port", "0"]) == 0
    return path


@pytest.fixture
def single(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "1", tmp_path / "single"))


@pytest.fixture
def three(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "3", tmp_path / "three"))


def examine(capsys: Captured, cluster: Path, *options: str, code: int) -> dict[str, tuple[str, str, str | None]]:
    """What was found, by check; of several findings the worst, then the first."""
    capsys.readouterr()
    assert main(["doctor", "-c", str(cluster / "node0.yaml"), "--json", *options]) == code
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert shown["ok"] == (code == 0)
    found: dict[str, tuple[str, str, str | None]] = {}
    for finding in sorted(shown["checks"], key=lambda finding: ["fail", "warn", "ok"].index(finding["verdict"])):
        found.setdefault(finding["check"], (finding["verdict"], finding["found"], finding["advice"]))
    return found


def get_failed(found: dict[str, tuple[str, str, str | None]]) -> list[str]:
    return [check for check, (verdict, _, _) in found.items() if verdict == "fail"]


def test_a_node_that_lacks_nothing_passes_and_is_left_as_it_was(capsys: Captured, single: Path) -> None:
    before = sorted(single.rglob("*"))
    found = examine(capsys, single, code=0)
    assert {verdict for verdict, _, _ in found.values()} == {"ok"}
    assert {
        "configuration",
        "key",
        "genesis",
        "initial model",
        "data directory",
        "disk",
        "port",
        "admin",
        "http",
    } <= set(found)
    assert {"device", "members", "model", "data", "quorum"} <= set(found)
    assert sorted(single.rglob("*")) == before
    assert main(["doctor", "-c", str(single / "node0.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found)
    assert all(line.startswith("ok    ") for line in lines)


def test_a_distribution_that_brings_a_package_of_our_name_is_told(
    capsys: Captured, single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "hadamard-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hadamard\nVersion: 2.0\n")
    (info / "top_level.txt").write_text("ml\n")
    (info / "RECORD").write_text("ml/__init__.py,,\n")
    monkeypatch.syspath_prepend(info.parent)
    verdict, found, advice = examine(capsys, single, code=0)["names"]
    assert (verdict, found) == ("warn", "the Python package 'ml' is also brought by hadamard")
    assert advice is not None
    assert "python3 -m venv" in advice


def test_members_that_are_away_are_missed_at_the_quorum(capsys: Captured, three: Path) -> None:
    found = examine(capsys, three, code=6)
    assert get_failed(found) == ["quorum"]
    assert [found[f"peer node{i}"][0] for i in (1, 2)] == ["warn", "warn"]
    assert found["quorum"][1] == "1 of 3 members in reach, 3 needed"


def _open_key(cluster: Path) -> None:
    (cluster / "keys" / "node0.key").chmod(0o644)


def _take_key(cluster: Path) -> None:
    (cluster / "keys" / "node0.key").unlink()


def _spoil_model(cluster: Path) -> None:
    with (cluster / "initial_model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")


def _misspell(cluster: Path) -> None:
    text = (cluster / "node0.yaml").read_text()
    (cluster / "node0.yaml").write_text(text + "consensos: {}\n")


def _spoil_genesis(cluster: Path) -> None:
    text = (cluster / "genesis.yaml").read_text()
    (cluster / "genesis.yaml").write_text(text.replace("quorum:", "quorm:"))


def _change_member(cluster: Path) -> None:
    (cluster / "keys" / "node0.key").unlink()
    assert main(["keygen", "-o", str(cluster / "keys" / "node0.key")]) == 0


def _observe(cluster: Path) -> None:
    text = (cluster / "node0.yaml").read_text()
    (cluster / "node0.yaml").write_text(text.replace("  name: node0\n", "  name: node0\n  observer: true\n"))


def _open_admin(cluster: Path) -> None:
    (cluster / "run").mkdir(mode=0o755)


def _spoil_database(cluster: Path) -> None:
    (cluster / "data" / "node0").mkdir(parents=True)
    (cluster / "data" / "node0" / "chain.db").write_bytes(b"no database" * 100)


def test_an_observer_is_told_from_a_member(capsys: Captured, three: Path) -> None:
    _change_member(three)
    _observe(three)
    found = examine(capsys, three, code=6)
    assert get_failed(found) == ["quorum"]
    assert found["members"][:2] == ("ok", "node0 observes the 3 members of testnet")


def test_the_members_are_those_of_the_chain_that_is_there(capsys: Captured, single: Path) -> None:
    genesis, _ = load_genesis(single / "genesis.yaml")
    key = open_identity(load_config(single / "node0.yaml"))
    newcomer = make_keys(1, "newcomer")[0]
    peers = f"network.peers=['{encode_id(newcomer.id)}@127.0.0.1:1']"
    assert main(["start", "--check", "-c", str(single / "node0.yaml"), "--set", peers]) == 78
    chain = LivingChain(genesis, [key, newcomer])
    chain.add_change(AddMember(newcomer.id, "hospital-b"))
    with SqliteStore.open(single / "data" / "node0", genesis) as store:
        store.append_all(chain.blocks)
    found = examine(capsys, single, code=6)
    assert get_failed(found) == ["quorum"]
    assert found["quorum"][1] == "1 of 2 members in reach, 2 needed"
    assert found["members"][:2] == ("warn", "no address is known of hospital-b")
    found = examine(capsys, single, "--set", peers, code=6)
    place = chain.state.member_ids.index(key.id) + 1
    assert found["members"][:2] == ("ok", f"node0 is node0, member {place} of 2")
    assert found["peer hospital-b"][0] == "warn"
    assert main(["start", "--check", "-c", str(single / "node0.yaml"), "--set", peers]) == 0
    assert f"member {place} of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "check", "what"),
    [
        (_open_key, "key", "0644"),
        (_take_key, "key", "no such file"),
        (_spoil_model, "initial model", "expected the initial model that"),
        (_misspell, "configuration", "Did you mean 'consensus'?"),
        (_spoil_genesis, "genesis", "quorm"),
        (_change_member, "members", "expected this node's key"),
        (_observe, "members", "is a member's"),
        (_open_admin, "admin", "expected mode 0700"),
        (_spoil_database, "data directory", "chain.db"),
    ],
)
def test_what_is_broken_is_what_fails(
    capsys: Captured, single: Path, spoil: Callable[[Path], None], check: str, what: str
) -> None:
    spoil(single)
    found = examine(capsys, single, code=6)
    assert get_failed(found) == [check]
    assert what in found[check][1]
    assert found[check][2]


@pytest.mark.parametrize(
    ("option", "check", "what"),
    [
        ("training.device=cuda:99", "device", "cuda:99"),
        ("data={format: npz, path: none.npz}", "data", "none.npz"),
        ("node.data_dir=node0.yaml/data", "data directory", "node0.yaml: cannot be written"),
        ("network.listen=192.0.2.1:7000", "port", "192.0.2.1:7000"),
    ],
)
def test_what_an_option_breaks_is_what_fails(
    capsys: Captured, single: Path, option: str, check: str, what: str
) -> None:
    found = examine(capsys, single, "--set", option, code=6)
    assert get_failed(found) == [check]
    assert what in found[check][1]


NET = """
import torch
print("a module may print")

class Net(torch.nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()
        self.first = torch.nn.Linear(shape[0] * shape[1] * shape[2], 4)
        self.last = torch.nn.Linear(4, num_classes)

    def embed(self, x):
        return self.first(x.flatten(1))

    def classify(self, z):
        return self.last(z)

def make(shape, num_classes):
    return Net(shape, num_classes)
"""


@pytest.mark.slow
def test_a_model_of_the_users_own_is_imported(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = place / "doctored_nets.py"
    module.write_text(NET)
    net = tmp_path / "net"
    new = ("testnet", "-n", "1", "-o", str(net), "--base-port", "0", "--model", "doctored_nets:make")
    assert main([*new, "--method", "local"]) == 0
    assert examine(capsys, net, code=0)["model"][:2] == ("ok", f"doctored_nets:make of {module}, 310 parameters")
    for broken, what in ((f"import nothing_of_this_name\n{NET}", "expected the same"), (None, "no module named")):
        module.unlink()
        if broken is not None:
            module.write_text(broken)
        sys.modules.pop("doctored_nets", None)
        importlib.invalidate_caches()
        shutil.rmtree(place / "__pycache__", ignore_errors=True)
        found = examine(capsys, net, code=6)
        assert set(get_failed(found)) == {"plugins"}
        assert what in found["plugins"][1]
        assert "training.plugins" in str(found["plugins"][2])
    found = examine(capsys, net, "--set", "training.plugins=[]", code=6)
    assert get_failed(found) == ["plugins"]


def test_whoever_holds_the_data_directory_or_the_port_is_named(capsys: Captured, single: Path) -> None:
    genesis, _ = load_genesis(single / "genesis.yaml")
    with socket.create_server(("127.0.0.1", 0)) as server, SqliteStore.open(single / "data" / "node0", genesis):
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        found = examine(capsys, single, "--set", f"network={{listen: '{listen}', tls: off}}", code=6)
    assert get_failed(found) == ["data directory", "port"]
    assert f"process {os.getpid()} (" in found["data directory"][1]
    assert found["port"][1].startswith(f"{listen}: process {os.getpid()} (")
    assert examine(capsys, single, code=0)["data directory"][1].endswith("of this chain")


def test_of_a_port_that_another_node_has_it_is_told_where_that_ones_data_lies(
    capsys: Captured, single: Path, originals: Path
) -> None:
    other, (port,) = originals / "3", find_free_ports(1)
    key, listen = open_key(other / "keys" / "node0.key"), f"127.0.0.1:{port}"
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_secure_port(listen, MutualTls(key, {key.id}).make_server_credentials())
    server.start()
    data = single / "elsewhere"
    try:
        with SqliteStore.open(data, load_genesis(other / "genesis.yaml")[0]):
            found = examine(capsys, single, "--set", f"network.listen={listen}", code=6)
    finally:
        server.stop(None).wait()
    assert get_failed(found) == ["port"]
    assert found["port"][1].startswith(f"{listen}: node {encode_id(key.id)} listens there: process {os.getpid()} (")
    assert found["port"][1].endswith(f", a node with its data in {data}")


def test_a_node_elsewhere_with_the_same_key_is_found_where_others_dial_it(capsys: Captured, single: Path) -> None:
    key = open_key(single / "keys" / "node0.key")
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", MutualTls(key, {key.id}).make_server_credentials())
    server.start()
    elsewhere = f"127.0.0.1:{port}"
    try:
        found = examine(capsys, single, "--set", f"network.advertise={elsewhere}", code=6)
        assert get_failed(found) == ["key in use"]
        assert found["key in use"][1] == f"{elsewhere}: a node with this node's key runs already"
        here = examine(
            capsys, single, "--set", f"network.advertise={elsewhere}", "--set", f"network.listen={elsewhere}", code=0
        )
        assert here["port"][1] == f"{elsewhere}: this node listens there"
    finally:
        server.stop(None).wait()


@pytest.mark.slow
def test_the_http_port_is_free_taken_or_the_nodes_own(
    capsys: Captured, single: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examine(capsys, single, code=0)["http"][:2] == ("ok", "off: no metrics, no probes")
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        option = ("--set", f"http={{listen: '{listen}'}}")
        found = examine(capsys, single, *option, code=6)
        assert get_failed(found) == ["http"]
        assert found["http"][1].startswith(f"{listen}: process {os.getpid()} (")
        for pid, verdict in ((os.getpid(), "ok"), (1, "fail")):  # of the node that answers at the admin socket
            status = pb.NodeStatus(id=encode_id(SigningKey.generate().id), version=get_version(), pid=pid)
            monkeypatch.setattr(doctor, "ask_running", lambda _, status=status: status)
            found = examine(capsys, single, *option, code=6)  # as it is another node
            assert found["http"][0] == verdict
    monkeypatch.setattr(doctor, "ask_running", lambda _: None)
    assert examine(capsys, single, *option, code=0)["http"][1] == f"{listen}, without a token: free"


def test_the_http_token_has_to_be_readable_and_no_other_users(capsys: Captured, single: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    option = ("--set", f"http={{listen: '127.0.0.1:{find_free_ports(1)[0]}', token_file: {token}}}")
    assert "cannot be read (No such file" in examine(capsys, single, *option, code=6)["http"][1]
    token.write_text("short\n")
    assert "at least 16 characters" in examine(capsys, single, *option, code=6)["http"][1]
    token.write_text("long enough for a token\n")
    token.chmod(0o644)
    verdict, _, advice = examine(capsys, single, *option, code=0)["http"]
    assert (verdict, advice) == ("warn", f"chmod o= {token}")
    token.chmod(0o640)
    assert examine(capsys, single, *option, code=0)["http"][0] == "ok"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["http={listen: '0.0.0.0:9100'}"], "expected a loopback address, or http.token_file as well"),
        (["network={listen: '127.0.0.1:9100', tls: off}", "http={listen: '127.0.0.1:9100'}"], "that of network.listen"),
        (["http={listen: '127.0.0.1:9100'}", "admin={address: '127.0.0.1:9100'}"], "that of admin.address"),
    ],
)
def test_listeners_that_cannot_be_are_seen_in_the_configuration(
    capsys: Captured, single: Path, options: list[str], what: str
) -> None:
    found = examine(capsys, single, *(word for option in options for word in ("--set", option)), code=6)
    assert get_failed(found) == ["configuration"]
    assert what in found["configuration"][1]


@pytest.mark.parametrize(
    ("free_bytes", "verdict"), [(doctor.FEW_BYTES - 1, "fail"), (doctor.LITTLE_BYTES - 1, "warn"), (10**12, "ok")]
)
def test_a_disk_is_held_to_what_a_node_writes(
    capsys: Captured, single: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, verdict: str
) -> None:
    usage = shutil.disk_usage("/")._replace(free=free_bytes)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert examine(capsys, single, code=6 if verdict == "fail" else 0)["disk"][0] == verdict


def test_another_chains_data_directory_is_refused(capsys: Captured, single: Path, three: Path) -> None:
    genesis, _ = load_genesis(three / "genesis.yaml")
    SqliteStore.open(single / "data" / "node0", genesis).close()
    found = examine(capsys, single, code=6)
    assert get_failed(found) == ["data directory"]
    assert genesis.chain_id.hex() in found["data directory"][1]


@pytest.mark.slow
def test_peers_are_held_to_chain_protocol_version_and_clock(
    capsys: Captured, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain_id = load_genesis(three / "genesis.yaml").genesis.chain_id
    good = Greeting(get_version(), PROTOCOL_VERSION, chain_id, skew_s=0.1, rtt_s=0.001)
    answers: list[Greeting | ProbeFailed | None] = []

    def probe(*_: object, **__: object) -> Greeting | None:
        answer = answers.pop()
        if isinstance(answer, ProbeFailed):
            raise answer
        return answer

    monkeypatch.setattr(doctor, "probe_peer", probe)
    monkeypatch.setattr(doctor, "PROBES_AT_ONCE", 1)

    def ask(*given: Greeting | ProbeFailed | None, code: int) -> tuple[list[str], str]:
        answers[:] = reversed(given)
        found = examine(capsys, three, code=code)
        peers = sorted((found[f"peer node{i}"][0] for i in (1, 2)), key=["ok", "warn", "fail"].index)
        return [*peers, found["clock"][0], found["quorum"][0]], found["clock"][1]

    assert ask(good, good, code=0)[0] == ["ok", "ok", "ok", "ok"]
    assert ask(good, None, code=0)[0] == ["ok", "warn", "ok", "ok"]
    assert ask(good, NotReached("away", "wait"), code=6)[0] == ["ok", "warn", "ok", "fail"]
    other = Greeting(get_version(), PROTOCOL_VERSION, b"c" * 32, 0.1, 0.001)
    assert ask(good, other, code=6)[0] == ["ok", "fail", "ok", "fail"]
    assert ask(good, Greeting("0.0.1", PROTOCOL_VERSION, chain_id, 0.1, 0.001), code=0)[0] == ["ok", "warn", "ok", "ok"]
    assert ask(good, Greeting(get_version(), PROTOCOL_VERSION - 1, chain_id, 0.1, 0.001), code=6)[0] == [
        "ok",
        "fail",
        "ok",
        "fail",
    ]
    somebody_else = WrongPeer("127.0.0.1:1: expected a, b answers", "correct it")
    assert ask(good, somebody_else, code=6)[0] == ["ok", "fail", "ok", "fail"]
    ahead = Greeting(get_version(), PROTOCOL_VERSION, chain_id, 5.0, 0.001)
    states, clock = ask(ahead, ahead, code=6)
    assert states == ["ok", "ok", "fail", "ok"]
    assert clock == "5.0 s behind the median of 3 members' clocks"
    states, clock = ask(good, ahead, code=0)  # the one that is wrong is named, and not the honest
    assert states == ["ok", "warn", "ok", "ok"]
    assert clock == "0.1 s behind the median of 3 members' clocks"
    states, clock = ask(ahead, NotReached("away", "wait"), code=6)  # the quorum is missing; no clock is accused
    assert states == ["ok", "warn", "warn", "fail"]
    assert clock == "5.0 s apart from the only peer that could be asked: one of the two is wrong"


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert paint("ok", 32) == "ok"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert paint("ok", 32) == "\x1b[32mok\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("ok", 32) == "ok"
