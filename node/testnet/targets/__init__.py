"""The targets of a test network: its nodes run as processes here, or in containers by Compose or Kubernetes.

All containers see the same paths, whichever engine runs them: configuration, genesis and initial model are mounted on
`/etc/fednode`, the node's key and the metrics' token on `/run/secrets`, and a volume of its own is its `/data`.
"""

from __future__ import annotations

from dataclasses import dataclass

UID = 10001  # of the image's user, and of its group
PORT = 7050
CONFIG_DIR = "/etc/fednode"
KEY_FILE = "/run/secrets/identity.key"
DATA_DIR = "/data/chain"
SOCKET_DIR = "/data/run"  # where `fednode status` looks, in a container whose working directory is /data


@dataclass(frozen=True, slots=True)
class Target:
    """The way nodes are named and dialled; `{i}` stands for a node's number. Without `host` the caller chooses it."""

    node: str
    host: str | None = None

    @property
    def is_container(self) -> bool:
        return self.host is not None

    def name_nodes(self, num_nodes: int) -> tuple[str, ...]:
        return tuple(self.node.format(i=i) for i in range(num_nodes))

    def dial_nodes(self, num_nodes: int) -> list[str]:
        """Returns the addresses of the nodes in containers."""
        return [f"{(self.host or '').format(i=i)}:{PORT}" for i in range(num_nodes)]


TARGETS = {
    "local": Target("node{i}"),
    "compose": Target("node{i}", "node{i}"),
    "k8s": Target("fednode-{i}", "fednode-{i}.fednode"),  # a pod's name in the headless service
}
