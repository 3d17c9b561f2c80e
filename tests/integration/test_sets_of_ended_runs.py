"""Sets that members shared, once their run is over: they go, unless the terms of the run keep them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from chain.changes.base import Kind
from chain.changes.runs import EndRun, StartRun
from chain.run import TERMS
from chain.store.sqlite import SqliteStore
from node.payloads.retention import Retention
from node.runs.specs import RunSpecs
from support.data.chains import make_candidate, make_contribution, make_genesis, make_keys
from support.data.changes import LivingChain
from support.federation.cluster import INITIAL_MODEL
from support.federation.sharing import FEDEDS, MODEL, NUM_SAMPLES, make_set

SMALL = 100  # samples: a set that could be kept for ever, were it not of samples


class Site:
    """A node's store and what lets its blobs go, on a chain whose first block shares sets."""

    def __init__(self, path: Path, num_samples: int, **method: Any) -> None:
        keys = make_keys(4)
        genesis = make_genesis(
            keys, method=FEDEDS | method, model=MODEL, initial_model=sha256(INITIAL_MODEL).hexdigest(), rounds=0
        )
        self.chain = LivingChain(genesis, keys)
        self.store = SqliteStore.open(path, genesis)
        self.made = [make_set(i, num_samples) for i in range(4)]
        aggregate = self.store.put_blob(INITIAL_MODEL)
        contributions = []
        for key, made in zip(keys, self.made, strict=True):
            self.store.put_blob(made.data)
            self.store.put_blob(made.list_data)
            contributions.append(make_contribution(genesis, key, payloads=made.get_refs()))
        self.start()
        self.chain.add(make_candidate(genesis, genesis.block0, keys, contributions=contributions, aggregate=aggregate))
        self._follow()

    def start(self) -> None:
        """As the node does when it comes up."""
        self.runs = RunSpecs.load(self.store)
        self.retention = Retention(self.store, self.runs, self.chain.keys[0].id)

    def change(self, kind: Kind) -> None:
        self.chain.add_change(kind)
        self._follow()

    def begin_next_run(self) -> None:
        run = self.chain.state.run
        terms = {name: run.to_terms()[name] for name in TERMS if name in run.to_terms() and name != "initial_model"}
        initial = sha256(INITIAL_MODEL).digest()
        self.change(StartRun(run.number + 1, terms | {"method": dict(run.method) | {"share": False}}, initial))

    def make_rounds(self) -> None:
        """As many as blobs of old heights wait for, and some."""
        for _ in range(self.chain.state.rules.keep_heights + 2):
            self.chain.add_rounds()
            self._follow()

    def _follow(self) -> None:
        block, certificate = self.chain.blocks[-1]
        self.store.append(block, certificate)
        self.runs.calendar.add(block.height, self.chain.state) if block.change is not None else None
        self.retention.on_block(block)

    @property
    def num_held(self) -> int:
        return sum(self.store.has_blob(made.digest) for made in self.made)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("num_samples", [SMALL, NUM_SAMPLES])
def test_sets_that_every_round_of_a_run_reads_go_once_it_is_over(
    tmp_path: Path, num_samples: int, restarts: bool
) -> None:
    site = Site(tmp_path, num_samples, m=0)  # lambda_dis stays what it is
    with site.store:
        site.make_rounds()
        assert site.num_held == 4
        if restarts:
            site.start()
        site.begin_next_run()
        site.make_rounds()
        assert site.num_held == 0


def test_sets_of_a_run_that_was_ended_go_while_the_federation_is_idle(tmp_path: Path) -> None:
    site = Site(tmp_path, SMALL, m=0)
    with site.store:
        site.make_rounds()
        site.change(EndRun(1))
        assert site.num_held == 0


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("num_samples", [SMALL, NUM_SAMPLES])
def test_sets_that_the_terms_of_a_run_keep_outlive_it_and_those_after_it(
    tmp_path: Path, num_samples: int, restarts: bool
) -> None:
    site = Site(tmp_path, num_samples, keep_sets=True)
    with site.store:
        site.make_rounds()
        site.change(EndRun(1))
        for _ in range(3):
            site.begin_next_run()
            if restarts:
                site.start()
            site.make_rounds()
        assert site.num_held == 4
