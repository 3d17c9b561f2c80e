"""Tokens: what is kept of them, who may read that, and `fednode token`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from node.admin.access import ROLES, get_role
from node.admin.address import RemoteAddress
from node.admin.tokens import MAX_TOKENS, Role, Tokens
from node.cli import main
from node.errors import ConfigError, NodeError, NotFound, PermissionRefused
from node.pb import admin_pb2
from support.federation.transports import make_keys

Captured = pytest.CaptureFixture[str]

CREATED = "2026-11-20T14:02:16.000Z"


def test_only_a_hash_is_kept_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    text = tokens.add("grafana", Role.READ, CREATED)
    file = tmp_path / "tokens.json"
    assert text.encode() not in file.read_bytes()
    assert text.removeprefix("fn_").encode() not in file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]
    assert tokens.find_role(text) is Role.READ
    assert tokens.find_role(text[:-1]) is None
    assert tokens.find_role("") is None


def test_what_another_process_changes_holds_at_once(tmp_path: Path) -> None:
    server, command = Tokens(tmp_path), Tokens(tmp_path)
    assert server.find_role("fn_none") is None
    reader, changer = command.add("reader", Role.READ, CREATED), command.add("changer", Role.ADMIN, CREATED)
    assert (server.find_role(reader), server.find_role(changer)) == (Role.READ, Role.ADMIN)
    command.revoke("reader")
    assert (server.find_role(reader), server.find_role(changer)) == (None, Role.ADMIN)
    with pytest.raises(NotFound):
        command.revoke("reader")
    assert command.add("reader", Role.READ, CREATED) != reader


def test_names_are_unique_and_plain(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    tokens.add("a", Role.READ, CREATED)
    for name in ("a", "", "a b", "ä", "-a", "a" * 65):
        with pytest.raises(NodeError):
            tokens.add(name, Role.READ, CREATED)
    assert [token.name for token in tokens.get_all()] == ["a"]
    assert MAX_TOKENS == 1000


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"tokens": [{}]}', '{"tokens": [{"name": "a", "role": "root", "sha256": "", "created": ""}]}'],
)
def test_a_file_that_is_none_of_ours_lets_nobody_in(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokens.json"
    file.touch(mode=0o600)
    file.write_text(content)
    with pytest.raises(NodeError, match=r"tokens\.json: expected the tokens"):
        Tokens(tmp_path).find_role("fn_a")


def test_a_file_that_others_can_read_lets_nobody_in(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    text = tokens.add("a", Role.ADMIN, CREATED)
    (tmp_path / "tokens.json").chmod(0o640)
    with pytest.raises(PermissionRefused, match="expected mode 0600"):
        tokens.find_role(text)


def test_every_method_has_a_role_and_one_that_is_forgotten_needs_admin() -> None:
    methods = {method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods}
    assert set(ROLES) == methods
    changes = {name for name in methods if get_role(f"/fednode.v1.Admin/{name}") is Role.ADMIN}
    peers, runs = {"BanPeer", "UnbanPeer", "AddPeer", "RemovePeer"}, {"Reload", "SetLogLevel", "Shutdown"}
    assert changes == peers | runs | {
        "PauseTraining",
        "ResumeTraining",
        "StopAfterRound",
        "Propose",
        "Approve",
        "RotateKey",
        "Backup",
        "OpenPage",
    }
    assert get_role("/fednode.v1.Admin/Forgotten") is Role.ADMIN
    assert get_role("/grpc.health.v1.Health/Check") is Role.READ
    assert {name for name in methods if get_role(f"/fednode.v1.Admin/{name}") is Role.PREDICT} == {"Predict"}


def test_a_role_allows_what_those_before_it_do() -> None:
    for role, allowed in (("read", 1), ("predict", 2), ("admin", 3)):
        assert [Role(role).allows(Role(needed)) for needed in ("read", "predict", "admin")] == [
            i < allowed for i in range(3)
        ]


def test_tokens_are_made_listed_and_revoked_by_command(capsys: Captured, tmp_path: Path) -> None:
    place = ["--data-dir", str(tmp_path)]
    assert main(["token", "new", "a", "--role", "admin", *place]) == 0
    text = capsys.readouterr().out.strip()
    assert Tokens(tmp_path).find_role(text) is Role.ADMIN
    file = tmp_path / "b.token"
    assert main(["token", "new", "b", *place, "-o", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "b", "role": "read", "token": None}
    assert Tokens(tmp_path).find_role(file.read_text().strip()) is Role.READ
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["token", "list", *place, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["tokens"]
    assert [(token["name"], token["role"]) for token in listed] == [("a", "admin"), ("b", "read")]
    assert all(list(token) == ["name", "role", "created"] for token in listed)
    assert main(["token", "revoke", "a", *place]) == 0
    assert Tokens(tmp_path).find_role(text) is None
    assert main(["token", "revoke", "a", *place]) == 3
    assert main(["token", "new", "b", *place]) == 1
    assert main(["token", "new", "lost", *place, "-o", str(tmp_path / "none" / "lost.token")]) == 1
    assert [token.name for token in Tokens(tmp_path).get_all()] == ["b"]
    assert main(["token", "list"]) == 2
    assert main(["token", "new", "c", "--data-dir", str(tmp_path / "none")]) == 3


def test_an_address_beyond_this_machine_names_the_node(tmp_path: Path) -> None:
    from chain.signing import encode_id

    file = tmp_path / "token"
    file.write_text("fn_secret\n")
    env = {"FEDNODE_TOKEN_FILE": str(file)}
    (key,) = make_keys(1)
    assert RemoteAddress.parse("127.0.0.1:7000", env) == RemoteAddress("127.0.0.1:7000", None, "fn_secret")
    far = RemoteAddress.parse(f"{encode_id(key.id)}@node0:7000", env)
    assert (far.host_port, far.id) == ("node0:7000", key.id)
    assert "fn_secret" not in str(far)
    with pytest.raises(PermissionRefused, match="must not leave this machine in plain"):
        RemoteAddress.parse("node0:7000", env)
    with pytest.raises(PermissionRefused, match="FEDNODE_TOKEN_FILE"):
        RemoteAddress.parse("127.0.0.1:7000", {})
    for text in ("node0", "abc@node0:7000", "127.0.0.1:x"):
        with pytest.raises(ValueError, match="expected"):
            RemoteAddress.parse(text, env)
    file.write_text("")
    with pytest.raises(ConfigError, match="expected a token"):
        RemoteAddress.parse("127.0.0.1:7000", env)


def test_a_command_without_its_token_says_what_is_missing(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDNODE_TOKEN_FILE", raising=False)
    assert main(["status", "--address", "127.0.0.1:7000"]) == 77
    assert "FEDNODE_TOKEN_FILE" in capsys.readouterr().err
    assert main(["status", "--address", "127.0.0.1:port"]) == 2
