"""The table of operations: it has every call of the service, each with a function of its fields, and what is added to
it is there for whoever asks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from fednode.aclient import AsyncClient
from fednode.client import Client
from node.admin import operations
from node.admin.backups import Backups
from node.admin.changes import ChangeControl
from node.admin.federation_view import FederationView
from node.admin.key_control import KeyControl
from node.admin.node_answers import NodeAnswers
from node.admin.offline import OfflineNode
from node.admin.operations import LIST_RUNS, OPERATIONS, PAGE, Http, Operation
from node.admin.predictor import Predictor
from node.admin.round_control import Control
from node.admin.view import NodeView
from node.errors import NodeError
from node.ledger.ledger_answers import LedgerAnswers
from node.pb import admin_pb2 as pb
from node.web.wiring import describe_api
from support.federation.asked import running
from support.federation.asked_over_http import serving_page
from support.federation.recording import PATIENCE_S, wait_until

PARTS = (NodeAnswers, NodeView, FederationView, Backups, Predictor, Control, KeyControl, ChangeControl, LedgerAnswers)
OF_THE_CLIENT = {"close", "check", "open_another"}  # which ask nothing
ADDRESS = Http("/span", "A height, and the last.", PAGE)
SPAN = Operation(pb.ListRequest, pb.VerifyProgress, ADDRESS, of_ledger=True, called="GetSpan")


def get_span(answers: LedgerAnswers, first: int | None, limit: int, reverse: bool) -> pb.VerifyProgress:
    return pb.VerifyProgress(height=first or 0, last=answers.get_head(include_payloads=False).summary.height)


def test_the_table_has_the_calls_of_the_service_with_their_messages() -> None:
    service = pb.DESCRIPTOR.services_by_name["Admin"]
    rows = {row.name: (row.request.DESCRIPTOR, row.reply.DESCRIPTOR, row.is_stream) for row in OPERATIONS}
    assert rows == {one.name: (one.input_type, one.output_type, one.server_streaming) for one in service.methods}


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_each_function_takes_the_fields_of_the_request_and_gives_the_reply(row: Operation[Any, Any]) -> None:
    functions = [getattr(part, row.function) for part in PARTS if hasattr(part, row.function)]
    assert functions
    for function in functions:
        _, *taken = inspect.signature(function).parameters.values()
        fields = {field.name for field in row.request.DESCRIPTOR.fields}
        assert fields <= {one.name for one in taken}
        assert {one.name for one in taken if one.default is one.empty} <= fields
        answer = get_type_hints(function)["return"]
        assert row.reply in (answer, *get_args(answer))
    assert (functions[-1].__qualname__.startswith("LedgerAnswers.")) is row.of_ledger


async def test_an_operation_is_added_by_a_row_and_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "OPERATIONS", (*OPERATIONS, SPAN))
    monkeypatch.setattr(LedgerAnswers, SPAN.function, get_span, raising=False)
    asked = pb.ListRequest(first=1)
    async with serving_page(tmp_path, rounds=2) as page:
        await page.one.net.wait_for_height(2)
        shown = await page.one.ask(lambda node: node.ask(SPAN, asked))
        assert (shown.height, shown.last) == (1, 2)
        assert (await page.get("/api/v1/span?from=1")).json == {"height": 1, "last": 2}
        path = page.one.context.store.path
    said = describe_api()["paths"]["/span"]["get"]
    assert [one["name"] for one in said["parameters"]] == ["from", "limit", "reverse"]
    with OfflineNode(path) as node:
        assert node.ask(SPAN, asked) == shown
        with pytest.raises(NodeError, match="expected a running node"):
            node.ask(operations.GET_STATUS, pb.GetStatusRequest())


def test_whoever_asks_from_coroutines_has_the_same_calls() -> None:
    calls = {name for name in vars(Client) if not name.startswith("_")} - OF_THE_CLIENT
    assert calls == {name for name in vars(AsyncClient) if not name.startswith("_")} - {"aclose"}
    for name in calls:
        assert inspect.signature(getattr(AsyncClient, name)).parameters.keys() == (
            inspect.signature(getattr(Client, name)).parameters.keys()
        )


async def test_a_caller_that_leaves_frees_no_place_for_a_second_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, most = [0], [0]
    go_on = threading.Event()

    def list_runs(answers: LedgerAnswers, run: int | None = None) -> pb.ListRunsReply:
        reading[0] += 1
        most[0] = max(most[0], reading[0])
        assert go_on.wait(PATIENCE_S)
        reading[0] -= 1
        return pb.ListRunsReply()

    monkeypatch.setattr(LedgerAnswers, "list_runs", list_runs)
    async with running(tmp_path) as one:
        callers = [asyncio.create_task(one.view.read(LIST_RUNS, run=None)) for _ in range(4)]
        await wait_until(lambda: reading[0] == 1, "the first to read")
        for caller in callers[:3]:
            caller.cancel()
            await asyncio.sleep(0.05)
        go_on.set()
        ended = await asyncio.gather(*callers, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in ended] == [True, True, True, False]
    assert most == [1]
