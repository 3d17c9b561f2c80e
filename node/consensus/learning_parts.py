"""The parts of learning: they train, contribute, audit, and record what this node learned."""

from __future__ import annotations

from dataclasses import dataclass

from chain.run import Run
from node.consensus.context import RoundContext
from node.consensus.gossip_parts import GossipParts
from node.consensus.governance.own_membership import OwnMembership
from node.consensus.learning.applied_rounds import AppliedRounds
from node.consensus.learning.auditor import Auditor
from node.consensus.learning.contributor import Contributor
from node.consensus.learning.end_evaluation import EndEvaluation
from node.consensus.learning.inputs import BlockInputs
from node.consensus.learning.masking import Masking, make_masking
from node.consensus.learning.privacy_recount import Recount
from node.consensus.learning.round_measure import RoundMeasure
from node.consensus.learning.scheduler import TrainingScheduler
from node.consensus.payload_wiring import Payloads
from node.training.checkpoint import CHECKPOINTS
from node.training.kept_rounds import KeptRounds
from node.training.learner import Learner
from node.training.local_work import BETA_ROUNDS, LocalWork
from node.training.observer_trainer import ObserverTrainer
from node.training.privacy_ledger import PRIVACY_FILE
from node.training.trainer import Metrics


@dataclass(frozen=True, slots=True, eq=False)
class LearningParts:
    """Holds the parts of learning of one node; `make_learning` makes them."""

    learner: Learner
    scheduler: TrainingScheduler
    contributor: Contributor
    masking: Masking
    recount: Recount
    auditor: Auditor
    local_work: LocalWork


def make_learning(
    context: RoundContext, gossip: GossipParts, payloads: Payloads, own_membership: OwnMembership
) -> LearningParts:
    """Makes the parts from what the store holds. Raises StoreCorrupted, or NodeError."""
    c, current, records = context.node, context.current, context.records
    local_work = _load_local_work(context)
    measure = RoundMeasure(c.measure_from, tells=not c.own_noise)
    masking = make_masking(c.me, c.genesis.chain_id, c.store, c.runs, payloads.aggregates, disk=c.disk, bulk=c.bulk)
    contributor = Contributor(
        current,
        c.runs,
        context.signer,
        gossip,
        payloads.pushed,
        records,
        context.events,
        own_membership=own_membership,
        masking=masking,
        evaluation=EndEvaluation(c, payloads.aggregates, measure),
    )
    kept = KeptRounds(c.store.path / CHECKPOINTS, c.keep_models)

    async def keep(run: Run, number: int, metrics: Metrics, best: int) -> None:
        await c.arithmetic.run(kept.take_in, run, number, metrics, best)

    applied = AppliedRounds(
        contributor,
        current,
        c.runs,
        gossip,
        payloads.on_demand,
        records,
        context.events,
        measure=measure,
        keep=keep,
        boundary=c.boundary,
    )

    def get_samples() -> int | None:
        info = learner.info
        return None if info is None else info.num_train

    recount = Recount(
        c.store.path / PRIVACY_FILE,
        c.genesis.chain_id,
        [key.id for key in (c.key, c.spare) if key is not None],
        c.runs,
        c.store,
        c.disk,
        own=c.own_noise,
        get_samples=get_samples,
        get_iterations=lambda: local_work.choose().num_iterations,
    )
    inputs = BlockInputs(
        current,
        c.me,
        c.runs,
        c.store,
        c.disk,
        payloads,
        records=records,
        recount=recount,
        get_name=context.peers.get_name,
        boundary=c.boundary,
    )
    learner = Learner(c.trainer, inputs, applied, c.boundary)
    scheduler = TrainingScheduler(
        current,
        c.runs,
        learner,
        local_work,
        records,
        c.store,
        me=c.me,
        needs_seat=not isinstance(c.trainer, ObserverTrainer),
    )
    auditor = Auditor(
        c.runs,
        payloads.late_blobs,
        payloads.late_aggregates,
        c.store,
        disk=c.disk,
        arithmetic=c.arithmetic,
        boundary=c.boundary,
    )
    return LearningParts(learner, scheduler, contributor, masking, recount, auditor, local_work)


def _load_local_work(context: RoundContext) -> LocalWork:
    """Returns the local work as the records of the last rounds show it."""
    c, head = context.node, context.current.tip.height
    records = c.store.rounds(max(1, head - BETA_ROUNDS + 1), head)
    spec = c.runs.find_newest(head)
    budget_s = None if spec is None else spec.hyperparameters.budget_s
    return LocalWork.from_records(budget_s, (record for _, record in records))
