"""Federated learning without a server, from Python: simulations, federations of real nodes on this machine, and nodes
that run anywhere.

A method with all its clients in this process, and its results:

    import fednode

    run = fednode.simulate("dfpl", nodes=5, rounds=3, partition="dirichlet:0.3", settings={"lr": 0.05})
    print(run.accuracy, [round.accuracy for round in run.rounds])

Data may be arrays, frames and Datasets, and the trained model can be used afterwards:

    run = fednode.simulate("fedavg", data=(frame, "outcome"), nodes=3, partition="iid")
    print(run.evaluate((others, "outcome"))["measures"]["summary"])

Real nodes, each a process with a key, a chain and a port of its own, which train, vote and finalise:

    with fednode.LocalCluster(4, method="fedavg", rounds=5) as cluster:
        cluster.wait(2)
        for name, status in cluster.status().items():
            print(name, status["height"], status["accuracy"])

A node that runs, reached over its admin socket or its address:

    with fednode.connect("node0.yaml") as node:
        print(node.status()["accuracy"], node.predict(images).labels)

All errors of the API are a `fednode.NodeError`; an argument that cannot be used raises its subclass
`fednode.ConfigError`, whose text names the argument, or the option of the `fednode` command for the same thing.
`fednode.__version__` is the installed version.

Nothing heavy is imported before it is used: `import fednode` takes some milliseconds. Once fednode is used, the names
`node`, `chain` and `ml` are its own; a program that has imported another module of such a name gets an ImportError.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fednode.aclient import AsyncClient, aconnect
    from fednode.client import Client, connect
    from fednode.cluster import LocalCluster
    from fednode.prediction import Predictions
    from fednode.simulation import Round, Simulation, simulate
    from node.errors import (
        ConfigError,
        InvalidRequest,
        NodeError,
        NodeUnreachable,
        NotFound,
        PermissionRefused,
    )

    __version__: str

__all__ = [
    "simulate",
    "Simulation",
    "Round",
    "LocalCluster",
    "connect",
    "Client",
    "aconnect",
    "AsyncClient",
    "Predictions",
    "NodeError",
    "ConfigError",
    "NodeUnreachable",
    "NotFound",
    "InvalidRequest",
    "PermissionRefused",
    "__version__",
]

_PLACES = {
    "fednode.simulation": ("simulate", "Simulation", "Round"),
    "fednode.cluster": ("LocalCluster",),
    "fednode.client": ("connect", "Client"),
    "fednode.aclient": ("aconnect", "AsyncClient"),
    "fednode.prediction": ("Predictions",),
    "node.errors": ("NodeError", "ConfigError", "NodeUnreachable", "NotFound", "InvalidRequest", "PermissionRefused"),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


if not TYPE_CHECKING:  # a type checker knows the names above, and reports any other

    def __getattr__(name: str) -> Any:
        """Imports the object of this name on its first use, and keeps it."""
        if name == "__version__":
            value: Any = _read_version()
        elif name in _MODULES:
            from fednode._names import claim_names

            claim_names()
            value = getattr(import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _read_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fednode")
    except PackageNotFoundError:  # a checkout that was not installed
        return "unknown"
