"""What a node makes of each contribution of a round: a liar stands out, nothing is disturbed, and whatever cannot be
said has a reason."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chain.errors import StoreCorrupted
from ml.clients import make_clients, make_initial_aggregate
from ml.data import get_classes, get_default_input
from ml.payload import decode_arrays, encode_arrays
from node import scores as scores_module
from node.boundary import UNFORESEEN
from node.context import NodeContext
from node.errors import InvalidRequest, NodeError
from node.json_view import to_json
from node.offline import OfflineNode
from node.pb import admin_pb2 as pb
from node.round_service import RoundService
from node.scorer import Scorer
from node.scores import NOT_HELD, NOTHING_COMBINED, STOPPED, TOO_FEW
from node.trainer import AnswerRefused, InlineTrainer, Trained, Trainer, TrainerInfo, WorkerDied, WorkerFailed
from node.view import NodeView
from support.asked_nodes import make_book, make_config
from support.chains import make_keys
from support.cluster import Cluster, ScriptedTrainer, cluster
from support.takers import FEDPER, UAPDFL, taking
from support.virtual_time import run_virtual

MODEL = {"name": "mlp", "hidden": [16]}
DIGITS = {"format": "digits"}
NAMES = ("node0", "node1", "node2", "node3")
LIAR = "node3"
LONG_S = 600.0  # of virtual time


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Asked:
    """A federation, and the view of its first member."""

    net: Cluster
    context: NodeContext
    view: NodeView

    async def score(self, number: int, within_s: float = LONG_S) -> pb.Round:
        shown = await self.view.get_round(number, within_s)
        json.dumps(to_json(shown), allow_nan=False)
        return shown


@asynccontextmanager
async def asking(path: Path, n: int = 4, *, rounds: int = 2, **settings: Any) -> AsyncIterator[Asked]:
    """After the last round, once all have written their records."""
    contexts: list[NodeContext] = []

    def make_service(context: NodeContext) -> RoundService:
        contexts.append(context)
        return RoundService(context)

    async with cluster(path, n, rounds=rounds, start=(), **settings) as net:
        for name in net.nodes:
            net.start(name, make_service)
        await net.wait_for_height(rounds)
        stores = [node.store for node in net.nodes.values()]
        await net.wait_for(lambda: all(store and store.get_round(rounds) for store in stores), "the last records")
        service = net["node0"].service
        assert service is not None
        yield Asked(net, contexts[0], NodeView(service, contexts[0], make_config(path), make_book()))


def run(path: Path, story: Callable[[Asked], Coroutine[Any, Any, None]], n: int = 4, **settings: Any) -> None:
    async def main() -> None:
        async with asking(path, n, **settings) as asked:
            await story(asked)

    run_virtual(main())


def get_numbers(shown: pb.Round, what: str) -> dict[str, float]:
    """By member, those that are known."""
    return {score.name: getattr(score, what) for score in shown.scores if score.HasField(what)}


def read_offline(path: Path, number: int, within_s: float | None = None) -> pb.Round:
    with OfflineNode(path / "node0") as node:
        return node.get_round(number, within_s)


# ---- a liar among clients that learn


class TurnedTrainer(InlineTrainer):
    """Trains as the honest do, and sends its model the other way round, and large."""

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await super().train(height, beacon, **options)
        arrays = {kind: decode_arrays(data, len(data)) for kind, data in trained.payloads.items()}
        turned = {
            kind: encode_arrays(
                {name: -10 * array if array.dtype == "float32" else array for name, array in of.items()}
            )
            for kind, of in arrays.items()
        }
        return replace(trained, payloads=turned)


def make_learning(method: Mapping[str, Any], **settings: Any) -> tuple[Sequence[InlineTrainer], dict[str, Any]]:
    """Four trainers on digits, of whom the last lies, and what genesis has to say for them."""
    classes, input_ = get_classes(DIGITS), get_default_input(DIGITS, MODEL)
    initial = make_initial_aggregate(MODEL, input_["shape"], len(classes), 1)
    clients = make_clients(
        method=method,
        model=MODEL,
        classes=classes,
        input=input_,
        data=DIGITS,
        partition="dirichlet:5",
        num_clients=len(NAMES),
        run_seed=1,
        initial=initial,
        rounds=2,
    )
    trainers = [InlineTrainer(client) for client in clients[:-1]] + [TurnedTrainer(clients[-1])]
    genesis = {
        "method": clients[0].spec.to_mapping(),
        "model": MODEL,
        "classes": list(classes),
        "input": input_,
        "initial_model": encode_arrays(initial),
        "trainers": trainers,
    }
    return trainers, genesis | settings


@pytest.mark.parametrize("method", ["fedavg", "fednova", "mpfedcl"])
def test_a_liar_is_far_from_the_others_and_does_harm_where_the_mean_follows_it(method: str, tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {"mpfedcl": {"normalize": False}, "fednova": {"local_epochs": 1}}
    trainers, genesis = make_learning({"name": method, **settings.get(method, {})})

    async def story(asked: Asked) -> None:
        client = trainers[0]._client
        before = {name: array.tobytes() for name, array in client.state_arrays().items()}
        for number in (1, 2):
            shown = await asked.score(number)
            distances, effects = get_numbers(shown, "distance"), get_numbers(shown, "effect")
            assert [*distances] == [*effects] == [*shown.contributor_names]
            print(distances, effects)
            far, harm = distances.pop(LIAR), effects.pop(LIAR)
            assert far > 5
            assert max(distances.values()) < far / 2
            assert harm > max(0.0, *effects.values())
            assert not shown.HasField("no_distance")
            assert not shown.HasField("no_effect")
        assert {name: array.tobytes() for name, array in client.state_arrays().items()} == before

    run(tmp_path, story, **genesis)


def test_what_a_robust_rule_leaves_out_is_far_and_does_next_to_no_harm(tmp_path: Path) -> None:
    harm = dict[str, float]()
    for rule in ("mean", "median"):
        _, genesis = make_learning({"name": "fedavg", "aggregation": rule})

        async def story(asked: Asked, rule: str = rule) -> None:
            shown = await asked.score(1)
            assert get_numbers(shown, "distance")[LIAR] > 5
            harm[rule] = get_numbers(shown, "effect")[LIAR]

        run(tmp_path / rule, story, **genesis)
    print(harm)
    assert abs(harm["median"]) < harm["mean"] / 5


# ---- what it costs, and what is kept


class Scoring(ScriptedTrainer):
    """Keeps what it is asked, and answers when it may, with losses that say how many it has been asked for."""

    def __init__(self, num_test: int = 1) -> None:
        super().__init__(0)
        self.num_test = num_test
        self.asked: list[tuple[int, int]] = []
        self.at_work = self.most_at_work = 0
        self.answers: Callable[[int], Sequence[float] | Exception] = lambda count: [1.0 + count, 1.0]
        self.may_answer = asyncio.Semaphore(1 << 20)

    async def start(self) -> TrainerInfo:
        return TrainerInfo(1, self.num_test, "cpu", 1, 1)

    async def score(self, height: int, aggregates: Sequence[bytes]) -> Sequence[float]:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            await self.may_answer.acquire()
            await asyncio.sleep(0.01)
        finally:
            self.at_work -= 1
        self.asked.append((height, len(aggregates)))
        answer = self.answers(len(self.asked))
        if isinstance(answer, Exception):
            raise answer
        return answer


def make_trainers(first: Trainer, n: int = 4) -> Sequence[Trainer]:
    return [first, *(ScriptedTrainer(i) for i in range(1, n))]


def test_nothing_is_worked_out_that_nobody_asks_for_and_nothing_twice(tmp_path: Path) -> None:
    trainer = Scoring()

    async def story(asked: Asked) -> None:
        plain = await asked.view.get_round(1)
        assert (list(plain.scores), plain.HasField("no_effect"), trainer.asked) == ([], False, [])
        shown = await asked.score(1)
        assert trainer.asked == [(1, 2)] * 4
        assert sorted(get_numbers(shown, "effect").values()) == [1, 2, 3, 4]
        assert len(get_numbers(shown, "distance")) == 4
        assert await asked.score(1) == shown
        assert await asked.view.get_round(1) == shown  # once known it is shown to whoever asks
        restarted = NodeView(asked.view._service, asked.context, make_config(tmp_path), make_book())
        assert await restarted.get_round(1, LONG_S) == shown
        assert trainer.asked == [(1, 2)] * 4
        await asked.net.crash("node0")
        assert read_offline(tmp_path, 1) == read_offline(tmp_path, 1, LONG_S) == shown

    run(tmp_path, story, trainers=make_trainers(trainer))


def test_the_farthest_is_weighed_first(tmp_path: Path) -> None:
    trainer = Scoring()

    async def story(asked: Asked) -> None:
        shown = await asked.score(1)
        by_distance = sorted(shown.scores, key=lambda score: -score.distance)
        assert [score.effect for score in by_distance] == [1, 2, 3, 4]

    run(tmp_path, story, trainers=make_trainers(trainer))


def test_what_was_known_outlives_the_payloads_and_what_was_not_is_gone(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        known = await asked.score(1)
        store = asked.net["node0"].store
        assert store is not None
        for number in (1, 2):
            for contribution in asked.net["node0"].get_block(number).contributions:
                store.delete_blob(contribution.payloads[0].digest)
        assert await asked.score(1) == known
        gone = await asked.score(2)
        assert get_numbers(gone, "distance") == get_numbers(gone, "effect") == {}
        assert gone.no_distance == gone.no_effect == NOT_HELD
        await asked.net.crash("node0")
        assert read_offline(tmp_path, 1, LONG_S) == known
        assert read_offline(tmp_path, 2, LONG_S) == gone

    run(tmp_path, story, trainers=make_trainers(Scoring()))


def test_a_stopped_node_measures_distances_of_what_it_holds_and_evaluates_nothing(tmp_path: Path) -> None:
    shown: list[pb.Round] = []

    async def story(asked: Asked) -> None:
        shown.append(await asked.score(2))

    run(tmp_path, story, trainers=make_trainers(Scoring()))
    assert list(read_offline(tmp_path, 1).scores) == []
    told = read_offline(tmp_path, 1, LONG_S)
    assert len(get_numbers(told, "distance")) == 4
    assert (get_numbers(told, "effect"), told.no_effect, told.HasField("no_distance")) == ({}, STOPPED, False)
    assert read_offline(tmp_path, 2, LONG_S).scores == shown[0].scores


def test_a_round_that_was_only_caught_up_with_is_scored_and_stays_unmeasured(tmp_path: Path) -> None:
    trainer = Scoring()

    async def main() -> None:
        contexts: list[NodeContext] = []

        def make_service(context: NodeContext) -> RoundService:
            contexts.append(context)
            return RoundService(context)

        others = ("node1", "node2", "node3")
        async with cluster(tmp_path, 4, start=others, rounds=6, trainers=make_trainers(trainer)) as net:
            await net.wait_for_height(4, *others)
            net.start("node0", make_service)
            await net.wait_for_height(6)
            service = net["node0"].service
            assert service is not None
            view = NodeView(service, contexts[0], make_config(tmp_path), make_book())
            shown = await view.get_round(1, LONG_S)
            assert len(get_numbers(shown, "distance")) == len(get_numbers(shown, "effect")) == len(trainer.asked) == 3
            assert await view.get_round(1, LONG_S) == shown
            assert len(trainer.asked) == 3
            plain = await view.get_round(1)
            assert (list(plain.scores), plain.measured, shown.measured) == ([], False, False)

    run_virtual(main())


# ---- time and load


def test_time_is_up_when_it_is_up_and_the_next_one_who_asks_goes_on_from_there(tmp_path: Path) -> None:
    trainer = Scoring()

    async def story(asked: Asked) -> None:
        trainer.may_answer = asyncio.Semaphore(2)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        shown = await asked.score(1, 3.0)
        assert loop.time() - began_s == pytest.approx(3.0, abs=0.1)
        assert shown.no_effect == "not worked out within 3 s; ask again for the rest"
        assert len(get_numbers(shown, "distance")) == 4
        first = get_numbers(shown, "effect")
        assert len(first) == 2
        trainer.may_answer.release()
        trainer.may_answer.release()
        trainer.may_answer.release()
        told = await asked.score(1)
        assert (len(trainer.asked), told.HasField("no_effect")) == (4, False)
        then = get_numbers(told, "effect")
        assert len(then) == 4
        assert first.items() <= then.items()

    run(tmp_path, story, trainers=make_trainers(trainer))


def test_one_round_is_scored_at_a_time_however_many_ask_and_rounds_go_on(tmp_path: Path) -> None:
    trainer = Scoring()

    async def main() -> None:
        contexts: list[NodeContext] = []

        def make_service(context: NodeContext) -> RoundService:
            contexts.append(context)
            return RoundService(context)

        async with cluster(tmp_path, 4, start=(), trainers=make_trainers(trainer)) as net:
            for name in net.nodes:
                net.start(name, make_service)
            await net.wait_for_height(3)
            service = net["node0"].service
            assert service is not None
            view = NodeView(service, contexts[0], make_config(tmp_path), make_book())
            trainer.may_answer = asyncio.Semaphore(0)
            asking = [asyncio.create_task(view.get_round(number, LONG_S)) for number in (1, 2, 1, 2)]
            late = asyncio.create_task(view.get_round(3, 0.25))
            height = net["node0"].height
            await net.wait_for_height(height + 2)
            shown = await late
            assert shown.no_distance == shown.no_effect == "not worked out within 0.25 s; ask again for the rest"
            assert not any(task.done() for task in asking)
            for _ in range(20):
                trainer.may_answer.release()
            told = await asyncio.gather(*asking)
            assert told[0] == told[2]
            assert told[1] == told[3]
            num_asked = sum(len(one.scores) for one in told[:2])
            assert (trainer.most_at_work, len(trainer.asked)) == (1, num_asked)
            net.check_agreement()

    run_virtual(main())


@pytest.mark.parametrize("within_s", [0.0, -1.0, 3600.1, math.nan, math.inf])
def test_an_absurd_time_is_refused(within_s: float, tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        with pytest.raises(InvalidRequest, match="expected more than 0 and at most 3600 seconds"):
            await asked.score(1, within_s)

    run(tmp_path, story, rounds=1)


# ---- what cannot be said


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [(WorkerDied("the worker died: exit status -9"), False), (WorkerFailed("none can be kept alive"), False),
     (AnswerRefused("height 1: no such model"), True)],
)  # fmt: skip
def test_a_worker_that_fails_costs_the_effects_and_may_be_asked_again(
    error: NodeError, goes_on: bool, tmp_path: Path
) -> None:
    trainer = Scoring()
    trainer.answers = lambda count: error if count <= 4 else [2.0, 1.0]

    async def story(asked: Asked) -> None:
        shown = await asked.score(1)
        assert (shown.no_effect, get_numbers(shown, "effect")) == (str(error), {})
        assert len(get_numbers(shown, "distance")) == 4
        assert len(trainer.asked) == (4 if goes_on else 1)
        for _ in range(4):
            told = await asked.score(1)
        assert len(get_numbers(told, "effect")) == (0 if goes_on else 4)

    run(tmp_path, story, trainers=make_trainers(trainer))


def test_a_loss_that_is_no_number_is_none_and_the_reason_says_without_whom_it_would_be_one(tmp_path: Path) -> None:
    trainer = Scoring()
    trainer.answers = lambda count: [math.nan, 0.5 if count == 2 else math.inf]

    async def story(asked: Asked) -> None:
        shown = await asked.score(1)
        second = sorted(shown.scores, key=lambda score: -score.distance)[1].name
        assert get_numbers(shown, "effect") == {}
        assert shown.no_effect == f"the aggregate leaves this node no finite loss, and would without {second}"
        assert await asked.score(1) == shown
        assert len(trainer.asked) == 4

    run(tmp_path, story, trainers=make_trainers(trainer))


def test_one_without_test_samples_a_worker_or_a_membership_says_so(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        shown = await asked.score(1)
        assert (shown.no_effect, get_numbers(shown, "effect")) == ("this node has no test samples", {})
        assert len(get_numbers(shown, "distance")) == 4
        learner = asked.view._service.learner
        key = next(key for key in make_keys(5) if key.id not in asked.net.genesis.member_ids)
        stranger = Scorer(replace(asked.context, key=key), learner)
        await stranger.add_scores(shown := await asked.view.get_round(2), LONG_S)
        assert shown.no_effect == "this node observes, and has no test samples"
        learner.info = None
        assert (await asked.score(1)).no_effect == "the worker is not ready yet; ask again"
        learner.failure = "it died"
        assert (await asked.score(1)).no_effect == "this node has no worker any more: it died"

    run(tmp_path, story, trainers=make_trainers(Scoring(num_test=0)))


def test_of_a_round_of_one_nothing_can_be_said(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        shown = await asked.score(1)
        assert get_numbers(shown, "distance") == get_numbers(shown, "effect") == {}
        assert shown.no_distance == TOO_FEW
        assert shown.no_effect == ("without node0 there is no aggregate: expected at least one contribution, got none")

    run(tmp_path, story, n=1, rounds=1)


@pytest.mark.parametrize("method", [FEDPER, UAPDFL], ids=lambda method: str(method["name"]))
def test_where_members_take_from_single_peers_nothing_has_a_centre(method: Mapping[str, Any], tmp_path: Path) -> None:
    async def main() -> None:
        async with taking(tmp_path, 4, method, rounds=1) as fed:
            await fed.wait_for_round(1)

    run_virtual(main())
    told = read_offline(tmp_path, 1, LONG_S)
    assert get_numbers(told, "distance") == get_numbers(told, "effect") == {}
    assert told.no_distance == told.no_effect == NOTHING_COMBINED


# ---- what must not happen to a node


def test_an_error_that_nobody_foresaw_is_a_reason_and_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("nobody foresaw it")

    async def story(asked: Asked) -> None:
        monkeypatch.setattr(scores_module, "compute_distances", fail)
        shown = await asked.score(1)
        assert shown.no_distance == shown.no_effect == UNFORESEEN
        assert asked.context.boundary.failures["scores"] == 1
        monkeypatch.undo()
        assert len(get_numbers(await asked.score(1), "distance")) == 4

    run(tmp_path, story, may_fail=True, trainers=make_trainers(Scoring()))


def test_a_payload_that_the_disk_has_changed_is_told_as_such(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        store = asked.net["node0"].store
        assert store is not None
        path = store.blob_path(asked.net["node0"].get_block(1).contributions[0].payloads[0].digest)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
        with pytest.raises(StoreCorrupted):
            await asked.score(1)
        assert len(get_numbers(await asked.score(2), "distance")) == 4

    run(tmp_path, story, trainers=make_trainers(Scoring()))


def test_whoever_hangs_up_leaves_nothing_behind(tmp_path: Path) -> None:
    trainer = Scoring()

    async def story(asked: Asked) -> None:
        trainer.may_answer = asyncio.Semaphore(1)
        task = asyncio.create_task(asked.score(1))
        await asked.net.wait_for(lambda: trainer.asked != [] and trainer.at_work == 1, "the second to be weighed")
        task.cancel()
        await asyncio.wait({task})
        assert (task.cancelled(), trainer.at_work) == (True, 0)
        trainer.may_answer = asyncio.Semaphore(10)
        assert len(get_numbers(await asked.score(1), "effect")) == 4
        assert len(trainer.asked) == 4

    run(tmp_path, story, trainers=make_trainers(trainer))
