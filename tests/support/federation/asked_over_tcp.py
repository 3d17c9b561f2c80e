"""A federation in one process whose first member can be asked over TCP, with a token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from chain.signing import SigningKey
from node.admin.access import RemoteAccess
from node.admin.node_answers import NodeAnswers
from node.admin.server import AdminServer
from node.admin.tokens import Role, Tokens
from node.admin.wiring import make_predictor
from support.federation.asked import Running, make_book, make_control, make_operator, running

CREATED = "2026-11-20T14:02:16.000Z"


class Remote:
    """A node's TCP address, and tokens for it."""

    def __init__(self, one: Running, tokens: Tokens, port: int, key: SigningKey) -> None:
        self.one = one
        self.tokens = tokens
        self.address = f"127.0.0.1:{port}"
        self.key = key
        self.reader = tokens.add("reader", Role.READ, CREATED)
        self.changer = tokens.add("changer", Role.ADMIN, CREATED)


@asynccontextmanager
async def remote(tmp_path: Path) -> AsyncIterator[Remote]:
    async with running(tmp_path) as one:
        context = one.context
        tokens = Tokens(tmp_path)
        service = one.net["node0"].service
        assert service is not None
        access = RemoteAccess("127.0.0.1:0", tokens, context.key)
        operator = make_operator(context, service, make_book(), tmp_path)
        control = make_control(context, service, view=one.view, book=make_book())
        answers = NodeAnswers(one.view, make_predictor(service, context), operator, control)
        async with AdminServer(None, answers, access) as server:
            yield Remote(one, tokens, server.port, context.key)
