"""The sites that tests of reach stand on: who is behind a router reaches out and is not reached, and what is lost is
lost."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.federation.processes import is_alive
from support.federation.real_nodes import WAIT_S
from support.machines import nat
from support.machines.namespaces import Host
from support.machines.nat import Sites, get_address6, list_pids, run_in, sites

OBSTACLE = nat.find_obstacle()
PORT = 7000
PROMPT_S = 60.0  # within which what can arrive arrives, on a busy machine too
NEVER_S = 0.5  # after which it does not
TESTS = Path(__file__).parent.parent

STORY = """
import subprocess, sys
from support.machines.nat import sites
with sites(2, behind=[1]) as net:
    net.name({"alice": [net[0].address]})
    running = subprocess.Popen([*net[1].enter, "sleep", "100000"])
    print(running.pid, net[0].namespace, net[1].namespace, net.routers[1].namespace, flush=True)
    sys.stdin.read()
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.outer,
    pytest.mark.slow,
    pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces with NAT: {OBSTACLE}"),
]


@contextmanager
def connection(source: Host, target: Host) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of one that `source` dials, the dialled one second."""
    with ExitStack() as stack:
        server = stack.enter_context(target.call(lambda: socket.create_server(("", PORT))))
        caller = stack.enter_context(dial(source, target.address))
        answerer, _ = server.accept()
        stack.enter_context(answerer)
        yield caller, answerer


def dial(host: Host, address: str) -> socket.socket:
    return host.call(lambda: socket.create_connection((address, PORT), PROMPT_S))


def passes(source: socket.socket, target: socket.socket, within_s: float = PROMPT_S) -> bool:
    """Whether a byte that is sent now arrives."""
    target.settimeout(within_s)
    try:
        source.sendall(b"x")
        return target.recv(1) == b"x"
    except TimeoutError:
        return False


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def test_inside_reaches_out_and_is_not_reached() -> None:
    with sites(3, behind=[1, 2]) as net:
        with connection(net[1], net[0]) as (inside, outside):
            assert outside.getpeername()[0] == net.routers[1].address
            assert inside.getsockname()[0] == nat.PRIVATE_ADDRESS
            assert passes(inside, outside)
            assert passes(outside, inside)
        with net[1].call(lambda: socket.create_server(("", PORT))):
            for host in (net[0], net[2]):
                with pytest.raises(TimeoutError):
                    host.call(lambda: socket.create_connection((net[1].address, PORT), NEVER_S))


def test_a_router_that_forgets_cuts_what_stands_and_lets_new_ones_through() -> None:
    with sites(2, behind=[1]) as net:
        with connection(net[1], net[0]) as (inside, outside):
            assert net.routers[1].list_connections() == {(net[0].address, inside.getsockname()[1])}
            net.routers[1].forget()
            assert not net.routers[1].list_connections()
            assert not passes(outside, inside, NEVER_S)
            check_reset(inside)
        assert reconnects(net)


def check_reset(inside: socket.socket) -> None:
    """Whoever sends on it is told at once that it is no more."""
    inside.sendall(b"x")
    inside.settimeout(PROMPT_S)
    with pytest.raises(ConnectionResetError):
        inside.recv(1)


def reconnects(net: Sites) -> bool:
    with connection(net[1], net[0]) as (inside, outside):
        return passes(inside, outside) and passes(outside, inside)


def test_a_router_that_moves_cuts_what_stands_and_shows_its_new_address() -> None:
    with sites(2, behind=[1]) as net:
        before = net.routers[1].address
        with connection(net[1], net[0]) as (inside, outside):
            net.routers[1].move()
            assert not passes(outside, inside, NEVER_S)
        with connection(net[1], net[0]) as (inside, outside):
            assert outside.getpeername()[0] == net.routers[1].address != before


@pytest.mark.parametrize("silently", [False, True])
def test_a_forgetful_router_cuts_what_is_idle(silently: bool) -> None:
    with sites(2, behind=[1]) as net:
        net.routers[1].forget_idle_after(1, silently=silently)
        with connection(net[1], net[0]) as (inside, outside):
            assert passes(inside, outside)
            wait_for(lambda: not net.routers[1].list_connections(), "nothing was forgotten")
            assert not passes(outside, inside, NEVER_S)
            if silently:
                assert not passes(inside, outside, NEVER_S)
            else:
                check_reset(inside)
        assert reconnects(net)


def test_a_host_that_sleeps_has_its_connections_when_it_wakes() -> None:
    with sites(2, behind=[1]) as net, connection(net[1], net[0]) as (inside, outside):
        net.unplug(net[1])
        assert not passes(outside, inside, NEVER_S)
        net.plug_in(net[1])
        inside.settimeout(PROMPT_S)
        assert inside.recv(1) == b"x"  # sent again
        assert passes(inside, outside)


def test_a_link_carries_no_more_than_it_is_to() -> None:
    num_bytes, bits_per_s = 2_000_000, 20e6
    with sites(2) as net:
        net.limit(net[0], "20mbit")
        with connection(net[1], net[0]) as (one, other):
            for source, target in ((one, other), (other, one)):
                began_s = time.monotonic()
                send(source, target, num_bytes)
                assert 0.8 * 8 * num_bytes / bits_per_s < time.monotonic() - began_s < 10.0


def send(source: socket.socket, target: socket.socket, num_bytes: int) -> None:
    """So many bytes from one end to the other."""
    source.settimeout(WAIT_S)
    target.settimeout(WAIT_S)
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(source.sendall, bytes(num_bytes))
        num_received = 0
        while num_received < num_bytes:
            num_received += len(target.recv(1 << 20))
        sent.result()


def test_hosts_of_ipv6_alone_reach_each_other_and_those_of_both_kinds() -> None:
    with sites(3) as net:
        net.add_ipv6(*net)
        net.drop_ipv4(net[0], net[1])
        with net[0].call(lambda: socket.create_server((get_address6(net[0]), PORT), family=socket.AF_INET6)):
            for host in net[1:]:
                dial(host, get_address6(net[0])).close()
            with pytest.raises(OSError, match=r"unreachable|timed out"):
                net[2].call(lambda: socket.create_connection((net[0].address, PORT), NEVER_S))


def test_a_name_leads_where_it_was_last_told_to() -> None:
    with sites(3) as net:
        for host in (net[1], net[2]):
            net.name({"alice": [host.address]})
            assert run_in(net[0].namespace, "getent", "hosts", "alice").split()[0] == host.address


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_sites_and_what_runs_there_go_whatever_ends_the_tests(number: signal.Signals) -> None:
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
        places = [Path("/run/netns", name) for name in names] + [nat.RESOLVER_DIR / name for name in names[:2]]
        assert len(places) == 5
        assert all(place.exists() for place in places)
        wait_for(lambda: int(pid) in list_pids(Host(1, names[1])), f"{pid} is not in {names[1]}")
        story.send_signal(number)
        assert story.wait(WAIT_S) != 0
    wait_for(lambda: not is_alive(int(pid)) and not any(place.exists() for place in places), f"still there: {names}")
