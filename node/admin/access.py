"""Admin calls over TCP: the check that a caller's token has the role of the call's row in `node.admin.operations`
(SECURITY §4).

On loopback calls go in plain. Beyond it they go under TLS: the node shows the leaf of its identity, which callers pin
by its id, so that there is no certificate to install. Callers show none; they send `authorization: Bearer TOKEN` with
every call.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc
from grpc import aio

from chain.signing import SigningKey
from node.addresses import is_on_loopback, parse_address
from node.admin.operations import ADMIN_SERVICE, OPERATIONS
from node.admin.tokens import Role, Tokens
from node.errors import ConfigError, NodeError
from node.p2p.tls import MutualTls

log = logging.getLogger(__name__)

AUTHORIZATION = "authorization"
BEARER = "Bearer "
MAX_TOKEN_CHARS = 256

ADMIN_METHODS = f"/{ADMIN_SERVICE}/"
ROLES: Mapping[str, Role] = {row.name: row.role for row in OPERATIONS}


def get_role(method: str) -> Role:
    """Returns the role that a caller of `method` needs, as in `/package.Service/Method`. A method of our service that
    is not listed needs admin. Health and reflection need read: they show no more than status does."""
    if method.startswith(ADMIN_METHODS):
        return ROLES.get(method.removeprefix(ADMIN_METHODS), Role.ADMIN)
    return Role.READ


class RemoteAccess:
    """Serves a node's admin calls at a TCP `address`, to callers with a token."""

    def __init__(self, address: str, tokens: Tokens, key: SigningKey) -> None:
        self.guard = _Guard(tokens)
        self._address = address
        self._tls = None if is_on_loopback(address) else MutualTls(key, ())

    def listen(self, server: aio.Server) -> int:
        """Binds the address and returns the port. Raises ConfigError."""
        try:
            if self._tls is None:
                return server.add_insecure_port(self._address)
            credentials = self._tls.make_server_credentials(are_callers_known=False)
            return server.add_secure_port(self._address, credentials)
        except RuntimeError as error:
            host, port = parse_address(self._address)
            raise ConfigError(
                f"admin.address: {self._address}: cannot listen there; is port {port} of {host} taken?"
            ) from error


class _Guard(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Lets only those calls through that the caller's token allows."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        refusal = self._judge(handler_call_details.method, dict(handler_call_details.invocation_metadata or ()))
        if refusal is None or handler is None:
            return handler
        return _make_refusal(*refusal)

    def _judge(self, method: str, metadata: Mapping[str, str | bytes]) -> tuple[grpc.StatusCode, str] | None:
        """Returns why a call is refused, or None."""
        given = str(metadata.get(AUTHORIZATION, ""))
        if not given.startswith(BEARER) or len(given) > MAX_TOKEN_CHARS:
            return grpc.StatusCode.UNAUTHENTICATED, "expected a token, got none"
        try:
            role = self._tokens.find_role(given.removeprefix(BEARER))
        except NodeError as error:
            log.error("refused a caller over TCP, as the tokens could not be read: %s", error)
            return grpc.StatusCode.UNAUTHENTICATED, "tokens cannot be read here; the node's log says more"
        if role is None:
            return grpc.StatusCode.UNAUTHENTICATED, "this token is not known, or was revoked"
        if not role.allows(needed := get_role(method)):
            name = method.rpartition("/")[2]
            return grpc.StatusCode.PERMISSION_DENIED, f"{name}: expected a token of role {needed}, got one of {role}"
        return None


def _make_refusal(code: grpc.StatusCode, text: str) -> Any:
    """Returns a handler that ends each call before its request is read: else the requests of many refused callers would
    be in memory at once. It fits methods of any shape."""

    async def refuse(requests: Any, context: Any) -> NoReturn:
        await context.abort(code, text)
        raise AssertionError("abort always raises")

    return grpc.stream_stream_rpc_method_handler(refuse)
