"""The answers of a running node: finds for each operation of the table the function of the same name, in one of the
node's parts or in its ledger."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any

from node.admin import operations
from node.admin.operations import A, Operation
from node.admin.peer_control import PeerControl
from node.admin.predictor import Predictor
from node.admin.round_control import Control
from node.admin.view import NodeView
from node.pb import admin_pb2 as pb


class NodeAnswers:
    """Answers callers over gRPC and HTTP."""

    def __init__(self, view: NodeView, predictor: Predictor, operator: PeerControl, control: Control) -> None:
        self.view = view
        self.predictor = predictor
        self.control = control
        self._operator = operator
        parts = (self, view, view.federation, view.backups, predictor, control, control.keys, control.changes)
        self._functions: Mapping[str, Callable[..., Any]] = {
            row.name: _find(row, parts, view) for row in operations.OPERATIONS
        }

    async def ask(self, operation: Operation[Any, A], **asked: Any) -> A:
        """Returns the answer to a request with these fields. Raises NodeError or ChainError."""
        found = self._functions[operation.name](**asked)
        answer: A = await found if inspect.isawaitable(found) else found
        return answer

    def stream(self, operation: Operation[Any, A], **asked: Any) -> AsyncGenerator[A, None]:
        """Yields one answer after the other. Closing the generator ends the call."""
        answers: AsyncGenerator[A, None] = self._functions[operation.name](**asked)
        return answers

    # ---- peers, shown as they are then

    async def ban_peer(self, peer: str, minutes: float) -> pb.PeerView:
        return self.view.show_peer(await self._operator.ban(peer, minutes))

    async def unban_peer(self, peer: str) -> pb.PeerView:
        return self.view.show_peer(await self._operator.unban(peer))

    async def add_peer(self, peer: str) -> pb.PeerView:
        return self.view.show_peer(await self._operator.add(peer))

    async def remove_peer(self, peer: str) -> pb.PeerView:
        return self.view.show_peer(await self._operator.remove(peer))


def _find(row: Operation[Any, Any], parts: tuple[object, ...], view: NodeView) -> Callable[..., Any]:
    """Returns the function that answers an operation. Raises LookupError where there is none."""
    for part in parts:
        function: Callable[..., Any] | None = getattr(part, row.function, None)
        if function is not None:
            return function
    if not row.of_ledger:
        raise LookupError(f"{row.name}: expected a function {row.function} in a part of the node")
    return partial(view.read, row)
