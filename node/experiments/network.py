"""Seconds that a run would have taken over a network, computed after it from its rounds and bytes.

The network is no part of a run: one result can be computed for any network. A round takes its local work, and then

    over a server     what is voted on goes up, the server waits for the slowest client, and the aggregate comes down,
                      taken to be as large as one client's contribution; what clients pull of each other comes after it
    without one       everything goes from peer to peer, and all wait for the slowest

Heights before round 1, at which FedEDS shares its encrypted sets, have no server: those payloads go from peer to peer.
With N clients, a voted payload is sent once and received N - 1 times, one on demand is sent as often as it is received.
So of S bytes sent and R received, by all, (R - S) / (N - 2) are voted on; with two clients all of them are, unless the
method pulls from peers.

A link has the bandwidth of its client's access and is idle when a transfer begins; `up_mbit` and `down_mbit` have to
account for a server's access that clients share. Mining and voting are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from ml.training.metrics import compute_mean
from node.experiments.local_work import LocalWork, list_local_work
from node.experiments.plan import Experiment
from node.experiments.results import Result, RoundRow
from node.experiments.sections import NetworkSection

NETWORK = "network"  # the axis of the networks that the report names
_BITS = 8e-6  # millions of bits in a byte


def at_networks(experiment: Experiment) -> Experiment:
    """Returns the experiment with each point once for each network of its report, if there are any; the network is then
    one of its facts."""
    networks = experiment.file.report.network
    if not networks:
        return experiment
    points = [
        replace(point, facts={**point.facts, NETWORK: network}) for point in experiment.points for network in networks
    ]
    axes = (*experiment.axes, NETWORK) if len(networks) > 1 else experiment.axes
    return replace(experiment, points=tuple(points), axes=axes)


def compute_network_seconds(result: Result, network: NetworkSection) -> tuple[float, ...]:
    """Computes the seconds until the end of each round, from the run's beginning on; empty where the result lacks what
    they are computed from."""
    work = list_local_work(result)
    rows = (*result.sharing, *result.rounds)
    if len(work) != len(rows):
        return ()
    seconds = []
    for i, (row, own) in enumerate(zip(rows, work, strict=True)):
        trained = _list_training(row, own, network)
        if trained is None or row.received_bytes is None:
            return ()
        is_sharing = i < len(result.sharing)
        seconds.append(_compute_round(row, result.num_clients, trained, network, is_sharing=is_sharing))
    return tuple(accumulate(seconds))[len(result.sharing) :]


def is_measured(networks: Iterable[NetworkSection]) -> bool:
    """Says whether any of them uses the training time measured on the machine of the run."""
    return any(network.step_s is None and network.epoch_s is None for network in networks)


def _list_training(row: RoundRow, work: Sequence[LocalWork], network: NetworkSection) -> list[float] | None:
    """Lists the seconds of each client's local work. A measured time is a mean over clients and is divided among them
    by their steps."""
    if network.step_s is not None:
        step_s, ratio = network.step_s, network.encryptor_ratio
        seconds = [(own.steps + ratio * own.encryptor_steps) * step_s for own in work]
    elif network.epoch_s is not None:
        epoch_s, ratio = network.epoch_s, network.encryptor_ratio
        seconds = [(own.epochs + ratio * own.encryptor_epochs) * epoch_s for own in work]
    elif row.train_s is not None:
        steps = [own.steps + own.encryptor_steps for own in work]
        mean = compute_mean(steps)
        seconds = [row.train_s * count / mean if mean else row.train_s for count in steps]
    else:
        return None
    return [own * factor for own, factor in zip(seconds, _deal(network.slowdown, len(work)), strict=True)]


def _compute_round(
    row: RoundRow, num_clients: int, trained: Sequence[float], network: NetworkSection, *, is_sharing: bool
) -> float:
    voted, received = _split_bytes(row, num_clients), (row.received_bytes or 0) / num_clients
    server, peers = network.server, network.peers
    if server is None or is_sharing:
        return _wait(trained, received, peers.mbit, peers.latency_s)
    if not voted:
        seconds = max(trained)
    else:
        seconds = _wait(trained, voted, server.up_mbit, server.latency_s) + server.wait_s
        seconds += _wait([0.0] * num_clients, voted, server.down_mbit, server.latency_s)
    pulled = received - voted * (num_clients - 1)
    return seconds + _wait([0.0] * num_clients, pulled, peers.mbit, peers.latency_s)


def _split_bytes(row: RoundRow, num_clients: int) -> float:
    """Computes the bytes of a client's voted payloads."""
    received = row.received_bytes or 0
    if num_clients > 2:
        return (received - row.sent_bytes) / (num_clients - 2) / num_clients
    return row.sent_bytes / num_clients if row.peers is None else 0.0


def _wait(ready_s: Sequence[float], count: float, mbit: Sequence[float], latency_s: Sequence[float]) -> float:
    """Computes the seconds until the slowest client has transferred `count` bytes over its link, each starting when it
    is ready. Nothing to transfer takes no time."""
    if count <= 0:
        return max(ready_s)
    num = len(ready_s)
    links = zip(ready_s, _deal(mbit, num), _deal(latency_s, num), strict=True)
    return max(ready + latency + count * _BITS / speed for ready, speed, latency in links)


def _deal(values: Sequence[float], num_clients: int) -> list[float]:
    """Returns one value for each client, starting over where there are fewer values."""
    return [values[i % len(values)] for i in range(num_clients)]


def describe_network(network: NetworkSection) -> tuple[str, ...]:
    """Returns the name of a network, and its server, peers and training, in words."""

    def show(values: Sequence[float]) -> str:
        return "/".join(f"{value:g}" for value in values)

    server, peers = network.server, network.peers
    through = "none"
    if server is not None:
        through = f"up {show(server.up_mbit)} Mbit/s, down {show(server.down_mbit)} Mbit/s, {show(server.latency_s)} s"
        through += f", waits {server.wait_s:g} s" if server.wait_s else ""
    per = {"step": network.step_s, "epoch": network.epoch_s}
    given = [f"{seconds:g} s a local {unit}" for unit, seconds in per.items() if seconds is not None]
    ratio = f", an encryptor's {network.encryptor_ratio:g} times" if given and network.encryptor_ratio != 1 else ""
    slow = "" if set(network.slowdown) == {1.0} else f", clients slower by {show(network.slowdown)}"
    links = f"{show(peers.mbit)} Mbit/s, {show(peers.latency_s)} s"
    return network.label, through, links, (given[0] if given else "as measured") + ratio + slow
