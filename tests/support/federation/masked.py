"""A federation of masked sums of which every contribution is checked, and the rules that no schedule may break.

    async with masked(tmp_path) as net:
        await net.wait_for_height(9)

At the end: no member sent two inputs for one height, or opened anything but what the final block of inputs asks of it,
so that nobody ever sees both masks of an input; and all running members recompute every height.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from chain import codec
from chain.block import Contribution, Id, PayloadRef
from ml import payload
from ml.aggregation.masks import commit, list_opened
from ml.payload import Arrays, decode_arrays, encode_arrays, from_rows
from ml.specs import MaskedSpec
from ml.specs.masked.aggregate import MASKED, drop_masked, read_shown, read_summed
from node.config.genesis_file import get_genesis_spec
from node.ledger.audit import run_audit
from node.p2p.transport.base import Message, MessageKind
from node.training.trainer import Trained
from support.federation.cluster import DIM, NUM_CLASSES, Cluster, ScriptedTrainer, cluster, make_prototypes
from support.federation.wiretap import TappedNetwork

METHOD = {"name": "dfpl", "aggregation": "masked_sum"}
BESIDE = {"name": "mpfedcl", "aggregation": "masked_sum"}  # sends prototypes in the clear, beside masked models
METHODS = {"dfpl": METHOD, "mpfedcl": BESIDE}
MASKED_CODE = payload.KINDS[MASKED]


class BesideTrainer(ScriptedTrainer):
    """Makes up a model of its own, and prototypes beside it."""

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await super().train(height, beacon, **options)
        model, prototypes = encode_arrays(make_model(self.seed, height)), make_short_prototypes(self.seed, height)
        payloads = {"model": model, "prototypes": prototypes}
        return replace(trained, weight=self.seed + 1, payloads=payloads)


def make_model(seed: int, height: int) -> dict[str, np.ndarray[Any, Any]]:
    """Makes a model of the network that `cluster` has."""
    rng = np.random.default_rng([1, seed, height])
    shapes = {"fc1.weight": (DIM, 64), "fc1.bias": (DIM,), "fc2.weight": (NUM_CLASSES, DIM), "fc2.bias": (NUM_CLASSES,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def make_short_prototypes(seed: int, height: int) -> bytes:
    """Makes prototypes as `make_prototypes`, in the order of their classes, none longer than 1."""
    data = make_prototypes(seed, height)
    arrays = decode_arrays(data, len(data))
    order = np.argsort(arrays["classes"], kind="stable")
    lengths = np.linalg.norm(arrays["prototypes"], axis=1, keepdims=True)
    return encode_arrays({"classes": arrays["classes"][order], "prototypes": (arrays["prototypes"] / lengths)[order]})


@dataclass
class Witness:
    """Records what members other than the liars have sent of their own, by height and author, over all their lives."""

    net: Cluster
    liars: Sequence[str] = ()
    sent: dict[tuple[int, Id], list[tuple[Contribution, Arrays]]] = field(default_factory=dict)

    def __call__(self, sender: Id, message: Message) -> None:
        if message.kind is not MessageKind.CONTRIBUTION:
            return
        contribution = codec.decode_contribution(message.data)
        (name,) = [name for name, node in self.net.nodes.items() if node.key.id == contribution.author]
        store = self.net[name].store
        if store is None or name in self.liars:
            return
        data = store.get_blob(get_masked_ref(contribution).digest)  # a node stores it before it sends it
        slot = (contribution.height, contribution.author)
        self.sent.setdefault(slot, []).append((contribution, decode_arrays(data, len(data))))

    def check(self) -> None:
        """Checks that no member has sent two contents for a height, and that none has opened a seed that still masks an
        input."""
        node = max(self.net.nodes.values(), key=lambda node: node.height)
        for (height, author), sent in self.sent.items():
            assert len({contribution.payloads for contribution, _ in sent}) == 1, f"two contents at {height}"
            arrays = sent[0][1]
            if "seeds" not in arrays:
                continue
            seeds = from_rows(arrays["seeds"])
            if not seeds:
                continue
            at = height - 1
            while at > 0 and node.get_block(at).change is not None:
                at -= 1
            summed = read_summed(get_aggregate(self.net, at)) if at > 0 else None
            assert summed is not None
            assert author in summed.members
            allowed = list_opened(author, summed.roster, summed.members)
            row = from_rows(summed.commitments[summed.members.index(author)])
            assert [commit(seed) for seed in seeds] == [row[summed.roster.index(other)] for other in allowed]


def get_masked_ref(contribution: Contribution) -> PayloadRef:
    """Returns the reference to the payload of masked inputs, or of openings."""
    (ref,) = [ref for ref in contribution.payloads if ref.kind == MASKED_CODE]
    return ref


def get_aggregate(net: Cluster, height: int) -> Arrays:
    """Returns the aggregate from a node that holds it: a node that is catching up may not yet."""
    for node in net.nodes.values():
        if node.store is not None and node.height >= height:
            digest = node.get_block(height).header.aggregate
            if node.store.has_blob(digest):
                data = node.store.get_blob(digest)
                return decode_arrays(data, len(data))
    raise AssertionError(f"no aggregate of height {height}")


@asynccontextmanager
async def masked(
    path: Path, n: int = 4, *, rounds: int = 0, method: Any = METHOD, liars: Sequence[str] = (), **options: Any
) -> AsyncIterator[Cluster]:
    """Runs a cluster of members that keep all blobs, under a witness."""
    more: dict[str, Any] = {"keep_heights": 10_000, **options}
    if method["name"] == "mpfedcl":
        more.setdefault("trainers", [BesideTrainer(i, more.get("train_s", 0.02)) for i in range(n)])
    async with cluster(path, n, rounds=rounds, method=method, network_class=TappedNetwork, start=(), **more) as net:
        witness = Witness(net, liars)
        tapped = net.network
        assert isinstance(tapped, TappedNetwork)
        tapped.watch = witness
        yield net
        tapped.check()
        witness.check()
        check_deeply(net)


def start_all(net: Cluster, *names: str) -> None:
    for name in names or net.nodes:
        net.start(name)


def check_deeply(net: Cluster) -> None:
    """Checks that all running nodes have the same chain, and recomputes it."""
    net.check_agreement()
    for node in net.nodes.values():
        if node.store is not None:
            report = run_audit(net.genesis, node.store, deep=True)
            assert report.ok, f"{node.name}: {report.fault}"


def get_spec(net: Cluster) -> MaskedSpec:
    spec = get_genesis_spec(net.genesis)
    assert isinstance(spec, MaskedSpec)
    return spec


def get_place(net: Cluster, author: Id) -> int:
    (place,) = [i for i, node in enumerate(net.nodes.values()) if node.key.id == author]
    return place


def compute_expected(net: Cluster, authors: Sequence[Id], height: int) -> dict[int, np.ndarray[Any, Any]]:
    """Computes by class the mean of what the scripted trainers of these authors have made up for a height."""
    rows: dict[int, list[Any]] = {}
    for author in authors:
        data = make_prototypes(get_place(net, author), height)
        arrays = decode_arrays(data, len(data))
        for class_id, row in zip(arrays["classes"].tolist(), arrays["prototypes"], strict=True):
            rows.setdefault(class_id, []).append(row.astype(np.float64))
    return {class_id: np.mean(found, axis=0) for class_id, found in rows.items()}


def check_sum(net: Cluster, inputs: int, openings: int) -> None:
    """Checks that the aggregate of a height of openings is the mean of what the authors of a height of inputs have
    trained."""
    node = max(net.nodes.values(), key=lambda node: node.height)
    summed = read_summed(get_aggregate(net, inputs))
    assert summed is not None
    arrays = get_aggregate(net, openings)
    round_ = node.get_context().runs.find(inputs)
    assert round_ is not None
    if round_.spec.shown:
        check_models_and_pool(net, summed.members, round_.number, arrays)
        return
    wanted = compute_expected(net, summed.members, round_.number)
    assert arrays["prototypes/classes"].tolist() == sorted(wanted)
    for class_id, row in zip(arrays["prototypes/classes"].tolist(), arrays["prototypes/prototypes"], strict=True):
        assert np.abs(row - wanted[class_id]).max() < 1e-6


def check_models_and_pool(net: Cluster, members: Sequence[Id], number: int, arrays: Arrays) -> None:
    """Checks the weighted mean of the models of the members in a sum, and that all their prototypes are there, each
    with its owner."""
    places = [get_place(net, member) for member in members]
    models = [make_model(place, number) for place in places]
    for name in models[0]:
        wanted = np.average([model[name].astype(np.float64) for model in models], axis=0, weights=np.add(places, 1))
        assert np.abs(arrays[f"model/{name}"] - wanted).max() < 1e-5
    assert read_shown(arrays) == list(members)
    pool = [arrays[f"prototypes/{name}"] for name in ("authors", "classes", "prototypes")]
    held = {(author, class_id, row.tobytes()) for author, class_id, row in zip(*map(list, pool), strict=True)}
    encoded = [make_short_prototypes(place, number) for place in places]
    sent = [decode_arrays(data, len(data)) for data in encoded]
    assert held == {
        (index, class_id, row.tobytes())
        for index, one in enumerate(sent)
        for class_id, row in zip(one["classes"], one["prototypes"], strict=True)
    }


def is_aborted(net: Cluster, openings: int) -> bool:
    """Says whether the sum was aborted: the mean of the height before these openings stays, and what was sent in the
    clear beside it."""
    before, after = (drop_masked(get_aggregate(net, height)) for height in (openings - 1, openings))
    return encode_arrays(before or {}) == encode_arrays(after or {})
