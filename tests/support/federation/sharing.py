"""Sets as FedEDS members share them, made of numbers from a seed: no torch, and large enough for several chunks.

made = make_set(seed=3, num_samples=9000)     # about 2.7 MB
made.data, made.digest, made.list_data        # its encoding, its digest, and the payload with its chunks' digests
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from chain.block import Digest, Id, PayloadRef
from ml.payload import KINDS, Array, compute_chunk_digests, encode_arrays
from ml.specs import MethodSpec, get_spec
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_parts
from node.training.exchange import Exchange
from node.training.progress import OnProgress
from node.training.trainer import NOTHING_TAKEN, Trained
from support.federation.cluster import Cluster, cluster
from support.federation.pulling import TakingTrainer

DIM = 4
NUM_CLASSES = 10
MODEL = {"name": "mlp", "hidden": [DIM]}
FEDEDS = {"name": "fededs", "share_collect_s": 60.0}
NUM_SAMPLES = 9000  # 296 bytes each: three chunks


def make_spec(**settings: Any) -> MethodSpec:
    return get_spec(FEDEDS | settings, MODEL, NUM_CLASSES, (1, 8, 8), rounds=10)


@dataclass(frozen=True)
class Made:
    """An encoded set, and the encoded list of its chunks' digests."""

    data: bytes
    digest: Digest
    list_data: bytes

    def get_refs(self, *, size: int | None = None, list_data: bytes | None = None) -> list[PayloadRef]:
        """Returns the references to payloads that a contribution commits to."""
        listed = self.list_data if list_data is None else list_data
        return [
            PayloadRef(KINDS["encrypted_set"], self.digest, len(self.data) if size is None else size),
            PayloadRef(KINDS["chunk_digests"], sha256(listed).digest(), len(listed)),
        ]


@cache
def make_set(seed: int, num_samples: int = NUM_SAMPLES, label: float = 0.1) -> Made:
    """Makes a set of the default spec. Rows of labels sum to 1, unless `label` says otherwise."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {
        "x": rng.standard_normal((num_samples, 1, 8, 8), dtype=np.float32),
        "y": np.full((num_samples, NUM_CLASSES), label, np.float32),
        "layer": rng.standard_normal((DIM, DIM), dtype=np.float32),
    }
    data = encode_arrays(arrays)
    return Made(data, sha256(data).digest(), make_list(compute_chunk_digests(arrays)))


def make_list(digests: Array) -> bytes:
    return encode_arrays({"digests": digests})


class SharingTrainer(TakingTrainer):
    """A trainer that leaves a set as a file at the sharing height, as a worker does; afterwards it makes up models, and
    keeps what it receives to train with, by height."""

    def __init__(self, seed: int, spec: MethodSpec, outgoing: Path, num_samples: int) -> None:
        super().__init__(seed, spec)
        self.made = make_set(seed, num_samples)
        self.shared: dict[int, Exchange] = {}
        self._outgoing = outgoing

    async def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        self.shared[height] = shared
        if not self.spec.get_streamed(height):
            return await super().train(height, beacon, num_iterations=num_iterations)
        await asyncio.sleep(self.train_s)
        self.trained.append(height)
        self._outgoing.mkdir(parents=True, exist_ok=True)
        path = self._outgoing / "encrypted_set"
        path.write_bytes(self.made.data)
        payloads = {"chunk_digests": self.made.list_data}
        return Trained(100 + self.seed, payloads, {"loss": 0.0, "accuracy": 0.5}, files={"encrypted_set": path})


class Slow(RoundService):
    """A member that pauses before each chunk of a set that it sends, and may `spoil` the chunk. `asked` records who
    requested which blob, from which byte on."""

    def __init__(self, context: NodeContext, rest_s: float = 1.0) -> None:
        super().__init__(make_round_parts(context))
        self.context = context
        self.rest_s = rest_s
        self.asked: list[tuple[Id, Digest, int]] = []
        self.spoil: Callable[[Id, int, bytes], bytes] = lambda peer, position, chunk: chunk
        self._serve = self.handler.on_blob_request
        self.handler.on_blob_request = self._on_blob_request  # type: ignore[method-assign]  # it takes its time

    async def _on_blob_request(self, peer: Id, digest: Digest, offset: int) -> AsyncGenerator[bytes, None]:
        self.asked.append((peer, digest, offset))
        is_large = (self.context.store.blob_size(digest) or 0) > 1 << 20
        async for chunk in self._serve(peer, digest, offset):
            if is_large:
                await asyncio.sleep(self.rest_s)
            yield self.spoil(peer, offset, chunk) if is_large else chunk
            offset += len(chunk)


def get_trainer(net: Cluster, name: str) -> SharingTrainer:
    trainer = net[name].trainer
    assert isinstance(trainer, SharingTrainer)
    return trainer


def get_held(net: Cluster, name: str) -> list[str]:
    """Returns whose sets a node holds."""
    store = net[name].store
    assert store is not None
    return [other for other in net.nodes if store.has_blob(get_trainer(net, other).made.digest)]


@asynccontextmanager
async def sharing(
    path: Path, n: int, *, method: Mapping[str, Any] | None = None, num_samples: int = NUM_SAMPLES, **settings: Any
) -> AsyncIterator[Cluster]:
    """Runs n members on fededs; `method` are its settings, `settings` are `cluster`'s."""
    spec = make_spec(**(method or {}))
    trainers = [SharingTrainer(i, spec, path / f"made{i}", num_samples) for i in range(n)]
    async with cluster(path, n, trainers=trainers, method=spec.to_mapping(), model=dict(MODEL), **settings) as net:
        yield net
