"""Test networks for containers: what Compose and Kubernetes are handed, and what they say of it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from chain.signing import SigningKey
from node.config.genesis_file import load_genesis
from node.config.node_config import load_config
from node.errors import ConfigError
from node.testnet.layout import TestnetSpec, make_testnet
from node.testnet.targets import UID, compose, kubernetes
from node.testnet.targets.compose import render_compose, render_gpu_override

ROOT = Path(__file__).parents[4]
NODES = ("node0", "node1", "node2", "node3")
SMALL = TestnetSpec(num_nodes=4, rounds=0, settings=("model.hidden=[8]",))
COMPOSE, K8S = replace(SMALL, target="compose"), replace(SMALL, target="k8s")
VOLUMES_OF_RESTRICTED = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
}
OVERLAYS = ("base", "overlays/gpu", "overlays/observability", "overlays/multi-site")


def needs(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program}: it comes with {package}")


needs_schema = needs("check-jsonschema", "the Python package check-jsonschema")
needs_promtool = needs("promtool", "Prometheus")
needs_kubectl = needs("kubectl", "Kubernetes' client, 1.28 or newer")
needs_validator = needs("kubernetes-validate", "the Python package kubernetes-validate")


def render(directory: Path) -> str:
    done = subprocess.run(["kubectl", "kustomize", str(directory)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "something deprecated"
    return done.stdout


def render_overlay(name: str) -> str:
    if name.endswith("observability") and not (ROOT / "deploy/monitoring/rules.yml").exists():
        pytest.skip("deploy/monitoring is not there")
    return render(ROOT / "deploy/kubernetes" / name)


def find(manifests: str, kind: str, name: str = "fednode") -> Any:
    found = [one for one in yaml.safe_load_all(manifests) if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


# ---- Compose


def test_the_gpu_override_of_this_repository_is_what_is_written_for_its_nodes() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    nodes = [name for name in services if name.startswith("node")]
    assert (ROOT / "deploy/docker-compose.gpu.yml").read_text() == render_gpu_override(nodes)


@needs_schema
@pytest.mark.parametrize("data", [None, Path("/srv/it's $5/scans")])
def test_compose_files_are_what_the_specification_has(tmp_path: Path, data: Path | None) -> None:
    files = [tmp_path / name for name in ("compose.yml", "gpu.yml", "dealt.yml", "wrong.yml")]
    overrides = (render_gpu_override(NODES), render_gpu_override(NODES, 2))
    texts = (render_compose(NODES, data), *overrides, "services: {node0: {imag: fednode}}\n")
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    command = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    ours = ROOT / "docker-compose.yml"
    done = subprocess.run([*command, *files[:3], ours], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert subprocess.run([*command, files[3]], capture_output=True, check=False).returncode != 0


def read_environments() -> dict[str, dict[str, str]]:
    """What containers get, by where it stands."""
    ours = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["node0"]["environment"]
    written = yaml.safe_load(render_compose(NODES))["services"]["node0"]["environment"]
    base = yaml.safe_load((ROOT / "deploy/kubernetes/base/statefulset.yaml").read_text())
    [container] = base["spec"]["template"]["spec"]["containers"]
    pods = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    return {"docker-compose.yml": ours, "--target compose": written, "--target k8s": pods}


@pytest.mark.parametrize("where", ["docker-compose.yml", "--target compose", "--target k8s"])
def test_the_page_of_a_container_is_there_for_who_forwards_its_port(tmp_path: Path, where: str) -> None:
    config_file = make_testnet(tmp_path / "net", replace(SMALL, num_nodes=1, base_port=0)).nodes[0].config_file
    env = {name: value for name, value in read_environments()[where].items() if name.startswith("FEDNODE__HTTP__")}
    http = load_config(config_file, (), env).http
    assert (http.listen, http.serves_page) == ("0.0.0.0:8080", True)
    assert http.token_file is not None
    less = {name: value for name, value in env.items() if not name.endswith("TLS_IN_FRONT")}
    assert not load_config(config_file, (), less).http.serves_page


@pytest.mark.parametrize("name", NODES)
def test_a_container_sees_its_own_key_and_volume_alone_and_may_do_nothing_else(name: str) -> None:
    services = yaml.safe_load(render_compose(NODES))["services"]
    service = services[name]
    assert [secret["source"] for secret in service["secrets"]] == [f"{name}_key", "metrics_token"]
    mounted = [volume for volume in service["volumes"] if not volume.endswith(":ro")]
    assert mounted == [f"{name}:/data"]
    others = set(NODES) - {name}
    assert not any(other in json.dumps(service) for other in others)
    assert service["user"] == f"{UID}:{UID}"
    assert service["read_only"]
    assert service["init"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"pids_limit", "mem_limit", "logging", "stop_grace_period", "healthcheck"} <= service.keys()
    assert not {"depends_on", "ports", "privileged", "cap_add"} & service.keys()


def test_only_the_profile_starts_what_observes_and_all_of_it_is_confined() -> None:
    services = yaml.safe_load(render_compose(NODES))["services"]
    assert {name: one.get("profiles") for name, one in services.items() if name not in NODES} == {
        "prometheus": ["observability"],
        "grafana": ["observability"],
    }
    for name in ("prometheus", "grafana"):
        assert services[name]["read_only"]
        assert services[name]["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])


def test_a_compose_network_loads_as_its_containers_see_it(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        made = make_testnet(tmp_path / "c", COMPOSE)
    finally:
        os.umask(before)
    load_genesis(made.directory / "genesis.yaml")
    for i, node in enumerate(made.nodes):
        config = load_config(node.config_file)
        assert config.node.identity_key_file == Path("/run/secrets/identity.key")
        assert config.network.listen == "0.0.0.0:7050"
        assert config.network.get_peer_addresses() == {
            other.key: f"node{j}:7050" for j, other in enumerate(made.nodes) if j != i
        }
        for name in (f"node{i}.yaml", "genesis.yaml", "initial_model.safetensors"):
            assert stat.S_IMODE((made.directory / name).stat().st_mode) == 0o644
        key = made.directory / f"keys/node{i}.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        if os.geteuid() == 0:
            assert (key.stat().st_uid, key.stat().st_gid) == (UID, UID)
    assert (made.directory / "docker-compose.yml").read_text() == render_compose(NODES)
    assert (made.directory / ".env").read_text().endswith("FEDNODE_DIR=.\n")
    token = made.directory / "metrics.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o640
    assert len(token.read_text().strip()) >= 32


def test_gpus_are_dealt_out_to_the_containers_in_turn(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "c", replace(COMPOSE, gpus=3))
    services = yaml.safe_load((made.directory / "docker-compose.gpu.yml").read_text())["services"]
    reserved = [services[name]["deploy"]["resources"]["reservations"]["devices"] for name in NODES]
    assert reserved == [
        [{"driver": "nvidia", "device_ids": [i], "capabilities": ["gpu"]}] for i in ("0", "1", "2", "0")
    ]
    for name in NODES:
        assert services[name]["image"] == "${FEDNODE_CUDA_IMAGE:-fednode:cuda}"
        assert load_config(made.directory / f"{name}.yaml").training.device == "cuda"  # the one that it sees
    assert "COMPOSE_FILE=docker-compose.yml:docker-compose.gpu.yml\n" in (made.directory / ".env").read_text()
    assert (made.directory / "docker-compose.yml").read_text() == render_compose(NODES)


def test_gpus_are_dealt_out_to_processes_in_turn(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "c", replace(SMALL, gpus=3, base_port=0))
    devices = [load_config(node.config_file).training.device for node in made.nodes]
    assert devices == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]


def test_data_of_this_machine_are_mounted_where_they_are() -> None:
    services = yaml.safe_load(render_compose(NODES, Path("/srv/it's $5")))["services"]
    assert all("/srv/it's $$5:/srv/it's $$5:ro" in services[name]["volumes"] for name in NODES)


def test_whoever_is_not_root_is_told_to_give_the_keys_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for uid, needed in ((0, False), (UID, False), (1000, True)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        assert compose.needs_owner() is needed


@needs_promtool
def test_prometheus_takes_its_configuration_for_containers() -> None:
    file = ROOT / "deploy/monitoring/prometheus-containers.yml"
    done = subprocess.run(["promtool", "check", "config", "--syntax-only", file], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    mounted = yaml.safe_load(file.read_text())["scrape_configs"][0]["authorization"]["credentials_file"]
    prometheus = yaml.safe_load(render_compose(NODES))["services"]["prometheus"]
    assert [secret["target"] for secret in prometheus["secrets"]] == [mounted]


# ---- Kubernetes


@needs_kubectl
def test_a_kustomize_network_has_what_its_pods_need(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "c", replace(K8S, num_nodes=3))
    manifests = render(made.directory)
    pods = find(manifests, "StatefulSet")["spec"]
    assert (pods["replicas"], pods["podManagementPolicy"]) == (3, "Parallel")
    names = [f"fednode-{i}" for i in range(3)]
    volumes = {volume["name"]: volume for volume in pods["template"]["spec"]["volumes"]}
    config = find(manifests, "ConfigMap", volumes["config"]["configMap"]["name"])
    assert set(config["data"]) == {"genesis.yaml", *(f"{name}.yaml" for name in names)}
    assert set(config["binaryData"]) == {"initial_model.safetensors"}
    sources = [source["secret"] for source in volumes["keys"]["projected"]["sources"]]
    for name, node, source in zip(names, made.nodes, sources, strict=True):
        secret = find(manifests, "Secret", source["name"])
        assert source["items"] == [{"key": "identity.key", "path": f"{name}.key"}]
        assert SigningKey.from_pem(base64.b64decode(secret["data"]["identity.key"]), None).id == node.key
        assert node.address == f"{name}.fednode:7050"
    assert find(manifests, "Service")["spec"]["publishNotReadyAddresses"]
    find(manifests, "Secret", "fednode-metrics-token")
    find(manifests, "PodDisruptionBudget")
    find(manifests, "NetworkPolicy")


@needs_kubectl
def test_a_pod_has_its_own_key_mounted_and_is_restricted() -> None:
    pod = find(render_overlay("base"), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    (keys,) = (mount for mount in container["volumeMounts"] if mount["name"] == "keys")
    assert (keys["subPathExpr"], keys["readOnly"]) == ("$(POD_NAME).key", True)
    assert keys["mountPath"] == "/run/secrets/identity.key"


@needs_kubectl
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_pod_keeps_to_kubernetes_restricted_standard(name: str) -> None:
    objects = list(yaml.safe_load_all(render_overlay(name)))
    pods = [one["spec"]["template"]["spec"] for one in objects if one["kind"] in ("StatefulSet", "Deployment")]
    assert pods
    for pod in pods:
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & pod.keys()
        assert {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}} <= VOLUMES_OF_RESTRICTED
        shared = pod["securityContext"]
        assert shared["runAsNonRoot"] is True
        assert shared["runAsUser"] != 0
        assert shared["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"sysctls", "seLinuxOptions", "appArmorProfile", "windowsOptions"} & shared.keys()
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert not own.keys() - {"allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem"}, "weakened"
            assert not any("hostPort" in port for port in container["ports"])
            probes = [container[probe] for probe in container if probe.endswith("Probe")]
            assert probes
            assert not any("host" in probe["httpGet"] for probe in probes)


@needs_kubectl
def test_the_overlays_change_what_they_are_for() -> None:
    (container,) = find(render_overlay("overlays/gpu"), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "fednode:cuda"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"name": "FEDNODE__TRAINING__DEVICE", "value": "cuda"} in container["env"]
    assert len(container["env"]) > 1, "the base's are gone"
    sites = render_overlay("overlays/multi-site")
    assert find(sites, "Service", "fednode-peer")["spec"]["type"] == "LoadBalancer"
    assert find(sites, "NetworkPolicy")["spec"]["ingress"][0]["from"] == [{"ipBlock": {"cidr": "0.0.0.0/0"}}]


@needs_kubectl
def test_each_pod_of_a_network_with_gpus_asks_for_one(tmp_path: Path) -> None:
    made = make_testnet(tmp_path / "c", replace(K8S, gpus=4))
    (container,) = find(render(made.directory), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "fednode:cuda"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {load_config(node.config_file).training.device for node in made.nodes} == {"cuda"}


@needs_kubectl
@needs_validator
@pytest.mark.parametrize("name", [*OVERLAYS, "testnet", "testnet with gpus"])
def test_kubernetes_takes_the_manifests(tmp_path: Path, name: str) -> None:
    is_testnet = name.startswith("testnet")
    spec = replace(K8S, gpus=4) if "gpus" in name else K8S
    manifests = render(make_testnet(tmp_path / "c", spec).directory) if is_testnet else render_overlay(name)
    for text, is_right in ((manifests, True), (manifests.replace("\nspec:", "\nspek:"), False)):
        (tmp_path / "manifests.yaml").write_text(text)
        command = ["kubernetes-validate", "--strict", str(tmp_path / "manifests.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is is_right, done.stdout + done.stderr


def test_what_a_config_map_cannot_hold_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "MAX_CONFIG_BYTES", 4096)
    with pytest.raises(ConfigError, match="expected at most 4096 bytes of configurations, genesis and initial model"):
        make_testnet(tmp_path / "c", K8S)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(SMALL, target="nomad"), "--target: expected one of local, compose, k8s (got 'nomad')"),
        (replace(COMPOSE, host="10.0.0.1"), "--target compose: expected no --host and no --base-port"),
        (replace(K8S, base_port=9000), "--target k8s: expected no --host and no --base-port"),
        (replace(COMPOSE, http_port=8080), "--target compose: expected no --http-port"),
        (replace(K8S, gpus=3), "--gpus: expected at least 4 with --target k8s, as each pod has one of its own (got 3)"),
        (replace(SMALL, gpus=0), "--gpus: expected at least 1 (got 0)"),
    ],
)
def test_what_does_not_go_with_a_target_is_refused(tmp_path: Path, spec: TestnetSpec, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_testnet(tmp_path / "c", spec)
    assert str(caught.value).startswith(message)
    assert list(tmp_path.iterdir()) == []
