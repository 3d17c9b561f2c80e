"""The Compose files of a test network: a service, a volume and a key of its own for each node.

They are derived from the repository's `docker-compose.yml` and its override for GPUs, which come with the package. The
services are the same; here a node's files are mounted from the network's directory, and its key is a secret.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from textwrap import indent

import yaml

from node.config.yaml_source import dump_yaml
from node.testnet.targets import CONFIG_DIR, KEY_FILE, UID

COMPOSE_FILE = "docker-compose.yml"
GPU_FILE = "docker-compose.gpu.yml"
TOKEN_FILE = "metrics.token"  # noqa: S105 (its name)

_ASSETS = files("node") / "assets"
_TOKEN = {"source": "metrics_token", "target": "/run/secrets/metrics/token"}

_HEAD = """\
# NUMBER nodes that train together, as `fednode testnet --target compose -n NUMBER` writes it:
#
#   docker build -t fednode -f deploy/Dockerfile .
#   fednode testnet --target compose -n NUMBER -o cluster     # keys, configurations, genesis: docs/deploy/compose.md
#   cd cluster
#   docker compose up -d
#   docker compose exec node0 fednode status --watch
#   export FEDNODE_MONITORING=REPOSITORY/deploy/monitoring
#   docker compose --profile observability up -d       # also Prometheus and Grafana, on this machine's 9090 and 3000
#   docker compose down                                # stops them; `down -v` also forgets the chain
#
# Real sites make their own keys instead (`fednode keygen`), so that no machine ever sees two of them.

"""

_NODE = f"""\
  NAME:
    <<: *node
    secrets:
      - {{source: NAME_key, target: {KEY_FILE}}}
      - {{source: {_TOKEN["source"]}, target: {_TOKEN["target"]}}}
    volumes:
      - NAME:/data
      - ${{FEDNODE_DIR:-./cluster}}/NAME.yaml:{CONFIG_DIR}/node.yaml:ro
      - ${{FEDNODE_DIR:-./cluster}}/genesis.yaml:{CONFIG_DIR}/genesis.yaml:ro
      - ${{FEDNODE_DIR:-./cluster}}/initial_model.safetensors:{CONFIG_DIR}/initial_model.safetensors:ro
"""


def render_compose(nodes: Sequence[str], data: Path | None = None) -> str:
    """Returns the Compose file of `nodes`. Each of them mounts `data` at its path on this machine, unless it is
    None."""
    services = yaml.safe_load((_ASSETS / COMPOSE_FILE).read_text(encoding="utf-8"))["services"]
    node, prometheus, grafana = (services[name] for name in ("node0", "prometheus", "grafana"))
    for key in ("depends_on", "volumes"):  # what the service `setup` makes is written here already
        del node[key]
    del node["environment"]["FEDNODE__NODE__IDENTITY_KEY_FILE"]  # the configuration names it instead
    del prometheus["depends_on"]
    prometheus["secrets"] = [_TOKEN]
    prometheus["volumes"] = [volume for volume in prometheus["volumes"] if not volume.startswith("metrics:")]

    text = _HEAD.replace("NUMBER", str(len(nodes)))
    text += dump_yaml({"x-node": node}).replace("x-node:", "x-node: &node", 1) + "\nservices:\n"
    for name in nodes:
        text += _NODE.replace("NAME", name)
        if data is not None:
            text += f"      - {_quote(f'{data}:{data}:ro')}\n"
    for service in ({"prometheus": prometheus}, {"grafana": grafana}):
        text += indent(dump_yaml(service), "  ")
    text += "\nsecrets:\n"
    for name in nodes:
        text += f"  {name}_key: {{file: '${{FEDNODE_DIR:-./cluster}}/keys/{name}.key'}}\n"
    text += f"  metrics_token: {{file: '${{FEDNODE_DIR:-./cluster}}/{TOKEN_FILE}'}}\n"
    return text + "\nvolumes:\n" + "".join(f"  {name}:\n" for name in (*nodes, "prometheus", "grafana"))


def render_gpu_override(nodes: Sequence[str], gpus: int | None = None) -> str:
    """Returns the override of the Compose file of `nodes` for GPUs: each of them sees all of the machine's GPUs, or,
    with `gpus`, one of so many that are assigned in turn."""
    head, services, _ = (_ASSETS / "deploy" / GPU_FILE).read_text(encoding="utf-8").partition("services:\n")
    if gpus is None:
        return head + services + "".join(f"  {name}: *gpu\n" for name in nodes)
    (deploy,) = (line.strip() for line in head.splitlines() if line.startswith("  deploy:"))
    own = [deploy.replace("count: all", f'device_ids: ["{i % gpus}"]') for i in range(len(nodes))]
    return head + services + "".join(f"  {name}: {{<<: *gpu, {one}}}\n" for name, one in zip(nodes, own, strict=True))


def write_compose(directory: Path, nodes: Sequence[str], data: Path | None = None, gpus: int | None = None) -> None:
    """Adds to a test network's directory what Compose needs, and makes the container's user the owner of its keys. With
    `gpus` Compose gives the nodes these GPUs whenever it runs in that directory."""
    write_token(directory / TOKEN_FILE)
    (directory / COMPOSE_FILE).write_text(render_compose(nodes, data), encoding="utf-8")
    (directory / GPU_FILE).write_text(render_gpu_override(nodes, gpus), encoding="utf-8")
    files = "" if gpus is None else f"COMPOSE_FILE={COMPOSE_FILE}:{GPU_FILE}\n"
    (directory / ".env").write_text(f"# Compose reads this beside docker-compose.yml.\n{files}FEDNODE_DIR=.\n")
    if os.geteuid() == 0:
        for name in nodes:
            os.chown(directory / "keys" / f"{name}.key", UID, UID)
        os.chown(directory / TOKEN_FILE, UID, UID)


def needs_owner() -> bool:
    """Says whether the secret files still have to change owner to the container's user, which takes root."""
    return os.geteuid() not in (0, UID)


def write_token(path: Path) -> None:
    """Writes a new token, readable by its owner and by the group of the process that scrapes."""
    path.touch(mode=0o640)
    path.chmod(0o640)
    path.write_text(f"{secrets.token_urlsafe(32)}\n", encoding="ascii")


def _quote(text: str) -> str:
    """Escapes `$`, which Compose would read as a variable."""
    return "'" + text.replace("$", "$$").replace("'", "''") + "'"
