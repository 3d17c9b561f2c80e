"""Sites that can only dial out: hosts behind routers that translate addresses, and faults of their connections.

    with sites(4, behind=[3]) as net:
        net.routers[3].forget()  # every connection of host 3 is cut

A host that is named in `behind` has a private address, the same at every site. Its router has the host's address of the
common network, assigns each connection a random port, and admits only answers. Needs `nft` and `conntrack` besides what
`namespaces` needs; all it makes is removed likewise.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.machines import namespaces
from support.machines.namespaces import FIRST, MAX_HOSTS, WIRE, Host, Lan, connect, get_port, make_bridge, run_ip

INNER = "inner"  # a router's end of the link to its host
INNER_ADDRESS, PRIVATE_ADDRESS = "192.168.1.1", "192.168.1.2"  # of every router, and of every host behind one
NET6 = "fd77::"
ADDRESS6 = f"{NET6}1{{i}}"  # of host i, as `TestnetSpec.host` takes it
RESOLVER_DIR = Path("/etc/netns")  # files there replace those of /etc for processes in the namespace of that name
LINK_BURST = "32kb"

RULES = f"""
table ip site {{
    chain input {{
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iifname {INNER} accept
    }}
    chain forward {{
        type filter hook forward priority 0; policy drop;
        ct state invalid drop
        ct state established,related accept
        iifname {INNER} oifname {WIRE} accept
    }}
    chain out {{
        type nat hook postrouting priority 100;
        oifname {WIRE} masquerade fully-random
    }}
}}
"""


def find_obstacle() -> str | None:
    """Returns why there can be no such sites here, or None."""
    if (obstacle := namespaces.find_obstacle()) is not None:
        return obstacle
    for command in ("nft", "conntrack"):
        if shutil.which(command) is None:
            return f"no `{command}` command (nftables, conntrack)"
    checked = subprocess.run(["nft", "--check", "-f", "-"], input=RULES, capture_output=True, text=True, check=False)
    return None if checked.returncode == 0 else f"`nft`: {checked.stderr.strip()}"


@dataclass(slots=True)
class Router:
    """A site's router. `address` is the one that the others see."""

    namespace: str
    address: str

    def forget(self) -> None:
        """Loses the table of connections: packets from outside are dropped, and packets from inside get another port,
        which the peer refuses."""
        self._run("conntrack", "-F")

    def forget_idle_after(self, seconds: int, *, silently: bool = False) -> None:
        """Loses each connection on which nothing has passed for so long. With `silently`, packets from inside of a lost
        connection are dropped too, so that neither end notices."""
        self._set("netfilter/nf_conntrack_tcp_timeout_established", seconds)
        self._set("netfilter/nf_conntrack_tcp_loose", int(not silently))

    def move(self) -> None:
        """Changes to another address, as a provider assigns one every night. Packets to the old one are lost."""
        self.address = renumber(self.namespace, self.address)
        self.forget()

    def list_connections(self) -> set[tuple[str, int]]:
        """Lists the established TCP connections: where each leads, and from which port of the host."""
        listed = self._run("conntrack", "-L", "-p", "tcp", "--state", "ESTABLISHED")
        ways = (dict(word.split("=") for word in reversed(line.split()) if "=" in word) for line in listed.splitlines())
        return {(way["dst"], int(way["sport"])) for way in ways}

    def _set(self, key: str, value: int) -> None:
        self._run("sh", "-c", f"echo {value} > /proc/sys/net/{key}")

    def _run(self, *command: str) -> str:
        return run_in(self.namespace, *command)

    def build(self, site: str) -> None:
        """Builds the link to the host in the namespace `site`, and the rules. The outer link exists already."""
        run_ip(self.namespace, f"link add {INNER} type veth peer name {WIRE} netns {site}", f"link set {INNER} up")
        run_ip(self.namespace, f"address add {INNER_ADDRESS}/24 dev {INNER}")
        run_ip(
            site,
            f"address add {PRIVATE_ADDRESS}/24 dev {WIRE}",
            f"link set {WIRE} up",
            f"route add default via {INNER_ADDRESS}",
        )
        self._set("ipv4/ip_forward", 1)
        run_in(self.namespace, "nft", "-f", "-", text=RULES)


class Sites(Lan):
    """Hosts, some of them behind routers, by their number."""

    def __init__(self, hosts: Sequence[Host], routers: Mapping[int, Router], hub: str) -> None:
        super().__init__(hosts)
        self.routers = dict(routers)
        self._hub = hub

    def unplug(self, host: Host) -> None:
        """Drops all packets of a host's link from now on, as when a machine sleeps."""
        run_ip(self._hub, f"link set {get_port(host)} down")

    def plug_in(self, host: Host) -> None:
        run_ip(self._hub, f"link set {get_port(host)} up")

    def limit(self, host: Host, rate: str) -> None:
        """Limits a host's link to a rate, each way: `100mbit`."""
        router = self.routers.get(host.index)
        for namespace, device in (
            (host.namespace if router is None else router.namespace, WIRE),
            (self._hub, get_port(host)),
        ):
            limit = ("rate", rate, "burst", LINK_BURST, "latency", "50ms")
            run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *limit)

    def add_ipv6(self, *hosts: Host) -> None:
        """Adds an IPv6 address to hosts: ADDRESS6."""
        for host in hosts:
            run_ip(host, f"address add {get_address6(host)}/64 dev {WIRE} nodad")

    def drop_ipv4(self, *hosts: Host) -> None:
        for host in hosts:
            run_ip(host, f"address del {host.address}/24 dev {WIRE}")

    def name(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Sets the addresses of names at all hosts; running processes see them at once."""
        lines = [f"{address} {name}\n" for name, those in addresses.items() for address in those]
        text = "127.0.0.1 localhost\n" + "".join(lines)
        for host in self:
            directory = RESOLVER_DIR / host.namespace
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "resolv.conf").touch()
            (directory / "hosts").write_text(text)  # written in place: the file may be mounted


def get_address6(host: Host) -> str:
    return f"{NET6}{FIRST + host.index}"


def renumber(namespace: str, address: str) -> str:
    """Returns the address that replaces this one in a namespace."""
    head, _, last = address.rpartition(".")
    new = f"{head}.{int(last) + 2 * MAX_HOSTS}"
    assert int(last) < 255 - 2 * MAX_HOSTS, f"renumbered too often: {address}"
    run_ip(namespace, f"address del {address}/24 dev {WIRE}", f"address add {new}/24 dev {WIRE}")
    return new


def list_pids(host: Host) -> list[int]:
    """Lists the processes that run on a host."""
    return [int(pid) for pid in run("ip", "netns", "pids", host.namespace).split()]


def run_in(namespace: str, *command: str, text: str = "") -> str:
    return run("ip", "netns", "exec", namespace, *command, text=text)


def run(*command: str, text: str = "") -> str:
    """Runs a command and returns its output. Raises AssertionError with its error output."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


@contextmanager
def sites(num_hosts: int, *, behind: Collection[int] = ()) -> Iterator[Sites]:
    """Makes hosts at one bridge, those of these numbers behind a router each."""
    names = [f"router{i}" for i in sorted(behind)]
    with namespaces.namespaces(num_hosts, "hub", *names) as (hosts, (hub, *others)):
        make_bridge(hub)
        routers = {i: Router(name, hosts[i].address) for i, name in zip(sorted(behind), others, strict=True)}
        for host in hosts:
            router = routers.get(host.index)
            connect(hub, host, hosts, at=host.namespace if router is None else router.namespace)
            if router is not None:
                router.build(host.namespace)
        yield Sites(hosts, routers, hub)
