"""HTTP with TLS: a client that trusts the certificate's authority is served, others hang up, and a renewed certificate
is shown without a restart."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chain.block import Id
from node.admin.page_keys import make_keys
from node.admin.wiring import make_reloading
from node.cli.doctor.findings import Verdict
from node.cli.doctor.listeners import check_http
from node.clock import SystemClock
from node.config.http_section import HttpSection, HttpTlsSection
from node.config.node_config import NodeConfig
from node.errors import ConfigError
from node.telemetry import http_server
from node.telemetry.http_server import HttpServer
from node.telemetry.http_tls import Certified, HttpTls
from support.data.certificates import Authority
from support.federation.asked import make_book, make_config, running
from support.federation.ports import find_free_ports

LIVE_BOTH = ["http.tls.certificate_file", "http.tls.key_file"]


@asynccontextmanager
async def serving(tls: HttpTls) -> AsyncIterator[int]:
    [port] = find_free_ports(1)
    async with HttpServer(HttpSection(listen=f"127.0.0.1:{port}"), lambda: None, None, tls=tls):
        yield port


def make_node_config(path: Path, files: tuple[Path, Path] | None) -> NodeConfig:
    section = HttpSection() if files is None else HttpSection(tls=make_section(files))
    return make_config(path).model_copy(update={"http": section})


def make_section(files: tuple[Path, Path]) -> HttpTlsSection:
    return HttpTlsSection(certificate_file=files[0], key_file=files[1])


async def ask(port: int, context: ssl.SSLContext, host: str = "127.0.0.1") -> tuple[int, str, str]:
    """Status, the version of TLS, and who the server says it is."""

    def ask() -> tuple[int, str, str]:
        connection = http.client.HTTPSConnection(host, port, context=context, timeout=30)
        try:
            connection.request("GET", "/healthz")
            status = connection.getresponse().status
            assert isinstance(connection.sock, ssl.SSLSocket)
            shown = dict(each[0] for each in connection.sock.getpeercert()["subject"])  # type: ignore[index, misc]
            return status, connection.sock.version() or "", shown["commonName"]
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def test_who_trusts_the_authority_is_served_and_others_hang_up(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with serving(HttpTls(*authority.issue("node0"))) as port:
        trusting = ssl.create_default_context(cafile=authority.file)
        assert await ask(port, trusting) == (200, "TLSv1.3", "node0")
        trusting.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await ask(port, trusting))[1] == "TLSv1.2"
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(port, ssl.create_default_context(cafile=Authority(tmp_path, "another").file))


async def test_nothing_older_and_nothing_in_the_clear_is_answered(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with serving(HttpTls(*authority.issue("node0"))) as port:
        old = ssl.create_default_context(cafile=authority.file)
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError):
            await ask(port, old)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        async with asyncio.timeout(30):
            assert b"200" not in await reader.read()
        writer.close()


async def test_of_too_many_who_shake_no_hands_the_oldest_are_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CALLERS", 8)
    authority = Authority(tmp_path)
    async with serving(HttpTls(*authority.issue("node0"))) as port:
        trusting = ssl.create_default_context(cafile=authority.file)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        for _ in range(10):
            assert (await ask(port, trusting))[0] == 200
        async with asyncio.timeout(60):
            for reader, _ in silent[:24]:
                assert await reader.read() == b""
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("names", [True, False], ids=["by name", "without a name"])
async def test_a_renewed_certificate_is_shown_without_a_restart(
    tmp_path: Path, names: bool, version: ssl.TLSVersion
) -> None:
    authority = Authority(tmp_path)
    files, renewed = authority.issue("before"), authority.issue("after")
    tls, trusting = HttpTls(*files), ssl.create_default_context(cafile=authority.file)
    trusting.minimum_version = trusting.maximum_version = version
    trusting.check_hostname = names  # without, no client sends a name
    host = "localhost" if names else "127.0.0.1"
    async with serving(tls) as port:
        assert (await ask(port, trusting, host))[2] == "before"
        assert tls.replace(Certified.read(*files)) == []
        shutil.copy(renewed[0], files[0])
        with pytest.raises(ConfigError, match="expected a certificate in"):
            Certified.read(*files)  # its key is not there yet
        shutil.copy(renewed[1], files[1])
        read = Certified.read(*files)
        for file in files:
            file.unlink()  # what was read counts, whatever becomes of the files
        assert (await ask(port, trusting, host))[2] == "before"
        assert tls.replace(read) == ["certificate_file", "key_file"]
        assert (await ask(port, trusting, host))[2] == "after"


async def test_a_reload_takes_the_files_that_are_named_by_then(tmp_path: Path) -> None:
    authority, shown = Authority(tmp_path), list[NodeConfig]()
    old, other = authority.issue("old"), authority.issue("other")
    config = make_node_config(tmp_path, old)
    tls = HttpTls(*old)

    async def redial(peer: Id, address: str | None) -> None:
        pass

    async with running(tmp_path / "net", n=1) as one:
        service = one.net["node0"].service
        assert service is not None
        reloading = make_reloading(
            service,
            one.context,
            config,
            lambda: config,
            make_book(),
            redial=redial,
            http=None,
            tls=tls,
            on_config=shown.append,
        )

        async def reload() -> tuple[list[str], list[str], list[str]]:
            reply = await reloading.reload()
            return [*reply.applied], [*reply.needs_restart], [*reply.problems]

        assert await reload() == ([], [], [])
        config = make_node_config(tmp_path, other)
        old[0].unlink()  # nothing names it any more
        assert await reload() == (LIVE_BOTH, [], [])
        assert shown[-1].http.tls.files == other
        for new, file in zip(authority.issue("new"), other, strict=True):
            shutil.copy(new, file)
        assert await reload() == (LIVE_BOTH, [], [])
        assert await reload() == ([], [], [])
        renamed = tmp_path / "renamed.pem"
        other[0].rename(renamed)
        for renewed, file in zip(authority.issue("other"), (renamed, other[1]), strict=True):
            if renewed != file:
                shutil.copy(renewed, file)
        config = make_node_config(tmp_path, (renamed, other[1]))
        assert await reload() == (LIVE_BOTH, [], [])  # each is told of once: one renamed, both renewed
        config = make_node_config(tmp_path, None)
        assert await reload() == ([], LIVE_BOTH, [])
        async with serving(tls) as port:
            assert (await ask(port, ssl.create_default_context(cafile=authority.file)))[2] == "other"


def test_files_that_do_not_serve_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node0")
    for files, said in (
        ((tmp_path / "none.pem", key), r"http\.tls\.certificate_file: .*none\.pem: cannot be read"),
        ((certificate, tmp_path / "none.key"), r"http\.tls\.key_file: .*none\.key: cannot be read"),
        ((certificate, authority.issue("other")[1]), r"expected a certificate in .* and its key"),
        (authority.issue("locked", passphrase=b"secret"), "without a passphrase"),
        ((key, certificate), "expected a certificate in"),
    ):
        with pytest.raises(ConfigError, match=said):
            HttpTls(*files)


def test_doctor_tells_of_a_certificate_that_is_over_or_soon(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    [port] = find_free_ports(1)
    for days, verdict in ((30, Verdict.OK), (7, Verdict.WARN), (-2, Verdict.FAIL)):
        section = HttpSection(listen=f"127.0.0.1:{port}", tls=make_section(authority.issue("node0", days=days)))
        found = next(check_http(section, None))
        assert (found.verdict, "valid until" in found.found) == (verdict, True)


def test_beyond_loopback_the_page_takes_tls_or_somebody_who_says_that_it_is_there(tmp_path: Path) -> None:
    tls = make_section(Authority(tmp_path).issue("node0"))
    for section, address in (
        (HttpSection(listen="127.0.0.1:8080"), "http://127.0.0.1:8080/"),
        (HttpSection(listen="127.0.0.1:8080", tls=tls), "https://127.0.0.1:8080/"),
        (HttpSection(listen="0.0.0.0:8080"), None),
        (HttpSection(listen="0.0.0.0:8080", tls_in_front=True), "http://127.0.0.1:8080/"),
        (HttpSection(listen="0.0.0.0:8080", tls=tls), "https://127.0.0.1:8080/"),
        (HttpSection(listen="0.0.0.0:8080", tls=tls, page=False), None),
    ):
        keys = make_keys(section, SystemClock())
        assert section.serves_page is (address is not None)
        assert (address is None) if keys is None else f"{address!r}" in repr(keys)
    assert any("not served" in found.found for found in check_http(HttpSection(listen="0.0.0.0:1"), None))
