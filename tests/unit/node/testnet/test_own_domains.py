"""Clients that hold one domain each of data with several: who gets what, in simulations, nodes and commands alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.clients.build import Federation, make_client, make_clients
from ml.data import load_dataset, open_dataset
from ml.data.base import SampleDomains
from ml.data.partition import (
    SCHEMES,
    ClientSplit,
    hash_splits,
    make_partition,
    parse_partition,
    split_from_mapping,
    splits_from_mapping,
)
from ml.errors import DataError
from ml.payload import decode_arrays
from ml.seeding import get_partition_seed
from ml.simulation.run import simulate
from node.cli import main
from node.config.genesis_file import load_genesis
from node.config.node_config import load_config
from node.experiments.piece import make_config
from node.experiments.runner import validate_runs
from node.testnet.layout import TestnetSpec, make_testnet
from support.data.domain_folders import save_domains
from support.data.experiments import make_experiment

Captured = pytest.CaptureFixture[str]
NAMES = ("a", "b", "c")
OWN = SampleDomains(NAMES, np.repeat([0, 1, 2], [40, 60, 50]), np.repeat([0, 1, 2], [8, 12, 10]))
TRAIN_Y, TEST_Y = np.arange(150) % 5, np.arange(30) % 5


def deal(num_clients: int, seed: int = 1, shots: int | None = None, scheme: str = "domains") -> list[ClientSplit]:
    return make_partition(scheme, TRAIN_Y, TEST_Y, num_clients, seed, shots, OWN)


def run(capsys: Captured, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    return save_domains(tmp_path / "digits3")


# ---- the partition


@pytest.mark.parametrize("num_clients", [1, 2, 3])
def test_a_client_alone_in_its_domain_has_all_of_it(num_clients: int) -> None:
    splits = deal(num_clients)
    assert [split.domain for split in splits] == list(NAMES[:num_clients])
    for d, split in enumerate(splits):
        assert np.array_equal(split.train, np.flatnonzero(OWN.train == d))
        assert np.array_equal(split.test, np.flatnonzero(OWN.test == d))


@pytest.mark.parametrize("num_clients", [4, 7, 9])
def test_clients_of_one_domain_share_it_evenly_and_are_tested_on_all_of_it(num_clients: int) -> None:
    splits = deal(num_clients)
    assert [split.domain for split in splits] == [NAMES[i % 3] for i in range(num_clients)]
    for d in range(3):
        parts = splits[d::3]
        assert np.array_equal(np.sort(np.concatenate([split.train for split in parts])), np.flatnonzero(OWN.train == d))
        sizes = [len(split.train) for split in parts]
        assert max(sizes) - min(sizes) <= 1
        assert all(np.array_equal(split.test, np.flatnonzero(OWN.test == d)) for split in parts)


def test_nothing_is_done_to_samples_of_a_domain_of_their_own() -> None:
    assert all(split.is_own and split.transform is None for split in deal(3))
    shown = make_partition("domains", TRAIN_Y, TEST_Y, 3, 1)
    assert (
        [split.transform for split in shown] == [split.domain for split in shown] == ["identity", "inversion", "noise"]
    )


def test_shots_limit_the_samples_of_each_class_and_client() -> None:
    for num_clients in (3, 6):
        for split in deal(num_clients, shots=3):
            counts = np.bincount(TRAIN_Y[split.train])
            assert counts.max() == 3
            assert num_clients > 3 or counts.min() == 3
            assert len(split.test) == np.sum(OWN.test == NAMES.index(str(split.domain)))
    assert hash_splits(deal(3, 1, 3)) != hash_splits(deal(3, 2, 3))
    assert hash_splits(deal(3, 1, 100)) == hash_splits(deal(3))


def test_other_schemes_deal_the_union() -> None:
    forms = {"classes": "classes:3,1", "owned": "owned:0+1,1+2,2+3,3+4", "dirichlet": "dirichlet:0.5"}
    for name in set(SCHEMES) - {"domains"}:
        scheme = forms.get(name, name)
        plain = make_partition(scheme, TRAIN_Y, TEST_Y, 4, 1)
        assert hash_splits(deal(4, scheme=scheme)) == hash_splits(plain)
        assert all(len(set(OWN.train[split.train])) == 3 for split in plain)


def test_a_domain_too_small_for_its_clients_is_refused() -> None:
    few = SampleDomains(("a", "b"), np.repeat([0, 1], [149, 1]), OWN.test % 2)
    with pytest.raises(DataError, match="domains over 4 clients leaves client 3 with 0 training and 12 test samples"):
        make_partition("domains", TRAIN_Y, TEST_Y, 4, 1, None, few)


def test_a_node_finds_its_own_domain_and_is_held_to_it() -> None:
    splits = deal(5, 7, 4)
    mapping = parse_partition("domains").to_mapping() | {"of": 5, "seed": 7, "shots": 4, "sha256": hash_splits(splits)}
    for i, split in enumerate(splits):
        own = split_from_mapping(mapping | {"index": i}, TRAIN_Y, TEST_Y, OWN)
        assert (own.domain, own.is_own) == (split.domain, True)
        assert np.array_equal(own.train, split.train)
    renamed = SampleDomains(("a", "c", "b"), OWN.train, OWN.test)
    with pytest.raises(DataError, match="sha256: expected"):
        splits_from_mapping(mapping | {"index": 0}, TRAIN_Y, TEST_Y, renamed)


# ---- clients


FEDERATION = Federation(
    method={"name": "local"},
    model={"name": "mlp", "hidden": [4]},
    classes=tuple("01234"),
    input={"shape": [3, 6, 6], "mean": [0.5], "std": [0.25]},
    num_members=3,
)


def test_clients_train_and_are_tested_on_their_domain_as_it_is(data: dict[str, Any]) -> None:
    train, test = load_dataset(data, FEDERATION.input)
    clients = make_clients(FEDERATION, data=data, partition="domains", run_seed=1)
    for d, client in enumerate(clients):
        assert np.array_equal(client.state.data.train.x.numpy(), train.x[train.domain_of == d])
        assert np.array_equal(client.state.data.matched.x.numpy(), test.x[test.domain_of == d])
        assert np.array_equal(client.state.data.everyone.x.numpy(), test.x)


@pytest.mark.parametrize(("partition", "nodes"), [("domains", 3), ("domains", 5), ("dirichlet:0.5", 2)])
def test_node_i_of_a_testnet_is_client_i_of_the_simulation(
    data: dict[str, Any], tmp_path: Path, partition: str, nodes: int
) -> None:
    spec = TestnetSpec(
        num_nodes=nodes,
        method="local",
        data=f"domains:{data['path']}",
        partition=partition,
        settings=("data.domains=[usps,mnistm,mnist]", "model.hidden=[4]", "input.normalize=auto"),
        seed=3,
        shots=5,
    )
    made = make_testnet(tmp_path / "net", spec)
    genesis, model = load_genesis(made.directory / "genesis.yaml")
    assert genesis.run.classes == tuple("01234")
    assert genesis.run.input["shape"] == [3, 8, 7]
    federation = replace(FEDERATION, model=genesis.run.model, input=genesis.run.input, num_members=nodes)
    asked = data | {"domains": ("usps", "mnistm", "mnist")}
    twins = make_clients(federation, data=asked, partition=partition, run_seed=3, shots=5)
    initial = decode_arrays(model.read_bytes(), 1 << 20)
    for node, twin in zip(made.nodes, twins, strict=True):
        config = load_config(node.config_file)
        assert config.data.domains == ("usps", "mnistm", "mnist")
        client = make_client(
            federation, data=config.data.model_dump(mode="json"), seed=config.training.seed, initial=initial
        )
        assert (client.num_train, client.num_test) == (node.num_train, node.num_test)
        for name in ("train", "matched", "everyone"):
            mine, its = getattr(client.state.data, name), getattr(twin.state.data, name)
            assert np.array_equal(mine.x.numpy(), its.x.numpy())
            assert np.array_equal(mine.y.numpy(), its.y.numpy())


def test_a_node_starts_only_with_the_samples_it_was_dealt(
    data: dict[str, Any], tmp_path: Path, capsys: Captured
) -> None:
    spec = TestnetSpec(num_nodes=3, data=f"domains:{data['path']}", partition="domains")
    node = make_testnet(tmp_path / "net", spec).nodes[2]
    code, out, _ = run(capsys, "--config", node.config_file, "--check")
    assert code == 0
    assert "with 40 train / 10 test samples of domains" in out
    (Path(data["path"]) / "usps").rename(Path(data["path"]) / "uspx")
    code, _, err = run(capsys, "--config", node.config_file, "--check")
    assert code == 78
    assert "data.partition.sha256: expected" in err


# ---- commands


def test_inspect_shows_the_domains(data: dict[str, Any], capsys: Captured) -> None:
    code, out, err = run(capsys, "data", "inspect", f"domains:{data['path']}")
    assert (code, err) == (0, "")
    assert "sample        3 x 8 x 7 (channels, height, width), float32 from 0 to " in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "mnist idx 1 x 6 x 6 40 10" in lines
    assert "mnistm imagefolder 3 x 7 x 7 20 10" in lines
    assert "usps npz 1 x 8 x 5 40 10 held out" in lines
    assert "not looked at" not in out
    _, out, _ = run(capsys, "data", "inspect", f"domains:{data['path']}", "--size", 9, "--json")
    answer = json.loads(out)
    assert (answer["shape"], answer["held_out"]) == ([3, 9, 9], False)
    assert [(domain["domain"], domain["test"]) for domain in answer["domains"]] == [
        ("mnist", 10),
        ("mnistm", 10),
        ("usps", 10),
    ]


def test_splits_of_domains_that_are_passed_over_are_said(data: dict[str, Any], capsys: Captured) -> None:
    x, y = np.zeros((4, 6, 6), np.uint8), np.arange(4)
    splits: dict[str, Any] = {f"x_{split}": x for split in ("train", "test", "extra")}
    splits |= {f"y_{split}": y for split in ("train", "test", "extra")}
    np.savez(Path(data["path"]) / "usps/usps.npz", **splits)
    _, out, _ = run(capsys, "data", "inspect", f"domains:{data['path']}")
    assert "not looked at: extra of usps; " in out


def test_stats_are_those_of_each_domain_too(data: dict[str, Any], capsys: Captured) -> None:
    _, out, _ = run(capsys, "data", "stats", f"domains:{data['path']}", "--size", 6, "--json")
    answer = json.loads(out)
    assert list(answer["stats_by_domain"]) == ["mnist", "mnistm", "usps"]
    train, _ = open_dataset({"format": "idx", "path": str(Path(data["path"]) / "mnist")})
    assert answer["stats_by_domain"]["mnist"]["mean"] == pytest.approx([train.x.mean() / 255] * 3, abs=1e-6)
    means = [own["samples"] * np.array(own["mean"]) for own in answer["stats_by_domain"].values()]
    assert answer["mean"] == pytest.approx((sum(means) / 100).tolist(), abs=1e-5)
    _, out, _ = run(capsys, "data", "stats", f"domains:{data['path']}")
    assert "\n# usps: 40 of them, mean: [" in out


def test_a_partition_names_the_domains(data: dict[str, Any], capsys: Captured, tmp_path: Path) -> None:
    options = ("data", "partition", f"domains:{data['path']}", "-n", 4, "--seed", 5)
    code, out, _ = run(capsys, *options, "--partition", "domains", "--png", tmp_path / "a.png")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[2] == ["CLIENT", "TRAIN", "TEST", "CLASSES", "DISTANCE", "DOMAIN", *"01234"]
    assert [line[5] for line in lines[3:7]] == ["mnist", "mnistm", "usps", "mnist"]
    assert ["domains", "mnist,", "mnistm,", "usps"] in lines
    _, out, _ = run(capsys, *options, "--partition", "domains", "--json")
    told = json.loads(out)
    assert [part["domain"] for part in told["parts"]] == ["mnist", "mnistm", "usps", "mnist"]
    assert [part["domain_counts"] for part in told["parts"]] == [[20, 0, 0], [0, 20, 0], [0, 0, 40], [20, 0, 0]]
    train, test = open_dataset(data)
    own = SampleDomains.of(train, test)
    assert told["sha256"] == hash_splits(
        make_partition("domains", train.y, test.y, 4, get_partition_seed(5), None, own)
    )
    _, out, _ = run(capsys, *options, "--partition", "dirichlet:0.5", "--json")
    told = json.loads(out)
    assert told["domains"] == ["mnist", "mnistm", "usps"]
    assert np.sum([part["domain_counts"] for part in told["parts"]], 0).tolist() == [40, 20, 40]
    assert all(part["domain"] is None for part in told["parts"])


@pytest.mark.parametrize("partition", ["domains", "dirichlet:0.5"])
def test_a_simulation_learns_on_domains(data: dict[str, Any], capsys: Captured, partition: str) -> None:
    code, out, err = run(
        capsys,
        *("simulate", "--method", "fedavg", "--data", f"domains:{data['path']}", "--partition", partition, "-n", 3),
        *("--size", 6, "--rounds", 15, "--set", "lr=0.1", "--set", "local_epochs=3", "--json"),
    )
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert sum(client["num_train"] for client in result["clients"]) == 100
    assert result["best_taa"] > 0.5  # of five classes


def test_an_experiment_reads_domains_beside_its_file(data: dict[str, Any], tmp_path: Path) -> None:
    text = """\
name: domains
base: {clients: 3, rounds: 1, partition: domains, model: {name: mlp, hidden: [4]}}
sweep:
  method: [local]
  data:
    - {format: domains, path: digits3, label: all}
    - {format: domains, path: digits3, domains: [usps, mnist], classes: ["3", "1"], label: two}
"""
    experiment = make_experiment(tmp_path, text)
    runs = list(experiment.runs.values())
    validate_runs(runs, tmp_path)
    results = [simulate(make_config(run, tmp_path)) for run in runs]
    assert [[client.num_train for client in result.clients] for result in results] == [[40, 20, 40], [8, 16, 8]]
