"""The cost and the life of scores: none is computed unasked or twice, and the rounds go on meanwhile."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from node.admin.wiring import make_view
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.errors import InvalidRequest
from node.ledger.scores import NOT_HELD, STOPPED
from node.pb import admin_pb2 as pb
from support.federation.asked import make_book, make_config
from support.federation.cluster import Cluster, cluster
from support.federation.scoring import LONG_S, Scoring, ViewedFederation, get_numbers, make_trainers, read_offline, run
from support.federation.virtual_time import run_virtual

# ---- what it costs, and what is kept


def test_nothing_is_worked_out_that_nobody_asks_for_and_nothing_twice(tmp_path: Path) -> None:
    trainer = Scoring()

    async def story(fed: ViewedFederation) -> None:
        plain = await fed.view.get_round(1)
        assert (list(plain.scores), plain.HasField("no_effect"), trainer.asked) == ([], False, [])
        shown = await fed.score(1)
        assert trainer.asked == [(1, 2)] * 4
        assert sorted(get_numbers(shown, "effect").values()) == [1, 2, 3, 4]
        assert len(get_numbers(shown, "distance")) == 4
        assert await fed.score(1) == shown
        assert await fed.view.get_round(1) == shown  # once known it is shown to whoever asks
        restarted = make_view(fed.service, fed.context, make_config(tmp_path), make_book())
        assert await restarted.get_round(1, LONG_S) == shown
        assert trainer.asked == [(1, 2)] * 4
        await fed.net.crash("node0")
        assert read_offline(tmp_path, 1) == read_offline(tmp_path, 1, LONG_S) == shown

    run(tmp_path, story, trainers=make_trainers(trainer))


def test_the_farthest_is_weighed_first(tmp_path: Path) -> None:
    trainer = Scoring()

    async def story(fed: ViewedFederation) -> None:
        shown = await fed.score(1)
        by_distance = sorted(shown.scores, key=lambda score: -score.distance)
        assert [score.effect for score in by_distance] == [1, 2, 3, 4]

    run(tmp_path, story, trainers=make_trainers(trainer))


def test_what_was_known_outlives_the_payloads_and_what_was_not_is_gone(tmp_path: Path) -> None:
    async def story(fed: ViewedFederation) -> None:
        known = await fed.score(1)
        store = fed.net["node0"].store
        assert store is not None
        for number in (1, 2):
            for contribution in fed.net["node0"].get_block(number).contributions:
                store.delete_blob(contribution.payloads[0].digest)
        assert await fed.score(1) == known
        gone = await fed.score(2)
        assert get_numbers(gone, "distance") == get_numbers(gone, "effect") == {}
        assert gone.no_distance == gone.no_effect == NOT_HELD
        await fed.net.crash("node0")
        assert read_offline(tmp_path, 1, LONG_S) == known
        assert read_offline(tmp_path, 2, LONG_S) == gone

    run(tmp_path, story, trainers=make_trainers(Scoring()))


def test_a_stopped_node_measures_distances_of_what_it_holds_and_evaluates_nothing(tmp_path: Path) -> None:
    shown: list[pb.Round] = []

    async def story(fed: ViewedFederation) -> None:
        shown.append(await fed.score(2))

    run(tmp_path, story, trainers=make_trainers(Scoring()))
    assert list(read_offline(tmp_path, 1).scores) == []
    told = read_offline(tmp_path, 1, LONG_S)
    assert len(get_numbers(told, "distance")) == 4
    assert (get_numbers(told, "effect"), told.no_effect, told.HasField("no_distance")) == ({}, STOPPED, False)
    assert read_offline(tmp_path, 2, LONG_S).scores == shown[0].scores


def holds_payloads(net: Cluster, height: int) -> bool:
    store = net["node0"].store
    refs = [ref for contribution in net["node0"].get_block(height).contributions for ref in contribution.payloads]
    return store is not None and all(store.has_blob(ref.digest) for ref in refs)


def test_a_round_that_was_only_caught_up_with_is_scored_and_stays_unmeasured(tmp_path: Path) -> None:
    trainer = Scoring()

    async def main() -> None:
        contexts: list[NodeContext] = []

        def make_service(context: NodeContext) -> RoundService:
            contexts.append(context)
            return make_round_service(context)

        others = ("node1", "node2", "node3")
        async with cluster(tmp_path, 4, start=others, rounds=6, trainers=make_trainers(trainer)) as net:
            await net.wait_for_height(4, *others)
            net.start("node0", make_service)
            await net.wait_for_height(6)
            service = net["node0"].service
            assert service is not None
            view = make_view(service, contexts[0], make_config(tmp_path), make_book())
            await net.wait_for(lambda: holds_payloads(net, 1), "the payloads of round 1")
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

    async def story(fed: ViewedFederation) -> None:
        trainer.may_answer = asyncio.Semaphore(2)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        shown = await fed.score(1, 3.0)
        assert loop.time() - began_s == pytest.approx(3.0, abs=0.1)
        assert shown.no_effect == "not worked out within 3 s; ask again for the rest"
        assert len(get_numbers(shown, "distance")) == 4
        first = get_numbers(shown, "effect")
        assert len(first) == 2
        trainer.may_answer.release()
        trainer.may_answer.release()
        trainer.may_answer.release()
        told = await fed.score(1)
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
            return make_round_service(context)

        async with cluster(tmp_path, 4, start=(), trainers=make_trainers(trainer)) as net:
            for name in net.nodes:
                net.start(name, make_service)
            await net.wait_for_height(3)
            service = net["node0"].service
            assert service is not None
            view = make_view(service, contexts[0], make_config(tmp_path), make_book())
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
    async def story(fed: ViewedFederation) -> None:
        with pytest.raises(InvalidRequest, match="expected more than 0 and at most 3600 seconds"):
            await fed.score(1, within_s)

    run(tmp_path, story, rounds=1)
