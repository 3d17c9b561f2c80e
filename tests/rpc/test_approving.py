"""The approval of a change that was read: another can be made whose id begins alike."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path

import pytest

from chain.changes.change import Change
from chain.changes.members import RemoveMember
from chain.changes.rules import SetRules
from chain.changes.runs import StartRun
from chain.proposals import Proposal
from chain.signing import encode_id
from node.admin import client as admin_client
from node.admin.client import AdminClient
from node.cli import main
from node.errors import InvalidRequest, NodeError
from node.pb import admin_pb2 as pb
from support.data.changes import make_alike
from support.federation.asked import Running, running
from support.federation.recording import PATIENCE_S

Captured = pytest.CaptureFixture[str]
DIGITS = 4
FOR_A_MOMENT = 5  # heights


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


class _Typist(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


class Shell:
    """That of an operator, at a terminal."""

    def __init__(self, one: Running, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        self._one = one
        self._capsys = capsys
        self._patch = monkeypatch

    async def type(self, *words: str, answer: str, code: int = 0) -> str:
        """What a command says before and after it was answered."""
        self._patch.setattr("sys.stdin", _Typist(answer))
        self._patch.setattr("sys.stdout.isatty", lambda: True)
        self._patch.setenv("NO_COLOR", "1")
        return await self._run(*words, code=code)

    async def pipe(self, *words: str, code: int = 0) -> str:
        """As a program has it."""
        self._patch.setattr("sys.stdin", io.StringIO("y\n"))
        return await self._run(*words, code=code)

    async def _run(self, *words: str, code: int) -> str:
        got = await asyncio.to_thread(main, [*words, "--socket", str(self._one.path)])
        said = self._capsys.readouterr()
        assert got == code, said
        return said.out + said.err


async def hear(one: Running, change: Change) -> Proposal:
    """A change that the second node's operator proposes, as the first has it."""
    proposed = await one.net["node1"].get_service().proposals.propose(change)
    return await wait_until_open(one, proposed.id, "node0")


async def wait_until_open(one: Running, change_id: bytes, name: str) -> Proposal:
    book = one.net[name].get_service().proposals
    await one.net.wait_for(lambda: book.get(change_id) is not None, f"{name} to hear of it")
    heard = book.get(change_id)
    assert heard is not None
    return heard


async def hear_alike(one: Running) -> tuple[str, Proposal]:
    """A harmless change, which has expired, and one that begins alike and removes a member. The harmless one's id."""
    await one.net.wait_for_height(1)
    service = one.net["node1"].get_service()
    made, chain_id = service.tip.height, service.tip.state.chain_id
    first, end = made + 1, made + FOR_A_MOMENT
    harmless, harmful = make_alike(
        chain_id,
        Change(SetRules({"keep_heights": (2, 3)}), 1, made, first, end),
        Change(RemoveMember(2), 1, made, first, made + 500),
        digits=DIGITS,
    )
    read = (await hear(one, harmless)).id
    await one.net.wait_for(lambda: one.net["node0"].height > end, "it to expire")
    return read.hex(), await hear(one, harmful)


def has_approved(one: Running, proposal: Proposal) -> bool:
    return one.net.id("node0") in proposal.approvals


async def test_what_begins_like_a_change_that_has_expired_is_not_signed_in_its_place(tmp_path: Path) -> None:
    async with running(tmp_path, n=4) as one:
        read, waiting = await hear_alike(one)
        assert waiting.id.hex()[:DIGITS] == read[:DIGITS]
        for call in (AdminClient.approve, AdminClient.get_proposal):
            with pytest.raises(InvalidRequest) as refused:
                await one.ask(lambda node, call=call: call(node, read[:DIGITS]))  # type: ignore[misc]
            assert f"{waiting.id.hex()} (remove_member, open)" in str(refused.value)
            assert re.search(rf"{read} \(set_rules, expired: it could stand up to height \d+\)", str(refused.value))
        assert not has_approved(one, waiting)
        await one.ask(lambda node: node.approve(waiting.id.hex()))
        assert has_approved(one, waiting)


async def test_an_operator_types_some_digits_and_signs_what_was_shown_or_nothing(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, n=4) as one:
        shell = Shell(one, capsys, monkeypatch)
        read, waiting = await hear_alike(one)
        whole = waiting.id.hex()
        said = await shell.type("approve", read[:DIGITS], answer="y\n", code=2)
        assert "expected the whole id" in said
        assert (read in said, whole in said) == (True, True)
        digits = whole[: 4 * DIGITS]  # the other begins so no more
        said = await shell.type("approve", digits, answer="n\n", code=1)
        by = f"node1 ({encode_id(one.net.id('node1'))[:4]})"
        assert said.startswith(f"remove member, by {by}  {whole}\n  - members.node2: ")
        approved = rf"until +height \d+; the chain is at \d+\napproved by +{re.escape(by)}\nlacks +2 more approvals"
        assert re.search(approved, said)
        assert not has_approved(one, waiting)
        said = await shell.type("approve", digits, answer="y\n")
        assert said.splitlines()[-1].startswith("approved; it still lacks 1 more approval (3 of 4 decide), 1 more of")
        assert said.count("members.node2") == 1
        assert has_approved(one, waiting)


async def test_a_program_names_the_whole_change(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, n=4) as one:
        await one.net.wait_for_height(1)
        shell, made = Shell(one, capsys, monkeypatch), one.net["node1"].height
        waiting = await hear(one, Change(SetRules({"keep_heights": (2, 3)}), 1, made, made + 1, made + 500))
        whole = waiting.id.hex()
        assert "expected --yes and the whole id" in await shell.pipe("approve", whole, code=1)
        assert "expected --yes" in await shell.type("approve", whole, "--json", answer="y\n", code=1)
        said = await shell.pipe("approve", whole[:-1], "--yes", code=2)
        assert f"expected its whole id, 64 hex digits; {whole} (set_rules, open) begins so" in said
        assert not has_approved(one, waiting)
        said = await shell.pipe("approve", whole, "--yes")
        by = f"node1 ({encode_id(one.net.id('node1'))[:4]})"
        assert said.startswith(f"set rules, by {by}  {whole}\n  ~ rules.keep_heights: 2 -> 3\n")
        assert has_approved(one, waiting)


async def test_a_run_that_was_executed_is_shown_before_it_is_approved(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, rounds=2, n=4) as one:
        await one.net.wait_for_height(2)
        shell = Shell(one, capsys, monkeypatch)
        run = one.net["node1"].get_service().tip.state.run
        terms = {key: value for key, value in run.to_terms().items() if key != "initial_model"}
        waiting = await hear(one, Change(StartRun(2, terms | {"rounds": 1}, None), 1, 2, 3, 500))
        for name in ("node2", "node3"):
            await wait_until_open(one, waiting.id, name)
            await one.net[name].get_service().proposals.approve(waiting.id)
        await one.net.wait_for(lambda: one.net["node0"].get_service().tip.state.run.number == 2, "the second run")
        said = await shell.type("approve", waiting.id.hex()[:8], "--no-train", answer="y\n")
        assert "~ run.number: 1 -> 2" in said
        by = ", ".join(f"{name} ({encode_id(one.net.id(name))[:4]})" for name in ("node1", "node2", "node3"))
        assert re.search(rf"executed +in block 3\napproved by +{re.escape(by)}\nlacks +nothing", said)
        assert "Approve this, and not train in it?" in said
        assert said.splitlines()[-1].startswith("approved; it was executed before, so this is for this site's own")
        shown = await one.ask(lambda node: node.get_proposal(waiting.id.hex()))
        assert (shown.executed, shown.open, shown.approved_here) == (3, False, True)
        assert [(each.name, each.trains) for each in shown.approvals if not each.trains] == [("node0", False)]


async def test_a_change_is_proposed_as_it_was_shown_or_not_at_all(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, n=4) as one:
        await one.net.wait_for_height(1)
        shell, book = Shell(one, capsys, monkeypatch), one.net["node0"].get_service().proposals
        for shown in ('{"run": 2}', "{}", ""):
            with pytest.raises(NodeError, match="another change than the one that was shown"):
                await one.ask(lambda node, shown=shown: node.propose(pb.ProposeRequest(kind="end_run", shown=shown)))  # type: ignore[misc]
        await shell.type("propose", "end-run", answer="n\n", code=1)
        assert list(book) == []
        said = await shell.type("propose", "end-run", answer="y\n")
        (proposal,) = book
        assert said.splitlines()[-1] == f"proposed; the others agree with: fednode approve {proposal.id.hex()}"
