"""node.yaml: what it may say, whose word wins, and how each complaint names its place."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chain.signing import SigningKey, encode_id
from ml.data.partition import parse_partition, partition_from_mapping
from node.addresses import is_loopback, parse_address
from node.config.node_config import NodeConfig, load_config, load_config_source
from node.config.node_sections import ClassesPartition
from node.errors import ConfigError

ALICE = encode_id(SigningKey.from_private_bytes(bytes([1]) * 32).id)
BOB = encode_id(SigningKey.from_private_bytes(bytes([2]) * 32).id)

GOOD = f"""\
version: 1
node:
  name: node3
  identity_key_file: keys/node3.key
  data_dir: data/node3
genesis_file: genesis.yaml
network:
  listen: 0.0.0.0:7053
  advertise: node3:7053
  tls: mutual
  peers:
    - {ALICE}@node0:7050
training:
  device: auto
  seed: 7
  threads: 1
data:
  format: digits
  partition: {{scheme: classes, avg: 3, std: 1, index: 3, of: 4, seed: 7, shots: null}}
consensus: {{mine: true, workers: 1}}
admin: {{socket: run/node3.sock}}
log: {{level: info, format: text, file: null}}
"""

SMALL = """\
node: {identity_key_file: k, data_dir: d}
genesis_file: g
network: {listen: "127.0.0.1:0"}
training: {seed: 7}
"""


def write(tmp_path: Path, text: str, name: str = "node.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def complain(path: Path, *overrides: str, **env: str) -> list[str]:
    """The problems found, without the directory in front and without the last line, which is checked."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, env)
    lines = caught.value.describe().splitlines()
    number = len(lines) - 1
    assert lines[-1] == f"fednode: {number} problem{'s' if number > 1 else ''} in {path}; nothing was started"
    assert caught.value.exit_code == 78
    return [line.removeprefix(f"{path.parent}/") for line in lines[:-1]]


def test_everything_a_file_may_say_is_read(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.node.identity_key_file == tmp_path / "keys/node3.key"
    assert config.genesis_file == tmp_path / "genesis.yaml"
    assert config.admin.socket == tmp_path / "run/node3.sock"
    assert [*config.network.get_peer_addresses().values()] == ["node0:7050"]
    assert config.training.threads == 1
    assert isinstance(config.data.partition, ClassesPartition)
    assert config.data.partition.model_dump() == {
        "index": 3,
        "of": 4,
        "seed": 7,
        "shots": None,
        "sha256": None,
        "scheme": "classes",
        "avg": 3,
        "std": 1,
        "count": "uniform",
        "samples": None,
        "cover": False,
    }


@pytest.mark.parametrize(
    "scheme",
    [
        "classes:3,1",
        "classes:4,2,count=normal,samples=shots,cover=true",
        "dirichlet:0.3",
        "dirichlet:0.3,balance=false",
        "dirichlet:0.3,per=client",
        "domains",
        "shards:3",
        "iid",
    ],
)
def test_every_scheme_of_the_command_line_can_stand_in_a_file(tmp_path: Path, scheme: str) -> None:
    part = parse_partition(scheme).to_mapping() | {"index": 0, "of": 4, "seed": 1, "shots": 5, "sha256": "0a" * 32}
    partition = load_config(write(tmp_path, SMALL + f"data: {json.dumps({'partition': part})}\n")).data.partition
    assert partition is not None
    assert part.items() <= partition.model_dump().items()
    assert str(partition_from_mapping(partition.model_dump(mode="json"))) == scheme


def test_defaults_fill_in_what_a_small_file_leaves_out(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SMALL))
    assert (config.node.name, config.network.tls, config.training.device) == ("node", "mutual", "auto")
    training = config.training
    assert (training.threads, training.checkpoint_every, training.precision) == ("auto", 1, "auto")
    assert training.max_loss_ratio == 4
    assert (training.deterministic, training.channels_last, training.compile) == (False, False, False)
    assert (config.consensus.mine, config.consensus.workers) == (True, 1)
    assert (config.admin.socket, config.log.level, config.data.partition) == (None, "info", None)


def test_nothing_changes_once_it_is_loaded(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SMALL))
    with pytest.raises(ValueError, match="frozen"):
        config.training.seed = 8


def test_paths_are_relative_to_the_file_and_not_to_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    write(tmp_path / "site", SMALL)
    monkeypatch.chdir(tmp_path)
    config = load_config(Path("site/node.yaml"), ["node.data_dir=../data", "log.file=/var/log/node.log"])
    assert config.node.data_dir == tmp_path / "data"
    assert config.node.identity_key_file == tmp_path / "site/k"
    assert config.log.file == Path("/var/log/node.log")


def test_an_option_wins_over_the_environment_and_both_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    env = {"FEDNODE__TRAINING__SEED": "8", "FEDNODE__LOG__LEVEL": "debug", "HOME": "/", "FEDNODE_ADDRESS": "x"}
    loaded = load_config_source(path, ["training.seed=9", "network.peers=[]"], env)
    assert (loaded.config.training.seed, loaded.config.log.level) == (9, "debug")
    assert loaded.get_origin(("training", "seed")) == "--set training.seed"
    assert loaded.get_origin(("log", "level")) == "FEDNODE__LOG__LEVEL"
    assert loaded.get_origin(("network", "listen")) == f"{path}:3:11"
    assert loaded.get_origin(("network", "tls")) == "default"


def test_all_problems_are_named_at_once_from_top_to_bottom(tmp_path: Path) -> None:
    text = """\
node: {identity_key_file: k, data_dir: d}
network:
  listn: "127.0.0.1:7053"
  listen: '7053'
training:
  seed: -1
  batch_size: 0
genesis_file: g
"""
    assert complain(write(tmp_path, text, "bad.yaml")) == [
        "bad.yaml:3:3: network.listn: unknown key. Did you mean 'listen'?",
        "bad.yaml:4:3: network.listen: expected host:port (got '7053')",
        "bad.yaml:6:3: training.seed: must be at least 0 (got -1)",
        "bad.yaml:7:3: training.batch_size: unknown key. Known: device, seed, threads, precision, deterministic, "
        "channels_last, compile, cuda_graphs, checkpoint_every, keep_models, plugins, max_loss_ratio, compare_local, "
        "answer_by, privacy_budget, privacy_set_aside, privacy, publish_metrics, publish_min_samples",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.seed=x", "expected an integer (got 'x')"),
        ("training.seed=1.5", "expected an integer (got 1.5)"),
        ("training.seed=true", "expected an integer (got true)"),
        ("training.seed=9223372036854775808", "must be less than 9223372036854775808 (got 9223372036854775808)"),
        ("training.threads=0", "expected auto or a number of threads, at least 1 (got 0)"),
        ("training.threads=many", "expected auto or a number of threads, at least 1 (got 'many')"),
        ("training.device=gpu", "expected auto, cpu, cuda or cuda:N (got 'gpu')"),
        ("training.precision=fp16", "expected 'auto', 'fp32' or 'bf16' (got 'fp16')"),
        (
            "training.answer_by=mixed",
            "expected compare_local: true beside it, which trains a model alone (got 'mixed')",
        ),
        ("training.compile=yes", "expected true or false (got 'yes')"),
        (
            "node.name=a/b",
            "expected letters, digits, '.', '_' and '-', at most 64, a letter or digit first (got 'a/b')",
        ),
        ("node.data_dir=", "expected text (got nothing)"),
        ("node.data_dir=''", "expected a path (got '')"),
        ('node.data_dir="a\\0b"', "expected a path (got 'a\\x00b')"),
        ("node.data_dir=~nobody-of-that-name/a", "a home that is known (got '~nobody-of-that-name/a')"),
        ("network.listen=['::1']", "expected text (got ['::1'])"),
        ("network.listen=::1:5", "expected host:port, an IPv6 host in brackets (got '::1:5')"),
        ("network.listen=a:70000", "expected host:port with a port of at most 65535 (got 'a:70000')"),
        ("network.advertise=a:0", "expected host:port with a port of at least 1 (got 'a:0')"),
        ("network.peers=x", "expected a list (got 'x')"),
        ("network.tls=on", "expected 'mutual' or 'off' (got 'on')"),
        ("consensus=5", "expected a section of keys (got 5)"),
        ("consensus.mine=yes", "expected true or false (got 'yes')"),
        ("data.format=mnist", "unknown format 'mnist': did you mean 'medmnist'?"),
        ("data.transform={size: 28}", "unknown key. Known: augment, own"),
        ("data.transform={augment: cut}", "expected 'none', 'flip', 'crop' or 'flip_crop' (got 'cut')"),
        ("data.columns={lable: x}", "unknown key. Did you mean 'label'?"),
        (
            "data.partition={scheme: classs}",
            "expected one of 'classes', 'owned', 'dirichlet', 'domains', 'shards', 'iid' (got 'classs')",
        ),
        ("version=2", "expected 1 (got 2)"),
        ("training.sed=1", "unknown key. Did you mean 'seed'?"),
        ("nettwork=1", "unknown key. Did you mean 'network'?"),
    ],
)
def test_each_wrong_value_names_expected_and_got(tmp_path: Path, override: str, message: str) -> None:
    problems = complain(write(tmp_path, SMALL), override)
    assert len(problems) == 1
    origin, _, said = problems[0].partition(": ")
    assert origin == f"--set {override.split('=')[0]}"
    assert said.endswith(message)


def test_data_other_than_digits_have_a_path_relative_to_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    own = load_config(path, ["data.format=npz", "data.path=scans/a.npz", "data.test_split=val"]).data
    assert (own.path, own.train_split, own.test_split) == (tmp_path / "scans/a.npz", "train", "val")
    assert own.model_dump(mode="json")["transform"] == {"augment": "none", "own": None}
    for overrides, message in (
        (["data.format=npz"], "expected a path, which npz needs (got nothing)"),
        (["data.path=a.npz"], "expected no path, which digits have not (got "),
        (["data.test_split=train"], "expected another split than train_split (got 'train')"),
    ):
        [problem] = complain(path, *overrides)
        assert message in problem


def test_the_keys_of_a_partition_are_those_of_its_scheme(tmp_path: Path) -> None:
    text = SMALL + "data:\n  partition: {scheme: dirichlet, alpha: 0, avg: 3, index: 0, of: 4, seed: 1}\n"
    assert complain(write(tmp_path, text)) == [
        "node.yaml:6:34: data.partition.alpha: must be more than 0 (got 0)",
        "node.yaml:6:44: data.partition.avg: unknown key. Known: "
        "index, of, seed, shots, sha256, scheme, alpha, per, balance",
    ]
    text = SMALL + "data:\n  partition: {scheme: iid, index: 4, of: 4, seed: 1}\n"
    assert complain(write(tmp_path, text)) == [
        "node.yaml:6:3: data.partition: expected index below of (got part 4 of 4)"
    ]
    part = "index: 0, of: 4, seed: 1"
    for keys, message in (
        ("scheme: classes, avg: 3, std: 1, count: gauss", ".count: expected 'uniform' or 'normal' (got 'gauss')"),
        ("scheme: classes, avg: 3, std: 1, samples: all, shots: 5", ": expected no shots with samples: all (got 5)"),
        (
            "scheme: dirichlet, alpha: 1, per: client, balance: false",
            ": expected no balance: false with per: client, whose parts are equal (got both)",
        ),
        ("scheme: shards, per_client: 0", ".per_client: must be at least 1 (got 0)"),
        ("scheme: iid, sha256: A0", ".sha256: expected 64 hexadecimal digits (got 'A0')"),
    ):
        [problem] = complain(write(tmp_path, SMALL + f"data:\n  partition: {{{part}, {keys}}}\n"))
        assert problem.partition(": ")[2] == f"data.partition{message}"


def test_environment_variables_are_named_with_the_key(tmp_path: Path) -> None:
    assert complain(write(tmp_path, SMALL), FEDNODE__LOG__LEVEL="loud") == [
        "FEDNODE__LOG__LEVEL: log.level: expected 'debug', 'info', 'warning' or 'error' (got 'loud')"
    ]


def test_what_is_required_is_missed_where_it_should_stand(tmp_path: Path) -> None:
    assert complain(write(tmp_path, "network: {}\ntraining: {seed: 1}\n")) == [
        "node.yaml: node: required, but missing",
        "node.yaml:1:1: network.listen: required, but missing",
    ]
    assert complain(write(tmp_path, ""))[0] == "node.yaml: node: required, but missing"


def test_peers_are_ids_with_addresses_each_once(tmp_path: Path) -> None:
    text = SMALL.replace('"}', f'", peers: [{ALICE}@a:1, {ALICE}@b:1]}}')
    assert complain(write(tmp_path, text)) == [
        f"node.yaml:3:{text.splitlines()[2].rindex(ALICE) + 1}: network.peers.1: "
        "expected one address per id (also network.peers.0)"
    ]
    for peer, message in [
        ("abc", "expected id@host:port (got 'abc')"),
        ("abc@x:1", "expected a node id"),
        (f"{ALICE.upper()}@x:1", "expected a node id"),
        (f"{ALICE}@x", "expected host:port"),
    ]:
        [problem] = complain(write(tmp_path, SMALL.replace('"}', f'", peers: ["{peer}"]}}')))
        assert f"network.peers.0: {message}" in problem


def test_what_a_site_calls_others_is_in_any_script_and_by_their_ids(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    named = load_config(path, [f"node.display_names=['{ALICE}=Clínica São José', '{BOB}=北京=二']"]).node
    assert named.get_display_names() == {ALICE: "Clínica São José", BOB: "北京=二"}
    assert load_config(path).node.get_display_names() == {}
    for text, message in [
        ("Klinik", "expected id=name"),
        ("abc=Klinik", "expected a node id"),
        (f"{ALICE}=", "expected a name of 1 to 64 characters that show"),
        (f"{ALICE}=a\u3164", "expected a name of 1 to 64 characters that show"),
        (f"{ALICE}={'x' * 65}", "expected a name of 1 to 64 characters that show"),
    ]:
        [problem] = complain(path, f"node.display_names=['{text}']")
        assert f"node.display_names.0: {message}" in problem


def test_a_proxy_is_an_address_without_a_password_that_is_printed_nowhere(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    assert load_config(path, ["network.proxy=proxy.example:3128"]).network.proxy == "proxy.example:3128"
    for wrong in ("user:hunter2@proxy:3128", "http://proxy:3128"):
        [problem] = complain(path, f"network.proxy={wrong}")
        assert "network.proxy: expected host:port of an HTTP proxy that asks for no password" in problem
        assert "hunter2" not in problem
    [problem] = complain(path, "network.proxy=proxy.example:0")
    assert "port of at least 1" in problem
    [problem] = complain(path, "network.proxy=proxy.example:3128", "network.tls=off")
    assert "network.proxy: expected a loopback address" in problem


def test_a_node_that_dials_out_needs_no_place_to_listen_and_has_no_address(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL.replace('listen: "127.0.0.1:0"', "dial_out: true"))
    network = load_config(path).network
    assert (network.dial_out, network.listen, network.advertise) == (True, "127.0.0.1:0", None)
    [problem] = complain(path, "network.advertise=node3:7053")
    assert problem == (
        "--set network.advertise: expected none, as network.dial_out says that nobody dials this node "
        "(got 'node3:7053')"
    )
    [problem] = complain(path, "network.dial_out=false")
    assert "network.listen: required, but missing" in problem
    assert load_config(write(tmp_path, SMALL, "other.yaml"), ["network.dial_out=true"]).network.dial_out
    ports = ["http.listen=127.0.0.1:9100", "network.listen=127.0.0.1:9100"]
    assert load_config(path, ports).network.listen == "127.0.0.1:9100"  # where it does not listen


def test_without_tls_a_node_listens_on_this_machine_only(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    off = ["network.tls=off", "network.listen=0.0.0.0:7050"]
    with pytest.raises(ConfigError) as caught:
        load_config(path, off)
    assert caught.value.problems == (
        "--set network.listen: expected a loopback address, since network.tls is off (got '0.0.0.0:7050')",
    )
    [problem] = complain(path, "network.tls=off", f"network.peers=['{ALICE}@127.0.0.1:1', '{BOB}@node1:1']")
    assert problem == (
        "--set network.peers: network.peers.1: expected a loopback address, since network.tls is off (got 'node1:1')"
    )
    assert load_config(path, ["network.tls=off"]).network.tls == "off"


def test_without_a_token_http_is_for_this_machine_only(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    [problem] = complain(path, "http.listen=0.0.0.0:8083")
    assert problem == (
        "--set http.listen: expected a loopback address, or http.token_file as well (got '0.0.0.0:8083')"
    )
    assert load_config(path, ["http.listen=0.0.0.0:8083", "http.token_file=token"]).http.token_file is not None
    assert load_config(path, ["http.listen='[::1]:8083'"]).http.is_on


def test_of_a_certificate_and_its_key_neither_is_named_alone(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    for named, missing in (("certificate_file", "key_file"), ("key_file", "certificate_file")):
        [problem] = complain(path, f"http.tls.{named}=page.pem")
        assert f"http.tls.{missing}: expected a file" in problem
    both = load_config(path, ["http.tls.certificate_file=page.pem", "http.tls.key_file=page.key"]).http.tls
    assert both.files == (tmp_path / "page.pem", tmp_path / "page.key")


def test_http_is_off_without_a_port(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    assert not load_config(path).http.is_on
    assert not load_config(path, ["http.listen=0.0.0.0:0"]).http.is_on


def test_a_socket_path_too_long_for_a_socket_is_refused_with_its_length(tmp_path: Path) -> None:
    fitting = 107 - len(f"{tmp_path}/")
    path = write(tmp_path, SMALL)
    assert load_config(path, [f"admin.socket={'s' * fitting}"]).admin.socket is not None
    [problem] = complain(path, f"admin.socket={'s' * (fitting + 1)}")
    assert "expected a socket path of at most 107 bytes in full" in problem
    assert problem.endswith("(108)")


@pytest.mark.parametrize("override", ["training.seed", "=5", "a..b=5", ""])
def test_an_override_is_a_key_and_a_value(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--set {override}: expected KEY=VALUE")):
        load_config(write(tmp_path, SMALL), [override])


def test_an_override_that_is_not_yaml_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, SMALL), ["network.peers=[a"])
    assert caught.value.describe().startswith("fednode: --set network.peers: expected a YAML value (got '[a'")
    assert "\n" not in caught.value.describe()


def test_text_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    [problem] = complain(write(tmp_path, SMALL + 'log: {level: "\\ud800"}\n'))
    assert problem.startswith("node.yaml: ")


def test_a_file_that_is_not_keys_and_values_is_one_line(tmp_path: Path) -> None:
    for text in ("- a\n", "just text\n", "5\n"):
        with pytest.raises(ConfigError, match="expected keys and values"):
            load_config(write(tmp_path, text))


def test_the_schema_describes_every_section() -> None:
    schema = NodeConfig.model_json_schema()
    assert {"node", "network", "training", "data", "consensus", "admin", "log"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("text", "address"),
    [("node0:7050", ("node0", 7050)), ("[::1]:0", ("::1", 0)), ("127.0.0.1:65535", ("127.0.0.1", 65535))],
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":1", "a", "a:", "a:-1", "a:1x", "a b:1", "a:٣", "::1", "a:65536"])
def test_other_text_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        parse_address(text)


def test_loopback_is_this_machine_alone() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "node0", "")))
