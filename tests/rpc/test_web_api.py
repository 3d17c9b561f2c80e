"""A running node's records over HTTP: the same as over the admin socket, for whoever may ask, and acting for few."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from chain.audit import read_export
from node.admin.client import AdminClient
from node.admin.json_view import show_block, to_json
from node.admin.page_keys import MAX_KEYS, OPEN_S, PageKeys, make_address
from node.admin.tokens import Role
from node.clock import SystemClock
from node.ledger.prototypes import show_prototypes
from node.pb import admin_pb2 as pb
from node.web import asking, reading, shared, streams
from node.web.wiring import describe_api
from support.data.bombs import write_long_header, write_picture
from support.federation.asked_over_http import CALL_S, Served, serving_page

API = "/api/v1"
NUM_LOOKS = 50
OFTEN_NONE = ("/curves", "/intervals", "/model", "/model/file", "/runs/1/statistics")
MOVING = {"time", "uptime_s", "silent_s", "bytes_sent", "bytes_received", "messages_sent", "messages_received"}
MOVING |= {"batches_sent", "hashes", "database_bytes", "disk_free_bytes", "clock_ahead_s", "credit"}


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "AGE_S", -1.0)


def still(record: Any) -> Any:
    """Without what is another at each look."""
    if isinstance(record, dict):
        return {key: still(value) for key, value in record.items() if key not in MOVING}
    return [still(each) for each in record] if isinstance(record, list) else record


async def test_each_record_is_that_of_the_admin_socket(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=3) as page:
        await page.one.net.wait_for_height(3)
        await page.one.net.wait_for(lambda: page.one.context.store.get_round(3) is not None, "the last record")
        asked: dict[str, Callable[[AdminClient], Any]] = {
            "/status": lambda node: to_json(node.get_status()),
            "/members": lambda node: to_json(node.list_members()),
            "/proposals": lambda node: {"proposals": []},
            "/chain?limit=2": lambda node: {"blocks": [to_json(one) for one in _list_two(node)], "next": 1},
            "/chain/2": lambda node: show_block(node.get_block(2)),
            "/chain/head?payloads=true": lambda node: show_block(node.get_head(include_payloads=True)),
            "/rounds/3": lambda node: to_json(node.get_round(3)),
            "/rounds/head": lambda node: to_json(node.get_round(3)),
            "/metrics?series=accuracy": lambda node: to_json(
                node.query_metrics(pb.QueryMetricsRequest(series=["accuracy"]))
            ),
            "/runs": lambda node: {"runs": [to_json(one) for one in node.list_runs()]},
            "/runs/0": lambda node: to_json(node.list_runs(0)[0]),
            "/evidence": lambda node: {"evidence": []},
        }
        for path, ask in asked.items():
            for _ in range(NUM_LOOKS):  # a peer may say something between the two
                record, answer = still(await page.one.ask(ask)), await page.get(API + path)
                if still(answer.json) == record:
                    break
            assert (answer.code, still(answer.json)) == (200, record), path
        overview = (await page.get(f"{API}/overview")).json
        assert overview["status"].keys() == (await page.get(f"{API}/status")).json.keys()
        assert [peer["name"] for peer in overview["peers"]["peers"]] == ["node1", "node2"]
        shown = (await page.get(f"{API}/config")).json
        assert (shown["config"]["node"]["name"], shown["origins"]) == ("hospital-a", {"node.name": "node.yaml:3:3"})
        assert shown["config"]["node"]["identity_key_file"] == "(redacted)"


def _list_two(node: Any) -> Any:
    return node.list_blocks(None, 2, reverse=False).blocks


async def test_every_record_has_the_fields_that_openapi_says(tmp_path: Path) -> None:
    document = describe_api()
    schemas = document["components"]["schemas"]
    async with serving_page(tmp_path, rounds=2) as page:
        await page.one.net.wait_for_height(2)
        assert (await page.get(f"{API}/openapi.json")).json == document
        for path, said in document["paths"].items():
            filled = path.replace("{height}", "1").replace("{which}", "1").replace("{run}", "1")
            if "get" not in said or "{" in filled or filled in OFTEN_NONE:
                continue
            [(media, content)] = said["get"]["responses"]["200"]["content"].items()
            if media != "application/json":
                continue
            record = (await page.get(API + filled)).json
            expect_fields(record, content["schema"], schemas, path)


def expect_fields(record: Any, schema: Any, schemas: Any, place: str) -> None:
    """The same keys all the way down."""
    if record is None:
        return
    if "anyOf" in schema:
        schema = schema["anyOf"][0]
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if schema.get("type") == "array":
        for each in record:
            expect_fields(each, schema["items"], schemas, place)
    elif "properties" in schema:
        assert [*record] == [*schema["properties"]], place
        for key, below in schema["properties"].items():
            expect_fields(record[key], below, schemas, f"{place} {key}")


async def test_a_block_is_given_as_it_was_hashed_and_signed(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        given = (await page.get(f"{API}/chain/1/bytes")).json
        stored = page.one.context.store.get_block_bytes(1)
        assert stored is not None
        assert (base64.b64decode(given["block"]), base64.b64decode(given["certificate"])) == stored
        assert given["chain_id"] == page.one.context.genesis.chain_id.hex()
        assert {member["name"] for member in given["members"]} == {"node0", "node1", "node2"}
        sealed = b"fn1.seal".ljust(16, b"\0") + bytes.fromhex(given["chain_id"]) + stored[0][:194]
        seal = hashlib.sha256(sealed).digest()
        assert hashlib.sha256(seal + stored[0][194:202]).hexdigest() == (await page.get(f"{API}/chain/1")).json["id"]
        exported = (await page.get(f"{API}/export?from=0&to=1")).body
        heights = [height for height, _, _ in read_export(io.BytesIO(exported), page.one.context.genesis.chain_id)]
        assert heights == [0, 1]


async def test_prototypes_are_compared_beside_the_store_and_one_round_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Votes wait for the store's thread, which here is the event loop's."""
    real, waiting, at_work = show_prototypes, threading.main_thread(), threading.Lock()

    def show(*read: Any) -> Any:
        assert threading.current_thread() is not waiting
        assert at_work.acquire(blocking=False)
        try:
            return real(*read)
        finally:
            at_work.release()

    async with serving_page(tmp_path, rounds=2) as page:
        await page.one.net.wait_for_height(2)
        monkeypatch.setattr(reading, "show_prototypes", show)
        paths = [f"{API}/rounds/{which}/prototypes" for which in (1, 2, "head")]
        shown = await asyncio.gather(*map(page.get, paths))
        assert [answer.code for answer in shown] == [200, 200, 200]
        assert shown[0].json["held"]
        assert shown[1].body == shown[2].body


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/chain/99", 404, "the chain ends"),
        ("/rounds/99/prototypes", 404, "the chain ends"),
        ("/chain/abc", 400, "height: expected a whole number"),
        ("/chain/99999999999999999999", 400, "expected a whole number"),
        ("/chain?limit=-1", 400, "limit: expected a whole number"),
        ("/chain?limit=99999999999", 400, "limit: expected less than 2^32"),
        ("/chain/1?payloads=yes", 400, "payloads: expected true or false"),
        ("/metrics?series=nonsense", 400, "nonsense"),
        ("/events?kinds=nonsense", 400, "nonsense"),
        ("/events?since=nonsense", 400, "cursor"),
        ("/nothing", 404, "no such record"),
        ("/runs/7", 404, "run 7"),
    ],
)
async def test_what_is_not_there_or_not_asked_well_is_said(tmp_path: Path, path: str, code: int, said: str) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        answer = await page.get(API + path)
        assert answer.code == code
        assert said in answer.json["error"]


async def test_every_answer_keeps_a_browser_from_more(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        for path in ("/", "/style.css", f"{API}/status", f"{API}/nothing", "/nothing"):
            headers = (await page.get(path)).headers
            assert "default-src 'self'" in headers["content-security-policy"], path
            assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
            assert not {"set-cookie", "access-control-allow-origin"} & headers.keys()
        assert (await page.get(f"{API}/status", Host="evil.example")).code == 421
        assert (await page.get("/", Host="evil.example")).code == 421
        tag = (await page.get("/")).headers["etag"]
        assert (await page.get("/", **{"If-None-Match": tag})).code == 304


LOOKS = ("/verify", "/compare", "/runs/{run}/report")  # that cost more than a read


async def test_a_page_from_elsewhere_has_a_browser_ask_nothing_below_the_api(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        paths = [*describe_api()["paths"], "/openapi.json", "/nothing"]
        filled = [path.replace("{height}", "1").replace("{which}", "1").replace("{run}", "1") for path in paths]
        for path in filled:
            for site in ("cross-site", "same-site"):
                answer = await page.get(API + path, **{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})
                assert (answer.code, "from elsewhere" in answer.json["error"]) == (403, True), path
            assert (await page.get(API + path, Origin="http://evil.example")).code == 403, path
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        for site in ("same-origin", "none"):
            assert (await page.get(f"{API}/status", **{"Sec-Fetch-Site": site})).code == 200
        assert (await page.get("/", **{"Sec-Fetch-Site": "cross-site"})).code == 200  # a link to the page


@pytest.mark.parametrize("token", [None, b"t" * 32], ids=["open", "token"])
async def test_what_costs_more_than_a_read_is_posted_by_whoever_may_read(tmp_path: Path, token: bytes | None) -> None:
    document = describe_api()["paths"]
    for path in LOOKS:
        assert [*document[path]] == ["post"]
        assert document[path]["post"]["security"] == [{}, {"bearer": ["read"]}]
    form = "application/x-www-form-urlencoded"  # which any page may have sent
    async with serving_page(tmp_path, rounds=1, token=token) as page:
        await page.one.net.wait_for_height(1)
        for path in ("/verify", "/compare?peer=nobody", "/runs/1/report"):
            assert (await page.get(API + path)).code == 404, path
            for key, refused in ((None, 401 if token else 400), (page.open(Role.READ), 400)):
                assert (await page.post(API + path, key=key, Content_Type=form)).code == refused, path
                answer = await page.post(API + path, key=key)
                assert answer.code == (401 if refused == 401 else 200 if path == "/verify" else 404), path


async def test_nothing_is_done_without_a_key_that_may_act(tmp_path: Path) -> None:
    async with serving_page(tmp_path) as page:
        reader, actor = page.open(Role.READ), page.open(Role.ADMIN)
        made = page.tokens.add("scripts", Role.ADMIN, "2026-11-20T14:02:16.000Z")
        posted = {path for path, said in describe_api()["paths"].items() if "post" in said}
        acts = posted - {"/session", *LOOKS}
        assert len(acts) == 9
        for path in acts:
            assert (await page.post(API + path)).code == 401, path
            assert (await page.post(API + path, key="x" * 40)).code == 401, path
            if path != "/doctor":
                assert (await page.post(API + path, key=reader)).code == 403, path
            assert (await page.post(API + path, key=actor, Origin="http://evil.example")).code == 403, path
            assert (await page.post(API + path, key=actor, Sec_Fetch_Site="cross-site")).code == 403, path
            assert (await page.get(API + path)).code in (404, 405), path
        form = await page.post(f"{API}/pause", key=actor, Content_Type="application/x-www-form-urlencoded")
        assert form.code == 400
        assert not (await page.get(f"{API}/status")).json["paused"]
        paused = await page.post(f"{API}/pause", key=actor)
        assert (paused.code, paused.json["paused"]) == (200, True)
        assert (await page.post(f"{API}/resume", key=made)).json["paused"] is False


async def test_an_address_opens_the_page_once(tmp_path: Path) -> None:
    async with serving_page(tmp_path) as page:
        given = page.keys.issue(Role.ADMIN)
        assert given.address == f"http://127.0.0.1:{page.port}/"
        opened = await page.post(f"{API}/session", {"key": given.key})
        assert (opened.code, opened.json["role"]) == (200, "admin")
        again = await page.post(f"{API}/session", {"key": given.key})
        assert (again.code, again.json["error"]) == (
            403,
            "this address was opened before, or too late: run fednode open again",
        )
        assert (await page.post(f"{API}/pause", key=given.key)).code == 401
        assert (await page.post(f"{API}/pause", key=opened.json["key"])).code == 200
        other = page.keys.issue(Role.ADMIN).key
        assert (await page.post(f"{API}/session", {"key": other}, Origin="http://evil.example")).code == 403


def test_an_address_opens_the_page_for_minutes_alone() -> None:
    class Clock:
        now_s = 0.0

        def monotonic(self) -> float:
            return self.now_s

    clock: Any = Clock()
    keys = PageKeys(make_address("0.0.0.0:80"), clock)
    early, late = keys.issue(Role.READ), keys.issue(Role.READ)
    assert early.address == "http://127.0.0.1:80/"
    clock.now_s = OPEN_S
    opened = keys.redeem(early.key)
    assert opened is not None
    assert keys.find_role(opened[0]) is Role.READ
    clock.now_s = OPEN_S + 0.1
    assert keys.redeem(late.key) is None


def test_a_page_in_use_outlives_pages_that_were_opened_after_it() -> None:
    keys = PageKeys(make_address("0.0.0.0:80"), SystemClock())

    def open_page() -> str:
        redeemed = keys.redeem(keys.issue(Role.ADMIN).key)
        assert redeemed is not None
        return redeemed[0]

    used, idle = open_page(), open_page()
    for _ in range(MAX_KEYS - 1):
        assert keys.find_role(used) is Role.ADMIN
        open_page()
    assert keys.find_role(used) is Role.ADMIN
    assert keys.find_role(idle) is None


async def test_where_a_token_is_set_nothing_is_shown_without_one(tmp_path: Path) -> None:
    async with serving_page(tmp_path, token=b"t" * 32) as page:
        assert (await page.get(f"{API}/status")).code == 401
        assert (await page.get("/")).code == 200  # the page itself says nothing of the node
        made = page.tokens.add("scripts", Role.READ, "2026-11-20T14:02:16.000Z")
        for shown in (made, page.open(Role.READ)):
            assert (await page.get(f"{API}/status", Authorization=f"Bearer {shown}")).code == 200


async def test_a_token_that_scrapes_does_nothing_else(tmp_path: Path) -> None:
    async with serving_page(tmp_path, token=b"t" * 32) as page:
        looked = await page.get(f"{API}/status", Authorization="Bearer " + "t" * 32)
        assert (looked.code, looked.json) == (
            401,
            {"error": "the token of http.token_file scrapes /metrics alone: run fednode open"},
        )
        for path in ("/pause", "/predict?name=x.npz", "/doctor"):
            assert (await page.post(API + path, key="t" * 32)).code == 401, path


async def test_to_have_samples_answered_takes_a_role_of_its_own(tmp_path: Path) -> None:
    async with serving_page(tmp_path) as page:
        asked = f"{API}/predict?name=x.exe"
        made = page.tokens.add("ward", Role.PREDICT, "2026-11-20T14:02:16.000Z")
        assert (await page.post(asked, b"no archive", key=page.open(Role.READ))).code == 403
        for key in (made, page.open(Role.ADMIN)):
            assert (await page.post(asked, b"no archive", key=key)).code == 400
        assert (await page.post(f"{API}/pause", key=made)).code == 403


async def test_bodies_that_are_no_requests_are_refused(tmp_path: Path) -> None:
    async with serving_page(tmp_path) as page:
        key = page.open(Role.ADMIN)
        for said in (b"{", b"[1]", b"[" * 50_000, {"round": "1"}, {"round": True}, {"other": 1}, b" " * 100_000):
            assert (await page.post(f"{API}/stop", said, key=key)).code == 400, said
        assert (await page.post(f"{API}/log-level", {"level": "loud"}, key=key)).code == 400
        assert (await page.post(f"{API}/propose", {"kind": "upgrade"}, key=key)).code == 400
        assert (await page.post(f"{API}/approve", {"change": "abcd"}, key=key)).code == 400
        assert (await page.post(f"{API}/approve", {"change": "ab" * 32}, key=key)).code == 404
        for name, data in (("x.exe", b""), ("x.npz", b"no archive")):
            answer = await page.post(f"{API}/predict?name={name}", data, key=key)
            assert answer.code == 400, name
            assert "fednode-page" not in answer.json["error"]


async def test_a_change_is_proposed_as_it_was_shown_before(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=2) as page:
        await page.one.net.wait_for_height(2)
        key = page.open(Role.ADMIN)
        wish = {"kind": "set_rounds", "terms": {"rounds": 5}, "note": "<b>three more</b>"}
        draft = (await page.post(f"{API}/propose", wish | {"dry_run": True}, key=key)).json
        assert not draft["open"]
        assert (await page.get(f"{API}/proposals")).json == {"proposals": []}
        other = await page.post(f"{API}/propose", wish | {"shown": draft["terms"].replace("5", "6")}, key=key)
        assert (other.code, "than the one that was shown" in other.json["error"]) == (409, True)
        made = (await page.post(f"{API}/propose", wish | {"shown": draft["terms"]}, key=key)).json
        assert (made["open"], made["note"], made["approved_here"]) == (True, "<b>three more</b>", True)
        short = await page.post(f"{API}/approve", {"change": made["id"][:8]}, key=key)
        assert (short.code, made["id"] in short.json["error"]) == (400, True)
        yes = await page.post(f"{API}/approve", {"change": made["id"]}, key=key)
        assert yes.json["approvals"] == made["approvals"]


async def test_events_come_as_they_happen_and_again_after_a_cursor(tmp_path: Path) -> None:
    async with serving_page(tmp_path) as page:
        seen = await follow(page, "/events?kinds=block", count=2)
        assert [event["kind"] for event in seen] == ["block", "block"]
        again = await follow(page, "/events?kinds=block", count=1, last=seen[0]["cursor"])
        assert again[0] == seen[1]


async def test_an_event_is_written_once_for_all_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def note(event: pb.Event) -> dict[str, Any]:
        made.append(event.cursor)
        return to_json(event)

    monkeypatch.setattr(streams, "to_json", note)
    async with serving_page(tmp_path) as page:
        pages = await asyncio.gather(*(follow(page, "/events?kinds=block", count=3) for _ in range(4)))
        assert all(seen[0]["cursor"] in made for seen in pages)
        assert len(made) == len(set(made))


async def follow(page: Served, path: str, count: int, last: str = "") -> list[dict[str, Any]]:
    """So many events, as an EventSource reads them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
    head = f"GET {API}{path} HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n"
    writer.write(f"{head}{f'Last-Event-ID: {last}' + chr(13) + chr(10) if last else ''}\r\n".encode())
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(CALL_S):
        while len(events) < count:
            line = (await reader.readline()).decode()
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
    writer.close()
    return events


async def test_there_are_so_many_streams_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 0)
    async with serving_page(tmp_path) as page:
        answer = await page.get(f"{API}/events")
        assert (answer.code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize(
    ("method", "path", "most"), [("GET", "/events", "MAX_STREAMS"), ("POST", "/verify", "MAX_AUDITS")]
)
async def test_a_burst_gets_no_more_streams_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str, most: str
) -> None:
    done = asyncio.Event()

    async def verify(first: int, *, deep: bool, require_all: bool) -> AsyncIterator[pb.VerifyUpdate]:
        """An audit that lasts."""
        await done.wait()
        yield pb.VerifyUpdate()

    monkeypatch.setattr(streams, most, 2)
    async with serving_page(tmp_path) as page:
        monkeypatch.setattr(page.one.view, "verify_chain", verify)
        about = f"Host: 127.0.0.1:{page.port}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        head = f"{method} {API}{path} HTTP/1.1\r\n{about}\r\n{{}}".encode()
        asking: list[asyncio.StreamWriter] = []

        async def ask() -> str:
            reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
            asking.append(writer)
            writer.write(head)
            return (await reader.readline()).decode().split()[1]

        async with asyncio.timeout(CALL_S):
            codes = await asyncio.gather(*(ask() for _ in range(12)))
            assert sorted(codes) == ["200"] * 2 + ["503"] * 10
            done.set()
            for writer in asking:  # who leaves makes room for others
                writer.close()
            while await ask() != "200":  # noqa: ASYNC110 (another end of a socket)
                await asyncio.sleep(0.01)
            for writer in asking:
                writer.close()


async def test_an_audit_is_told_of_while_it_runs(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=2) as page:
        await page.one.net.wait_for_height(2)
        answer = await page.post(f"{API}/verify?deep=true")
        last = json.loads(answer.body.decode().strip().rpartition("data: ")[2])
        assert (last["report"]["ok"], last["report"]["to"]) == (True, 2)


async def test_so_many_dropped_files_are_taken_in_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_page(tmp_path) as page:
        key = page.open(Role.PREDICT)
        monkeypatch.setattr(asking, "MAX_DROPPED", 0)
        assert (await page.post(f"{API}/predict?name=x.exe", b"no archive", key=key)).code == 429
        monkeypatch.setattr(asking, "MAX_DROPPED", 1)
        for _ in range(2):  # one that is refused leaves its place
            assert (await page.post(f"{API}/predict?name=x.exe", b"no archive", key=key)).code == 400


@pytest.mark.slow
async def test_a_dropped_file_that_unpacks_to_gigabytes_costs_this_process_nothing(tmp_path: Path) -> None:
    async with serving_page(tmp_path) as page:
        key = page.open(Role.PREDICT)
        bombs = {"header.npz": write_long_header(256), "black.png": write_picture(8192, 8192)}
        before_mib = read_peak_mib(reset=True)
        for name, data in bombs.items():
            assert (await page.post(f"{API}/predict?name={name}", data, key=key)).code == 400, name
        assert read_peak_mib() - before_mib < 64


def read_peak_mib(*, reset: bool = False) -> int:
    """The most that this process has held, since then or from now on."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(peak.split()[1]) // 1024
