"""Compose files for a test network: a service, a volume and a key of its own for each node."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from node.testnet.targets import CONFIG_DIR, KEY_FILE, UID

COMPOSE_FILE = "docker-compose.yml"
GPU_FILE = "docker-compose.gpu.yml"
TOKEN_FILE = "metrics.token"  # noqa: S105 (its name)

_HEAD = f"""\
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

x-confined: &confined
  read_only: true
  init: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  pids_limit: 256
  mem_limit: 1g
  restart: unless-stopped
  logging: {{driver: json-file, options: {{max-size: 10m}}}}

# The nodes do not wait for each other: whoever is there first dials until the others are.
x-node: &node
  <<: *confined
  image: ${{FEDNODE_IMAGE:-fednode}}
  pull_policy: never
  user: "{UID}:{UID}"
  command: [--config, {CONFIG_DIR}/node.yaml]
  environment:
    FEDNODE__HTTP__LISTEN: 0.0.0.0:8080
    FEDNODE__HTTP__TOKEN_FILE: /run/secrets/metrics/token
    FEDNODE__HTTP__TLS_IN_FRONT: "true"  # this network ends on this machine; publish the port on 127.0.0.1 alone
  networks: {{default: {{aliases: [fednode]}}}}  # one name for all, by which Prometheus finds them
  stop_grace_period: 30s
  healthcheck:
    test: [CMD, fednode, health]
    interval: 15s
    timeout: 30s
    start_period: 60s
    retries: 3

services:
"""

_NODE = f"""\
  NAME:
    <<: *node
    secrets:
      - {{source: NAME_key, target: {KEY_FILE}}}
      - {{source: metrics_token, target: /run/secrets/metrics/token}}
    volumes:
      - NAME:/data
      - ${{FEDNODE_DIR:-./cluster}}/NAME.yaml:{CONFIG_DIR}/node.yaml:ro
      - ${{FEDNODE_DIR:-./cluster}}/genesis.yaml:{CONFIG_DIR}/genesis.yaml:ro
      - ${{FEDNODE_DIR:-./cluster}}/initial_model.safetensors:{CONFIG_DIR}/initial_model.safetensors:ro
"""

_OBSERVABILITY = f"""\
  prometheus:
    <<: *confined
    profiles: [observability]
    image: ${{PROMETHEUS_IMAGE:-prom/prometheus:v3.5.0}}
    group_add: ["{UID}"]  # to read the token
    command: [--config.file=/etc/prometheus/prometheus.yml, --storage.tsdb.path=/prometheus]
    secrets: [{{source: metrics_token, target: /run/secrets/metrics/token}}]
    ports: ["127.0.0.1:9090:9090"]
    volumes:
      - prometheus:/prometheus
      - ${{FEDNODE_MONITORING:-./deploy/monitoring}}/prometheus-containers.yml:/etc/prometheus/prometheus.yml:ro
      - ${{FEDNODE_MONITORING:-./deploy/monitoring}}/rules.yml:/etc/prometheus/rules/rules.yml:ro
  grafana:
    <<: *confined
    profiles: [observability]
    image: ${{GRAFANA_IMAGE:-grafana/grafana:12.1.0}}
    environment:  # whoever reaches the port may look, and nobody may change anything
      PROMETHEUS_URL: http://prometheus:9090
      GF_AUTH_ANONYMOUS_ENABLED: "true"
      GF_AUTH_DISABLE_LOGIN_FORM: "true"
      GF_ANALYTICS_REPORTING_ENABLED: "false"
      GF_ANALYTICS_CHECK_FOR_UPDATES: "false"
    ports: ["127.0.0.1:3000:3000"]
    volumes:
      - grafana:/var/lib/grafana
      - ${{FEDNODE_MONITORING:-./deploy/monitoring}}/grafana/provisioning:/etc/grafana/provisioning:ro
      - ${{FEDNODE_MONITORING:-./deploy/monitoring}}/grafana/dashboards:/var/lib/grafana/dashboards:ro
"""


def _reserve(which: str) -> str:
    """Of the machine's GPUs, as Compose asks for them."""
    return f"{{resources: {{reservations: {{devices: [{{driver: nvidia, {which}, capabilities: [gpu]}}]}}}}}}"


_GPU_HEAD = f"""\
# Over docker-compose.yml, for a machine with NVIDIA's container toolkit; the nodes share its GPUs:
#
#   docker build -t fednode:cuda --build-arg DEVICE=cuda -f deploy/Dockerfile .
#   docker compose -f docker-compose.yml -f deploy/docker-compose.gpu.yml up -d

x-gpu: &gpu
  image: ${{FEDNODE_CUDA_IMAGE:-fednode:cuda}}
  mem_limit: 8g  # what CUDA maps counts
  environment: {{FEDNODE__TRAINING__DEVICE: cuda}}
  deploy: {_reserve("count: all")}

services:
"""


def render_compose(nodes: Sequence[str], data: Path | None = None) -> str:
    """The Compose file of `nodes`. Each of them sees `data` where it is on this machine, unless it is None."""
    text = _HEAD.replace("NUMBER", str(len(nodes)))
    for name in nodes:
        text += _NODE.replace("NAME", name)
        if data is not None:
            text += f"      - {_quote(f'{data}:{data}:ro')}\n"
    text += _OBSERVABILITY + "\nsecrets:\n"
    for name in nodes:
        text += f"  {name}_key: {{file: '${{FEDNODE_DIR:-./cluster}}/keys/{name}.key'}}\n"
    text += f"  metrics_token: {{file: '${{FEDNODE_DIR:-./cluster}}/{TOKEN_FILE}'}}\n"
    return text + "\nvolumes:\n" + "".join(f"  {name}:\n" for name in (*nodes, "prometheus", "grafana"))


def render_gpu_override(nodes: Sequence[str], gpus: int | None = None) -> str:
    """The override of the Compose file of `nodes`: each of them sees all of the machine's GPUs, or its own of so many
    that are dealt out in turn."""
    if gpus is None:
        return _GPU_HEAD + "".join(f"  {name}: *gpu\n" for name in nodes)
    own = [_reserve(f'device_ids: ["{i % gpus}"]') for i in range(len(nodes))]
    return _GPU_HEAD + "".join(
        f"  {name}: {{<<: *gpu, deploy: {deploy}}}\n" for name, deploy in zip(nodes, own, strict=True)
    )


def write_compose(directory: Path, nodes: Sequence[str], data: Path | None = None, gpus: int | None = None) -> None:
    """Adds to a test network's directory what Compose needs, and makes its keys the container's user's. With `gpus` the
    nodes have these wherever Compose is called in that directory."""
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
    """Whether the files that only the container's user may read are still to be given to it, which takes root."""
    return os.geteuid() not in (0, UID)


def write_token(path: Path) -> None:
    """A new one, for its owner and the group of whoever scrapes."""
    path.touch(mode=0o640)
    path.chmod(0o640)
    path.write_text(f"{secrets.token_urlsafe(32)}\n", encoding="ascii")


def _quote(text: str) -> str:
    """As Compose reads it back: `$` would be taken for a variable."""
    return "'" + text.replace("$", "$$").replace("'", "''") + "'"
