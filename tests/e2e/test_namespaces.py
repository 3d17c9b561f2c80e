"""The hosts and links that tests of network faults stand on: hosts vanish with the tests, cuts can be one-way, weather
is as asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.faults import weather
from support.faults.weather import Weather, stormy_lan
from support.federation.processes import is_alive
from support.federation.real_nodes import WAIT_S
from support.machines import namespaces
from support.machines.namespaces import Host, lan

OBSTACLE = namespaces.find_obstacle()
NO_WEATHER = weather.find_obstacle()
PORT = 7000
NUM_PACKETS = 300
TESTS = Path(__file__).parent.parent

STORY = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell runs in the background
from support.machines.namespaces import lan
with lan(2) as net:
    running = subprocess.Popen([*net[1].enter, "sleep", "100000"])
    print(running.pid, *(host.namespace for host in net), flush=True)
    sys.stdin.read()
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.outer,
    pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces: {OBSTACLE}"),
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_hosts_and_what_runs_on_them_go_whatever_ends_the_tests(number: signal.Signals) -> None:
    story = subprocess.Popen(
        [sys.executable, "-c", STORY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=TESTS,
    )
    with story:
        assert story.stdout is not None
        pid, *names = story.stdout.readline().split()
        places = [Path("/run/netns", name) for name in names]
        assert len(places) == 2
        assert all(place.exists() for place in places)
        assert is_alive(int(pid))
        story.send_signal(number)
        assert story.wait(WAIT_S) != 0
    deadline_s = time.monotonic() + WAIT_S
    while is_alive(int(pid)) or any(place.exists() for place in places):
        assert time.monotonic() < deadline_s, f"{number.name}: still there: process {pid} or one of {names}"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_cut_takes_the_packets_of_one_direction_until_it_is_healed() -> None:
    with lan(3) as net:
        ports = [host.call(lambda host=host: open_port(host)) for host in net]  # type: ignore[misc]  # bound now
        try:
            assert all(can_pass(ports, net, a, b) for a in range(3) for b in range(3) if a != b)
            net.cut(net[0], net[1])
            assert not can_pass(ports, net, 0, 1)
            assert can_pass(ports, net, 1, 0)
            assert can_pass(ports, net, 0, 2)
            net.partition(net[:1], net[1:])
            assert not any(can_pass(ports, net, *way) for way in ((0, 1), (1, 0), (0, 2), (2, 0)))
            assert can_pass(ports, net, 1, 2)
            net.heal()
            assert all(can_pass(ports, net, a, b) for a in range(3) for b in range(3) if a != b)
        finally:
            for port in ports:
                port.close()


def open_port(host: Host) -> socket.socket:
    port = socket.socket(type=socket.SOCK_DGRAM)
    port.bind((host.address, PORT))
    port.settimeout(0.2)
    return port


def can_pass(ports: list[socket.socket], net: namespaces.Lan, source: int, target: int) -> bool:
    """Whether one of a few datagrams that are sent now arrives: a host may be slow."""
    marks = {os.urandom(8) for _ in range(3)}
    for mark in marks:
        ports[source].sendto(mark, (net[target].address, PORT))
        try:
            while ports[target].recv(8) not in marks:
                pass
        except TimeoutError:
            continue
        return True
    return False


@pytest.mark.skipif(NO_WEATHER is not None, reason=f"needs TUN devices: {NO_WEATHER}")
async def test_packets_come_late_out_of_order_or_not_at_all() -> None:
    loop = asyncio.get_running_loop()
    async with stormy_lan(2, Weather(delay_s=0.1, jitter_s=0.05, loss=0.3), seed=1) as (net, storm):
        here, there = (host.call(lambda host=host: open_port(host)) for host in net)  # type: ignore[misc]  # as above
        with here, there:
            here.setblocking(False)
            there.setblocking(False)
            sent_s: list[float] = []
            came: list[int] = []
            for number in range(NUM_PACKETS):
                sent_s.append(time.monotonic())
                await loop.sock_sendto(here, number.to_bytes(2, "big"), (net[1].address, PORT))
                await asyncio.sleep(0.001)
            while len(came) < NUM_PACKETS - storm.num_lost:
                came.append(int.from_bytes(await asyncio.wait_for(loop.sock_recv(there, 2), WAIT_S), "big"))
                if len(came) == 1:
                    assert time.monotonic() - sent_s[came[0]] >= 0.05
    assert storm.num_sent == NUM_PACKETS
    assert len({*came}) == len(came)
    assert came != sorted(came)
    assert 0.15 * NUM_PACKETS < storm.num_lost < 0.45 * NUM_PACKETS
    assert storm.num_overtaken > 0
