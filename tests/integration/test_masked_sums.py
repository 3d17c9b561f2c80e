"""Masked sums in a federation: members that come late, die between two heights, lie, and the changes in between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from chain.block import Contribution, Id
from chain.changes.rules import SetRules
from chain.changes.runs import EndRun
from chain.store.interface import STEPS
from chain.tip import Tip
from ml.aggregation.masks import add_mask, is_added, list_opened
from ml.payload import Arrays, decode_arrays, encode_arrays, from_rows, to_rows
from ml.specs.masked.aggregate import MASKED, read_shown, read_summed
from ml.specs.masked.spec import EMPTY_INPUT
from node.admin.wiring import make_predictor
from node.cli.federation.rounds import describe_round
from node.consensus.height.credit import VainWait
from node.consensus.learning.masks import Masker, MaskingRefused, MaskKey, MaskKeys, RoundMasks
from node.ledger.reader import Ledger
from node.p2p.refusals import Reason
from node.p2p.transport.base import Message
from node.runs.specs import RunRound
from node.training.trainer import Predicted, Trained
from support.faults.doom import Doom, Killed
from support.federation.cluster import Cluster, make_prototypes
from support.federation.joining import add, growing, make_checkpoint, start_joiner
from support.federation.masked import (
    BESIDE,
    METHOD,
    METHODS,
    BesideTrainer,
    check_deeply,
    check_sum,
    get_aggregate,
    get_masked_ref,
    get_spec,
    is_aborted,
    make_model,
    make_short_prototypes,
    masked,
    start_all,
)
from support.federation.proposing import (
    approve,
    change,
    find_change_heights,
    get_service,
    get_state,
    propose,
    wait_for_state,
)
from support.federation.runs import start_run
from support.federation.virtual_time import run_virtual
from support.federation.wiretap import TappedTransport
from support.slow_rest import slow_after

OTHERS = ("node1", "node2", "node3")
HONEST = ("node0", "node1", "node2")
Method = Mapping[str, str]


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(params=slow_after(1, METHODS))
def method(request: pytest.FixtureRequest) -> dict[str, str]:
    """Of prototypes alone, and of models with prototypes in the clear beside them."""
    return METHODS[request.param]


@pytest.mark.parametrize("n", slow_after(1, [4, 7]))
def test_members_agree_on_the_mean_of_what_none_of_them_has_seen(tmp_path: Path, n: int, method: Method) -> None:
    async def story() -> None:
        async with masked(tmp_path, n, rounds=3, method=method) as net:
            start_all(net)
            await net.wait_for_height(7)
            for round_number in (1, 2, 3):
                check_sum(net, 2 * round_number, 2 * round_number + 1)

    run_virtual(story())


def test_a_member_that_comes_late_is_in_the_sum_after_the_next_keys(tmp_path: Path, method: Method) -> None:
    async def story() -> None:
        async with masked(tmp_path, method=method) as net:
            start_all(net, *OTHERS)
            await net.wait_for_height(3, *OTHERS)
            net.start("node0")
            await net.wait_for_height(9)
            net.check_agreement()
            parts = [len(net["node1"].get_block(height).contributions) for height in range(1, net["node1"].height)]
            assert 4 in parts[1::2]  # of inputs
            for height in range(2, len(parts) - 1, 2):
                check_sum(net, height, height + 1)

    run_virtual(story())


def test_a_member_that_dies_between_keys_and_inputs_is_left_out_of_the_sum(tmp_path: Path, method: Method) -> None:
    async def story() -> None:
        async with masked(tmp_path, train_s=0.2, method=method) as net:
            start_all(net)
            await net.wait_for_height(3)
            await net.crash("node0")
            await net.wait_for_height(6, *OTHERS)
            assert len(net["node1"].get_block(4).contributions) == 3
            check_sum(net, 4, 5)

    run_virtual(story())


def test_a_member_that_dies_before_it_opens_costs_one_round(tmp_path: Path, method: Method) -> None:
    async def story() -> None:
        async with masked(tmp_path, method=method) as net:
            start_all(net)
            await net.wait_for_first(4)
            await net.crash("node0")
            await net.wait_for_height(8, *OTHERS)
            inputs, openings = net["node1"].get_block(4), net["node1"].get_block(5)
            if len(openings.contributions) < len(inputs.contributions):
                assert is_aborted(net, 5)
                store = net["node1"].get_context().store
                await net.wait_for(lambda: store.get_round(5) is not None, "the record of the round")
                assert (store.get_round(5) or {})["spoiled"] == "its sum was not opened by node0"
            check_sum(net, 6, 7)
            net.start("node0")
            await net.wait_for_height(13)
            parts = [len(net["node1"].get_block(height).contributions) for height in range(8, 14)]
            assert 4 in parts

    run_virtual(story())


def test_a_member_that_is_back_at_once_opens_with_the_key_on_its_disk(tmp_path: Path, method: Method) -> None:
    async def story() -> None:
        async with masked(tmp_path, method=method) as net:
            start_all(net)
            for height in (2, 4, 6):
                await net.wait_for_first(height)
                await net.crash("node0")
                net.start("node0")
                await net.wait_for_height(height + 1)
                assert len(net["node1"].get_block(height + 1).contributions) == 4
                check_sum(net, height, height + 1)

    run_virtual(story())


def test_a_member_that_has_lost_its_keys_opens_nothing_and_takes_part_again(tmp_path: Path, method: Method) -> None:
    async def story() -> None:
        async with masked(tmp_path, method=method) as net:
            start_all(net)
            await net.wait_for_first(4)
            await net.crash("node0")
            (net["node0"].path / "masks.json").unlink(missing_ok=True)
            net.start("node0")
            await net.wait_for_height(11)
            parts = [len(net["node1"].get_block(height).contributions) for height in range(5, 12)]
            assert 4 in parts[1::2]

    run_virtual(story())


@pytest.mark.parametrize("at", slow_after(2, [2, 3, 4, 5]))
def test_a_change_may_take_any_height(tmp_path: Path, at: int, method: Method) -> None:
    """Of inputs, which are then hidden by keys that are shown anew, or of openings, which are the same ones."""

    async def story() -> None:
        async with masked(tmp_path, train_s=0.3, method=method) as net:
            start_all(net)
            await net.wait_for_height(at)
            await change(net, SetRules({"evidence_heights": (100, 101)}))
            await net.wait_for(lambda: bool(find_change_heights(net, "node1")), "a change")
            (height,) = find_change_heights(net, "node1")
            await net.wait_for_height(height + 6)
            for inputs, openings in list_rounds(net):
                check_sum(net, inputs, openings)

    run_virtual(story())


def list_rounds(net: Cluster) -> list[tuple[int, int]]:
    """The heights of inputs and of openings of the rounds that are over."""
    runs = net["node1"].get_context().runs
    rounds = [round_ for h in range(1, net["node1"].height + 1) if (round_ := runs.find(h)) is not None]
    return [
        (one.height, other.height)
        for one, other in pairwise(rounds)
        if one.number % 2 == 0 and other.number == one.number + 1
    ]


OF_ROUNDS = ("contribution", "append", "blob")  # what masks hang on
DURABLE_STEPS = [step for step in STEPS if step.split(".")[0] in OF_ROUNDS]


@pytest.mark.outer
@pytest.mark.parametrize("step", DURABLE_STEPS)
@pytest.mark.parametrize("height", [2, 3])
def test_a_member_killed_at_a_durable_step_bares_nothing_and_takes_part_again(
    tmp_path: Path, step: str, height: int, method: Method
) -> None:
    """At a height of inputs, and at one of openings."""

    async def story() -> None:
        async with masked(tmp_path, method=method) as net:
            doom = Doom(net, ["node0"], step)
            for name in net.nodes:
                net.start(name, faults=doom if name == "node0" else None)
            await net.wait_for_height(height)
            doom.arm()
            await doom.wait()
            net["node0"].failure = None
            doom.bring_back()
            await takes_part_again(net)

    run_virtual(story())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_member_killed_as_it_writes_its_keys_bares_nothing_and_takes_part_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    keep, is_armed = MaskKeys.keep, False

    def die(self: MaskKeys, keys: Sequence[MaskKey]) -> None:
        nonlocal is_armed
        is_victim = self._path.parent.name == "node0"
        if is_armed and is_victim and when == "before":
            raise Killed("keys")
        keep(self, keys)
        if is_armed and is_victim:
            raise Killed("keys")

    async def story() -> None:
        nonlocal is_armed
        async with masked(tmp_path, may_fail=True) as net:
            start_all(net)
            for height in (2, 3, 4, 5):
                await net.wait_for_first(height)
                is_armed = True
                await asyncio.sleep(0.05)  # it writes them at every height of openings
                await net.crash("node0")
                net["node0"].failure, is_armed = None, False
                net.start("node0")
            await takes_part_again(net)

    monkeypatch.setattr(MaskKeys, "keep", die)
    run_virtual(story())


async def takes_part_again(net: Cluster) -> None:
    """Of the first member: an input of its own is in a sum."""
    first = max(node.height for node in net.nodes.values())

    def is_in_a_sum() -> bool:
        heights = range(first + 1, net["node1"].height)
        return any(net.id("node0") in summed.members for h in heights if (summed := read_summed(get_aggregate(net, h))))

    await net.wait_for(is_in_a_sum, "an input of node0 in a sum")


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.outer) for seed in range(3, 12))])
def test_whoever_dies_whenever_no_input_is_ever_bare(tmp_path: Path, seed: int, method: Method) -> None:
    async def story() -> None:
        random = Random(seed)
        async with masked(
            tmp_path, train_s=0.05, network={"latency_s": (0.001, 0.05), "loss": 0.02}, method=method
        ) as net:
            start_all(net)
            await net.wait_for_first(1)
            for _ in range(12):
                name = random.choice(list(net.nodes))
                await net.wait_for_first(max(node.height for node in net.nodes.values()) + random.choice((0, 0, 1)))
                await asyncio.sleep(random.uniform(0, 0.15))
                if net[name].task is not None:
                    await net.crash(name)
                await asyncio.sleep(random.choice((0.0, 0.0, 0.1, 0.5)))
                net.start(name)
            height = max(node.height for node in net.nodes.values())
            await net.wait_for_height(height + 6, timeout_s=300)

    run_virtual(story())


# ---- members that lie


def get_masker(net: Cluster, name: str) -> Masker:
    return get_service(net, name).opener.masking.masker


def test_three_sums_that_random_bytes_have_spoiled_pause_the_run_until_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    """Nobody can tell whose they are."""

    async def story() -> None:
        async with masked(tmp_path, method=method) as net:
            start_all(net)
            liar, honest = get_masker(net, "node3"), get_masker(net, "node3").mask

            def lie(*given: Any) -> bytes:
                data = honest(*given)
                arrays = decode_arrays(data, len(data))
                noise = np.random.default_rng(1).integers(-(1 << 63), 1 << 63, len(arrays["values"]), np.int64)
                return encode_arrays({**arrays, "values": noise})

            monkeypatch.setattr(liar, "mask", lie)
            await net.wait_for_height(7)
            assert all(is_aborted(net, height) for height in (3, 5, 7))
            await asyncio.sleep(30)
            assert {node.height for node in net.nodes.values()} == {7}
            assert "3 sums in a row were out of range" in str(get_service(net, "node0").opener.masking.pause)
            monkeypatch.setattr(liar, "mask", honest)
            await change(net, SetRules({"evidence_heights": (100, 101)}))
            await net.wait_for_height(12)
            assert net["node0"].get_block(8).change is not None
            check_sum(net, 10, 11)

    run_virtual(story())


def test_one_member_moves_no_number_farther_than_the_radius_and_the_record_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with masked(tmp_path, method={**BESIDE, "masked_radius": 0.25}) as net:
            start_all(net)
            liar, honest, coding = get_masker(net, "node3"), get_masker(net, "node3").mask, get_spec(net).coding

            def lie(*given: Any) -> bytes:
                data = honest(*given)
                arrays = decode_arrays(data, len(data))
                much = coding.encode({name: array * 0 + 1000 for name, array in make_model(3, 1).items()}, 1, 20)
                return encode_arrays({**arrays, "values": arrays["values"] + much})

            monkeypatch.setattr(liar, "mask", lie)
            await net.wait_for_height(5)
            before, after = (get_aggregate(net, height) for height in (3, 5))
            names = [name for name in after if name.startswith("model/")]
            for name in names:
                assert (after[name] == (before[name].astype(np.float64) + 0.25).astype(np.float32)).all()
            store = net["node1"].get_context().store
            await net.wait_for(lambda: store.get_round(5) is not None, "the record of the round")
            record = store.get_round(5) or {}
            num_numbers = sum(after[name].size for name in names)
            assert (record["clipped"], record["spoiled"]) == (num_numbers, None)
            told = describe_round(Ledger(net.genesis, store).get_round(5), "iteration")
            assert ("clipped", f"{num_numbers:,} numbers of the mean, which were outside of masked_radius") in told

    run_virtual(story())


def test_a_member_that_opens_another_seed_is_refused_and_costs_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    async def story() -> None:
        async with masked(tmp_path, liars=("node3",), method=method) as net:
            start_all(net)
            liar, honest = get_masker(net, "node3"), get_masker(net, "node3").open
            lies = True

            def lie(*given: Any) -> bytes:
                data = honest(*given)
                arrays = decode_arrays(data, len(data))
                return encode_arrays({**arrays, "seeds": arrays["seeds"] ^ 1}) if lies else data

            monkeypatch.setattr(liar, "open", lie)
            await net.wait_for_height(5, *HONEST)
            assert is_aborted(net, 3)
            for name in HONEST:
                refused = get_service(net, name).get_refusals()[net.id("node3")]
                assert refused[Reason.PAYLOAD] >= 1
            lies = False
            await net.wait_for_height(13)

    run_virtual(story())


TOO_LONG: Arrays = {"classes": np.zeros(1, np.int64), "prototypes": np.full((1, 4), 9, np.float32)}
LIES: Mapping[str, Mapping[str, bytes]] = {
    "prototypes of a member that has no part in the sum": {"masked": encode_arrays(EMPTY_INPUT)},
    "prototypes that are too long": {"prototypes": encode_arrays(TOO_LONG)},
    "no arrays": {"prototypes": bytes(64)},
}


@pytest.mark.parametrize("lie", slow_after(1, LIES))
def test_a_member_that_shows_what_it_must_not_is_refused_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    async def story() -> None:
        async with masked(tmp_path, method=BESIDE, liars=("node3",)) as net:
            start_all(net)
            masking = get_service(net, "node3").opener.masking
            honest = masking.mask

            async def mask(tip: Tip, round_: RunRound, trained: Trained) -> Trained:
                made = await honest(tip, round_, trained)
                return replace(made, payloads={**made.payloads, **LIES[lie]})

            monkeypatch.setattr(masking, "mask", mask)
            await net.wait_for_height(5, *HONEST)
            for name in HONEST:
                assert get_service(net, name).get_refusals()[net.id("node3")][Reason.PAYLOAD] >= 1
            for inputs in (2, 4):
                check_sum(net, inputs, inputs + 1)
                assert read_shown(get_aggregate(net, inputs + 1)) == sorted(map(net.id, HONEST))

    run_virtual(story())


class Answering(BesideTrainer):
    """Answers by one prototype of each of three members."""

    async def predict(
        self,
        samples: bytes,
        *,
        alone: bool = False,
        kappa: float | None = None,
        kept: int | None = None,
        calibrated: bool = False,
    ) -> Predicted:
        predicted = await super().predict(samples, alone=alone, kappa=kappa, kept=kept, calibrated=calibrated)
        nearest: Arrays = {"authors": np.arange(3), "distances": np.ones(3, np.float32)}
        answer = {**decode_arrays(predicted.answer, len(predicted.answer)), **nearest}
        return replace(predicted, answer=encode_arrays(answer))


def test_a_prediction_names_the_members_in_the_sum_and_not_whoever_opened_it(tmp_path: Path) -> None:
    """One that comes late shows a key beside the others' openings, and has no prototype in the pool."""

    async def story() -> None:
        trainers = [Answering(i, 0.5) for i in range(4)]  # long enough to catch up in
        async with masked(tmp_path, rounds=2, method=BESIDE, trainers=trainers) as net:
            start_all(net, *OTHERS)
            await net.wait_for_height(3, *OTHERS)  # whose openings have the keys of round 2
            net.start("node0")
            await net.wait_for_height(5)
            names = {net.id(name): name for name in net.nodes}
            shown = [names[member] for member in read_shown(get_aggregate(net, 5))]
            openers = [names[c.author] for c in net["node1"].get_block(5).contributions]
            predictor = make_predictor(get_service(net, "node1"), net["node1"].get_context())
            await net.wait_for(lambda: 5 in trainers[1].applied, "the last round to be applied")
            samples = encode_arrays({"x": np.zeros((3, 1, 8, 8), np.uint8)})
            reply = await predictor.predict(samples)
            assert [said.nearest_name for said in reply.predictions] == shown == list(OTHERS)
            assert openers == ["node0", *OTHERS]

    run_virtual(story())


def test_the_openings_wait_for_whoever_is_in_the_sum_and_for_nobody_else_without_credit(tmp_path: Path) -> None:
    """One whose input comes too late for the block each time could hold up every round."""

    async def story() -> None:
        async with masked(tmp_path) as net:
            start_all(net, *OTHERS)
            await net.wait_for_height(4, *OTHERS)
            service, late = get_service(net, "node1"), net.id("node0")
            authors = {c.author for c in service.tip.block.contributions}
            assert service.opener.masking.is_opening(service.tip.height + 1)
            for member in (late, *authors):
                service.credits.charge(member, service.tip.height, VainWait(1.0, "no contribution came"))
                service.credits.charge(member, service.tip.height, VainWait(1.0, "no contribution came"))
            machine = await service.opener.open(service.tip, 2.0, seen={late}, is_behind=False)
            assert machine.awaited == authors

    run_virtual(story())


def test_all_that_colluders_hold_does_not_show_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    """One of four colludes, as many as may; it takes the keys of all others to see what one has sent."""
    held: dict[Path, dict[bytes, MaskKey]] = {}
    keep = MaskKeys.keep

    def watch(self: MaskKeys, keys: Sequence[MaskKey]) -> None:
        held.setdefault(self._path.parent, {}).update({key.public: key for key in keys})
        keep(self, keys)

    monkeypatch.setattr(MaskKeys, "keep", watch)

    async def story() -> None:
        async with masked(tmp_path, rounds=2, method=method) as net:
            start_all(net)
            await net.wait_for_height(5)
            spec, vectors = get_spec(net), {}
            for place, name in enumerate(HONEST):
                if spec.shown:
                    vectors[name] = spec.coding.encode(make_model(place, 4), place + 1, spec.fraction_bits)
                    continue
                data = make_prototypes(place, 4)
                vectors[name] = spec.coding.encode(decode_arrays(data, len(data)), 1, spec.fraction_bits)
            assert not find_bare(net, held, vectors, ["node3"])
            assert not find_bare(net, held, vectors, ["node2", "node3"])
            assert find_bare(net, held, vectors, ["node1", "node2", "node3"]) == ["node0"]

    run_virtual(story())


def test_nothing_that_was_ever_sent_has_any_part_of_a_members_model_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All messages, and all blobs that a member has of all others: prototypes are there, and models are not."""
    sent, post = set[bytes](), TappedTransport.post

    def watch(self: TappedTransport, peer: Id, message: Message) -> None:
        sent.add(message.data)
        post(self, peer, message)

    monkeypatch.setattr(TappedTransport, "post", watch)

    async def story() -> None:
        async with masked(tmp_path, rounds=2, method=BESIDE) as net:
            start_all(net)
            await net.wait_for_height(5)
            spec, store = get_spec(net), net["node3"].store
            assert store is not None
            blocks = [net["node3"].get_block(height) for height in range(1, 6)]
            refs = [ref.digest for block in blocks for c in block.contributions for ref in c.payloads]
            seen = b"|".join(sent) + b"|".join(map(store.get_blob, [*refs, *(b.header.aggregate for b in blocks)]))
            for place, number in product(range(4), (2, 4)):
                data, model = make_short_prototypes(place, number), make_model(place, number)
                assert decode_arrays(data, len(data))["prototypes"].tobytes() in seen
                vector = spec.coding.encode(model, place + 1, spec.fraction_bits)
                parts = [part for array in (*model.values(), vector) for part in cut(array.tobytes())]
                assert len(parts) > 200
                assert not [part for part in parts if part in seen]
            mean = get_aggregate(net, 5)["model/fc1.weight"].tobytes()
            assert all(part in seen for part in cut(mean))

    run_virtual(story())


def cut(data: bytes) -> list[bytes]:
    """Pieces of 16 bytes: four numbers of a model, or two of a vector."""
    return [data[start : start + 16] for start in range(0, len(data) - 15, 16)]


def find_bare(
    net: Cluster, held: Mapping[Path, Mapping[bytes, MaskKey]], vectors: Mapping[str, Any], colluders: Sequence[str]
) -> list[str]:
    """Whose vectors come out of the inputs of height 4 by all that is on the chain, and all keys that colluders had."""
    block, summed = net["node3"].get_block(4), read_summed(get_aggregate(net, 4))
    assert summed is not None
    opened = {c.author: from_rows(read_payload(net, c)["seeds"]) for c in net["node3"].get_block(5).contributions}
    ids = {net.id(name): name for name in net.nodes}
    bare = []
    for c in block.contributions:
        values = read_payload(net, c)["values"].copy()
        seeds = dict(zip(list_opened(c.author, summed.roster, summed.members), opened[c.author], strict=True))
        for name in colluders:
            for key in held[net[name].path].values():
                if key.public in summed.keys and net.id(name) != c.author:
                    masks = RoundMasks(
                        net.id(name), key, net.genesis.chain_id, block.header.prev, summed.roster, summed.keys
                    )
                    seeds[net.id(name)] = masks.derive(c.author)
        for other, seed in seeds.items():
            add_mask(values, seed, subtract=other == c.author or is_added(c.author, other))
        if ids[c.author] in vectors and (values == vectors[ids[c.author]]).any():
            bare.append(ids[c.author])
    return sorted(bare)


def read_payload(net: Cluster, contribution: Contribution) -> Arrays:
    store = net["node3"].store
    assert store is not None
    data = store.get_blob(get_masked_ref(contribution).digest)
    return decode_arrays(data, len(data))


# ---- what an attacker of this design has tried


def test_who_shows_a_copy_of_a_members_key_learns_nothing_of_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends no input, so that all others open what they share with it. The lottery may leave its late key out."""

    async def story(path: Path) -> bool:
        async with masked(path, rounds=2, liars=("node3",)) as net:
            start_all(net)
            service, victim = get_service(net, "node3"), net.id("node0")
            masking, honest = service.opener.masking, service.opener.masking.open

            async def copy_key(tip: Tip, round_: RunRound) -> Trained:
                if round_.number % 2 == 0:
                    return await honest(tip, round_)
                while True:
                    machine = service.current.machine
                    shown = None if machine is None else machine.contributions.get(victim)
                    data = None if shown is None else service.parts.payloads.pushed.find(shown.payloads[0].digest)
                    if data is not None:
                        key = decode_arrays(data, len(data))["key"]
                        return Trained(1, {MASKED: encode_arrays({"key": key, "seeds": to_rows([])})}, {})
                    await asyncio.sleep(0.001)

            async def send_nothing(tip: Tip, round_: RunRound, trained: Trained) -> Trained:
                raise MaskingRefused("a liar")

            monkeypatch.setattr(masking, "open", copy_key)
            monkeypatch.setattr(masking, "mask", send_nothing)
            await net.wait_for_height(5, *HONEST)
            summed = read_summed(get_aggregate(net, 4))
            assert summed is not None
            if net.id("node3") not in summed.roster:
                return False
            assert summed.keys[summed.roster.index(net.id("node3"))] == summed.keys[summed.roster.index(victim)]
            data = make_prototypes(0, 4)
            vector = get_spec(net).coding.encode(decode_arrays(data, len(data)), 1, get_spec(net).fraction_bits)
            inputs, openings = net["node0"].get_block(4), net["node0"].get_block(5)
            opened = {c.author: from_rows(read_payload(net, c)["seeds"]) for c in openings.contributions}
            (values,) = [read_payload(net, c)["values"].copy() for c in inputs.contributions if c.author == victim]
            add_mask(values, opened[victim][0], subtract=True)
            for other in summed.members:
                if other != victim:  # what it shares with the absent one, by whose key the victim's would be it
                    add_mask(values, opened[other][-1], subtract=is_added(victim, other))
            add_mask(values, opened[victim][-1], subtract=is_added(victim, net.id("node3")))
            assert not (values == vector).any()
        return True

    assert any(run_virtual(story(tmp_path / str(i))) for i in range(5))


def test_a_roster_of_just_a_quorum_of_which_one_dies_does_not_stop_the_others(tmp_path: Path, method: Method) -> None:
    async def story() -> None:
        async with masked(tmp_path, train_s=0.3, method=method) as net:
            start_all(net, *OTHERS)
            await net.wait_for_first(1)
            await net.crash("node3")
            net.start("node0")
            await net.wait_for_height(9, *HONEST)
            rounds = [(inputs, openings) for inputs, openings in list_rounds(net) if inputs > 2]
            for inputs, openings in rounds:
                check_sum(net, inputs, openings)
            assert rounds

    run_virtual(story())


def test_one_that_has_lost_its_key_and_one_that_lies_cost_a_round_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    async def story() -> None:
        async with masked(tmp_path, train_s=0.3, method=method) as net:
            start_all(net)
            stop_opening(net, "node3", monkeypatch)
            await net.wait_for_first(2)
            await net.crash("node0")
            (net["node0"].path / "masks.json").unlink()
            net.start("node0")
            await net.wait_for_height(9, *HONEST)
            assert is_aborted(net, 3)

    run_virtual(story())


def stop_opening(net: Cluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node sends nothing at openings from the second on."""
    masking = get_service(net, name).opener.masking
    honest = masking.open

    async def refuse(tip: Tip, round_: RunRound) -> Trained:
        if round_.number > 1:
            await asyncio.sleep(1e9)
        return await honest(tip, round_)

    monkeypatch.setattr(masking, "open", refuse)


@pytest.mark.outer
def test_a_sum_is_opened_by_a_quorum_that_has_grown_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of four have an input in it, and a fifth member joins before they open."""

    async def story() -> None:
        async with growing(tmp_path, 4, ("node4",), rounds=0, method=METHOD, keep_heights=1000) as net:
            wait = asyncio.Event()
            for name in HONEST:
                masking = get_service(net, name).opener.masking

                async def open_late(tip: Tip, round_: RunRound, honest: Any = masking.open) -> Trained:
                    if round_.number > 1:
                        await wait.wait()
                    trained: Trained = await honest(tip, round_)
                    return trained

                monkeypatch.setattr(masking, "open", open_late)
            await net.wait_for_first(1)
            await net.crash("node3")
            await net.wait_for_height(2, *HONEST)
            net.start("node3")
            start_joiner(net, "node4", make_checkpoint(net, "node0"))
            await approve(net, await propose(net, "node0", add(net, "node4")), "node1", "node2", "node3")
            await net.wait_for(lambda: get_state(net, "node0").n == 5, "the fifth member")
            assert net["node0"].get_block(3).change is not None
            wait.set()
            await net.wait_for_height(9, *HONEST)
            check_deeply(net)

    run_virtual(story())


@pytest.mark.outer
def test_the_next_run_takes_nothing_of_a_sum_that_this_one_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    async def story() -> None:
        async with masked(tmp_path, train_s=0.3, method=method) as net:
            start_all(net)
            for name in net.nodes:
                stop_opening(net, name, monkeypatch)
            await net.wait_for_height(2)
            run = get_state(net, "node1").run
            await change(net, EndRun(1))
            await wait_for_state(net, "the end of the run", lambda state: state.run.is_ended)
            for name in net.nodes:
                await net.crash(name)
            start_all(net)
            await net.wait_for_height(3)
            await change(net, start_run(run))
            await wait_for_state(net, "the next run", lambda state: state.run.number == 2)
            await net.wait_for_height(net["node0"].height + 5)
            check_sum(net, net["node0"].height // 2 * 2 - 2, net["node0"].height // 2 * 2 - 1)

    run_virtual(story())
