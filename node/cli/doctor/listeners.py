"""The checks of a node's listeners, for peers, commands and HTTP: each says whether the node listens, or could."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.x509 import load_pem_x509_certificate

from chain.signing import SigningKey, encode_id
from node.addresses import parse_address
from node.admin.tokens import Tokens
from node.cli.doctor.findings import Finding, fail, ok, warn
from node.config.http_section import HttpSection
from node.config.node_config import NodeConfig
from node.errors import ConfigError, NodeError
from node.host.procfs import find_listeners, name_listener
from node.p2p.probe import NotReached, identify_server
from node.p2p.transport.base import AddressInUse
from node.p2p.transport.rpc import validate_free
from node.telemetry.http_tls import make_context
from node.telemetry.http_token import read_token

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb


def find_existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def check_port(config: NodeConfig, key: SigningKey | None, node: pb.NodeStatus | None) -> Iterator[Finding]:
    listen = config.network.listen
    if config.network.dial_out:
        yield ok("port", "none: this node dials out, as network.dial_out says")
        return
    is_ours = node is not None and key is not None and node.id == encode_id(key.id)
    try:
        validate_free(listen)
    except AddressInUse:
        yield _judge_listener(config, key, is_ours=is_ours)
    except (OSError, ValueError) as error:
        advice = "choose an address of this machine for network.listen, and a port from 1024 on"
        yield fail("port", f"{listen}: cannot listen there ({getattr(error, 'strerror', None) or error})", advice)
    else:
        yield ok("port", f"{listen} is free")


def _judge_listener(config: NodeConfig, key: SigningKey | None, *, is_ours: bool) -> Finding:
    listen = config.network.listen
    if config.network.tls == "off":
        if is_ours:
            return ok("port", f"{listen}: this node listens there")
    else:
        host, port = parse_address(listen)
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (what listens there is asked)
        try:
            identity = identify_server(f"[{local}]:{port}" if ":" in local else f"{local}:{port}")
        except NotReached:
            identity = None
        if identity is not None and key is not None and identity == key.id:
            return ok("port", f"{listen}: this node listens there")
        if identity is not None:
            found = f"{listen}: node {encode_id(identity)} listens there: {_name_listener(listen)}"
            return fail("port", found, "choose another network.listen, or stop it")
    return fail(
        "port", f"{listen}: {_name_listener(listen)} listens there", "stop it, or choose another network.listen"
    )


def check_admin(config: NodeConfig, node: pb.NodeStatus | None) -> Iterator[Finding]:
    if config.admin.address is not None:
        yield from _check_remote(config.admin.address, config.node.data_dir, node)
    path = config.admin.socket
    if path is None and config.admin.address is not None:
        return
    if path is None:
        yield ok("admin", "no socket: this node cannot be asked by commands")
        return
    directory = path.parent
    if not directory.exists():
        existing = find_existing(directory)
        if os.access(existing, os.W_OK | os.X_OK):
            yield ok("admin", f"{path}: its directory will be made")
        else:
            yield fail("admin", f"{existing}: no directory can be made there", "choose another admin.socket")
        return
    status = directory.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid() or mode & 0o077:
        found = f"{directory}: expected mode 0700 and user {os.geteuid()}, got {mode:04o} and user {status.st_uid}"
        yield fail("admin", found, f"chmod 700 {directory}, or choose another admin.socket")
    elif path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        yield fail("admin", f"{path}: expected a socket or nothing there", "move the file, or choose another socket")
    else:
        yield ok("admin", str(path))


def _check_remote(address: str, data_dir: Path, node: pb.NodeStatus | None) -> Iterator[Finding]:
    try:
        validate_free(address)
    except AddressInUse:
        if not _is_own(address, node):
            found = f"{address}: {_name_listener(address)} listens there"
            yield fail("admin", found, "stop it, or choose another admin.address")
            return
    except (OSError, ValueError) as error:
        found = f"{address}: cannot listen there ({getattr(error, 'strerror', None) or error})"
        yield fail("admin", found, "choose an address of this machine for admin.address")
        return
    try:
        num_tokens = len(Tokens(data_dir).get_all())
    except NodeError as error:
        yield fail("admin", str(error), "chmod 600 it, or remove it and make tokens anew")
        return
    if num_tokens:
        yield ok("admin", f"{address}, {num_tokens} tokens")
    else:
        yield warn("admin", f"{address}: there is no token to call it with", "fednode token new makes one")


SOON_DAYS = 14  # before it expires, a certificate should be renewed


def _check_certificate(certificate_file: Path, key_file: Path) -> Iterator[Finding]:
    try:
        make_context(certificate_file, key_file)
    except ConfigError as error:
        yield fail("http", str(error), "name a certificate in PEM and its key, without a passphrase")
        return
    certificate = load_pem_x509_certificate(certificate_file.read_bytes())
    days = (certificate.not_valid_after_utc - datetime.now(UTC)).days
    shown = f"{certificate_file}: valid until {certificate.not_valid_after_utc:%Y-%m-%d}"
    if days < 0:
        yield fail("http", f"{shown}, which is over", "renew it, and then fednode reload")
    elif days < SOON_DAYS:
        yield warn("http", shown, "renew it, and then fednode reload")
    else:
        yield ok("http", shown)
    if (mode := stat.S_IMODE(key_file.stat().st_mode)) & 0o007:
        yield warn("http", f"{key_file}: mode {mode:04o}, everybody here can read it", f"chmod o= {key_file}")


def check_http(section: HttpSection, node: pb.NodeStatus | None) -> Iterator[Finding]:
    """Checks metrics and probes. That they need a token beyond loopback is checked with the configuration."""
    listen, token_file = section.listen, section.token_file
    if listen is None or not section.is_on:
        yield ok("http", "off: no metrics, no probes")
        return
    if token_file is not None:
        try:
            read_token(token_file)
            if (mode := stat.S_IMODE(token_file.stat().st_mode)) & 0o007:
                found = f"{token_file}: mode {mode:04o}, everybody here can read the token"
                yield warn("http", found, f"chmod o= {token_file}")
        except ConfigError as error:
            yield fail("http", str(error), "let this user read it, or write a token of 16 characters or more into it")
    if section.tls.files is not None:
        yield from _check_certificate(*section.tls.files)
    if section.page and section.withholds_page:
        found = f"{listen}: the page is not served, as it would cross a network in the clear"
        yield warn("http", found, "set http.tls, or http.tls_in_front where something with TLS stands before it")
    shown = f"{listen}, {'without a token' if token_file is None else f'token in {token_file}'}"
    try:
        validate_free(listen)
    except AddressInUse:
        if _is_own(listen, node):
            yield ok("http", f"{shown}: this node listens there")
        else:
            found = f"{listen}: {_name_listener(listen)} listens there"
            yield fail("http", found, "stop it, or choose another http.listen")
    except (OSError, ValueError) as error:
        advice = "choose an address of this machine for http.listen, and a port from 1024 on"
        yield fail("http", f"{listen}: cannot listen there ({getattr(error, 'strerror', None) or error})", advice)
    else:
        yield ok("http", f"{shown}: free")


def _is_own(address: str, node: pb.NodeStatus | None) -> bool:
    """Says whether the running node is the one that listens there; true where that cannot be found out."""
    if node is None:
        return False
    listeners = find_listeners(parse_address(address)[1])
    return not listeners or node.pid in listeners


def _name_listener(address: str) -> str:
    return name_listener(parse_address(address)[1])
