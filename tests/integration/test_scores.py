"""The scores of a round's contributions: a liar stands out, nothing is disturbed, and a score that cannot be given has
a reason."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chain.errors import StoreCorrupted
from ml.payload import decode_arrays, encode_arrays
from node.admin.wiring import make_scorer
from node.boundary import UNFORESEEN
from node.errors import NodeError
from node.ledger import scores as scores_module
from node.ledger.scores import NOTHING_COMBINED, TOO_FEW
from node.training.trainer import AnswerRefused, Trained, WorkerDied, WorkerFailed
from support.data.blobs import spoil_held_blob
from support.data.chains import make_keys
from support.federation.inline import InlineTrainer
from support.federation.pulling import FEDPER, UAPDFL, taking
from support.federation.scoring import LONG_S, Scoring, ViewedFederation, get_numbers, make_trainers, read_offline, run
from support.federation.simulated import make_digit_federation
from support.federation.virtual_time import run_virtual

MODEL = {"name": "mlp", "hidden": [16]}
NAMES = ("node0", "node1", "node2", "node3")
LIAR = "node3"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
    clients, genesis = make_digit_federation(method, num_clients=len(NAMES), rounds=2, model=MODEL)
    trainers = [InlineTrainer(client) for client in clients[:-1]] + [TurnedTrainer(clients[-1])]
    return trainers, genesis | {"trainers": trainers} | settings


@pytest.mark.parametrize("method", ["fedavg", "fednova", "mpfedcl"])
def test_a_liar_is_far_from_the_others_and_does_harm_where_the_mean_follows_it(method: str, tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {"mpfedcl": {"normalize": False}, "fednova": {"local_epochs": 1}}
    trainers, genesis = make_learning({"name": method, **settings.get(method, {})})

    async def story(fed: ViewedFederation) -> None:
        client = trainers[0].client
        before = {name: array.tobytes() for name, array in client.state_arrays().items()}
        for number in (1, 2):
            shown = await fed.score(number)
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

        async def story(fed: ViewedFederation, rule: str = rule) -> None:
            shown = await fed.score(1)
            assert get_numbers(shown, "distance")[LIAR] > 5
            harm[rule] = get_numbers(shown, "effect")[LIAR]

        run(tmp_path / rule, story, **genesis)
    print(harm)
    assert abs(harm["median"]) < harm["mean"] / 5


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

    async def story(fed: ViewedFederation) -> None:
        shown = await fed.score(1)
        assert (shown.no_effect, get_numbers(shown, "effect")) == (str(error), {})
        assert len(get_numbers(shown, "distance")) == 4
        assert len(trainer.asked) == (4 if goes_on else 1)
        for _ in range(4):
            told = await fed.score(1)
        assert len(get_numbers(told, "effect")) == (0 if goes_on else 4)

    run(tmp_path, story, trainers=make_trainers(trainer))


def test_a_loss_that_is_no_number_is_none_and_the_reason_says_without_whom_it_would_be_one(tmp_path: Path) -> None:
    trainer = Scoring()
    trainer.answers = lambda count: [math.nan, 0.5 if count == 2 else math.inf]

    async def story(fed: ViewedFederation) -> None:
        shown = await fed.score(1)
        second = sorted(shown.scores, key=lambda score: -score.distance)[1].name
        assert get_numbers(shown, "effect") == {}
        assert shown.no_effect == f"the aggregate leaves this node no finite loss, and would without {second}"
        assert await fed.score(1) == shown
        assert len(trainer.asked) == 4

    run(tmp_path, story, trainers=make_trainers(trainer))


def test_one_without_test_samples_a_worker_or_a_membership_says_so(tmp_path: Path) -> None:
    async def story(fed: ViewedFederation) -> None:
        shown = await fed.score(1)
        assert (shown.no_effect, get_numbers(shown, "effect")) == ("this node has no test samples", {})
        assert len(get_numbers(shown, "distance")) == 4
        learner = fed.service.learner
        key = next(key for key in make_keys(5) if key.id not in fed.net.genesis.state.member_ids)
        stranger = make_scorer(fed.service, replace(fed.context, key=key))
        await stranger.add_scores(shown := await fed.view.get_round(2), LONG_S)
        assert shown.no_effect == "this node observes, and has no test samples"
        learner.info = None
        assert (await fed.score(1)).no_effect == "the worker is not ready yet; ask again"
        learner.failure = "it died"
        assert (await fed.score(1)).no_effect == "this node has no worker any more: it died"

    run(tmp_path, story, trainers=make_trainers(Scoring(num_test=0)))


def test_of_a_round_of_one_nothing_can_be_said(tmp_path: Path) -> None:
    async def story(fed: ViewedFederation) -> None:
        shown = await fed.score(1)
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

    async def story(fed: ViewedFederation) -> None:
        monkeypatch.setattr(scores_module, "compute_distances", fail)
        shown = await fed.score(1)
        assert shown.no_distance == shown.no_effect == UNFORESEEN
        assert fed.context.boundary.failures["scores"] == 1
        monkeypatch.undo()
        assert len(get_numbers(await fed.score(1), "distance")) == 4

    run(tmp_path, story, may_fail=True, trainers=make_trainers(Scoring()))


def test_a_payload_that_the_disk_has_changed_is_told_as_such(tmp_path: Path) -> None:
    async def story(fed: ViewedFederation) -> None:
        store = fed.net["node0"].store
        assert store is not None
        spoil_held_blob(store, fed.net["node0"].get_block(1).contributions[0].payloads[0].digest)
        with pytest.raises(StoreCorrupted):
            await fed.score(1)
        assert len(get_numbers(await fed.score(2), "distance")) == 4

    run(tmp_path, story, trainers=make_trainers(Scoring()))


def test_whoever_hangs_up_leaves_nothing_behind(tmp_path: Path) -> None:
    trainer = Scoring()

    async def story(fed: ViewedFederation) -> None:
        trainer.may_answer = asyncio.Semaphore(1)
        task = asyncio.create_task(fed.score(1))
        await fed.net.wait_for(lambda: trainer.asked != [] and trainer.at_work == 1, "the second to be weighed")
        task.cancel()
        await asyncio.wait({task})
        assert (task.cancelled(), trainer.at_work) == (True, 0)
        trainer.may_answer = asyncio.Semaphore(10)
        assert len(get_numbers(await fed.score(1), "effect")) == 4
        assert len(trainer.asked) == 4

    run(tmp_path, story, trainers=make_trainers(trainer))
