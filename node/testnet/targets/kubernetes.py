"""A Kustomize directory for a test network: `kubectl apply -k DIR` starts it.

The manifests are those of `deploy/kubernetes` (`base` and, with GPUs, `components/gpu`), which come with the package;
written here is what makes them this network: how many pods, their configurations, genesis, and a Secret for each key.
The pods of a StatefulSet are made from one template, so all keys are one volume's, of which each container has its own
file mounted.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from node.config.yaml_source import dump_yaml
from node.errors import ConfigError
from node.testnet.targets.compose import TOKEN_FILE, write_token

BASE = files("node.testnet.targets") / "kubernetes_base"
GPU = files("node.testnet.targets") / "kubernetes_gpu"
MAX_CONFIG_BYTES = 1_000_000  # a ConfigMap holds 1 MiB of all its files; binary ones grow by a third in base64
_MODEL_FILE = "initial_model.safetensors"
_HEAD = """\
# A test network of {n} nodes:  kubectl apply -k .  and  kubectl exec fednode-0 -- fednode status --watch
# Kustomize components, as deploy/kubernetes/components/gpu, can be added by their paths under `components`.
"""


def write_kustomization(directory: Path, nodes: Sequence[str], *, has_gpus: bool = False) -> None:
    """Adds to a test network's directory what Kustomize needs. Raises ConfigError where that is too large for a
    ConfigMap.

    With `has_gpus` each pod asks for one, and runs the image that can use it.
    """
    configs = [f"{name}.yaml" for name in nodes]
    shared = ["genesis.yaml", _MODEL_FILE]
    size = sum((directory / name).stat().st_size for name in (*configs, *shared[:1]))
    size += (directory / _MODEL_FILE).stat().st_size * 4 // 3
    if size > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"--target k8s: expected at most {MAX_CONFIG_BYTES} bytes of configurations, genesis and initial model, "
            f"which a ConfigMap has to hold (got {size}); name a smaller --model, or fewer nodes"
        )
    write_token(directory / TOKEN_FILE)
    _copy(BASE, directory / "base")
    mapping = _make_kustomization(nodes, configs + shared)
    if has_gpus:
        _copy(GPU, directory / "gpu")
        mapping["components"] = ["gpu"]
    text = _HEAD.format(n=len(nodes)) + dump_yaml(mapping)
    (directory / "kustomization.yaml").write_text(text, encoding="utf-8")


def _copy(manifests: Traversable, directory: Path) -> None:
    directory.mkdir()
    for file in manifests.iterdir():
        (directory / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")


def _make_kustomization(nodes: Sequence[str], configs: Sequence[str]) -> dict[str, Any]:
    fixed = {"disableNameSuffixHash": True}  # a key never changes, and a fixed name is easier to find
    keys = [{"name": f"{name}-key", "files": [f"identity.key=keys/{name}.key"], "options": fixed} for name in nodes]
    token = {"name": "fednode-metrics-token", "files": [f"token={TOKEN_FILE}"], "options": fixed}
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["base"],
        "replicas": [{"name": "fednode", "count": len(nodes)}],
        "configMapGenerator": [{"name": "fednode-config", "files": list(configs)}],
        "secretGenerator": [*keys, token],
        "patches": [{"patch": dump_yaml(_mount_keys(nodes))}],
    }


def _mount_keys(nodes: Sequence[str]) -> dict[str, Any]:
    """Returns the volume of keys, with those of all pods in it."""
    sources = [
        {"secret": {"name": f"{name}-key", "items": [{"key": "identity.key", "path": f"{name}.key"}]}} for name in nodes
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "fednode"},
        "spec": {"template": {"spec": {"volumes": [{"name": "keys", "projected": {"sources": sources}}]}}},
    }
