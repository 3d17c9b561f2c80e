"""The command line: exit codes, what goes to stdout and stderr, and that help waits for nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chain.signing import decode_id, encode_id
from chain.store.sqlite import SqliteStore
from ml.attacks import ATTACKS
from node.cli import main
from node.cli.app import MODULES
from node.config.genesis_file import load_genesis
from node.testnet import layout
from support.federation.ports import find_free_ports

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "cluster"
    assert main(["testnet", "-n", "3", "-o", str(out), "--rounds", "2", "--base-port", "0"]) == 0
    return out


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(
    "command", [[], ["start"], ["testnet"], ["simulate"], ["config"], ["config", "show"], ["genesis"]]
)
def test_help_works_everywhere_under_both_names(capsys: Captured, command: list[str], flag: str) -> None:
    code, out, _ = run(capsys, *command, flag)
    assert code == 0
    assert out.startswith(f"Usage: {' '.join(['fednode', *command])}")


def test_help_imports_nothing_heavy() -> None:
    script = """
import sys
from fednode.__main__ import main
sys.argv = ["fednode", "--help"]
assert main() == 0
heavy = {"torch", "numpy", "grpc", "google", "pydantic", "sklearn", "yaml", "cryptography", "asyncio", "rich"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_every_listed_module_has_commands(capsys: Captured) -> None:
    _, out, _ = run(capsys, "--help")
    shown = {"keys": "keygen", "control": "pause", "reset": "unsafe-reset", "join": "join-file", "rotation": "key"}
    shown |= {"evaluations": "evaluation"}
    hidden = {"compose": "compose-setup"}  # for a container to run
    for name in MODULES:
        module = name.rsplit(".", 1)[1]
        if module in hidden:
            assert run(capsys, hidden[module], "--help")[0] == 0
            continue
        assert f"  {shown.get(module, module)}  " in out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--bogus"],
        ["bogus"],
        ["start"],
        ["testnet", "-n", "0", "-o", "x"],
        ["testnet", "-o", "x", "--gpus", "2", "--device", "cpu"],
        ["--config", "x", "version"],
        ["id"],
    ],
)
def test_usage_errors_exit_with_2_and_keep_stdout_clean(capsys: Captured, arguments: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    if arguments:
        assert out == ""
        assert "Error: " in err


def test_a_bad_configuration_exits_with_78_and_names_every_problem(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("network:\n  listn: 1\n")
    for command in (["--config", str(path)], ["start", "-c", str(path)], ["config", "check", "-c", str(path)]):
        code, out, err = run(capsys, *command)
        assert (code, out) == (78, "")
        assert f"{path}:2:3: network.listn: unknown key. Did you mean 'listen'?" in err
        assert err.endswith(f"fednode: 4 problems in {path}; nothing was started\n")


def test_a_missing_file_exits_with_78_in_one_line(capsys: Captured, tmp_path: Path) -> None:
    code, out, err = run(capsys, "--config", str(tmp_path / "nope.yaml"))
    assert (code, out, err) == (78, "", f"fednode: {tmp_path}/nope.yaml: no such file\n")


def test_check_loads_all_a_node_needs_and_starts_nothing(capsys: Captured, cluster: Path) -> None:
    code, out, _ = run(capsys, "--config", str(cluster / "node1.yaml"), "--check")
    assert code == 0
    assert out.startswith("ok: node1 is node1 (")
    assert "train /" in out
    assert not (cluster / "data").exists()


def test_check_refuses_a_key_that_others_can_read_with_77(capsys: Captured, cluster: Path) -> None:
    key = cluster / "keys" / "node2.key"
    key.chmod(0o640)
    try:
        code, _, err = run(capsys, "start", "-c", str(cluster / "node2.yaml"), "--check")
    finally:
        key.chmod(0o600)
    assert code == 77
    assert f"{key}: expected mode 0600, got 0640" in err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("node.identity_key_file=keys/nope.key", "nope.key: no such file"),
        ("genesis_file=nope.yaml", "nope.yaml: no such file"),
        ("node.identity_passphrase_file=nope.txt", "nope.txt: cannot read the passphrase"),
    ],
)
def test_check_names_the_file_that_is_missing(capsys: Captured, cluster: Path, override: str, message: str) -> None:
    code, out, err = run(capsys, "start", "-c", str(cluster / "node0.yaml"), "--check", "--set", override)
    assert (code, out) == (78, "")
    assert message in err
    assert err.count("\n") == 1


def test_check_takes_an_observer_that_says_so(capsys: Captured, cluster: Path, tmp_path: Path) -> None:
    _, stranger, _ = run(capsys, "keygen", "-o", str(tmp_path / "stranger.key"))
    check = ("start", "-c", str(cluster / "node0.yaml"), "--check")
    as_observer = ("--set", f"node.identity_key_file={tmp_path}/stranger.key", "--set", "node.observer=true")
    code, out, _ = run(capsys, *check, *as_observer)
    assert code == 0
    assert f"node0 ({stranger.strip()}) observes the" in out
    code, _, err = run(capsys, *check, "--set", "node.observer=true")
    assert code == 78
    assert "expected a key that is no member's" in err


def test_observers_are_named_when_a_federation_is_made_and_may_be_peers(capsys: Captured, tmp_path: Path) -> None:
    key = run(capsys, "keygen", "-o", str(tmp_path / "archive.key"))[1].strip()
    made = ("testnet", "-n", "2", "--rounds", "2", "--base-port", "0", "-o")
    assert run(capsys, *made, str(tmp_path / "net"), "--observer", f"archive={key}")[0] == 0
    genesis, _ = load_genesis(tmp_path / "net" / "genesis.yaml")
    assert [(encode_id(observer.key), observer.name) for observer in genesis.observers] == [(key, "archive")]
    check = ("start", "-c", str(tmp_path / "net" / "node0.yaml"), "--check")
    assert run(capsys, *check, "--set", f"network.peers=['{key}@127.0.0.1:7000']")[0] == 0
    _, member, _ = run(capsys, "id", "-c", str(tmp_path / "net" / "node1.yaml"))
    for wrong in (f"archive={key}@a:1", "archive=k", f"={key}", f"archive={key}x"):
        code, _, err = run(capsys, *made, str(tmp_path / "other"), "--observer", wrong)
        assert (code, "expected" in err) == (78, True), (wrong, err)
    file = tmp_path / "new" / "genesis.yaml"
    new = ("genesis", "new", f"a={member.strip()}@a:1", "--data", "digits", "-o", str(file))
    code, _, err = run(capsys, *new, "--observer", member.strip())
    assert (code, "expected no member's key" in err) == (78, True), err
    assert run(capsys, *new, "--observer", key)[0] == 0
    assert load_genesis(file)[0].observers[0].name == "observer0"


def test_check_refuses_a_stranger_and_a_strange_peer(capsys: Captured, cluster: Path, tmp_path: Path) -> None:
    _, stranger, _ = run(capsys, "keygen", "-o", str(tmp_path / "stranger.key"))
    config = str(cluster / "node0.yaml")
    override = f"node.identity_key_file={tmp_path}/stranger.key"
    code, _, err = run(capsys, "start", "-c", config, "--check", "--set", override)
    assert code == 78
    assert f"expected this node's key {stranger.strip()}" in err
    override = f"network.peers=['{stranger.strip()}@127.0.0.1:7000']"
    code, _, err = run(capsys, "start", "-c", config, "--check", "--set", override)
    assert code == 78
    assert f"expected {stranger.strip()}, which {config}: network.peers names" in err


def test_check_refuses_the_data_of_another_chain_and_data_in_use(
    capsys: Captured, cluster: Path, tmp_path: Path
) -> None:
    arguments = ["start", "-c", str(cluster / "node0.yaml"), "--check", "--set", f"node.data_dir={tmp_path}"]
    genesis, _ = load_genesis(cluster / "genesis.yaml")
    store = SqliteStore.open(tmp_path, replace(genesis, chain_name="another"))
    code, _, err = run(capsys, *arguments)
    assert code == 78
    assert "in use by another process" in err
    store.close()
    code, _, err = run(capsys, *arguments)
    assert code == 78
    assert f"{tmp_path}: expected the chain of {cluster}/genesis.yaml, {genesis.chain_id.hex()} (got " in err


def test_keygen_prints_the_id_and_never_overwrites(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "keys" / "node.key"
    code, out, _ = run(capsys, "keygen", "-o", str(path))
    assert code == 0
    decode_id(out.strip())
    before = path.read_bytes()
    code, _, err = run(capsys, "keygen", "-o", str(path))
    assert code == 77
    assert "never overwritten" in err
    assert path.read_bytes() == before


def test_a_passphrase_opens_its_key_and_no_other_does(capsys: Captured, tmp_path: Path) -> None:
    right, wrong, key = tmp_path / "right", tmp_path / "wrong", tmp_path / "node.key"
    right.write_text("correct horse\n")
    wrong.write_text("battery\n")
    _, made, _ = run(capsys, "keygen", "-o", str(key), "--passphrase-file", str(right))
    assert run(capsys, "id", "--key", str(key), "--passphrase-file", str(right)) == (0, made, "")
    assert run(capsys, "id", "--key", str(key), "--passphrase-file", str(wrong))[0] == 77
    assert run(capsys, "id", "--key", str(key))[0] == 77
    wrong.write_text("")
    assert run(capsys, "id", "--key", str(key), "--passphrase-file", str(wrong))[0] == 78


def test_id_is_whole_in_json_and_short_on_request(capsys: Captured, cluster: Path) -> None:
    config = str(cluster / "node0.yaml")
    _, out, _ = run(capsys, "id", "--config", config, "--json")
    answer = json.loads(out)
    assert set(answer) == {"id", "name", "address"}
    assert run(capsys, "id", "--config", config, "--short")[1] == answer["id"][:8] + "\n"
    assert run(capsys, "id", "--config", config, "--peer")[1] == f"{answer['id']}@{answer['address']}\n"


def test_config_show_names_the_origin_of_each_value(capsys: Captured, cluster: Path) -> None:
    config = str(cluster / "node0.yaml")
    _, out, _ = run(capsys, "config", "show", "-c", config, "--set", "log.level=debug", "--json")
    answer = json.loads(out)
    assert answer["config"]["log"]["level"] == "debug"
    assert answer["origins"]["log.level"] == "--set log.level"
    assert answer["origins"]["node.name"].startswith(f"{config}:")
    assert answer["origins"]["training.checkpoint_every"] == "default"
    assert run(capsys, "config", "show", "-c", config)[0] == 0


def test_config_schema_is_json(capsys: Captured) -> None:
    assert json.loads(run(capsys, "config", "schema")[1])["title"] == "node.yaml of fednode"


def test_genesis_hash_is_the_chain_id_that_show_names(capsys: Captured, cluster: Path) -> None:
    genesis = str(cluster / "genesis.yaml")
    _, out, _ = run(capsys, "genesis", "hash", genesis)
    _, shown, _ = run(capsys, "genesis", "show", genesis, "--json")
    assert json.loads(shown)["chain_id"] == out.strip()
    assert json.loads(shown)["genesis"]["rounds"] == 2
    assert run(capsys, "genesis", "show", genesis)[1].startswith(f"# chain {out.strip()}, 3 members, quorum 3\n")


def test_testnet_says_what_it_made(capsys: Captured, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "testnet", "-n", "2", "-o", str(tmp_path / "c"), "--set", "lr=0.05", "--json")
    assert code == 0
    answer = json.loads(out)
    assert [node["name"] for node in answer["nodes"]] == ["node0", "node1"]
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "genesis.yaml",
        "initial_model.safetensors",
        "keys",
        "node0.yaml",
        "node1.yaml",
    ]
    code, out, err = run(capsys, "testnet", "-n", "2", "-o", str(tmp_path / "c"))
    assert (code, out) == (78, "")
    assert err == f"fednode: {tmp_path}/c: expected a new or empty directory (got one with files in it)\n"


def test_a_second_testnet_beside_a_running_one_has_other_ports_and_says_so(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = find_free_ports(14)[0]
    monkeypatch.setattr(layout, "BASE_PORT", usual)
    with socket.create_server(("127.0.0.1", usual)):
        code, out, err = run(capsys, "testnet", "-n", "3", "-o", str(tmp_path / "second"))
        assert (code, err) == (0, "")
        line = f"port {usual} is taken on this machine: these nodes have {usual + 10} to {usual + 12}"
        assert line in out.splitlines()

        named = ("-n", "2", "-o", str(tmp_path / "named"), "--base-port", str(usual))
        code, out, err = run(capsys, "testnet", *named)
        assert (code, out) == (78, "")
        assert err.startswith(f"fednode: --base-port: 127.0.0.1:{usual} is in use by process {os.getpid()} (")
        assert len(err.splitlines()) == 1
        assert not (tmp_path / "named").exists()


def test_simulate_prints_one_json_object_with_its_contract(capsys: Captured) -> None:
    arguments = (
        "simulate --method dfpl --data digits --partition classes:3,1 --clients 3 --rounds 2 --seed 1 --shots 20"
    )
    code, out, err = run(capsys, *arguments.split(), "--set", "local_iterations=2", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert {"rounds", "best_taa", "final_taa", "final_global", "clients"} <= set(answer)
    row = {"round", "taa", "tal", "global", "tal_global", "taa_local", "sent_params", "sent_bytes"}
    row |= {"received_params", "received_bytes", "aux_loss", "sent_prototypes"}
    assert [set(found) for found in answer["rounds"]] == [row] * 2
    client = {"id", "accuracy", "global_accuracy", "local_accuracy", "num_train", "num_test"}
    assert client == set(answer["clients"][0])
    assert len(answer["clients"]) == 3
    assert all(0 <= row["taa"] <= 1 for row in answer["rounds"])
    assert answer["best_taa"] == max(row["taa"] for row in answer["rounds"])


def test_simulate_takes_a_rule_of_aggregation(capsys: Captured) -> None:
    sizes = ("--method", "fedavg", "--clients", "4", "--rounds", "1", "--set", "local_iterations=1", "--json")
    found = {}
    for settings in ((), ("--set", "aggregation=median"), ("--set", "weight_cap=1")):
        assert main(["simulate", *sizes, *settings]) == 0
        found[settings] = json.loads(capsys.readouterr().out)
    methods = [(run["config"]["method"]["aggregation"], run["rounds"][0]["tal"]) for run in found.values()]
    assert [rule for rule, _ in methods] == ["mean", "median", "mean"]
    assert len({loss for _, loss in methods}) == 3


def test_simulate_prints_a_table_for_people(capsys: Captured) -> None:
    code, out, err = run(capsys, "simulate", "--clients", "2", "--rounds", "1", "--set", "local_iterations=1")
    assert (code, err) == (0, "")
    assert "accuracy on matched test sets" in out
    assert "received" in out
    assert "before the exchange" not in out


def test_simulate_shows_the_branches_of_uapdfl(capsys: Captured) -> None:
    arguments = ("simulate", "--method", "uapdfl", "--clients", "3", "--rounds", "2", "--set", "local_iterations=1")
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    headings = next(line for line in out.splitlines() if "round" in line)
    assert headings.split()[1::2] == ["round", "before", "matched", "global", "sent", "received", "dropout", "div"]
    assert "before the exchange, on matched test sets: best " in out


LYING = ("simulate", "--clients", "4", "--rounds", "2", "--shots", "5", "--set", "local_iterations=1")


def test_simulate_says_who_lied_and_shows_the_others(capsys: Captured) -> None:
    code, out, err = run(capsys, *LYING, "--method", "fedavg", "--attack", "sign_flip:1,weight=7,scale=4")
    assert (code, err) == (0, "")
    headings = next(line for line in out.splitlines() if "round" in line)
    found = [heading.strip() for heading in headings.strip("┃").split("┃")]
    assert found == ["round", "matched", "global", "received", "left out", "spoiled"]
    assert re.search(r"^1 of 4 lied \(sign_flip\), and no accuracy is theirs: client [0-3]$", out, re.MULTILINE)
    assert "never made" not in out


def test_simulate_counts_what_was_refused(capsys: Captured) -> None:
    code, out, _ = run(capsys, *LYING, "--attack", "huge:1,value=1e7")  # beyond limits.max_abs
    assert code == 0
    assert "contributions left out, refused or never made: 2" in out


def test_simulate_says_where_a_federation_would_stand_still(capsys: Captured) -> None:
    code, out, err = run(capsys, *LYING, "--attack", "silent:2")
    assert (code, err) == (0, "")
    assert "round 1 was never made: fewer contributed than a block needs" in out
    assert "nan" not in out
    code, out, _ = run(capsys, *LYING, "--attack", "silent:2", "--json")
    answer = json.loads(out, parse_constant=pytest.fail)
    assert (answer["halted_at"], answer["final_taa"], answer["rounds"]) == (1, None, [])


def test_simulate_says_in_json_who_lied_and_how(capsys: Captured) -> None:
    _, out, _ = run(capsys, *LYING, "--attack", "little:1", "--json")
    answer = json.loads(out)
    assert answer["config"]["attack"] == {"name": "little", "liars": 1}
    assert (len(answer["liars"]), answer["halted_at"]) == (1, None)
    assert [(row["left_out"], row["spoiled"]) for row in answer["rounds"]] == [(0, 0), (0, 0)]


def test_every_attack_is_in_the_help(capsys: Captured) -> None:
    _, out, _ = run(capsys, "simulate", "--help")
    assert not [name for name in ATTACKS if name not in out]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attack", "sign_flop:1"], "--attack: attack.name: unknown attack 'sign_flop': did you mean 'sign_flip'?"),
        (["--attack", "noise:10"], "--attack: attack.liars: expected fewer than the 10 clients, got 10"),
        (["--attack", "noise:x"], "--attack: attack.liars: expected a whole number from 1 to 2147483647, got 'x'"),
        (["--attack", "noise:1,sigmo=3"], "--attack: attack.sigmo: unknown key: did you mean 'sigma'?"),
        (["--attack", "noise:1,sigma"], "--attack: expected NAME:COUNT,KEY=VALUE, as in sign_flip:1,scale=4 (got"),
        (["--attack", "noise:1,sigma=1,sigma=2"], "--attack: sigma is given twice (got"),
        (["--attack", "noise:1,liars=2"], "--attack: liars is given twice (got"),
        (["--attack", "noise:1,weight=7"], "--attack: attack.weight: expected none, since dfpl signs 1 for all; got 7"),
        (["--attack", "poisoned_set:1"], "--attack: attack.name: poisoned_set changes nothing that members of dfpl"),
        (["--set", "lrr=1"], "--set lrr: method.lrr: unknown key: did you mean 'lr'?"),
        (
            ["--set", "pow.difficulty=1"],
            "--set pow.difficulty: unknown section 'pow'. Known: method, model, data",
        ),
        (["--method", "fedavgg"], "--method: method.name: unknown method 'fedavgg': did you mean 'fedavg'?"),
        (["--partition", "iid:3"], "partition: expected iid, got 'iid:3'"),
        (["--data", "mnist"], "--data: data.format: no such file or directory, and unknown format 'mnist'"),
        (["--batched", "yes"], "batched: expected auto, on, off, got 'yes'"),
        (["--batched", "on", "--model", "resnet18"], "batched: model resnet18: expected one without batch norm"),
    ],
)
def test_simulate_refuses_what_cannot_be_in_one_line(capsys: Captured, arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, "simulate", *arguments)
    assert (code, out) == (78, "")
    assert err.startswith(f"fednode: {message}")
    assert err.count("\n") == 1


def test_a_run_that_diverges_is_a_failure_and_not_a_bad_configuration(capsys: Captured) -> None:
    code, out, err = run(capsys, "simulate", "--clients", "2", "--rounds", "1", "--set", "lr=1e30")
    assert (code, out) == (1, "")
    assert "loss not finite at step" in err


def test_version_is_the_same_by_option_and_by_command(capsys: Captured) -> None:
    _, by_option, _ = run(capsys, "--version")
    _, by_command, _ = run(capsys, "version")
    _, as_json, _ = run(capsys, "version", "--json")
    assert by_option == by_command == f"fednode {json.loads(as_json)['version']}\n"
    assert json.loads(as_json)["libraries"]["torch"]


def test_a_file_that_no_command_looked_at_is_still_one_line(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(distribution: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/secret")

    monkeypatch.setattr("node.cli.node.version.get_version", fail)
    code, out, err = run(capsys, "version", "--json")
    assert (code, out, err) == (1, "", "fednode: /srv/secret: Permission denied\n")


def test_an_interrupt_before_a_command_has_begun_is_no_accident(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("node.cli.app.make_app", interrupt)
    assert run(capsys, "version") == (130, "", "")
