"""The reload of node.yaml while the node runs, for an operator or SIGHUP.

Settings that may change in a running node are applied; changes of others are named. A file with problems changes
nothing. Admin tokens need no reload: their file is checked with every call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from chain.block import Id
from chain.genesis import Genesis
from node.config.genesis_members import validate_membership
from node.config.node_config import NodeConfig
from node.config.node_sections import Section
from node.consensus.service import RoundService
from node.errors import ConfigError, NodeError
from node.p2p.address_book import AddressBook
from node.pb import admin_pb2 as pb
from node.telemetry.http_tls import Certified, HttpTls
from node.telemetry.http_token import HttpToken, read_token

log = logging.getLogger(__name__)

LIVE = ("log.level", "network.peers", "consensus.mine", "http.token_file")  # what may change in a running node
LIVE_TLS = ("http.tls.certificate_file", "http.tls.key_file")  # may change as well, where TLS is on before and after
DATA = "data"  # applied where there was no worker: a new one reads them

Load = Callable[[], NodeConfig]
_Section = TypeVar("_Section", bound=Section)


class _Read(NamedTuple):
    """A configuration that the node could start with, and what its files hold: the `token` that callers over HTTP show
    and the certificate that they are shown. Each is None where it is off before or after the reload."""

    config: NodeConfig
    token: bytes | None
    certified: Certified | None


class Reloading:
    """Holds the configuration in effect and reloads it. `load` reads it as at the start; None where it came from no
    file. `redial` dials a known peer at another address. `http` holds the token that callers over HTTP show, `tls` the
    certificate that they are shown. `on_config` receives each configuration that takes effect."""

    def __init__(
        self,
        config: NodeConfig,
        load: Load | None,
        service: RoundService,
        genesis: Genesis,
        book: AddressBook,
        *,
        me: Id,
        redial: Callable[[Id, str | None], Awaitable[None]],
        http: HttpToken | None,
        tls: HttpTls | None,
        on_config: Callable[[NodeConfig], None],
    ) -> None:
        self.config = config
        self._load = load
        self._service = service
        self._genesis = genesis
        self._me = me
        self._book = book
        self._redial = redial
        self._http = http
        self._tls = tls
        self._on_config = on_config
        self._turn = asyncio.Lock()

    async def reload(self) -> pb.ReloadReply:
        """Reloads the configuration and applies what may change. Returns what was applied and what was not, or why
        nothing was."""
        async with self._turn:
            try:
                read = await asyncio.to_thread(self._read)
            except NodeError as error:
                problems = [*getattr(error, "problems", ())] or [str(error)]
                for problem in problems:
                    log.warning("the configuration was refused: %s", problem)
                return pb.ReloadReply(problems=problems)
            return await self._apply(read)

    def _read(self) -> _Read:
        """Reads the configuration and its files, and changes nothing. Raises NodeError."""
        if self._load is None:
            raise ConfigError("this node was not started from a file")
        new = self._load()
        validate_membership(new, self._genesis, self._me, state=self._service.tip.state)
        token_file = None if self._http is None else new.http.token_file
        token = None if token_file is None else read_token(token_file)
        files = None if self._tls is None else new.http.tls.files
        return _Read(new, token, None if files is None else Certified.read(*files))

    async def _apply(self, read: _Read) -> pb.ReloadReply:
        old, new = self.config, read.config
        changed = find_changes(old, new)
        live = LIVE if read.certified is None else (*LIVE, *LIVE_TLS)
        applied = [key for key in changed if key in live]
        renewed = []
        if self._http is not None and self._http.replace(read.token):
            renewed.append("http.token_file")
        if self._tls is not None and read.certified is not None:
            renewed += [f"http.tls.{name}" for name in self._tls.replace(read.certified)]
        applied += [key for key in renewed if key not in changed]
        if "log.level" in applied:
            logging.getLogger().setLevel(new.log.level.upper())
        if "consensus.mine" in applied:
            self._service.opener.mines = new.consensus.mine
        if "network.peers" in applied:
            await self._move_peers(new)
        if self._service.learner.retry():
            applied.append(DATA)
        self.config = _take_over(old, new, [key for key in applied if key != DATA])
        self._on_config(self.config)
        rest = [key for key in changed if key not in live]
        if applied or rest:
            self._service.events.publish("operator", reloaded=applied, needs_restart=rest)
        log.warning(
            "the configuration was read again; applied: %s; needs a restart: %s",
            ", ".join(applied) or "nothing",
            ", ".join(rest) or "nothing",
        )
        return pb.ReloadReply(applied=applied, needs_restart=rest)

    async def _move_peers(self, new: NodeConfig) -> None:
        before = self._book.get_all()
        self._book.configure(new.network.get_addresses(self._genesis))
        for peer in before.keys() | self._book.get_all().keys():
            if self._book.get(peer) != before.get(peer):
                await self._redial(peer, self._book.get(peer))


def find_changes(old: NodeConfig, new: NodeConfig) -> list[str]:
    """Returns the dotted keys under which the two differ, in the order of the file."""
    before, after = dict(_walk(old.model_dump(mode="json"))), dict(_walk(new.model_dump(mode="json")))
    missing = object()
    return [key for key in before | after if before.get(key, missing) != after.get(key, missing)]


def _walk(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and value:
            yield from _walk(value, f"{key}.")
        else:
            yield key, value


def _take_over(old: _Section, new: _Section, keys: Collection[str]) -> _Section:
    """Returns `old` with the values of `new` under these dotted keys."""
    for key in keys:
        old = _replace(old, new, key.split("."))
    return old


def _replace(old: _Section, new: _Section, names: Sequence[str]) -> _Section:
    """Returns `old` with the value of `new` under these names, each one level below the one before."""
    name, *rest = names
    value = getattr(new, name)
    return old.model_copy(update={name: _replace(getattr(old, name), value, rest) if rest else value})
