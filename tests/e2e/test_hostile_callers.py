"""A real node that is asked for what would end or busy it: by files of few bytes that unpack to many, by half requests,
and by other pages."""

from __future__ import annotations

import asyncio
import http.client
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from node.admin.samples import MAX_BYTES
from node.host.procfs import read_cpu_s, read_memory
from node.testnet.cluster import NodeProcess
from support.data.bombs import write_archive, write_long_header, write_picture
from support.federation.ports import find_free_ports
from support.federation.real_nodes import Federation, make_federation

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MIB = 1 << 20
UNPACKED_MIB = 1024
NUM_CALLERS = 420
NUM_PROBES = 40
NUM_BLOCKS = 6
NUM_ELSEWHERE = 25  # times each path is asked for by another page
PROBE_S = 5.0  # as long as a probe of our manifests may take, and more


@pytest.fixture
def made(tmp_path: Path) -> tuple[Federation, int]:
    [port] = find_free_ports(1)
    directory = make_federation(tmp_path / "net", num_nodes=1, rounds=1, http_port=port, difficulty=16)
    return Federation(directory, stands_alone=True), port


async def test_files_that_unpack_to_gigabytes_are_refused_by_a_node_that_does_not_grow(
    made: tuple[Federation, int],
) -> None:
    net, port = made
    async with net:
        await net.start()
        await net.wait_for_height(1)
        given = await net.ask("node0", lambda node: node.open_page(read_only=False))
        answer = await asyncio.to_thread(ask, port, "/api/v1/session", f'{{"key": "{given.key}"}}'.encode(), None)
        key = answer[1].split('"')[3]
        for name, data in (
            ("header.npz", write_long_header(UNPACKED_MIB)),
            ("zeros.npz", write_archive(UNPACKED_MIB)),
            ("black.png", write_picture(8192, 8192)),
        ):
            pid = net.get_pid("node0")
            before = watch_peak(pid)
            code, said = await asyncio.to_thread(ask, port, f"/api/v1/predict?name={name}", data, key)
            grown = (read_memory(pid)["peak"] - before) / MIB
            print(
                f"{name}, {len(data) / MIB:.2f} MiB: {code}; the daemon has {before / MIB:.0f} MiB and {grown:.0f} more"
            )
            assert (code, grown < 64) == (400, True), said
        assert (await asyncio.to_thread(ask, port, "/healthz", None, None))[0] == 200


async def test_calls_that_are_refused_are_not_held(tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    directory = make_federation(tmp_path / "net", num_nodes=1, rounds=1, difficulty=16)
    net = Federation(directory, stands_alone=True)
    net.nodes["node0"] = NodeProcess(net.nodes["node0"].node, options=("--set", f"admin.address=127.0.0.1:{port}"))

    async def call(channel: grpc.aio.Channel) -> grpc.StatusCode:
        asked = channel.unary_unary("/fednode.v1.Admin/Predict", bytes, bytes)
        try:
            await asked(bytes(MAX_BYTES), metadata=(("authorization", "Bearer fn_none"),))
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    async with net:
        await net.start()
        before = watch_peak(net.get_pid("node0"))
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own) for _ in range(4)]
        codes = await asyncio.gather(*(call(channel) for channel in channels for _ in range(32)))
        assert set(codes) == {grpc.StatusCode.UNAUTHENTICATED}
        for channel in channels:
            await channel.close(None)
        grown = (read_memory(net.get_pid("node0"))["peak"] - before) / MIB
        print(f"128 calls of 16 MiB without a token: {before / MIB:.0f} MiB and {grown:.0f} more")
        assert grown < 400


async def test_probes_are_answered_beside_callers_who_say_half_a_request(made: tuple[Federation, int]) -> None:
    net, port = made

    async def say_half() -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")
                    await reader.read()
                finally:
                    writer.close()

    async with net:
        await net.start()
        answered = 0
        async with asyncio.TaskGroup() as callers:
            saying = [callers.create_task(say_half()) for _ in range(NUM_CALLERS)]
            await asyncio.sleep(1)
            for _ in range(NUM_PROBES):
                with suppress(OSError):
                    answered += (await asyncio.to_thread(ask, port, "/healthz", None, None))[0] == 200
                await asyncio.sleep(0.1)
            for each in saying:
                each.cancel()
        print(f"{answered} of {NUM_PROBES} probes answered beside {NUM_CALLERS} callers")
        assert answered == NUM_PROBES


async def test_a_page_from_elsewhere_costs_a_node_no_audit(tmp_path: Path) -> None:
    [port] = find_free_ports(1)
    directory = make_federation(tmp_path / "net", num_nodes=1, rounds=NUM_BLOCKS, http_port=port, difficulty=16)
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for_height(NUM_BLOCKS)
        codes, times_s, before_s = [], [], read_cpu_s(net.get_pid("node0"))
        for path in ("/api/v1/verify?deep=true", "/api/v1/export", "/api/v1/overview", "/api/v1/doctor"):
            for _ in range(NUM_ELSEWHERE):
                began_s = time.monotonic()
                answer = await asyncio.to_thread(ask, port, path, None, None, {"Sec-Fetch-Site": "cross-site"})
                times_s.append(time.monotonic() - began_s)
                codes.append(answer[0])
        taken_s = read_cpu_s(net.get_pid("node0")) - before_s
        began_s = time.monotonic()
        own = await asyncio.to_thread(ask, port, "/api/v1/verify?deep=true", b"{}", None)
        own_s = time.monotonic() - began_s
        print(
            f"{len(codes)} GETs of another page: {sorted(set(codes))}, {1e3 * statistics.median(times_s):.1f} ms each"
            f" (longest {1e3 * max(times_s):.1f}), {1e3 * taken_s / len(codes):.1f} ms of CPU;"
            f" the audit of {NUM_BLOCKS} blocks itself: {own[0]}, {own_s:.2f} s"
        )
        assert set(codes) == {403}
        assert own[0] == 200


def watch_peak(pid: int) -> int:
    """The bytes that a process holds now; its peak counts from here."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return read_memory(pid)["resident"]


def ask(
    port: int, path: str, body: bytes | None, key: str | None, further: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """The status and the body of an answer; 0 where there was none. Raises OSError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_S if body is None else 120)
    headers = (
        {"Content-Type": "application/json"}
        | ({} if key is None else {"Authorization": f"Bearer {key}"})
        | dict(further or {})
    )
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except http.client.HTTPException:
        return 0, ""
    finally:
        connection.close()
