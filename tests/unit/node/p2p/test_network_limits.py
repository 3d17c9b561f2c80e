"""`network.limits`: what they are by default, what they become, what is refused, and what is no key any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config.node_config import REMOVED, load_config
from node.daemon import make_limits
from node.errors import ConfigError
from node.p2p.transport.rate_limits import RateLimits
from node.p2p.transport.rpc import ConnectionLimits
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
    limits = load_config(path).network.limits
    assert make_limits(limits) == RateLimits()
    assert limits.max_connections == ConnectionLimits().max_connections
    assert Slowness(bytes_per_s=limits.blob_min_kib_s * 1024) == Slowness()


def test_every_limit_reaches_the_transport(path: Path) -> None:
    settings = {"peer_rate_mib_s": 2, "peer_messages_s": 100, "blob_min_kib_s": 8}
    overrides = [f"network.limits.{key}={value}" for key, value in settings.items()]
    assert make_limits(load_config(path, overrides).network.limits) == RateLimits(
        messages_per_s=100,
        messages_burst=400,
        bytes_per_s=2 * 1024**2,
        blob_bytes_per_s=8 * 1024,
    )


def test_a_key_that_is_a_constant_now_is_taken_with_a_warning_and_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = load_config(path)
    assert caplog.messages == []
    path.write_text(TEXT.replace("training:", "  timeouts: {request_s: 5}\ntraining:"), encoding="utf-8")
    overrides = [f"network.limits.{key}=1" for key in REMOVED["limits"]]
    assert load_config(path, overrides) == before
    assert caplog.messages[:-1] == [
        f"--set network.limits.{key}: has no effect, as it is a constant now; leave it out" for key in REMOVED["limits"]
    ]
    assert caplog.messages[-1].startswith(f"{path}:5:14: network.timeouts.request_s: has no effect")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("limits.peer_rate_mib_s=0", "must be at least 1 (got 0)"),
        ("limits.peer_rate_mib_s=.inf", "expected a number"),
        ("limits.peer_rate_mib_s=fast", "expected a number (got 'fast')"),
        ("limits.peer_messages_s=-1", "must be at least 100 (got -1)"),
        ("limits.blob_min_kib_s=0", "must be at least 1 (got 0)"),
        ("limits.max_connections=2.5", "expected an integer (got 2.5)"),
        ("limits.max_connection=16", "unknown key. Did you mean 'max_connections'?"),
        ("timeouts.read_s=1", "unknown key. Known: "),
    ],
)
def test_nonsense_is_refused_with_what_was_expected(path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(path, [f"network.{override}"])
    (problem,) = caught.value.problems
    assert message in problem
    assert f"network.{override.partition('=')[0]}" in problem
