"""Test networks: whole or not at all, ready to start, and the same federation as the simulation of one seed."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.pow import USUAL_DIFFICULTY
from chain.signing import decode_id, encode_id
from ml.clients.build import Federation, make_client, make_clients
from ml.data import load_dataset
from ml.data.partition import split_from_mapping
from ml.payload import decode_arrays
from node.addresses import parse_address
from node.config.genesis_file import load_genesis
from node.config.identity import open_identity
from node.config.node_config import NodeConfig, load_config
from node.config.value_types import MAX_SOCKET_PATH_BYTES
from node.errors import ConfigError
from node.testnet import layout as testnet
from node.testnet.layout import Testnet, TestnetSpec, make_testnet
from node.testnet.ports import FREE_PORTS
from support.federation.ports import find_free_ports

SMALL = TestnetSpec(method="dfpl", num_nodes=4, rounds=3, seed=1, settings=("local_iterations=2", "model.hidden=[8]"))


def get_ports(made: Testnet) -> list[int]:
    return [parse_address(node.address)[1] for node in made.nodes]


def load_nodes(made: Testnet) -> list[NodeConfig]:
    return [load_config(node.config_file) for node in made.nodes]


def test_everything_it_writes_loads(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "cluster", SMALL)
    genesis, model = load_genesis(tmp_path / "cluster/genesis.yaml")
    assert genesis == made.genesis
    assert (genesis.state.n, genesis.run.rounds, genesis.run.method["local_iterations"]) == (4, 3, 2)
    assert model == tmp_path / "cluster/initial_model.safetensors"
    configs = load_nodes(made)
    ids = [open_identity(config).id for config in configs]
    assert sorted(ids) == list(genesis.state.member_ids)
    for i, config in enumerate(configs):
        assert config.genesis_file == tmp_path / "cluster/genesis.yaml"
        assert config.network.listen == f"127.0.0.1:{get_ports(made)[0] + i}"
        expected = {key: made.nodes[j].address for j, key in enumerate(ids) if j != i}
        assert config.network.get_peer_addresses() == expected
        assert config.training.threads == 1


def test_nodes_of_a_table_answer_by_both_models_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,label\n" + "".join(f"{i % 7},{'no' if i % 2 else 'yes'}\n" for i in range(60)))
    spec = TestnetSpec(num_nodes=4, rounds=3, seed=1, data=f"csv:{tmp_path / 'a.csv'}", partition="iid")
    trainings = [config.training for config in load_nodes(make_testnet(tmp_path / "cluster", spec))]
    assert {(training.compare_local, training.answer_by) for training in trainings} == {(True, "mixed")}
    plain = load_nodes(make_testnet(tmp_path / "plain", SMALL))[0].training
    assert (plain.compare_local, plain.answer_by) == (False, "federation")


def test_keys_are_private_and_all_else_is_readable(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "cluster", SMALL)
    assert stat.S_IMODE(made.directory.stat().st_mode) == 0o755
    assert stat.S_IMODE((made.directory / "keys").stat().st_mode) == 0o700
    for file in (made.directory / "keys").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_genesis_writes_out_every_default(tmp_path: Path) -> None:
    mapping = make_testnet(tmp_path / "cluster", SMALL).genesis.to_mapping()
    assert {"lr", "momentum", "decay", "batch_size", "lambda", "aux"} <= set(mapping["method"])
    assert mapping["model"] == {"name": "mlp", "hidden": [8]}
    assert mapping["waits"]["collect_s"] == 2.0


def test_a_test_network_keeps_the_papers_mean_unless_it_is_asked_for_another_rule(tmp_path: Path) -> None:
    plain = make_testnet(tmp_path / "plain", SMALL).genesis.run.method
    assert (plain["aggregation"], "weight_cap" in plain) == ("mean", False)
    asked = replace(SMALL, settings=(*SMALL.settings, "aggregation=clipped_mean", "clip=2", "weight_cap=4"))
    method = make_testnet(tmp_path / "asked", asked).genesis.run.method
    assert (method["aggregation"], method["clip"], method["weight_cap"]) == ("clipped_mean", 2.0, 4)
    for setting, message in (
        ("aggregation=krum", "--set aggregation: method.aggregation: expected one of mean, median, trimmed_mean"),
        ("proto_agg=median", "set aggregation to median instead"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_testnet(tmp_path / "refused", replace(SMALL, settings=(setting,)))


def test_the_seed_decides_all_but_the_keys(tmp_path: Path) -> None:
    first, again, other = (
        make_testnet(tmp_path / name, spec)
        for name, spec in (("a", SMALL), ("b", SMALL), ("c", replace(SMALL, seed=2)))
    )
    assert first.genesis.run.initial_model == again.genesis.run.initial_model != other.genesis.run.initial_model
    assert {node.key for node in first.nodes}.isdisjoint(node.key for node in again.nodes)
    for one, two, three in zip(load_nodes(first), load_nodes(again), load_nodes(other), strict=True):
        assert (one.training, one.data) == (two.training, two.data)
        assert one.training.seed != three.training.seed


def test_node_i_is_client_i_of_the_simulation(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "cluster", SMALL)
    genesis, model = load_genesis(made.directory / "genesis.yaml")
    initial = decode_arrays(model.read_bytes(), 1 << 20)
    federation = Federation(
        method=genesis.run.method,
        model=genesis.run.model,
        classes=genesis.run.classes,
        input=genesis.run.input,
        num_members=genesis.state.n,
    )
    simulated = make_clients(federation, data={"format": "digits"}, partition="classes:3,1", run_seed=1)
    for node, config, twin in zip(made.nodes, load_nodes(made), simulated, strict=True):
        data = config.data.model_dump(mode="json")
        client = make_client(federation, data=data, seed=config.training.seed, initial=initial)
        assert (client.num_train, client.num_test) == (twin.num_train, twin.num_test) == (node.num_train, node.num_test)
        mine, its = client.train(1, b"beacon"), twin.train(1, b"beacon")
        for name, array in mine.payloads["prototypes"].items():
            np.testing.assert_array_equal(array, its.payloads["prototypes"][name])


def test_shots_limit_every_class_of_every_node(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "cluster", replace(SMALL, partition="iid", shots=5))
    assert [node.num_train for node in made.nodes] == [50] * 4
    partition = load_nodes(made)[0].data.model_dump(mode="json")["partition"]
    train, test = load_dataset({"format": "digits"}, made.genesis.run.input)
    assert len(split_from_mapping(partition, train.y, test.y).train) == 50


@pytest.mark.parametrize(
    ("asked", "bounds"),
    [
        ({}, (USUAL_DIFFICULTY, USUAL_DIFFICULTY, USUAL_DIFFICULTY)),
        ({"difficulty": 300}, (300, 300, 300)),
        ({"difficulty": 300, "adaptive": True}, (300, 4, 19_200)),
        ({"difficulty": 300, "settings": ("pow.adaptive=true", "pow.max=400")}, (300, 4, 400)),
        ({"settings": ("pow.difficulty=300", "pow.min=1")}, (300, 1, 300)),
    ],
)
def test_difficulty_stays_unless_it_may_adapt(tmp_path: Path, asked: dict[str, Any], bounds: tuple[int, ...]) -> None:
    work = make_testnet(tmp_path / "cluster", replace(SMALL, **asked)).genesis.rules.pow
    assert (work.difficulty, work.min, work.max) == bounds


def test_settings_reach_the_method_and_the_sections_of_genesis(tmp_path: Path) -> None:
    settings = ("lr=0.05", "method.lambda=2", "waits.collect_s=7", "quorum=majority", "pow.target_ms=5")
    genesis = make_testnet(tmp_path / "cluster", replace(SMALL, settings=settings)).genesis
    assert (genesis.run.method["lr"], genesis.run.method["lambda"]) == (0.05, 2.0)
    assert (genesis.rules.waits.collect_s, genesis.rules.quorum, genesis.rules.pow.target_ms) == (7.0, "majority", 5)


def test_free_ports_are_found(tmp_path: Path) -> None:
    ports = get_ports(make_testnet(tmp_path / "cluster", replace(SMALL, base_port=0)))
    assert ports == [ports[0] + i for i in range(4)]
    assert set(ports) <= set(FREE_PORTS)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_where_somebody_listens_at_a_usual_port_the_nodes_have_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    usual = find_free_ports(24)[0]
    monkeypatch.setattr(testnet, "BASE_PORT", usual)
    free = make_testnet(tmp_path / "free", SMALL)
    assert (get_ports(free), free.taken_port) == ([usual + i for i in range(4)], None)
    with socket.create_server((host, usual + 1)), socket.create_server((host, usual + 13)):
        moved = make_testnet(tmp_path / "moved", SMALL)
    assert (get_ports(moved), moved.taken_port) == ([usual + 20 + i for i in range(4)], usual + 1)


@pytest.mark.parametrize("option", ["--base-port", "--http-port"])
def test_ports_that_were_asked_for_and_are_taken_are_refused_and_nothing_is_written(
    tmp_path: Path, option: str
) -> None:
    first = find_free_ports(4)[0]
    asked = replace(SMALL, base_port=first) if option == "--base-port" else replace(SMALL, http_port=first)
    with socket.create_server(("127.0.0.1", first + 2)), pytest.raises(ConfigError) as caught:
        make_testnet(tmp_path / "cluster", asked)
    assert str(caught.value).startswith(f"{option}: 127.0.0.1:{first + 2} is in use by process {os.getpid()} (")
    assert list(tmp_path.iterdir()) == []


def test_of_another_machines_ports_nothing_is_asked(tmp_path: Path) -> None:
    first = find_free_ports(4)[0]
    with socket.create_server(("127.0.0.1", first)):
        made = make_testnet(tmp_path / "cluster", replace(SMALL, host="node{i}", base_port=first, http_port=first + 4))
    assert get_ports(made)[0] == first


def test_each_node_answers_http_at_a_port_of_its_own_if_at_all(tmp_path: Path) -> None:
    assert not any(config.http.is_on for config in load_nodes(make_testnet(tmp_path / "off", SMALL)))
    configs = load_nodes(make_testnet(tmp_path / "on", replace(SMALL, http_port=8080, host="node{i}")))
    assert [config.http.listen for config in configs] == [f"127.0.0.1:{8080 + i}" for i in range(4)]


def test_nodes_dialled_by_name_listen_on_every_interface(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "cluster", replace(SMALL, host="node{i}"))
    config = load_nodes(made)[2]
    assert (config.network.listen, config.network.advertise) == ("0.0.0.0:7052", "node2:7052")
    assert config.network.get_peer_addresses()[made.nodes[0].key] == "node0:7050"


def test_sockets_of_a_deep_directory_are_in_a_short_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = make_testnet(tmp_path / ("d" * MAX_SOCKET_PATH_BYTES) / "cluster", SMALL)
    sockets = [config.admin.socket for config in load_nodes(made)]
    folders = {path.parent for path in sockets if path is not None}
    assert len(folders) == 1
    folder = folders.pop()
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_no_directory_short_enough_is_said_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * MAX_SOCKET_PATH_BYTES)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="short enough for a unix socket"):
        make_testnet(deep / "cluster", SMALL)
    assert list(deep.iterdir()) == []


def test_a_new_or_empty_directory_is_taken_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_testnet(tmp_path / "empty", SMALL)
    with pytest.raises(ConfigError, match="expected a new or empty directory"):
        make_testnet(tmp_path / "empty", SMALL)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="expected a new directory"):
        make_testnet(tmp_path / "file", SMALL)
    with pytest.raises(ConfigError, match="cannot be written"):
        make_testnet(tmp_path / "file" / "below", SMALL)


def test_the_current_directory_is_not_replaced_under_the_callers_feet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="name one below it"):
        make_testnet(Path(), SMALL)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(SMALL, num_nodes=0), "--nodes: expected 1 to "),
        (replace(SMALL, method="fedvg"), "--method: method.name: unknown method 'fedvg': did you mean 'fedavg'?"),
        (replace(SMALL, model="mpl", settings=()), "--model: model.name: unknown model 'mpl'"),
        (replace(SMALL, model="cnn_mnist", size=32, settings=()), "--size: input.shape: cnn_mnist expects [1, 28, 28]"),
        (replace(SMALL, size=0), "--size: expected 1 to 1024 pixels (got 0)"),
        (replace(SMALL, data="mnist"), "--data: data.format: no such file or directory, and unknown format 'mnist'"),
        (replace(SMALL, partition="classes:1,1"), "partition: classes:AVG,STD expects AVG >= 2"),
        (replace(SMALL, partition="clases:3,1"), "partition: unknown scheme 'clases'"),
        (replace(SMALL, shots=0), "partition: expected at least 1 shot per class"),
        (replace(SMALL, rounds=-1), "--rounds: rounds: expected 0 to "),
        (replace(SMALL, profile="lan"), "--profile: profile: expected one of local, site, wide"),
        (replace(SMALL, difficulty=0), "--difficulty: pow.difficulty: expected 1 to "),
        (replace(SMALL, http_port=65533), "--http-port: expected 1 to 65532 for 4 nodes (got 65533)"),
        (
            replace(SMALL, base_port=7050, http_port=7053),
            "--http-port: expected 4 ports of their own (got 7053",
        ),
        (replace(SMALL, base_port=65535), "--base-port: expected 0, or 1 to 65532 for 4 nodes (got 65535)"),
        (replace(SMALL, settings=("lrr=1",)), "--set lrr: method.lrr: unknown key: did you mean 'lr'?"),
        (replace(SMALL, settings=("lr=fast",)), "--set lr: method.lr: expected a number"),
        (replace(SMALL, settings=("lr",)), "--set lr: expected KEY=VALUE"),
        (replace(SMALL, settings=("wait.collect_s=1",)), "--set wait.collect_s: unknown section 'wait'."),
        (replace(SMALL, settings=("waits.colect_s=1",)), "--set waits.colect_s: "),
    ],
)
def test_a_wrong_option_is_one_line_and_leaves_nothing(tmp_path: Path, spec: TestnetSpec, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_testnet(tmp_path / "cluster", spec)
    assert str(caught.value).startswith(message)
    assert "\n" not in caught.value.describe()
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(testnet, "write_genesis", fail)
    with pytest.raises(ConfigError, match=r"cannot be written \(No space left on device\)"):
        make_testnet(tmp_path / "cluster", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_ids_in_the_files_are_those_of_the_keys(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "cluster", SMALL)
    text = (made.directory / "genesis.yaml").read_text()
    for node in made.nodes:
        assert encode_id(node.key) in text
        assert decode_id(encode_id(node.key)) == node.key


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_host_of_ipv6_is_written_in_brackets(tmp_path: Path, host: str) -> None:
    configs = load_nodes(make_testnet(tmp_path / "cluster", replace(SMALL, host=host)))
    first = parse_address(configs[0].network.listen)[1]
    assert [config.network.listen for config in configs] == [f"[::1]:{first + i}" for i in range(4)]
