"""A federation of masked sums whose every contribution is looked at, and the rules that no schedule may break.

    async with masked(tmp_path) as net:
        await net.wait_for_height(9)

At the end: nobody sent two inputs for one height, or opened anything but what the final block of inputs asks of it, so
that nobody ever sees both masks of an input; and whoever is there recomputes every height.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chain import codec
from chain.block import Contribution, Id
from ml.aggregation.masks import commit, list_opened
from ml.payload import Arrays, decode_arrays
from ml.specs import MaskedSpec
from ml.specs.masked import from_rows, read_summed
from node.config.genesis_file import get_genesis_spec
from node.ledger.audit import run_audit
from node.p2p.transport.base import Message, MessageKind
from support.federation.cluster import Cluster, cluster, make_prototypes
from support.federation.wiretap import TappedNetwork

METHOD = {"name": "dfpl", "aggregation": "masked_sum"}
ONCE = 1 << 24


@dataclass
class Witness:
    """What members but the liars have sent of their own, by height and author, over all their lives."""

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
        data = store.get_blob(contribution.payloads[0].digest)  # durable before it is sent
        slot = (contribution.height, contribution.author)
        self.sent.setdefault(slot, []).append((contribution, decode_arrays(data, len(data))))

    def check(self) -> None:
        """No member has sent two contents for a height, and none has opened a seed that hides an input still."""
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


def get_aggregate(net: Cluster, height: int) -> Arrays:
    """Of whoever has it: one that has only caught up may not yet."""
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
    """A cluster under a witness, of members that keep all blobs."""
    more = {"keep_heights": 10_000, **options}
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
    """Whoever runs has the same chain, and recomputes it."""
    net.check_agreement()
    for node in net.nodes.values():
        if node.store is not None:
            report = run_audit(net.genesis, node.store, deep=True)
            assert report.ok, f"{node.name}: {report.fault}"


def get_spec(net: Cluster) -> MaskedSpec:
    spec = get_genesis_spec(net.genesis)
    assert isinstance(spec, MaskedSpec)
    return spec


def compute_expected(net: Cluster, authors: Sequence[Id], height: int) -> dict[int, np.ndarray[Any, Any]]:
    """By class, the mean of what the scripted trainers of these authors have made up for a height."""
    rows: dict[int, list[Any]] = {}
    for author in authors:
        (place,) = [i for i, node in enumerate(net.nodes.values()) if node.key.id == author]
        data = make_prototypes(place, height)
        arrays = decode_arrays(data, len(data))
        for class_id, row in zip(arrays["classes"].tolist(), arrays["prototypes"], strict=True):
            rows.setdefault(class_id, []).append(row.astype(np.float64))
    return {class_id: np.mean(found, axis=0) for class_id, found in rows.items()}


def check_sum(net: Cluster, inputs: int, openings: int) -> None:
    """The aggregate of a height of openings is the mean of what the authors of a height of inputs have trained."""
    node = max(net.nodes.values(), key=lambda node: node.height)
    summed = read_summed(get_aggregate(net, inputs))
    assert summed is not None
    arrays = get_aggregate(net, openings)
    round_ = node.get_context().runs.find(inputs)
    assert round_ is not None
    wanted = compute_expected(net, summed.members, round_.number)
    assert arrays["prototypes/classes"].tolist() == sorted(wanted)
    for class_id, row in zip(arrays["prototypes/classes"].tolist(), arrays["prototypes/prototypes"], strict=True):
        assert np.abs(row - wanted[class_id]).max() < 1e-6


def is_aborted(net: Cluster, openings: int) -> bool:
    """Whether the mean of the height before these openings stays."""
    before, after = (get_aggregate(net, height) for height in (openings - 1, openings))
    return {k: v.tobytes() for k, v in before.items() if k.startswith("prototypes/")} == {
        k: v.tobytes() for k, v in after.items() if k.startswith("prototypes/")
    }
