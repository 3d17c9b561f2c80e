"""The view of a node's status: one message about its round, its peers, its training and its process."""

from __future__ import annotations

from collections.abc import Callable

from chain.block import Id
from chain.run import Run
from chain.schema import format_time
from chain.signing import encode_id
from node.admin.peer_view import PeerView
from node.admin.process_view import ProcessView
from node.admin.round_control import get_stop
from node.clock import Clock
from node.consensus.governance.upgrade import describe_upgrade
from node.consensus.height.actions import RoundPhase
from node.consensus.service import RoundService
from node.finite import to_finite
from node.ledger.reader import Ledger
from node.ledger.selected_view import show_selected
from node.offload import Offload
from node.payloads.transfers import Transfer
from node.pb import admin_pb2 as pb
from node.runs.specs import RunSpecs
from node.training.learner import describe_unready
from node.training.own_best import OwnBest


class StatusView:
    """Composes a node's status, part by part. `disk` is the store's thread."""

    def __init__(
        self,
        service: RoundService,
        process: ProcessView,
        peers: PeerView,
        ledger: Ledger,
        disk: Offload,
        *,
        runs: RunSpecs,
        me: Id,
        clock: Clock,
        read_own_best: Callable[[Run], OwnBest | None],
    ) -> None:
        self._service = service
        self._process = process
        self._peers = peers
        self._ledger = ledger
        self._read_own_best = read_own_best
        self._disk = disk
        self._runs = runs
        self._me = me
        self._clock = clock

    def describe_unready(self) -> str | None:
        """Returns why this node takes no part in finalising blocks now, or None."""
        height = self._service.tip.height
        if (reason := describe_unready(self._service.learner)) is not None:
            return reason
        return self._service.peers.describe_stall() or self._service.peers.describe_lag(height)

    async def show(self, name: str) -> pb.NodeStatus:
        """Returns the status of the node, which is called `name`."""
        status = self._process.show(name)
        for part in (self._show_round(), self._show_sight(), self._show_training()):
            status.MergeFrom(part)
        tip = self._service.tip
        if tip.state.run.select is not None:
            status.selected.CopyFrom(show_selected(tip.state.run, tip.selection))
        if (own := await self._disk.run(self._read_own_best, tip.state.run)) is not None:
            status.own_best.CopyFrom(pb.OwnBest(round=own.round, by=own.by, score=own.score))
        self._add_federation(status)
        measured, status.database_bytes, status.disk_free_bytes = await self._disk.run(self._read_disk)
        self._add_measured(status, measured)
        if (statistics := await self._disk.run(self._ledger.describe_statistics, self._runs)) is not None:
            status.statistics = statistics
        return status

    def _show_round(self) -> pb.NodeStatus:
        """Shows the tip, and the current round."""
        service, tip, machine = self._service, self._service.tip, self._service.machine
        run = tip.state.run
        return pb.NodeStatus(
            height=tip.height,
            head=tip.id.hex(),
            head_time=format_time(tip.header.time_ms),
            run=run.number,
            method=run.method["name"],
            rounds=run.num_heights if run.select is None else run.last_round,
            members=tip.state.n,
            quorum=tip.state.q,
            round=run.get_trained(tip.height if service.is_done or machine is None else machine.height),
            phase=_get_phase(service),
            view=0 if machine is None else machine.view,
            done=service.is_done,
            contributions=0 if machine is None else len(machine.contributions),
            candidates=0 if machine is None else len(machine.candidates),
            difficulty=tip.next_difficulty,
            paused=service.participation.is_paused,
            contributes=machine is not None and machine.contributes,
            stops_after=get_stop(service.participation),
        )

    def _add_federation(self, status: pb.NodeStatus) -> None:
        """Adds the number of open changes."""
        waiting = list(self._service.proposals)
        status.open_changes = len(waiting)
        status.unapproved_changes = sum(self._service.signer.id not in proposal.approvals for proposal in waiting)

    def _show_sight(self) -> pb.NodeStatus:
        """Shows the peers that this node sees and waits for, and what keeps it from taking part."""
        service = self._service
        unready_reason = self.describe_unready()
        status = pb.NodeStatus(
            peers_connected=sum(peer.connected for peer in service.peers),
            members_in_sight=service.peers.count_alive_members(),
            stalled=service.stall is not None,
            stall_reason=service.stall,
            ready=unready_reason is None,
            unready_reason=unready_reason,
        )
        status.not_awaited.extend(
            pb.NotAwaited(id=encode_id(member), name=self._peers.get_name(member), reason=reason)
            for member, reason in service.describe_not_awaited().items()
        )
        status.clocks_wrong.extend(service.clocks.describe_wrong())
        if (silence := service.opener.describe_silence(service.tip.state)) is not None:
            status.silence = silence
        if (other := service.other_history) is not None:
            status.other_history = other
        if (upgrade := describe_upgrade(service.proposals, service.peers, service.tip.state.q)) is not None:
            status.upgrade = upgrade
        if service.consent.reason is not None:
            status.not_approved = service.consent.reason
        if (skew_s := service.clocks.get_skews_s().get(self._me)) is not None:
            status.clock_ahead_s = skew_s
        status.transfers.extend(self._show_transfer(transfer) for transfer in service.transfers)
        return status

    def _show_training(self) -> pb.NodeStatus:
        """Shows the worker, and the local phase it is in."""
        service = self._service
        spec = self._runs.find_newest(service.tip.height)
        status = pb.NodeStatus(
            local_iterations=service.num_iterations,
            counts_epochs=spec is not None and spec.hyperparameters.counts_epochs,
            budget_s=service.local_work.budget_s,
            alpha_s=service.local_work.alpha_s,
            beta_s=service.local_work.beta_s,
            training_trouble=service.learner.trouble or service.learner.failure,
            data_change=service.learner.data_change,
            not_learning=service.records.learning.not_learned,
            model_signs=service.records.learning.others,
        )
        if (info := service.learner.info) is not None:
            status.device, status.parameters, status.model_bytes = info.device, info.parameters, info.model_bytes
            status.num_train, status.num_test, status.precision = info.num_train, info.num_test, info.precision
            status.num_val = info.num_val
        if (progress := service.learner.progress) is not None:
            status.train_step, status.train_steps = progress.step, progress.steps
        return status

    def _add_measured(self, status: pb.NodeStatus, measured: pb.Round | None) -> None:
        """Adds the results of past rounds: of `measured`, the newest measured one, and of the newest applied one."""
        service = self._service
        applied = service.learner.applied
        if measured is not None:
            applied = max(applied, measured.height)
            status.measured_round = measured.round
            for key in ("accuracy", "local_accuracy"):
                if measured.HasField(key):
                    setattr(status, key, getattr(measured, key))
            if "loss" in measured.train:
                status.loss = measured.train["loss"]
            if "seconds" in measured.train:
                status.train_s = measured.train["seconds"]
            if measured.HasField("beta_s"):
                status.mine_s = measured.beta_s
            if measured.HasField("measures"):
                status.measures.CopyFrom(measured.measures)
            if measured.HasField("alone"):
                status.alone.CopyFrom(measured.alone)
            if measured.HasField("privacy"):
                status.privacy.CopyFrom(measured.privacy)
        if applied > 0:
            status.applied_round = self._count_rounds(applied)
        caught_up, measured_height = (
            to_finite(service.learner.metrics.get("accuracy")),
            measured.height if measured else 0,
        )
        if applied > measured_height and caught_up is not None:  # caught up: it has no round to show
            status.accuracy = caught_up
        if (spoiled := service.learner.spoiled) is not None:
            status.spoiled_round, status.spoiled_reason = self._count_rounds(spoiled.height), spoiled.reason
        elif measured is not None and measured.height == service.tip.height and measured.HasField("spoiled"):
            status.spoiled_round, status.spoiled_reason = measured.round, measured.spoiled  # before a restart

    def _count_rounds(self, height: int) -> int:
        """Returns how many rounds the run then in force had made at a height."""
        calendar = self._runs.calendar
        return calendar.count_rounds(calendar.get_span(height).run.number, height)

    def _read_disk(self) -> tuple[pb.Round | None, int, int]:
        return self._ledger.get_newest_measured(), *self._process.read_disk()

    def _show_transfer(self, transfer: Transfer) -> pb.Transfer:
        shown = pb.Transfer(
            incoming=transfer.is_incoming,
            peer=encode_id(transfer.peer),
            peer_name=self._peers.get_name(transfer.peer),
            digest=transfer.digest.hex(),
            bytes=transfer.done,
            resumed=transfer.resumed,
            total_bytes=transfer.total,
            seconds=self._clock.monotonic() - transfer.started_s,
        )
        if transfer.named is not None:
            shown.kind, author = transfer.named.kind, transfer.named.author
            shown.author, shown.author_name = encode_id(author), self._peers.get_name(author)
        return shown


def _get_phase(service: RoundService) -> str:
    if service.machine is not None:
        return service.machine.phase.value
    return RoundPhase.DONE.value if service.is_done else "starting"
