"""`network.limits` and `network.timeouts`: what they are by default, what they become, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config.node_config import load_config
from node.daemon import make_limits
from node.errors import ConfigError
from node.p2p.transport.channel import CONNECT_S
from node.p2p.transport.rate_limits import RateLimits
from node.p2p.transport.rpc import MAX_STREAMS, REQUEST_S
from node.p2p.transport.server import HANDSHAKE_S
from node.payloads.fetcher import Slowness

TEXT = """\
node: {identity_key_file: k, data_dir: d}
genesis_file: g
network:
  listen: "127.0.0.1:0"
training: {seed: 7}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_by_default_a_node_has_the_limits_of_the_protocol(path: Path) -> None:
    network = load_config(path).network
    assert make_limits(network) == RateLimits()
    limits, timeouts = network.limits, network.timeouts
    assert (limits.max_streams, timeouts.request_s) == (MAX_STREAMS, REQUEST_S) == (64, 30)
    assert (timeouts.connect_s, timeouts.handshake_s) == (CONNECT_S, HANDSHAKE_S) == (5, 10)
    assert Slowness(timeouts.blob_s, limits.blob_min_kib_s * 1024) == Slowness()


def test_every_limit_reaches_the_transport(path: Path) -> None:
    settings: dict[str, dict[str, float]] = {
        "limits": {
            "peer_rate_mib_s": 2,
            "peer_messages_s": 100,
            "peer_statuses_s": 1,
            "block_requests_s": 0.5,
            "block_requests": 1,
            "blob_requests_s": 0.5,
            "blob_streams": 2,
            "blob_min_kib_s": 8,
            "queue_messages": 64,
            "queue_mib": 1,
        },
        "timeouts": {"ask_s": 1, "blob_s": 2, "write_s": 3},
    }
    overrides = [f"network.{part}.{key}={value}" for part, found in settings.items() for key, value in found.items()]
    assert make_limits(load_config(path, overrides).network) == RateLimits(
        status_per_s=1,
        status_burst=4,
        messages_per_s=100,
        messages_burst=400,
        bytes_per_s=2 * 1024**2,
        blocks_per_s=0.5,
        blocks_burst=1,
        blocks_at_once=1,
        request_grace_s=1,
        blobs_per_s=0.5,
        blobs_burst=2,
        blob_streams=2,
        blob_bytes_per_s=8 * 1024,
        blob_grace_s=2,
        queue_messages=64,
        queue_bytes=1024**2,
        write_s=3,
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("limits.peer_rate_mib_s=0", "must be at least 1 (got 0)"),
        ("limits.peer_rate_mib_s=.inf", "expected a number"),
        ("limits.peer_rate_mib_s=fast", "expected a number (got 'fast')"),
        ("limits.peer_messages_s=-1", "must be at least 100 (got -1)"),
        ("limits.peer_statuses_s=0.1", "must be at least 1 (got 0.1)"),
        ("limits.max_streams=0", "must be at least 4 (got 0)"),
        ("limits.max_streams=2.5", "expected an integer (got 2.5)"),
        ("limits.blob_requests_s=0", "must be at least 0.5 (got 0)"),
        ("limits.blob_streams=0", "must be at least 1 (got 0)"),
        ("limits.blob_min_kib_s=0", "must be at least 1 (got 0)"),
        ("limits.queue_messages=0", "must be at least 64 (got 0)"),
        ("limits.queue_mib=0.1", "must be at least 1 (got 0.1)"),
        ("limits.max_stream=8", "unknown key. Did you mean 'max_streams'?"),
        ("timeouts.connect_s=0", "must be at least 0.1 (got 0)"),
        ("timeouts.request_s=true", "expected a number (got true)"),
        ("timeouts.write_s=86400", "must be at most 3600 (got 86400)"),
        ("limits={max_streams: 4, blob_streams: 8}", "expected at least 10, block_requests and blob_streams together"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected(path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(path, [f"network.{override}"])
    (problem,) = caught.value.problems
    assert message in problem
    assert f"network.{override.partition('=')[0]}" in problem
