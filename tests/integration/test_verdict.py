"""The verdict of a node, on virtual time: published with measures, and renewed when training alone has caught up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from ml.measures.alone import TrainedAlone
from ml.measures.classification import Measures
from ml.measures.verdict import Verdict
from node.consensus.wiring import make_round_service
from node.ledger.measures_view import show_published
from node.ledger.reader import show_record
from node.training.learner import LOOK_AGAIN_S
from node.training.trainer import Measured
from support.federation.cluster import ScriptedTrainer, cluster
from support.federation.proposing import get_service
from support.federation.virtual_time import run_virtual

ROUNDS = 3
MEASURES = Measures(60, 40, 0.5, 0.2, 0.1, confusion=((30, 0), (30, 0)), auc=(0.8, 0.8))


class ComparingTrainer(ScriptedTrainer):
    """Is ahead of training alone, which has done the first round, and all of them once `is_late` says so."""

    is_late = False

    async def measure(self) -> Measured:
        rounds = ROUNDS if self.is_late else 1
        verdict = Verdict("auc", 0.8, 0.7, 60, 0.02, 0.18, rounds=rounds).of_newest(max(self.applied, default=0))
        alone = TrainedAlone(rounds, 0 if self.is_late else 20, 1.5, MEASURES, verdict=verdict)
        return Measured(MEASURES, alone)


def test_a_verdict_is_published_and_renewed_when_training_alone_has_caught_up(tmp_path: Path) -> None:
    async def story() -> None:
        trainer = ComparingTrainer(0)
        async with cluster(tmp_path, 1, rounds=ROUNDS, start=(), trainers=[trainer]) as net:
            net.start("node0", lambda context: make_round_service(replace(context, publish_from=50)))
            await net.wait_for(lambda: get_service(net, "node0").is_done, "the rounds")
            await asyncio.sleep(1)
            store = net["node0"].get_context().store
            before = store.get_round(ROUNDS)
            assert before is not None
            told = show_record(before).alone
            assert (told.rounds, told.owed_steps) == (1, 20)
            assert told.verdict.sentence.startswith("At round 1 of 3, as far as training alone has come: federating")
            trainer.is_late = True
            await asyncio.sleep(LOOK_AGAIN_S)
            after = store.get_round(ROUNDS)
            assert after is not None
            told = show_record(after).alone
            assert (told.rounds, told.owed_steps) == (ROUNDS, 0)
            assert told.verdict.sentence.startswith("Federating helps here: AUC 0.800 against 0.700 alone")
            assert [one.class_name for one in told.measures.classes] == ["0", "1"]
            assert {**before, "alone": None} == {**after, "alone": None}
            [published] = store.get_published(ROUNDS)
            assert show_published(published, "").verdict.sentence == told.verdict.sentence

    run_virtual(story())
