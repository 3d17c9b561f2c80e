"""Runs as they are read: in steps, each short enough for votes to wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chain.store.sqlite import SqliteStore
from node.admin.federation_view import FederationView
from node.errors import NotFound
from node.ledger.runs_view import PAGE, RunsReader
from support.data.synthetic import extend_chain, make_prototype_genesis

RUNS = 2 * PAGE


class Turns:
    """Stands for a store whose every height starts a run, and for its thread: counts what each turn there asks for."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._asked = Counter[str]()
        self.turns: list[Counter[str]] = []

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self._asked.clear()
        answer = call(*arguments)
        self.turns.append(self._asked.copy())
        return answer

    def get_change_heights(self, first: int, last: int) -> tuple[int, ...]:
        return tuple(range(max(first, 1), last + 1))

    def get_state(self, height: int) -> Any:
        self._asked["state"] += 1
        state = self._store.get_state(0)
        return replace(state, run=replace(state.run, number=height + 1))

    def rounds(self, first: int, last: int) -> list[Any]:
        self._asked["rounds"] += 1
        return []


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    genesis, keys = make_prototype_genesis(1, seed=1, difficulty=4)
    change = SimpleNamespace(compute_id=lambda chain_id: b"", note="")
    monkeypatch.setattr(RunsReader, "read_change", lambda self, height: (change, SimpleNamespace(answers=())))
    with SqliteStore.open(tmp_path / "store", genesis) as store:
        extend_chain(store, genesis, keys, 1)
        yield Turns(store)


async def test_no_turn_on_the_stores_thread_reads_more_than_a_page_of_states_or_one_run(turns: Turns) -> None:
    state = SimpleNamespace(run=SimpleNamespace(select=None))
    service: Any = SimpleNamespace(tip=SimpleNamespace(height=RUNS - 1, state=state))
    chain: Any = SimpleNamespace(store=turns, disk=turns)
    view = FederationView(service, chain, peers=None, display_names={})  # type: ignore[arg-type]
    listed = (await view.list_runs()).runs
    assert [run.number for run in listed] == list(range(1, RUNS + 1))
    assert [(run.began, run.last) for run in listed[:2]] == [(0, 0), (1, 1)]
    assert {run.phase for run in listed[:-1]} == {"over"}
    assert max(turn["state"] for turn in turns.turns) == PAGE
    assert max(turn["rounds"] for turn in turns.turns) == 1
    turns.turns.clear()
    service.tip.height += 1
    assert len((await view.list_runs()).runs) == RUNS + 1
    assert (
        sum(turn["state"] for turn in turns.turns) == 1 + RUNS
    )  # the new one; and before each change, none of all others
    with pytest.raises(NotFound, match=f"run {RUNS + 2}: there were runs 1 to {RUNS + 1}"):
        await view.list_runs(RUNS + 2)
