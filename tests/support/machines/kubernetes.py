"""Kubernetes to try manifests on: a control plane of real programs on loopback, and `kubectl` for one namespace of it.

    with control_plane(tmp_path) as plane, plane.kubectl.own_namespace() as kubectl:
        kubectl("apply", "-k", "cluster")

etcd and kube-apiserver are looked for in the directory that KUBEBUILDER_ASSETS names, as controller-runtime's envtest
does, and else on the PATH; kube-controller-manager and kube-scheduler are started where they are there as well. No
kubelet runs, so no pod does: who needs a node plays its kubelet. No cluster is ever taken from the user's own
configuration: each call of `kubectl` names the file it reads.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from support.federation.ports import find_free_ports

NEEDED = ("etcd", "kube-apiserver")
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
TOKEN = "of-the-tests"  # for a server that listens on loopback until the test ends
START_S = 120
COMMAND_S = 120
STOP_S = 30


def find_program(name: str) -> str | None:
    """Finds a program in KUBEBUILDER_ASSETS if that is set, else on the PATH."""
    return shutil.which(name, path=os.environ.get("KUBEBUILDER_ASSETS"))


def find_obstacle() -> str | None:
    """Returns why there can be no control plane here, or None."""
    missing = [name for name in NEEDED if find_program(name) is None]
    if shutil.which("kubectl") is None:
        missing.append("kubectl")
    return f"no {', '.join(missing)}: they are looked for in $KUBEBUILDER_ASSETS, or on the PATH" if missing else None


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs `kubectl` in one namespace of the cluster that a file describes."""

    kubeconfig: Path
    namespace: str | None = None

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_s: float = COMMAND_S) -> str:
        """Runs kubectl and returns its output. Raises CalledProcessError if it fails, and AssertionError if it
        warns."""
        done = self.run(*arguments, stdin=stdin, timeout_s=timeout_s)
        if done.returncode != 0:
            raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        assert done.stderr == "", done.stderr
        return done.stdout

    def run(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl and returns the finished process, whatever its exit code."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}"]
        if self.namespace is not None:
            command.append(f"--namespace={self.namespace}")
        return subprocess.run(
            [*command, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def get(self, *arguments: str) -> Any:
        return json.loads(self("get", *arguments, "-o", "json"))

    def create(self, *objects: dict[str, Any]) -> None:
        self("create", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def evict(self, pod: str) -> subprocess.CompletedProcess[str]:
        """Evicts a pod as `kubectl drain` does: its disruption budget may refuse that."""
        version = "policy/v1" if self.has("policy/v1") else "policy/v1beta1"
        asked = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        return self.run("create", "--raw", path, "-f", "-", stdin=json.dumps(asked))

    def has(self, api_version: str) -> bool:
        return api_version in self("api-versions").split()

    def wait_for(self, claim: Callable[[], bool], what: str, patience_s: float) -> None:
        """Waits until the claim holds. Raises AssertionError with the content of the namespace when it does not."""
        until_s = time.monotonic() + patience_s
        while True:
            try:
                if claim():
                    return
                why = ""
            except subprocess.CalledProcessError as error:  # the object does not exist yet
                why = f": {error.stderr}"
            if time.monotonic() > until_s:
                seen = self.run("get", "pods,pvc,events", "-o", "wide").stdout
                raise AssertionError(f"not within {patience_s} s: {what}{why}\n{seen}")
            time.sleep(1)

    @contextmanager
    def own_namespace(self, labels: dict[str, str] | None = None) -> Iterator[Kubectl]:
        """Makes a new namespace, and deletes it with all that is in it."""
        name = f"fednode-test-{uuid4().hex[:8]}"
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})
        try:
            yield Kubectl(self.kubeconfig, name)
        finally:
            self("delete", "namespace", name, "--wait=false")


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A running control plane, and whether controllers work on what is written into it."""

    kubectl: Kubectl
    has_controllers: bool


@contextmanager
def control_plane(directory: Path) -> Iterator[ControlPlane]:
    """Runs a control plane. Raises AssertionError with the ends of the programs' logs if it does not start."""
    client, peer, secure = find_free_ports(3)
    etcd, server = f"http://127.0.0.1:{client}", f"https://127.0.0.1:{secure}"
    kubeconfig = write_kubeconfig(directory / "kubeconfig", server, directory / "certs/apiserver.crt")
    key, public = _write_service_account_key(directory)
    (directory / "tokens.csv").write_text(f"{TOKEN},tests,tests,system:masters\n", encoding="utf-8")
    has_controllers = all(find_program(name) for name in CONTROLLERS)
    programs = {
        "etcd": (
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
        ),
        "kube-apiserver": (
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # it has no address that others could reach
            f"--secure-port={secure}",
            f"--cert-dir={directory / 'certs'}",
            f"--token-auth-file={directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={key}",
        ),
    }
    if has_controllers:
        programs["kube-controller-manager"] = (
            f"--kubeconfig={kubeconfig}",
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={directory / 'certs/apiserver.crt'}",
            "--leader-elect=false",
            "--node-monitor-grace-period=1h",  # no kubelet reports that a node of the tests is alive
            "--secure-port=0",
        )
        programs["kube-scheduler"] = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0")
    kubectl = Kubectl(kubeconfig)
    with ExitStack() as running:
        for name, options in programs.items():
            running.enter_context(_running(directory, name, options))
            if name == "kube-apiserver":
                _wait_until_ready(kubectl, directory)
        yield ControlPlane(kubectl, has_controllers)


def write_kubeconfig(file: Path, server: str, authority: Path) -> Path:
    """Writes a kubeconfig for the tests' user, who may do everything."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "tests", "user": {"token": TOKEN}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        "current-context": "tests",
    }
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def _write_service_account_key(directory: Path) -> tuple[Path, Path]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    files = directory / "sa.key", directory / "sa.pub"
    files[0].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    files[1].write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, public))
    return files


@contextmanager
def _running(directory: Path, name: str, options: Sequence[str]) -> Iterator[None]:
    program = find_program(name)
    assert program is not None, name
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([program, *options], stdout=log, stderr=log, cwd=directory)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(kubectl: Kubectl, directory: Path) -> None:
    until_s = time.monotonic() + START_S
    while (asked := kubectl.run("get", "--raw", "/readyz")).stdout != "ok":
        if time.monotonic() > until_s:
            logs = [file.read_text(errors="replace")[-2000:] for file in sorted(directory.glob("*.log"))]
            raise AssertionError("\n".join([f"not ready within {START_S} s: {asked.stderr}", *logs]))
        time.sleep(0.5)
