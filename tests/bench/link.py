"""`make bench-link`: rounds of large models over slow links, against the bare transfer of the same bytes.

Each node is on a host of its own (a network namespace), whose link carries so much each way and no more. All send
their model to all others at once. The bare transfer is the same by plain TCP: every host sends as many bytes to each
other one, at the same time, over the same links. An exchange of a height is that of the node which trained longest: it
waits for nobody.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from chain.store.sqlite import SqliteStore
from node.bench.figures import Report
from node.bench.fixtures import DIFFICULTY, temporary_directory
from node.errors import NodeError
from node.experiments.measured import describe_spread
from node.host.machine import get_machine
from support.federation.real_nodes import Federation, make_federation
from support.machines import nat
from support.machines.namespaces import ADDRESS, Host
from support.machines.nat import Sites, sites

WARM_UP = 1
COLLECT_S = 900
TIMEOUT_S = 3600.0
BARE_PORT = 7999
CHUNK_BYTES = 1 << 18


def run_link_bench(
    *, num_nodes: int, model: str, mbit: float, rounds: int, settings: Sequence[str], report: Report
) -> dict[str, Any]:
    """Figures by name, in seconds and bytes. Raises NodeError where there can be no such hosts."""
    if (obstacle := nat.find_obstacle()) is not None:
        raise NodeError(f"expected a machine on which network namespaces can be made: {obstacle}")
    with sites(num_nodes) as net:
        for host in net:
            net.limit(host, f"{mbit:g}mbit")
        report(f"{num_nodes} real nodes, {mbit:g} Mbit/s each")
        records = asyncio.run(_measure_rounds(net, model, rounds, settings))
        payload_bytes = round(
            statistics.median(record["payload_bytes"] / len(record["contributors"]) for record in records)
        )
        report(f"{payload_bytes / 1e6:.1f} MB from each to each by plain TCP")
        bare_s = measure_bare(net, payload_bytes)
    return {
        "machine": get_machine(),
        "job": {"nodes": num_nodes, "model": model, "mbit": mbit, "rounds": rounds, "settings": list(settings)},
        "payload_bytes": payload_bytes,
        "bare_s": bare_s,
        **_summarise(records, payload_bytes * (num_nodes - 1), bare_s),
    }


def _summarise(records: Sequence[Mapping[str, Any]], least_bytes: int, bare_s: float) -> dict[str, Any]:
    heights = sorted({record["height"] for record in records})
    by_height = [[record["seconds"] for record in records if record["height"] == height] for height in heights]
    exchange_s = describe_spread([min(seconds["exchange"] for seconds in each) for each in by_height])
    sent_bytes = statistics.mean(sum(record["bytes_sent"].values()) for record in records)
    return {
        "round_s": describe_spread([max(seconds["wall"] for seconds in each) for each in by_height]),
        "train_s": describe_spread([max(seconds["train"] for seconds in each) for each in by_height]),
        "exchange_s": exchange_s,
        "ratio": exchange_s["median"] / bare_s,
        "sent_bytes": sent_bytes,
        "overhead": sent_bytes / least_bytes - 1,
        "contributions": statistics.mean(len(record["contributors"]) for record in records),
    }


# ---- real nodes


async def _measure_rounds(net: Sites, model: str, rounds: int, settings: Sequence[str]) -> list[dict[str, Any]]:
    """The records of all nodes, without those of the first rounds and of the last, which may end before it is sent."""
    last = WARM_UP + rounds + 1
    with temporary_directory() as directory:
        made = make_federation(
            directory / "net",
            num_nodes=len(net),
            host=ADDRESS,
            method="fedavg",
            model=model,
            partition="iid",
            rounds=last,
            difficulty=DIFFICULTY,
            settings=(*settings, f"waits.collect_s={COLLECT_S}"),
        )
        async with Federation(made, {f"node{host.index}": host.enter for host in net}) as nodes:
            await nodes.start()
            await nodes.wait_for(
                lambda now: all(status["height"] >= last for status in now.values()), "the last", timeout_s=TIMEOUT_S
            )
            await nodes.check_agreement()
            await asyncio.gather(*(nodes.stop(name) for name in nodes.running))
            data_dirs = [nodes.get_data_dir(name) for name in nodes.names]
            return [record for path in data_dirs for record in _read_records(path, nodes, last)]


def _read_records(data_dir: Path, nodes: Federation, last: int) -> list[dict[str, Any]]:
    with closing(SqliteStore.open(data_dir, nodes.genesis, readonly=True)) as store:
        return [dict(record) for _, record in store.rounds(WARM_UP + 1, last - 1)]


# ---- the bare transfer


def measure_bare(net: Sites, num_bytes: int) -> float:
    """Seconds until each host has all that each other one sends it."""
    listeners = [host.call(_listen) for host in net]
    receivers = [
        threading.Thread(target=_receive, args=(listener, len(net) - 1, num_bytes), daemon=True)
        for listener in listeners
    ]
    senders = [
        threading.Thread(target=_send, args=(here, there, num_bytes), daemon=True)
        for here in net
        for there in net
        if here != there
    ]
    began_s = time.monotonic()
    for thread in (*receivers, *senders):
        thread.start()
    for thread in (*receivers, *senders):
        thread.join()
    took_s = time.monotonic() - began_s
    for listener in listeners:
        listener.close()
    return took_s


def _listen() -> socket.socket:
    return socket.create_server(("", BARE_PORT))


def _send(here: Host, there: Host, num_bytes: int) -> None:
    chunk = bytes(CHUNK_BYTES)
    with here.call(lambda: socket.create_connection((there.address, BARE_PORT))) as connection:
        for left in range(num_bytes, 0, -CHUNK_BYTES):
            connection.sendall(chunk[:left])


def _receive(listener: socket.socket, num_senders: int, num_bytes: int) -> None:
    threads = [
        threading.Thread(target=_drain, args=(listener.accept()[0], num_bytes), daemon=True) for _ in range(num_senders)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _drain(connection: socket.socket, num_bytes: int) -> None:
    with connection:
        while num_bytes > 0 and (data := connection.recv(CHUNK_BYTES)):
            num_bytes -= len(data)
