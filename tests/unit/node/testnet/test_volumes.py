"""The volumes of docker-compose.yml: made once from what the environment says, kept, and refused in one line."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.cli import main
from node.config.genesis_file import INITIAL_MODEL, load_genesis
from node.config.identity import load_identity
from node.config.node_config import load_config
from node.errors import ConfigError
from node.testnet.targets.compose import render_compose
from node.testnet.volumes import DEFAULTS, make_volumes

ROOT = Path(__file__).parents[4]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
NODES = tuple(f"node{i}" for i in range(7))
FILES = {"node.yaml", "genesis.yaml", INITIAL_MODEL, "identity.key", "made.json"}
SMALL = {"FEDNODE_SET": "model.hidden=[8]"}


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Empty volumes, mounted as the first service sees them."""
    for name in (*NODES, "metrics"):
        (tmp_path / "sites" / name).mkdir(parents=True)
    return tmp_path / "sites"


def read_all(sites: Path) -> dict[Path, bytes]:
    return {file.relative_to(sites): file.read_bytes() for file in sites.rglob("*") if file.is_file()}


def test_each_volume_has_its_nodes_own_key_and_what_all_share(sites: Path) -> None:
    made = make_volumes(sites, SMALL)

    assert (made.num_nodes, made.is_new) == (4, True)
    keys = [load_identity(sites / name / "identity.key").id for name in NODES[:4]]
    for i, name in enumerate(NODES[:4]):
        assert {file.name for file in (sites / name).iterdir()} == FILES
        genesis, _ = load_genesis(sites / name / "genesis.yaml")
        assert genesis.chain_id.hex() == made.chain_id
        assert [member.key for member in genesis.state.members if member.name == name] == [keys[i]]
        config = load_config(sites / name / "node.yaml")
        assert config.node.name == name
        assert config.network.get_peer_addresses() == {key: f"node{j}:7050" for j, key in enumerate(keys) if j != i}
        assert stat.S_IMODE((sites / name / "identity.key").stat().st_mode) == 0o600
    assert not any(any((sites / name).iterdir()) for name in NODES[4:])
    assert stat.S_IMODE((sites / "metrics/token").stat().st_mode) == 0o640


def test_a_later_start_changes_nothing_whether_it_says_the_same_or_nothing(sites: Path) -> None:
    asked = SMALL | {"FEDNODE_METHOD": "fedavg", "FEDNODE_ROUNDS": "3"}
    first = make_volumes(sites, asked)
    before = read_all(sites)

    for again in (asked, {}, {"FEDNODE_METHOD": "fedavg", "FEDNODE_SEED": "1", "FEDNODE_NODES": "4"}):
        second = make_volumes(sites, again)
        assert (second.chain_id, second.settings, second.is_new) == (first.chain_id, first.settings, False)
    assert read_all(sites) == before


def test_what_is_said_arrives_in_genesis_and_configurations(sites: Path) -> None:
    environment = {
        "COMPOSE_PROFILES": "observability,nodes-5",
        "FEDNODE_NODES": "5",
        "FEDNODE_METHOD": "fedavg",
        "FEDNODE_PARTITION": "iid",
        "FEDNODE_ROUNDS": "0",
        "FEDNODE_SET": "lr=0.05 model.hidden=[8]",
    }
    assert make_volumes(sites, environment).num_nodes == 5
    genesis, _ = load_genesis(sites / "node4/genesis.yaml")
    assert (len(genesis.state.members), genesis.run.rounds, genesis.run.method["name"]) == (5, 0, "fedavg")
    assert genesis.run.method["lr"] == 0.05
    config = yaml.safe_load((sites / "node4/node.yaml").read_text())
    assert config["data"]["partition"] | {"scheme": "iid", "index": 4, "of": 5} == config["data"]["partition"]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FEDNODE_NODES": "four"}, "FEDNODE_NODES: expected 4 to 7 (got 'four')"),
        ({"FEDNODE_NODES": "8"}, "FEDNODE_NODES: expected 4 to 7 (got '8')"),
        (
            {"FEDNODE_NODES": "6"},
            "FEDNODE_NODES: Compose starts 4 nodes (got 6): set COMPOSE_PROFILES=nodes-6 as well",
        ),
        ({"COMPOSE_PROFILES": "nodes-9"}, "COMPOSE_PROFILES: expected one of nodes-5, nodes-6, nodes-7, or none of"),
        ({"COMPOSE_PROFILES": "nodes-5,nodes-6"}, "COMPOSE_PROFILES: expected one of nodes-5, nodes-6, nodes-7, or"),
        ({"FEDNODE_METHOD": "sorcery"}, "FEDNODE_METHOD: method.name: unknown method 'sorcery': expected one of"),
        ({"FEDNODE_MODEL": "brain"}, "FEDNODE_MODEL: model.name: unknown model 'brain'"),
        ({"FEDNODE_DATA": "idx:/nowhere"}, "FEDNODE_DATA: /nowhere: expected files named like"),
        ({"FEDNODE_PARTITION": "fair"}, "FEDNODE_PARTITION: unknown scheme 'fair'"),
        ({"FEDNODE_ROUNDS": "-1"}, "FEDNODE_ROUNDS: expected a number from 0 to 999999999 (got '-1')"),
        ({"FEDNODE_SEED": "x"}, "FEDNODE_SEED: expected a number"),
        ({"FEDNODE_SET": "lr=fast"}, "FEDNODE_SET lr: method.lr: expected a number"),
        ({"FEDNODE_METHOD": "fededs"}, "FEDNODE_METHOD: fededs sends a learned transformation"),
        ({"FEDNODE_I_UNDERSTAND": "maybe"}, "FEDNODE_I_UNDERSTAND: expected true or false (got 'maybe')"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name_and_nothing_is_written(
    sites: Path, environment: Mapping[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_volumes(sites, environment)
    assert str(caught.value).startswith(message)
    assert "\n" not in caught.value.describe()
    assert not read_all(sites)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FEDNODE_METHOD": "fedavg"}, "FEDNODE_METHOD: expected 'auto', as it was made (got 'fedavg'); `docker"),
        ({"FEDNODE_SEED": "2"}, "FEDNODE_SEED: expected '1', as it was made (got '2')"),
        ({"COMPOSE_PROFILES": "nodes-7"}, "FEDNODE_NODES: expected 4, as it was made (got 7, as many as Compose"),
    ],
)
def test_another_setting_than_it_was_made_with_is_refused(
    sites: Path, environment: Mapping[str, str], message: str
) -> None:
    make_volumes(sites, SMALL)
    before = read_all(sites)
    with pytest.raises(ConfigError) as caught:
        make_volumes(sites, environment)
    assert str(caught.value).startswith(message)
    assert "docker compose down -v" in str(caught.value)
    assert read_all(sites) == before


def test_a_key_in_use_is_not_replaced_when_another_volume_is_lost(sites: Path) -> None:
    make_volumes(sites, SMALL)
    for file in (sites / "node0").iterdir():
        file.unlink()
    before = read_all(sites)
    with pytest.raises(ConfigError, match="node0: expected the files of chain"):
        make_volumes(sites, SMALL)
    assert read_all(sites) == before


def test_what_was_begun_and_not_ended_is_made_anew(sites: Path) -> None:
    make_volumes(sites, SMALL)
    for name in NODES[:4]:
        (sites / name / "made.json").unlink()  # the last that is written
    (sites / "node3/identity.key").unlink()
    made = make_volumes(sites, SMALL)
    assert made.is_new
    assert {load_genesis(sites / name / "genesis.yaml")[0].chain_id.hex() for name in NODES[:4]} == {made.chain_id}


def test_a_record_that_cannot_be_read_is_refused(sites: Path) -> None:
    make_volumes(sites, SMALL)
    (sites / "node1/made.json").write_text("[")
    with pytest.raises(ConfigError, match=r"node1/made\.json: cannot be read"):
        make_volumes(sites, SMALL)


@pytest.mark.parametrize("text", ["[]", "{}", '{"chain_id": "a", "nodes": 4, "settings": 5}'])
def test_a_record_that_is_none_is_refused_though_all_volumes_agree_on_it(sites: Path, text: str) -> None:
    make_volumes(sites, SMALL)
    for volume in sites.glob("node*"):
        (volume / "made.json").write_text(text)
    with pytest.raises(ConfigError, match=r"node0/made\.json: cannot be read"):
        make_volumes(sites, SMALL)


def test_without_volumes_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a volume on each of node0 to node3 and metrics"):
        make_volumes(tmp_path, SMALL)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_found(
    sites: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("COMPOSE_PROFILES", "FEDNODE_NODES", *DEFAULTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEDNODE_SET", SMALL["FEDNODE_SET"])
    assert main(["compose-setup", str(sites)]) == 0
    assert capsys.readouterr().out.endswith(", made now\n")
    assert main(["compose-setup", str(sites), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["nodes"], facts["new"], facts["settings"]["FEDNODE_METHOD"]) == (4, False, "auto")
    monkeypatch.setenv("FEDNODE_METHOD", "sorcery")
    assert main(["compose-setup", str(sites)]) == 78
    assert capsys.readouterr().err.startswith("fednode: FEDNODE_METHOD: expected 'auto'")


# ---- docker-compose.yml


def test_the_first_service_hears_every_setting_and_sees_every_volume() -> None:
    setup = COMPOSE["services"]["setup"]
    assert set(setup["environment"]) == {"COMPOSE_PROFILES", "FEDNODE_NODES", *DEFAULTS}
    assert {volume.split(":")[1] for volume in setup["volumes"][:8]} == {
        f"/sites/{name}" for name in (*NODES, "metrics")
    }
    made_in_image = (ROOT / "deploy/Dockerfile").read_text()
    assert all(f"/sites/{name}" in made_in_image for name in (*NODES, "metrics"))
    assert (setup["restart"], setup["network_mode"]) == ("no", "none")


@pytest.mark.parametrize("name", ["setup", *NODES, "prometheus", "grafana"])
def test_every_service_is_as_confined_as_one_that_is_kept(name: str) -> None:
    kept = yaml.safe_load(render_compose(NODES))
    service = COMPOSE["services"][name]
    for other in kept["services"].values():
        assert other | COMPOSE["x-confined"] == other
    assert service | COMPOSE["x-confined"] == service | ({"restart": "unless-stopped"} if name == "setup" else {})
    if name == "setup" or name in NODES:
        assert service["user"] == kept["services"]["node0"]["user"]
    assert not {"privileged", "cap_add", "devices"} & service.keys()


@pytest.mark.parametrize("name", NODES)
def test_a_node_sees_its_own_volumes_alone_and_starts_when_they_are_made(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["volumes"][:3] == [
        f"{name}-chain:/data",
        f"{name}-site:/etc/fednode:ro",
        "metrics:/run/secrets/metrics:ro",
    ]
    assert all(volume.endswith(":ro") for volume in service["volumes"][1:])
    assert not any(other in json.dumps(service) for other in set(NODES) - {name})
    assert service["depends_on"] == {"setup": {"condition": "service_completed_successfully"}}
    more = [f"nodes-{n}" for n in range(5, 8) if n > int(name.removeprefix("node"))]
    assert service.get("profiles", []) == (more if name in NODES[4:] else [])
    kept = yaml.safe_load(render_compose(NODES))["services"][name]
    for key in ("healthcheck", "stop_grace_period", "networks", "command", "image", "pull_policy"):
        assert service[key] == kept[key]


def test_no_volume_has_a_name_that_another_begins_with() -> None:
    names = list(COMPOSE["volumes"])
    assert not [(one, other) for one in names for other in names if one != other and other.startswith(one)]


def test_what_observes_is_as_in_the_files_that_are_kept() -> None:
    kept = yaml.safe_load(render_compose(NODES))["services"]
    for name in ("prometheus", "grafana"):
        ours, theirs = dict(COMPOSE["services"][name]), dict(kept[name])
        ours["volumes"] = [volume for volume in ours["volumes"] if not volume.startswith("metrics:")]
        for key in ("depends_on", "secrets"):
            ours.pop(key, None)
            theirs.pop(key, None)
        assert ours == theirs
