"""Changes of a federation from an operator's shell: proposed, approved and shown, on one node of a federation in one
process."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from chain.block import Answer
from chain.changes.change import Change
from chain.changes.rules import SetRules
from chain.changes.runs import StartRun
from chain.signing import encode_id
from ml.models import resolve_model
from node.admin import client as admin_client
from node.admin.wiring import make_view
from node.cli import main
from node.consensus.governance.proposals import ProposalBook
from node.consensus.service import RoundService
from support.data.chains import make_keys
from support.federation.asked import Running, ask_json, make_book, make_config, running
from support.federation.asked import run_command as run
from support.federation.recording import PATIENCE_S

Captured = pytest.CaptureFixture[str]
STRANGER = make_keys(9)[8]
NET = "support.data.user_models:make_small"


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CALL_S", PATIENCE_S)


def get_service(one: Running, name: str = "node0") -> RoundService:
    service = one.net[name].service
    assert service is not None
    return service


async def approve(one: Running, change: str, *names: str) -> None:
    """By these nodes' operators, once they have heard of it."""
    change_id = bytes.fromhex(change)
    for name in names:
        book = get_service(one, name).proposals
        await one.net.wait_for(partial(_is_open, book, change_id), f"it to be open at {name}")
        await book.approve(change_id)


def show_key(one: Running, name: str) -> str:
    """As it stands beside a name where somebody decides."""
    return encode_id(one.net.id(name))[:4]


def _is_open(book: ProposalBook, change_id: bytes) -> bool:
    return book.get(change_id) is not None


async def test_a_rule_is_proposed_approved_and_in_force(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, n=4) as one:
        await one.net.wait_for_height(1)
        assert await run(capsys, one, "proposals") == "no change waits for approval\n"
        said = await run(capsys, one, "propose", "set", "keep_heights=3", "--note", "more disk", "--yes")
        lines = said.splitlines()
        assert lines[0].startswith(f"set rules, by node0 ({show_key(one, 'node0')})  ")
        assert lines[1] == "  ~ rules.keep_heights: 2 -> 3"
        assert ["note", "more", "disk"] in [line.split() for line in lines]
        assert ["lacks", "2", "more", "approvals", "(3", "of", "4", "decide)"] in [line.split() for line in lines]
        others = ", ".join(f"{name} ({show_key(one, name)})" for name in ("node1", "node2", "node3"))
        assert ["not", "answered", *others.split()] in [line.split() for line in lines]
        (proposal,) = (await ask_json(capsys, one, "proposals"))["proposals"]
        assert (proposal["open"], proposal["approved_here"], proposal["proposer"]) == (True, True, "node0")
        assert proposal["differences"] == [{"path": "rules.keep_heights", "old": "2", "new": "3"}]
        assert proposal["missing"]["unanswered"] == ["node1", "node2", "node3"]
        status = await ask_json(capsys, one, "status")
        assert (status["open_changes"], status["unapproved_changes"], status["run"]) == (1, 0, 1)
        assert "1 change waits for approval: fednode proposals" in await run(capsys, one, "status")
        table = (await run(capsys, one, "proposals", "list")).splitlines()
        assert table[1].split()[:4] == [proposal["id"][:8], "set", "rules", "node0"]
        shown = await run(capsys, one, "proposals", "show", proposal["id"][:6])
        assert shown.splitlines()[:2] == lines[:2]
        await approve(one, proposal["id"], "node1", "node2")
        await one.net.wait_for(lambda: get_service(one).tip.state.rules.keep_heights == 3, "the rule to be in force")
        assert (await ask_json(capsys, one, "proposals"))["proposals"] == []
        said = await run(capsys, one, "approve", proposal["id"], "--yes", code=3)
        assert "no such change is open here (set_rules, executed: in block " in said
        assert said.endswith("Open: none\n")


async def test_what_another_proposed_is_approved_by_its_id(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, n=4) as one:
        await one.net.wait_for_height(1)
        change_id = await propose_elsewhere(one, SetRules({"keep_heights": (2, 3)}))
        assert (await ask_json(capsys, one, "status"))["unapproved_changes"] == 1
        for wrong, why in (("12", "at least 4"), ("xyz12", "hex digits"), ("0" * 64, "Open: " + change_id[:8])):
            assert why in await run(capsys, one, "approve", wrong, "--yes", code=3 if wrong[0] == "0" else 2)
        assert "nothing is trained by it" in await run(capsys, one, "approve", change_id, "-y", "--no-train", code=2)
        said = (await run(capsys, one, "approve", change_id.upper(), "--yes")).splitlines()
        assert said[-1] == "approved; it still lacks 1 more approval (3 of 4 decide)"
        proposal = await ask_json(capsys, one, "proposals", "show", change_id)
        assert [each["name"] for each in proposal["approvals"]] == ["node1", "node0"]
        again = await ask_json(capsys, one, "approve", change_id, "--yes")  # what was answered stays
        assert again["approvals"] == proposal["approvals"]
        told = await one.ask(
            lambda node: [
                json.loads(event.data) for event in islice(node.watch(["proposal", "approval", "operator"], "0-0"), 3)
            ]
        )
        assert told[0] == {"change": change_id, "what": "set_rules", "by": 1, "by_name": "node1"}
        assert (told[1]["author_name"], told[1]["answer"]) == ("node0", 1)
        assert told[2] == {"approved": change_id}


async def propose_elsewhere(one: Running, kind: Any, name: str = "node1") -> str:
    """By another node's operator, so that the first has heard of it. The id."""
    service = get_service(one, name)
    member = service.tip.state.get_member(one.net.id(name))
    assert member is not None
    made = service.tip.height
    proposal = await service.proposals.propose(Change(kind, member.seat, made, made + 1, made + 500))
    await one.net.wait_for(lambda: get_service(one).proposals.get(proposal.id) is not None, "the first to hear of it")
    return proposal.id.hex()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("set", "waits.colect_s=5"), "there is no such rule. Did you mean 'waits.collect_s'?"),
        (("set", "keep_heights=1000"), "at most 64 times more or less than 2"),
        (("rounds", "0"), "there are 0 already"),
        (("upgrade", "6", "--from", "500"), "protocol 6: this release speaks 2, 3, 4 and 5"),
        (("pardon", "node1"), "node1 is not suspended"),
        (("pardon", "node7"), "no member is called 'node7'"),
        (("remove-observer", "x"), "no observer is called 'x'"),
        (("add-member", "fednode-join-1:AAAA"), ""),
        (("add-member", "nobody"), "expected fednode-join-1:… or NAME=ID"),
        (("run", "--set", "lr=-1", "--continue"), "method.lr: expected a number in (0, 1e38]"),
        (("run", "--set", "model.hidden=[5]", "--continue"), "not one this run can continue from"),
        (("run", "--initial", "/nowhere/model"), "cannot be read by the node"),
    ],
)
async def test_what_cannot_hold_is_refused_and_nothing_is_signed(
    tmp_path: Path, capsys: Captured, arguments: tuple[str, ...], why: str
) -> None:
    async with running(tmp_path) as one:
        await one.net.wait_for_height(1)
        said = await run(capsys, one, "propose", *arguments, "--yes", code=1)
        assert said.startswith("fednode: ")
        assert why in said
        assert len(said.splitlines()) == 1
        assert list(get_service(one).proposals) == []


async def test_nothing_is_signed_where_nobody_is_asked_or_for_a_look(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path) as one:
        await one.net.wait_for_height(1)
        for words in (("set", "keep_heights=3"), ("end-run", "--json")):
            assert "expected --yes, or --dry-run" in await run(capsys, one, "propose", *words, code=1)
        draft = await ask_json(capsys, one, "propose", "end-run", "--dry-run")
        assert (draft["open"], draft["approvals"], draft["kind"]) == (False, [], "end_run")
        assert draft["missing"]["before"] == 2
        said = await run(capsys, one, "propose", "remove-member", "node2", "--dry-run")
        assert said.splitlines()[1] == f"  - members.node2: {encode_id(one.net.id('node2'))}"
        assert "note: all 2 members have to vote then" in said
        assert list(get_service(one).proposals) == []
        said = await run(capsys, one, "propose", "run", code=2)
        assert "expected either --continue or --initial FILE or new" in said


async def test_a_member_asks_to_leave(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, n=4) as one:
        await one.net.wait_for_height(1)
        said = await run(capsys, one, "leave", "--yes")
        assert said.startswith("This node asks to leave.")
        (proposal,) = get_service(one).proposals
        assert json.dumps(proposal.change.kind.to_terms()) == '{"seat": 0}'


async def test_who_may_not_leave_is_told_that_alone(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, n=1) as one:
        await one.net.wait_for_height(1)
        for words in (("--yes",), ("--dry-run",)):
            assert await asyncio.to_thread(main, ["leave", *words, "--socket", str(one.path)]) == 1
            said = capsys.readouterr()
            assert (said.out, said.err.startswith("fednode: ")) == ("", True)


async def test_a_joiner_is_proposed_and_its_readiness_is_missed(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, n=4) as one:
        await one.net.wait_for_height(1)
        line = f"hospital-d={encode_id(STRANGER.id)}@d.example.org:7050"
        shown = await ask_json(capsys, one, "propose", "add-member", line, "--yes")
        assert shown["missing"]["readiness"] == encode_id(STRANGER.id)
        assert (shown["missing"]["quorum"], shown["missing"]["quorum_after"]) == ("3 of 4", "4 of 5")
        said = await run(capsys, one, "proposals", "show", shown["id"])
        assert f"the readiness of {encode_id(STRANGER.id)[:8]}" in said
        key = await ask_json(capsys, one, "key", "replace", "node2", line, "--dry-run")
        assert key["differences"][0]["path"] == "members.node2.key"


async def test_members_are_listed_and_shown(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path) as one:
        await one.net.wait_for_height(1)
        reply = await ask_json(capsys, one, "members")
        assert [(each["name"], each["seat"], each["me"]) for each in reply["members"]] == [
            ("node0", 0, True),
            ("node1", 1, False),
            ("node2", 2, False),
        ]
        assert (reply["quorum"], reply["min_contributions"], reply["observers"]) == (3, 3, [])
        lines = (await run(capsys, one, "members")).splitlines()
        short = encode_id(one.net.id("node0"))[:8]
        assert lines[1].split()[:-1] == ["node0", short, "0", "genesis", "this", "node"]
        assert lines[-1] == "3 of 3 decide; 3 contribute to a round at least"
        shown = await run(capsys, one, "members", "show", "node1")
        assert ["since", "genesis"] in [line.split() for line in shown.splitlines()]
        assert "there are node0, node1, node2" in await run(capsys, one, "members", "show", "nodeX", code=3)


async def test_what_a_site_calls_others_is_shown_beside_their_names(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        await one.net.wait_for_height(1)
        config, member_id = make_config(tmp_path), encode_id(one.net.id("node1"))
        own = config.node.model_copy(update={"display_names": (f"{member_id}=Klinikum Süd",)})
        config = config.model_copy(update={"node": own})
        view = make_view(get_service(one), one.context, config, make_book())
        members = (await view.federation.list_members()).members
        told = [(each.name, each.display_name) for each in members]
        assert told == [("node0", ""), ("node1", "Klinikum Süd"), ("node2", "")]


def count_approvals(one: Running, name: str, change_id: str) -> int:
    proposal = get_service(one, name).proposals.get(bytes.fromhex(change_id))
    return 0 if proposal is None else len(proposal.approvals)


@pytest.mark.slow  # torch is loaded to draw
async def test_a_run_may_begin_from_a_model_that_is_drawn_for_it(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=1, n=4) as one:
        await one.net.wait_for_height(1)
        words = ("propose", "run", "--set", "model.hidden=[3]", "--rounds", "2", "--initial", "new", "--yes")
        proposed = [await ask_json(capsys, one, *words) for _ in range(2)]
        terms, other = (json.loads(each["terms"]) for each in proposed)
        assert terms["run"] == other["run"]
        assert terms["initial"] != other["initial"], "drawn anew"
        blob = get_service(one).proposals.get(bytes.fromhex(proposed[0]["id"]))
        assert blob is not None
        assert terms["run"]["model"]["hidden"] == [3]


@pytest.mark.slow
async def test_a_model_that_the_node_may_not_import_is_not_drawn(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=1, n=4) as one:
        await one.net.wait_for_height(1)
        terms = one.net.genesis.run
        model = resolve_model({"name": NET}, tuple(terms.input["shape"]), len(terms.classes))
        file = tmp_path / "run.yaml"
        file.write_text(json.dumps({"method": {"name": "fedavg"}, "model": model}))
        said = await run(capsys, one, "propose", "run", str(file), "--rounds", "2", "--initial", "new", "--yes", code=1)
        assert said.startswith("fednode: initial: ")
        assert "training.plugins" in said


async def test_statistics_of_columns_that_are_none_are_refused(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=1, n=4) as one:
        file = tmp_path / "columns.yaml"
        for columns in ("[{name: sex, values: 3}]", "[sex]", "[]"):
            file.write_text(f"columns: {columns}\n")
            said = await run(capsys, one, "propose", "statistics", str(file), "--yes", code=1)
            assert "expected a list of columns" in said


async def test_an_evaluation_of_what_no_site_has_in_common_is_refused(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=1, n=4) as one:
        await one.net.wait_for_height(1)
        said = await run(capsys, one, "propose", "evaluation", "--yes", code=1)
        assert "run 1: dfpl has no whole model in common that every site could measure" in said
        assert "expected newest, best or a number from 1 to 1 of run 1, got 4" in await run(
            capsys, one, "propose", "evaluation", "--round", "4", "--yes", code=1
        )
        assert await ask_json(capsys, one, "evaluation") == {"evaluations": []}
        assert (await run(capsys, one, "evaluation")).startswith("No model was evaluated")
        assert "no model was evaluated" in await run(capsys, one, "evaluation", "--run", "0", code=3)
        assert "run 1 is no evaluation" in await run(capsys, one, "evaluation", "--run", "1", code=3)


async def test_runs_are_listed_with_who_approved_and_who_trained(tmp_path: Path, capsys: Captured) -> None:
    async with running(tmp_path, rounds=3, n=4) as one:
        await one.net.wait_for_height(3)
        (run_one,) = (await ask_json(capsys, one, "runs"))["runs"]
        assert (run_one["number"], run_one["method"], run_one["made"], run_one["phase"]) == (1, "dfpl", 3, "done")
        words = ("propose", "run", "--set", "lr=0.05", "--rounds", "2", "--continue", "--note", "slower", "--yes")
        proposed = await ask_json(capsys, one, *words)
        assert {each["path"] for each in proposed["differences"]} >= {"run.number", "run.method.lr", "run.rounds"}
        assert json.loads(proposed["terms"])["initial"] == "continue"
        await approve(one, proposed["id"], "node1")
        proposals = get_service(one, "node2").proposals
        await one.net.wait_for(lambda: proposals.get(bytes.fromhex(proposed["id"])) is not None, "the third to hear")
        await proposals.approve(bytes.fromhex(proposed["id"]), Answer.YES_WITHOUT_TRAINING)
        await one.net.wait_for(
            lambda: all(count_approvals(one, name, proposed["id"]) == 3 for name in one.net.nodes), "all to have three"
        )
        await approve(one, proposed["id"], "node3")
        await one.net.wait_for(lambda: get_service(one).tip.state.run.number == 2, "the second run")
        first, second = (await ask_json(capsys, one, "runs"))["runs"]
        assert (first["phase"], first["began"], first["last"], first["made"]) == ("over", 0, 3, 3)
        assert (second["began"], second["change"], second["note"], second["rounds"]) == (4, proposed["id"], "slower", 2)
        answers = {each["name"]: each["trains"] for each in second["approvals"]}
        assert answers == {"node0": True, "node1": True, "node2": False, "node3": True}
        shown = await ask_json(capsys, one, "runs", "show", "1")
        (first,) = [shown]
        assert (first["counted"], [each["name"] for each in first["authors"]][:1]) == (3, ["node0"])
        assert sum(each["rounds"] for each in first["authors"]) >= 9
        said = await run(capsys, one, "runs", "show", "2")
        assert f"node2 ({show_key(one, 'node2')}) (does not train)" in said
        assert "lr 0.05" in said
        assert "there were runs 1 to 2" in await run(capsys, one, "runs", "show", "3", code=3)
        table = (await run(capsys, one, "runs")).splitlines()
        assert table[1].split()[:2] == ["1", "dfpl"]
        assert "run" in (await run(capsys, one, "status")).split()


async def test_a_run_that_is_no_longer_what_it_says_is_not_approved(tmp_path: Path, capsys: Captured) -> None:
    """A member may propose any schema; whoever looks for it gets warned, and cannot agree to train."""
    async with running(tmp_path, n=4) as one:
        await one.net.wait_for_height(1)
        run_ = get_service(one).tip.state.run
        terms = {key: value for key, value in run_.to_terms().items() if key != "initial_model"}
        liar = StartRun(2, terms | {"schema": {"rounds": 7}}, bytes([7]) * 32)
        change_id = await propose_elsewhere(one, liar)
        said = await run(capsys, one, "proposals", "show", change_id)
        assert "note: this site could not train in it: run 2: its schema is not that of dfpl on mlp" in said
        assert "its schema is not that of dfpl" in await run(capsys, one, "approve", change_id, "--yes", code=1)
        agreed = await ask_json(capsys, one, "approve", change_id, "--yes", "--no-train")
        assert [(each["name"], each["trains"]) for each in agreed["approvals"]] == [("node1", True), ("node0", False)]


async def test_a_request_that_makes_no_sense_is_refused_by_the_node(tmp_path: Path) -> None:
    from node.errors import ChangeRefused, InvalidRequest, NodeError
    from node.pb import admin_pb2 as pb

    assert ChangeRefused.exit_code == NodeError.exit_code == 1
    async with running(tmp_path) as one:
        await one.net.wait_for_height(1)
        for terms in ("[]", "{", "[" * 100_000):
            with pytest.raises(InvalidRequest, match="terms: expected a JSON object"):
                await one.ask(lambda node, terms=terms: node.propose(pb.ProposeRequest(kind="end_run", terms=terms)))  # type: ignore[misc]
        with pytest.raises(NodeError, match="kind: expected one of add_member"):
            await one.ask(lambda node: node.propose(pb.ProposeRequest(kind="convict")))
        for wrong in ({"rounds": "x"}, {"rounds": 1, "more": 2}, {"rounds": 10**30}):
            request = pb.ProposeRequest(kind="set_rounds", terms=json.dumps(wrong))
            with pytest.raises(NodeError):
                await one.ask(lambda node, request=request: node.propose(request))  # type: ignore[misc]
