"""The page of a report: what strangers wrote stays text, and what is not there is said to be not there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from chain.block import Body
from chain.changes.change import Change
from chain.changes.rules import SetRules
from chain.codec import encode_block, encode_certificate
from chain.genesis import Genesis
from chain.signing import encode_id
from ml.specs.masked.spec import EMPTY_INPUT_BYTES
from node.pb import admin_pb2 as pb
from node.report.elements import show_bytes, show_spans
from node.report.history import Accusation, RunHistory, read_history
from node.report.incidents import MAX_ROWS, Incident, find_incidents
from node.report.page import render_report
from node.report.participation import MAX_ROUNDS
from node.report.record import RunReport
from support.data.chains import make_genesis_mapping, make_keys
from support.data.changes import LivingChain, extend_with, make_approved

KEYS = make_keys(4)
EVIL = '<script>alert("x")</script>'
NOTE = "<img src=x onerror=alert(1)> & 'more'"
RULES = SetRules({"keep_heights": (2, 3)})


class Tags(HTMLParser):
    """All elements of a page with their attributes, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def make_history(rounds: int = 3, name: str = "hospital-a", note: str = "") -> RunHistory:
    """A run of four, of which the first is called `name`, with a change that has a note in its middle."""
    mapping = make_genesis_mapping(KEYS, rounds=0)
    mapping["members"][0]["name"] = name
    genesis = Genesis.from_mapping(mapping)
    chain = LivingChain(genesis, KEYS)
    chain.add_rounds(rounds)
    if note:
        change = Change(RULES, 0, chain.tip.height, chain.tip.height + 1, chain.tip.height + 9, note)
        chain.add(extend_with(chain.tip, Body(change=make_approved(chain.tip, change, KEYS)), KEYS[0]))
    blocks = [
        (height, encode_block(block), encode_certificate(certificate))
        for height, (block, certificate) in enumerate(chain.blocks, start=1)
    ]
    return read_history(genesis, blocks)


def make_measures(accuracy: float, width: float = 0.1) -> pb.Measures:
    measures = pb.Measures(num_samples=40, summary={"accuracy": accuracy, "auc": accuracy})
    measures.intervals["accuracy"].CopyFrom(pb.Interval(low=accuracy - width, high=min(1.0, accuracy + width)))
    for i, name in enumerate(("benign", "malignant")):
        one = measures.classes.add(class_name=name, num_samples=20, num_given=20, given=[20 - i, i])
        one.values["sensitivity"] = accuracy
        one.intervals["sensitivity"].CopyFrom(pb.Interval(low=0.5, high=1.0))
    return measures


def make_round(number: int, **fields: Any) -> pb.Round:
    entry = pb.Round(round=number, height=number, measured=True, **fields)
    entry.measures.CopyFrom(make_measures(0.9))
    entry.accuracy, entry.local_accuracy = 0.9, 0.8
    entry.alone.rounds = number
    entry.alone.measures.CopyFrom(make_measures(0.7))
    return entry


def make_report(history: RunHistory, *rounds: pb.Round, **fields: Any) -> RunReport:
    given: dict[str, Any] = {"node": "hospital-a", "evidence": (), "verified": None} | fields
    return RunReport(made_at="2026-11-25T12:00:00Z", version="1.0", history=history, rounds=rounds, **given)


def read(report: RunReport) -> Tags:
    page = render_report(report)
    tags = Tags()
    tags.feed(page)
    return tags


def test_what_strangers_wrote_stays_text() -> None:
    history = make_history(name=EVIL, note=NOTE)
    author = encode_id(KEYS[1].id)
    told = make_round(
        1,
        rejected={author: EVIL},
        left_out={author: NOTE},
        candidates=[pb.CandidateView(id="0", miner=author, miner_name=EVIL, reason="\x1b[31m\u202eevil")],
        failure=EVIL,
        published=[pb.PublishedMeasures(author=author, name=EVIL, num_samples=3, values={"accuracy": 0.5})],
    )
    told.measures.classes[0].class_name = EVIL
    evidence = pb.EvidenceView(author=author, name=EVIL, height=1, slot=EVIL)
    fault = pb.VerifyReport(ok=False, fault=pb.Fault(what=EVIL, expected=NOTE))
    report = make_report(history, told, node=EVIL, evidence=(evidence,), verified=fault)
    tags = read(report)
    names = {tag for tag, _ in tags.found}
    assert not names & {"script", "img", "iframe", "object", "link", "a"}
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert EVIL in tags.text
    assert NOTE in tags.text
    assert "\x1b" not in tags.text
    assert "\u202e" not in tags.text
    assert "\\x1b[31m\\u202eevil" in tags.text


def test_the_page_fetches_nothing_and_has_no_script() -> None:
    tags = read(make_report(make_history(), make_round(1)))
    policy = next(attributes for tag, attributes in tags.found if attributes.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    names = ("src", "href", "srcset")
    named = [attributes[name] for _, attributes in tags.found for name in attributes if name in names]
    within = re.findall(r"url\(([^)]*)\)", render_report(make_report(make_history(), make_round(1))))
    assert all((reference or "").startswith("#") for reference in (*named, *within))


def test_its_ids_are_there_once_and_its_tables_have_heads() -> None:
    tags = read(make_report(make_history(note="why"), make_round(1), make_round(2)))
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    tables = sum(tag == "table" for tag, _ in tags.found)
    assert tables == sum(tag == "thead" for tag, _ in tags.found) > 5
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags.found if tag == "th")


def test_a_run_without_a_round_says_so_and_draws_nothing() -> None:
    tags = read(make_report(make_history(0)))
    assert "No round of this run is final yet." in tags.text
    assert "This node measured no round of this run." in tags.text
    assert "Nothing was changed while it ran." in tags.text
    assert "svg" not in {tag for tag, _ in tags.found}


def test_founders_stand_for_the_first_run_and_a_change_has_its_reason() -> None:
    text = read(make_report(make_history(note="more data"))).text
    assert "Founders: hospital-a, node1, node2, node3." in text
    assert "more data" in text
    assert "rules.keep_heights" in text


def test_measures_stand_beside_those_of_training_alone_with_intervals() -> None:
    rounds = make_round(1), make_round(2)
    assert "both mixed" not in read(make_report(make_history(), *rounds)).text
    rounds[-1].alone.mixed.CopyFrom(make_measures(0.8))
    rounds[-1].alone.weight = 0.54
    text = read(make_report(make_history(), *rounds)).text
    assert "both mixed" in text
    assert "0.800 (0.700 to 0.900)" in text
    assert "0.54 of the federation's, 0.46 of the other's" in text
    assert "0.900 (0.800 to 1.000)" in text
    assert "0.700 (0.600 to 0.800)" in text
    assert "+0.200" in text
    assert "the work of 2 rounds" in text


def test_whether_it_helps_is_said_here_and_by_each_site_that_publishes() -> None:
    entry = make_round(1)
    entry.alone.verdict.sentence = "Federating helps here: so much."
    one = entry.published.add(name="hospital-b", num_samples=60, values={"auc": 0.9})
    one.verdict.sentence = "No difference there."
    text = read(make_report(make_history(), entry)).text
    assert "Federating helps here: so much." in text
    assert "hospital-b: No difference there." in text


def test_a_regression_has_its_own_measures() -> None:
    entry = pb.Round(round=1, height=1, measured=True)
    entry.measures.CopyFrom(pb.Measures(num_samples=30, summary={"r2": 0.8, "mae": 1234.5, "rmse": 2000.0}))
    one = entry.measures.classes.add(class_name="length of stay", num_samples=30)
    one.values.update({"mae": 1234.5, "r2": 0.8})
    tags = read(make_report(make_history(), entry))
    assert "R2, round by round." in tags.text
    assert "1234" in tags.text
    assert "Target by target" in tags.text
    assert "How classes were confused" not in tags.text


def test_a_conviction_is_told_with_its_proof_and_no_approval() -> None:
    accused = Accusation(encode_id(KEYS[1].id), "node1", 2, "vote")
    history = make_history(note="proof")
    history.changes[0] = replace(history.changes[0], kind="convict", approvals=(), accused=accused)
    seen = pb.EvidenceView(author=accused.id, name="node1", height=2, slot="vote", seen="2026-11-25T12:00:00Z")
    text = read(make_report(history, evidence=(seen,))).text
    assert "A member is suspended" in text
    assert "node1 signed two different votes for height 2; the block holds both" in text
    assert "nobody, as it proves itself" in text
    assert "on the chain, block 4" in text
    assert "held by this node" not in text  # the same, told once


def test_a_site_that_trains_nothing_alone_says_that_there_is_no_comparison() -> None:
    entry = make_round(1)
    entry.ClearField("alone")
    text = read(make_report(make_history(), entry)).text
    assert "so there is no comparison" in text
    assert "trained alone" not in text


@pytest.mark.parametrize(
    ("verified", "word"),
    [
        (None, "The chain was not verified for this report."),
        (pb.VerifyReport(ok=True, last=3, signatures=20, recomputed=3, head="00"), "The chain holds:"),
        (pb.VerifyReport(ok=False, fault=pb.Fault(what="block 2: seal")), "The chain does not hold."),
    ],
)
def test_the_verdict_on_the_chain_stands_at_the_top_and_beside_its_hash(verified: Any, word: str) -> None:
    history = make_history()
    text = read(make_report(history, verified=verified)).text
    assert text.count(word) == 2
    assert history.head.id in text


def test_what_could_not_be_recomputed_is_said() -> None:
    report = pb.VerifyReport(ok=True, last=3, recomputed=1, not_held=[2, 3], head="00")
    assert "2 aggregates are taken as certified" in read(make_report(make_history(), verified=report)).text


def test_the_same_thing_in_many_rounds_is_one_row() -> None:
    author = encode_id(KEYS[1].id)
    rounds = [make_round(number, rejected={author: "too late"}) for number in (1, 2, 3)]
    found = find_incidents(make_report(make_history(), *rounds))
    assert found == {Incident("node1", "refused", "too late"): [1, 2, 3]}


def test_messages_that_say_nothing_of_anybody_are_no_incident() -> None:
    told = pb.NotTaken(peer=encode_id(KEYS[1].id), name="node1", counts={"other_height": 3, "signature": 1, "new": 1})
    found = find_incidents(make_report(make_history(), make_round(1, not_taken=[told])))
    assert [each.why for each in found] == ["new", "signature"]


def test_long_tables_end_and_say_how_much_more_there_is() -> None:
    author = encode_id(KEYS[1].id)
    rounds = [make_round(i, rejected={author: f"reason {i}"}) for i in range(1, MAX_ROWS + 8)]
    assert "7 more stand in the report as JSON." in read(make_report(make_history(), *rounds)).text
    history = make_history(1)
    history.rounds[:] = history.rounds * (MAX_ROUNDS + 5)
    assert "5 rounds before them stand in the report as JSON." in read(make_report(history)).text


def test_the_record_is_json_with_the_records_of_other_commands() -> None:
    verified = pb.VerifyReport(ok=True, head="00", seconds=float("inf"))
    mapping = make_report(make_history(note="why"), make_round(1), verified=verified).to_mapping()
    again = json.loads(json.dumps(mapping, allow_nan=False))
    assert list(again) == [
        "made_at",
        "version",
        "node",
        "chain",
        "run",
        "changes",
        "participants",
        "weights_are_samples",
        "rounds",
        "evidence",
        "evaluations",
        "verified",
    ]
    assert again["verified"]["seconds"] is None
    assert again["rounds"][0]["alone"]["measures"]["summary"]["accuracy"] == 0.7
    assert again["changes"][0]["approvals"][0].keys() == {"id", "name", "trains"}
    assert [one["rounds"] for one in again["participants"]] == [[1, 2, 3]] * 4


def test_a_lent_model_is_a_table_of_its_own_and_none_is_said() -> None:
    common = pb.EvaluationView(run=2, of_run=1, of_round=3, height=5, min_samples=50, lends=True)
    common.sites.add(name="a", held=True).measures.summary["accuracy"] = 0.5
    lent = pb.EvaluationView(lender="ID", lender_name="b")
    lent.MergeFrom(common)
    common.model = lent.model = "ab"
    lent.sites.add(name="c", held=True)
    text = read(make_report(make_history(), evaluations=(common, lent))).text
    assert "Run 1, after round 3; measured in block 5" in text
    assert "Run 1, after round 3, the own model of b, which lent it; measured in block 5" in text
    assert "Fewer than 50 test samples, or no numbers, so that nothing is told: c." in text
    lent.model = common.model = ""
    common.ClearField("sites")
    text = read(make_report(make_history(), evaluations=(common,))).text
    assert "No site has lent its own model, and there is none in common." in text


def test_spans_and_sizes_read_as_people_write_them() -> None:
    assert show_spans([1, 2, 3, 7, 9, 10]) == "1–3, 7, 9–10"
    assert show_spans([]) == ""
    assert (show_bytes(999), show_bytes(1500), show_bytes(2e12)) == ("999 B", "1.5 kB", "2.0 TB")


def make_masked_history(*, has_prototypes: bool) -> RunHistory:
    """A run of masked sums whose second height has the inputs of three members, and an empty one."""
    history = make_history(rounds=3)
    run = replace(history.run, method={"name": "mpfedcl", "aggregation": "masked_sum"})
    history.state = replace(history.state, run=run, rules=replace(history.state.rules, min_contributions=None))
    shown = {"prototypes": 240} if has_prototypes else {}
    sizes = [{"masked": 4000, **shown}] * 3 + [{"masked": EMPTY_INPUT_BYTES, **shown}]
    parts = zip(history.rounds[1].parts, sizes, strict=True)
    history.rounds[1] = replace(history.rounds[1], parts=tuple(replace(part, payload_bytes=of) for part, of in parts))
    return history


@pytest.mark.parametrize("has_prototypes", [False, True])
def test_a_report_of_masked_sums_says_what_they_do_not_hide(has_prototypes: bool) -> None:
    text = read(make_report(make_masked_history(has_prototypes=has_prototypes))).text
    assert "and no single site's" in text
    assert ("which masks do not hide: each site sees every other's" in text) is has_prototypes


def test_an_empty_input_is_no_training_whatever_is_beside_it() -> None:
    history = make_masked_history(has_prototypes=True)
    assert [one.rounds for one in history.list_participants()] == [[2], [2], [2], []]
