"""The manifests as a real Kubernetes takes them.

Two ways to try them, each skipped where it cannot be had:

- A control plane that the test starts itself (`machines.kubernetes`): are the manifests taken as they are, and what do
  the controllers make of them? Pods are made and placed there, and none runs.
- A cluster, of which FEDNODE_TEST_KUBECONFIG names the file; no other is ever touched. Do the pods train and finalise
  there, through a deletion, an update and a drain? All that is made is in a namespace of the test's own. The cluster
  has, or can pull, the image that FEDNODE_TEST_IMAGE names (else `fednode`), and volumes for who claims them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.testnet.layout import TestnetSpec, make_testnet
from support.machines.kubernetes import ControlPlane, Kubectl, control_plane, find_obstacle

ROOT = Path(__file__).parents[2]
PODS = ("fednode-0", "fednode-1", "fednode-2", "fednode-3")
OVERLAYS = ("base", "overlays/gpu", "overlays/observability", "overlays/multi-site")
RESTRICTED = {f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "warn")}
CONTROLLER_S = 120
READY_S = 600
PATIENCE_S = 300

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]


# ---- A control plane alone


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    obstacle = find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        yield running


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[Kubectl]:
    """Where pods are refused that are not as restricted as Kubernetes' own standard has it."""
    with plane.kubectl.own_namespace(RESTRICTED) as kubectl:
        yield kubectl


@pytest.mark.parametrize("name", [*OVERLAYS, "testnet"])
def test_an_api_server_takes_the_manifests_without_a_word_and_keeps_them_as_they_are(
    namespace: Kubectl, tmp_path: Path, name: str
) -> None:
    directory = make_network(tmp_path) if name == "testnet" else ROOT / "deploy/kubernetes" / name
    directory = suit(namespace, directory, tmp_path)

    made = namespace("apply", "--validate=strict", "-k", str(directory))
    assert "statefulset.apps/fednode created" in made
    assert all(line.endswith(" created") for line in made.splitlines()), made
    assert namespace("diff", "-k", str(directory)) == ""
    before = get_kept(namespace, directory)
    namespace("apply", "-k", str(directory))
    assert get_kept(namespace, directory) == before


@pytest.mark.parametrize("wrong", ["podManagementPolicy: Always", "podManagementPolicies: Parallel"])
def test_an_api_server_refuses_other_values_and_fields(namespace: Kubectl, tmp_path: Path, wrong: str) -> None:
    right = "podManagementPolicy: Parallel"
    manifests = namespace("kustomize", str(suit(namespace, make_network(tmp_path), tmp_path)))
    dry = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    assert right in manifests
    namespace(*dry, stdin=manifests)
    refused = namespace.run(*dry, stdin=manifests.replace(right, wrong))
    assert refused.returncode != 0
    assert wrong.split(":")[0] in refused.stderr


def test_pods_are_placed_at_once_each_with_its_volume_and_one_at_a_time_is_evicted(
    plane: ControlPlane, namespace: Kubectl, tmp_path: Path
) -> None:
    if not plane.has_controllers:
        pytest.skip("no kube-controller-manager and kube-scheduler beside kube-apiserver")
    namespace.create(NODE, *make_volumes(namespace))
    namespace("apply", "-k", str(suit(namespace, make_network(tmp_path), tmp_path)))
    namespace.wait_for(lambda: are_placed(namespace), "four pods placed, though none is ready", CONTROLLER_S)
    claims = {claim["metadata"]["name"]: claim["status"]["phase"] for claim in namespace.get("pvc")["items"]}
    assert claims == {f"data-{pod}": "Bound" for pod in PODS}
    assert get_allowed_disruptions(namespace) == 0

    set_running(namespace, PODS, ready=False)
    namespace.wait_for(lambda: get_names(namespace) == set(PODS), "names of what is not ready", CONTROLLER_S)
    set_running(namespace, PODS, ready=True)
    namespace.wait_for(lambda: get_allowed_disruptions(namespace) == 1, "one may be evicted", CONTROLLER_S)
    gone = namespace.get("pod", PODS[0])["metadata"]["uid"]
    assert_one_at_a_time_is_evicted(namespace)

    namespace.run("delete", "pod", PODS[0], "--force", "--grace-period=0")  # as its kubelet would, when it has ended
    namespace.wait_for(lambda: get_uid(namespace, PODS[0]) != gone, "another pod of the name", CONTROLLER_S)
    (data,) = (one for one in namespace.get("pod", PODS[0])["spec"]["volumes"] if one["name"] == "data")
    assert data["persistentVolumeClaim"]["claimName"] == f"data-{PODS[0]}"


# ---- A cluster


@pytest.fixture
def cluster() -> Iterator[Kubectl]:
    file = os.environ.get("FEDNODE_TEST_KUBECONFIG")
    if not file:
        pytest.skip("no cluster: FEDNODE_TEST_KUBECONFIG names none")
    with Kubectl(Path(file)).own_namespace(RESTRICTED) as kubectl:
        yield kubectl


def test_four_pods_agree_through_a_deletion_an_update_and_a_drain(cluster: Kubectl, tmp_path: Path) -> None:
    image = os.environ.get("FEDNODE_TEST_IMAGE", "fednode")
    network = stand_on(tmp_path / "image", make_network(tmp_path), images=[{"name": "fednode", "newName": image}])
    cluster("apply", "--validate=strict", "-k", str(suit(cluster, network, tmp_path)))
    wait_until_ready(cluster)
    wait_for_height(cluster, 3)
    assert_one_chain(cluster)
    assert_confined(cluster, "fednode-1")

    gone = get_uid(cluster, "fednode-2")
    cluster("delete", "pod", "fednode-2")
    others = [pod for pod in PODS if pod != "fednode-2"]
    wait_for_height(cluster, max(get_heights(cluster, others)) + 2, others)
    wait_until_ready(cluster)
    assert get_uid(cluster, "fednode-2") != gone
    wait_for_height(cluster, max(get_heights(cluster, others)) + 2)
    assert_one_chain(cluster)

    before = {pod: get_uid(cluster, pod) for pod in PODS}
    height = max(get_heights(cluster))
    cluster("rollout", "restart", "statefulset/fednode")
    cluster("rollout", "status", "statefulset/fednode", f"--timeout={READY_S}s", timeout_s=READY_S + 30)
    assert not set(before.values()) & {get_uid(cluster, pod) for pod in PODS}
    wait_for_height(cluster, height + 2)
    assert_one_chain(cluster)

    wait_until_ready(cluster)
    cluster.wait_for(lambda: get_allowed_disruptions(cluster) == 1, "one may be evicted", CONTROLLER_S)
    assert_one_at_a_time_is_evicted(cluster)
    wait_until_ready(cluster)
    wait_for_height(cluster, max(get_heights(cluster, PODS[1:])) + 2)
    assert_one_chain(cluster)
    assert ask(cluster, PODS[0], "chain", "verify")["ok"]


# ---- What is written


def make_network(scratch: Path) -> Path:
    """What `fednode testnet --target k8s` writes, for rounds until it is stopped."""
    return make_testnet(scratch / "network", TestnetSpec(num_nodes=len(PODS), rounds=0, target="k8s")).directory


def stand_on(directory: Path, base: Path, **more: Any) -> Path:
    """A Kustomize directory that changes something in another."""
    directory.mkdir()
    text = yaml.safe_dump({"resources": [os.path.relpath(base, directory)], **more})
    (directory / "kustomization.yaml").write_text(text, encoding="utf-8")
    return directory


def suit(kubectl: Kubectl, directory: Path, scratch: Path) -> Path:
    """The same for a server older than 1.21, which has disruption budgets in an earlier version of them alone."""
    if kubectl.has("policy/v1"):
        return directory
    replacement = {"op": "replace", "path": "/apiVersion", "value": "policy/v1beta1"}
    patch = {"target": {"kind": "PodDisruptionBudget"}, "patch": json.dumps([replacement])}
    return stand_on(scratch / "older", directory, patches=[patch])


# ---- What a kubelet would do


NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "of-the-tests", "labels": {"kubernetes.io/hostname": "of-the-tests"}},
    "status": {
        "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "as a kubelet says"}],
    },
}


def make_volumes(namespace: Kubectl) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{namespace.namespace}-{pod}"},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/nowhere"},
                "claimRef": {"namespace": namespace.namespace, "name": f"data-{pod}"},
            },
        }
        for pod in PODS
    ]


def set_running(namespace: Kubectl, pods: Sequence[str], *, ready: bool) -> None:
    for i, pod in enumerate(pods):
        ip = f"10.0.0.{i + 1}"
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions}
        patch = json.dumps({"status": status})
        namespace("patch", "pod", pod, "--subresource=status", "--type=merge", "--patch", patch)


# ---- What there is


def are_placed(kubectl: Kubectl) -> bool:
    pods = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in kubectl.get("pods")["items"]}
    return pods.keys() == set(PODS) and all(pods.values())


def get_uid(kubectl: Kubectl, pod: str) -> str:
    return str(kubectl.get("pod", pod)["metadata"]["uid"])


def get_kept(kubectl: Kubectl, directory: Path) -> list[dict[str, Any]]:
    """What the server keeps of the manifests, but for what its own controllers write all the while."""
    items: list[dict[str, Any]] = kubectl.get("-k", str(directory))["items"]
    for one in items:
        one.pop("status", None)
        for name in ("resourceVersion", "managedFields"):
            one["metadata"].pop(name, None)
    return items


def get_names(kubectl: Kubectl) -> set[str]:
    """Under which the headless service is to give addresses, of pods that are ready or not."""
    slices = kubectl.get("endpointslices", "-l", "kubernetes.io/service-name=fednode")["items"]
    found = [endpoint for one in slices for endpoint in one["endpoints"] or ()]
    return {endpoint["hostname"] for endpoint in found if endpoint["conditions"]["ready"]}


def get_allowed_disruptions(kubectl: Kubectl) -> int:
    status = kubectl.get("poddisruptionbudget", "fednode").get("status", {})
    assert status.get("expectedPods", len(PODS)) == len(PODS)
    return int(status.get("disruptionsAllowed", -1))


def assert_one_at_a_time_is_evicted(kubectl: Kubectl) -> None:
    first, second = (kubectl.evict(pod) for pod in PODS[:2])
    assert first.returncode == 0, first.stderr
    assert second.returncode != 0
    assert "disruption budget" in second.stderr


def ask(kubectl: Kubectl, pod: str, *command: str) -> Any:
    """What a command of fednode prints in a pod."""
    return json.loads(kubectl("exec", pod, "--", "fednode", *command, "--json"))


def wait_until_ready(kubectl: Kubectl) -> None:
    def is_ready() -> bool:
        return bool(kubectl.get("statefulset", "fednode")["status"].get("readyReplicas") == len(PODS))

    kubectl.wait_for(is_ready, "four pods ready by their probes", READY_S)


def get_heights(kubectl: Kubectl, pods: Sequence[str] = PODS) -> list[int]:
    return [ask(kubectl, pod, "status")["height"] for pod in pods]


def wait_for_height(kubectl: Kubectl, height: int, pods: Sequence[str] = PODS) -> None:
    what = f"height {height} at {', '.join(pods)}"
    kubectl.wait_for(lambda: min(get_heights(kubectl, pods)) >= height, what, PATIENCE_S)


def assert_one_chain(kubectl: Kubectl) -> None:
    height = min(get_heights(kubectl))
    blocks = {ask(kubectl, pod, "chain", "show", str(height))["id"] for pod in PODS}
    assert len(blocks) == 1, f"different blocks at height {height}: {blocks}"


def assert_confined(kubectl: Kubectl, pod: str) -> None:
    """Its own key, no rights, and nothing to write into but what is its own."""
    look = "find / -name '*.key' -not -path '/proc/*' 2>/dev/null; touch /usr/written 2>&1"
    seen = kubectl("exec", pod, "--", "/bin/sh", "-c", f"{look}; id -u; cat /proc/1/status")
    assert seen.count(".key") == 1, seen
    assert "Read-only file system" in seen
    assert "\n10001\n" in seen
    assert "CapEff:\t0000000000000000" in seen
    assert "NoNewPrivs:\t1" in seen
