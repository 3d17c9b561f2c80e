"""The sinks that a configuration asks for. A sink whose package is not installed is an error at the start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from chain.genesis import Genesis
from chain.signing import encode_id
from node.config.node_config import NodeConfig
from node.config.node_sections import SinksSection
from node.errors import ConfigError
from node.telemetry.sinks.base import Sink, SinkThread
from node.telemetry.sinks.jsonl import METRICS, JsonlSink

TENSORBOARD = "tensorboard"  # its directory in the data directory

_EXTRAS = {"tensorboard": "tensorboardX", "mlflow_uri": "mlflow", "otlp": "opentelemetry.exporter.otlp.proto.http"}


def validate_sinks(sinks: SinksSection) -> None:
    """Raises ConfigError when a sink needs a package that is not installed."""
    for key, module in _EXTRAS.items():
        if getattr(sinks, key) and not _is_installed(module):
            extra = key.removesuffix("_uri")
            raise ConfigError(f"sinks.{key}: expected the package {module}: pip install 'fednode[{extra}]'")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def open_sinks(config: NodeConfig, genesis: Genesis, node_id: bytes) -> Sequence[SinkThread]:
    """Starts the sinks; the caller closes them. Raises ConfigError as `validate_sinks`."""
    validate_sinks(config.sinks)
    return [SinkThread(name, sink) for name, sink in _make_sinks(config, genesis, node_id)]


def _make_sinks(config: NodeConfig, genesis: Genesis, node_id: bytes) -> Iterator[tuple[str, Sink]]:
    sinks, data_dir, node = config.sinks, config.node.data_dir, config.node.name
    if sinks.jsonl:
        yield "jsonl", JsonlSink(data_dir / METRICS)
    if sinks.tensorboard:
        from node.telemetry.sinks.tensorboard import TensorBoardSink

        yield "tensorboard", TensorBoardSink(data_dir / TENSORBOARD)
    if sinks.mlflow_uri is not None:
        from node.telemetry.sinks.mlflow import MlflowSink

        experiment = f"fednode {genesis.chain_name} {genesis.chain_id.hex()[:8]}"
        yield "mlflow", MlflowSink(sinks.mlflow_uri, experiment=experiment, node=node, data_dir=data_dir)
    if sinks.otlp:
        from node.telemetry.sinks.otlp import OtlpSink

        yield "otlp", OtlpSink(node=node, node_id=encode_id(node_id), chain_id=genesis.chain_id.hex())
