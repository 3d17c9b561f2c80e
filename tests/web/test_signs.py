"""Each sign of what is wrong with a model, seen on the page with what helps. The records are of federations that show
them; one node has them all, a round for each and in the newest rounds all that last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chain.store.sqlite import SqliteStore
from ml.measures.collapse import NOT_LEARNED, QUIET, Sign
from node.config.identity import open_identity
from node.config.node_config import load_config
from node.consensus.record.learning_watch import PATIENCE
from node.testnet.layout import TestnetSpec, make_testnet
from support.data.measured_rounds import make_record, put_measured_rounds
from support.federation.ports import find_free_ports
from support.federation.signs import FEDERATIONS, federate
from support.pages import Served, Visit

pytestmark = pytest.mark.web

OF_MODEL = ("signs", "measures", "train", "apply", "accuracy", "local_accuracy")
ROUNDS = len(Sign) + PATIENCE


def gather_records(folder: Path) -> dict[Sign, Mapping[str, Any]]:
    """For each sign the newest record of a site that shows it."""
    found = {}
    for name, shown in FEDERATIONS.items():
        (folder / name).mkdir()
        for told, sign in zip(federate(folder / name, shown), shown.at, strict=True):
            if sign is not None:
                found[sign] = told.record
    return found


def serve(folder: Path, records: Mapping[Sign, Mapping[str, Any]]) -> Served:
    first = find_free_ports(1)[0]
    spec = TestnetSpec(method="dfpl", num_nodes=1, rounds=ROUNDS, base_port=0, http_port=first, difficulty=4)
    net = make_testnet(folder, spec)
    config = load_config(net.nodes[0].config_file)
    lasting = {sign: records[sign]["signs"][sign] for sign in Sign if sign not in QUIET}
    of_rounds = [*(records[sign] for sign in Sign), *[{**records[Sign.OVERFITTING], "signs": lasting}] * PATIENCE]
    with SqliteStore.open(config.node.data_dir, net.genesis) as store:
        put_measured_rounds(store, net.genesis, [open_identity(config)], ROUNDS)
        for height, record in enumerate(of_rounds, 1):
            store.put_round(height, make_record(height, ROUNDS) | {name: record[name] for name in OF_MODEL})
    return Served(net.nodes, first)


def mark_first(route: Any) -> None:
    """Answers as the node does, and that the newest round is the best."""
    answer = route.fetch()
    told = answer.json()
    told["rounds"][0]["best"] = True
    route.fulfill(response=answer, json=told)


def test_each_sign_is_seen_with_what_helps(tmp_path: Path, open_windows: Callable[..., Visit]) -> None:
    with ThreadPoolExecutor(1) as thread:  # a loop of the browser's runs on this one
        records = thread.submit(gather_records, tmp_path).result()
    site = serve(tmp_path / "net", records)
    texts = {sign: records[sign]["signs"][sign] for sign in Sign}
    assert all("help" in text or "then try" in text for sign, text in texts.items() if sign is not Sign.BEHIND)
    with site.running():
        site.wait_for(lambda: site.has_applied("node0", ROUNDS), "an answer")
        one = open_windows(site)
        for height, (sign, text) in enumerate(texts.items(), 1):
            one.show(f"round/{height}")
            told = [line for line in one.read().splitlines() if any(other in line for other in texts.values())]
            if sign in NOT_LEARNED:
                assert told == [f"Not learned: {text}."]
            else:
                assert told == [f"Of the model: {text}." if sign in QUIET else f"The model learns, but {text}."]
        for view in ("", "learning"):
            one.show(view)
            shown = one.read()
            assert all((text in shown) == (sign not in QUIET) for sign, text in texts.items())
        one.page.route("**/api/v1/rounds?*", mark_first)
        one.show("round")
        one.page.wait_for_selector("[aria-label='rounds'] td:has-text('best')")
        assert "unfound" in one.page.inner_text("section:has(h2:text('Newest rounds'))")
        one.said = [line for line in one.said if "404" not in line]  # curves are kept of rounds since the start alone
        one.page.close()
