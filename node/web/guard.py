"""The guard of a node's page: who may read, who may act, and the headers of every answer (SECURITY §4).

On loopback everybody on the machine may read, as with `/metrics`, under this machine's name alone (`HttpServer`); where
`http.token_file` is set a key or token of the node's is needed, and the token in that file reads `/metrics` and nothing
else. To act takes a key of `fednode open` or a token of role admin, always in a header that no other page can make a
browser send: there are no cookies.
"""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from node.admin.page_keys import PageKeys
from node.admin.tokens import Role, Tokens
from node.errors import NodeError, PermissionRefused
from node.telemetry.http_token import HttpToken, read_bearer
from node.web.files import SAFETY

log = logging.getLogger(__name__)

MAX_TOKEN_CHARS = 256
_SAFETY = [(name.lower().encode(), value.encode()) for name, value in SAFETY.items()]


class Unauthenticated(NodeError):
    """Raised when a call needs a key or token and shows none that is known."""


class Guard:
    """Checks callers of one node by the keys of its page and its admin tokens. `shown` is the token that metrics need:
    where there is one, reading needs a key, too."""

    def __init__(self, keys: PageKeys, tokens: Tokens, shown: HttpToken) -> None:
        self._keys = keys
        self._tokens = tokens
        self._shown = shown

    def check(self, request: Request, needed: Role, *, is_open: bool) -> None:
        """Checks that a caller has the `needed` role. With `is_open`, no key is needed where reading needs none. Raises
        Unauthenticated and PermissionRefused."""
        role = self.find_role(request)
        if role is None and is_open and needed is Role.READ and not self._shown.is_needed:
            return
        if role is None and self._shown.is_needed and self._shown.is_shown(request.headers):
            raise Unauthenticated("the token of http.token_file scrapes /metrics alone: run fednode open")
        if role is None:
            raise Unauthenticated("expected a key or a token that is known here: fednode open opens the page with one")
        if not role.allows(needed):
            raise PermissionRefused(
                f"expected a key or token of role {needed}, got one of role {role}: see fednode open, and token new"
            )

    @staticmethod
    def check_origin(request: Request) -> None:
        """Checks that a request comes from this page, or from no page: another page could not read the answer, but it
        would cost work. Raises PermissionRefused."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
            raise PermissionRefused("a page from elsewhere may ask nothing here")
        if site not in (None, "same-origin", "none"):
            raise PermissionRefused("a page from elsewhere may ask nothing here")

    def find_role(self, request: Request) -> Role | None:
        """Returns the role of the key or token that the caller shows, or None."""
        shown = read_bearer(request.headers)
        if not shown or len(shown) > MAX_TOKEN_CHARS:
            return None
        if (role := self._keys.find_role(shown)) is not None:
            return role
        try:
            return self._tokens.find_role(shown)
        except NodeError as error:
            log.error("refused a caller of the page, as the tokens could not be read: %s", error)
            return None


class SafetyHeaders:
    """Adds to each answer the headers that keep a browser from doing more with it than showing it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_safely(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_SAFETY]
            await send(message)

        await self._app(scope, receive, send_safely)
