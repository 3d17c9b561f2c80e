"""Hosts of a network that the tests make themselves: Linux network namespaces on a bridge, and faults of the network.

    with lan(5) as net:
        process = subprocess.Popen([*net[0].enter, "fednode", ...])
        net.partition([net[0]], net[1:])
        net.heal()

Needs root and `ip`. Packets that are cut off are lost silently, as in a real network: the receiving host drops them by
a routing rule. Everything is within namespaces whose names hold this process's id; they are removed when the context is
left, and also when this process dies, however it dies: a process of its own waits for that.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

NET = "10.77.0"
FIRST = 10  # the last number of the first host's address
ADDRESS = f"{NET}.1{{i}}"  # of host i, as `TestnetSpec.host` takes it
MAX_HOSTS = 10
WIRE = "wire"  # every host's end of its link
CUT_PREFERENCE = 10  # of the rules that cut; below that of the local table, which would accept everything
LOCAL_PREFERENCE = 20
CLONE_NEWNET = 0x40000000

# Ends every process in the namespaces, and removes them, when its standard input ends.
JANITOR = """
cat > /dev/null
for name in "$@"; do
    ip netns pids "$name" 2> /dev/null | xargs -r kill -9
done
for name in "$@"; do
    ip netns del "$name" 2> /dev/null
    rm -rf "/etc/netns/$name"
done
true
"""

T = TypeVar("T")

_numbers = count()


def find_obstacle() -> str | None:
    """Returns why there can be no namespaces here, or None."""
    if shutil.which("ip") is None:
        return "no `ip` command (iproute2)"
    name = f"fednode-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None if made.returncode == 0 else f"`ip netns add`: {made.stderr.strip()}"


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace, with one address."""

    index: int
    namespace: str

    @property
    def address(self) -> str:
        return f"{NET}.{FIRST + self.index}"

    @property
    def enter(self) -> tuple[str, ...]:
        """The words that run a command there, in the same process, when put before it."""
        return ("ip", "netns", "exec", self.namespace)

    def call(self, function: Callable[[], T]) -> T:
        """Returns what `function` returns when it runs there, in a thread of its own: a socket that it opens stays in
        the namespace."""

        def run() -> T:
            with Path("/run/netns", self.namespace).open("rb") as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")
            return function()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(run).result()


class Lan(Sequence[Host]):
    """The hosts, and the cuts between them."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = tuple(hosts)
        self._cuts: set[tuple[Host, Host]] = set()  # (from, to)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # as a tuple's
        return self._hosts[index]

    def __len__(self) -> int:
        return len(self._hosts)

    def cut(self, source: Host, target: Host) -> None:
        """Drops packets from `source` to `target`. The cut is one way: packets back arrive."""
        if (source, target) not in self._cuts:
            self._cuts.add((source, target))
            run_ip(target, _rule("add", source))

    def partition(self, *sides: Sequence[Host]) -> None:
        """Drops every packet from one side to another. Cuts within a side stay as they are."""
        pairs = [
            (source, target)
            for here in sides
            for there in sides
            if here is not there
            for source in here
            for target in there
        ]
        for target in self:
            sources = [source for source, other in pairs if other == target and (source, target) not in self._cuts]
            run_ip(target, *(_rule("add", source) for source in sources))
        self._cuts.update(pairs)

    def heal(self) -> None:
        """Mends every cut."""
        for target in self:
            run_ip(target, *(_rule("del", source) for source, other in self._cuts if other == target))
        self._cuts.clear()


def _rule(verb: str, source: Host) -> str:
    return f"rule {verb} from {source.address} blackhole pref {CUT_PREFERENCE}"


def run_ip(host: Host | str, *commands: str) -> None:
    """Runs `ip` commands in one namespace. Raises AssertionError with the message of `ip`."""
    if not commands:
        return
    namespace = host if isinstance(host, str) else host.namespace
    done = subprocess.run(
        ["ip", "-n", namespace, "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"ip -n {namespace}: {done.stderr.strip()}"


@contextmanager
def namespaces(num_hosts: int, *others: str) -> Iterator[tuple[list[Host], list[str]]]:
    """Makes hosts with nothing but a loopback, and a further namespace for each of `others`."""
    assert 1 <= num_hosts <= MAX_HOSTS, num_hosts
    prefix = f"fednode-{os.getpid()}-{next(_numbers)}"
    hosts = [Host(i, f"{prefix}-{i}") for i in range(num_hosts)]
    more = [f"{prefix}-{other}" for other in others]
    names = [*(host.namespace for host in hosts), *more]
    janitor = subprocess.Popen(
        ["sh", "-c", JANITOR, "janitor", *names], stdin=subprocess.PIPE, start_new_session=True
    )  # an interrupt of the tests does not reach it
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
            run_ip(name, "link set lo up")
        for host in hosts:  # an early rule can only stop packets that the local table has not accepted
            run_ip(host, f"rule add lookup local pref {LOCAL_PREFERENCE}", "rule del lookup local pref 0")
        yield hosts, more
    finally:
        janitor.communicate()


@contextmanager
def lan(num_hosts: int) -> Iterator[Lan]:
    """Makes hosts whose links end at one bridge."""
    with namespaces(num_hosts, "hub") as (hosts, (hub,)):
        make_bridge(hub)
        for host in hosts:
            connect(hub, host, hosts, at=host.namespace)
        yield Lan(hosts)


def make_bridge(hub: str) -> None:
    run_ip(hub, "link add bridge type bridge", "link set bridge up")


def connect(hub: str, host: Host, hosts: Sequence[Host], *, at: str) -> None:
    """Links the bridge to the namespace `at`, which has the address of `host`."""
    port = get_port(host)
    run_ip(
        at,
        f"link add {WIRE} address {_get_mac(host)} type veth peer name {port} netns {hub}",
        f"address add {host.address}/24 dev {WIRE}",
        f"link set {WIRE} up",
        *(  # fixed entries, or address resolution would notice a cut sooner than the nodes
            f"neighbour add {other.address} lladdr {_get_mac(other)} dev {WIRE} nud permanent"
            for other in hosts
            if other != host
        ),
    )
    run_ip(hub, f"link set {port} master bridge up")


def get_port(host: Host) -> str:
    """Returns the bridge's end of a host's link."""
    return f"port{host.index}"


def _get_mac(host: Host) -> str:
    return f"02:00:00:00:00:{host.index + 1:02x}"
