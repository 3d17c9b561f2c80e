"""Bad weather on real packets: delay, jitter, loss and reordering between namespaces, without `tc netem`.

    async with stormy_lan(4, Weather(delay_s=0.1, jitter_s=0.05, loss=0.2), seed=1) as (net, storm):
        ...

Not every kernel has netem. Here every host's link is a TUN device, and the packets that come out of one go through
this process into another, late, out of order, or not at all. What befalls the nth packet follows from the seed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from support.machines.namespaces import FIRST, NET, WIRE, Lan, namespaces, run_ip

DEVICE = Path("/dev/net/tun")
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 1500
READ_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Weather:
    """The faults of a network: a packet is lost with probability `loss`, and takes `delay_s`, give or take `jitter_s`,
    drawn for each packet, so that packets sent within twice the jitter may overtake each other."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


def find_obstacle() -> str | None:
    """Returns the reason why bad weather is not possible here, or None."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"{DEVICE}: {error.strerror}"
    return None


@dataclass
class Storm:
    """Carries packets from host to host. `weather` may change at any time."""

    weather: Weather
    random: Random
    num_sent: int = 0
    num_lost: int = 0
    num_overtaken: int = 0  # packets that arrived after one that was sent later over the same link
    _devices: list[int] = field(default_factory=list)
    _newest: dict[tuple[int, int], int] = field(default_factory=dict)

    def describe(self) -> str:
        return f"{self.num_sent} packets, {self.num_lost} lost, {self.num_overtaken} overtaken"

    def add(self, device: int) -> None:
        source = len(self._devices)
        self._devices.append(device)
        asyncio.get_running_loop().add_reader(device, self._take, source)

    def close(self) -> None:
        for device in self._devices:
            asyncio.get_running_loop().remove_reader(device)
            os.close(device)
        self._devices.clear()

    def _take(self, source: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(READ_AT_ONCE):
            try:
                packet = os.read(self._devices[source], 2 * MTU)
            except BlockingIOError:
                return
            target = _get_target(packet)
            if target is None or target >= len(self._devices):
                continue
            self.num_sent += 1
            weather = self.weather
            if self.random.random() < weather.loss:
                self.num_lost += 1
                continue
            late_s = weather.delay_s + self.random.uniform(-weather.jitter_s, weather.jitter_s)
            loop.call_later(max(0.0, late_s), self._give, source, target, self.num_sent, packet)

    def _give(self, source: int, target: int, number: int, packet: bytes) -> None:
        if not self._devices:
            return
        newest = self._newest.get((source, target), 0)
        self.num_overtaken += number < newest
        self._newest[source, target] = max(newest, number)
        try:
            os.write(self._devices[target], packet)
        except BlockingIOError:
            self.num_lost += 1


def _get_target(packet: bytes) -> int | None:
    """Returns the host that an IPv4 packet is for; None for other packets, such as those that IPv6 sends by itself."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return None
    prefix, _, last = ".".join(map(str, packet[16:20])).rpartition(".")
    return int(last) - FIRST if prefix == NET and int(last) >= FIRST else None


@asynccontextmanager
async def stormy_lan(num_hosts: int, weather: Weather, *, seed: int) -> AsyncIterator[tuple[Lan, Storm]]:
    """Runs hosts whose packets all go through a storm."""
    with namespaces(num_hosts) as (hosts, _):
        storm = Storm(weather, Random(seed))
        try:
            for host in hosts:
                storm.add(host.call(_open_tun))
                run_ip(host, f"address add {host.address}/24 dev {WIRE}", f"link set {WIRE} mtu {MTU} up")
            yield Lan(hosts), storm
        finally:
            storm.close()


def _open_tun() -> int:
    """Opens a TUN device named WIRE in the namespace of this thread. Closing it removes it."""
    device = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", WIRE.encode(), IFF_TUN | IFF_NO_PI))
    return device
