"""A federation in one process: memory transport, virtual time, real stores on disk, and no trainer but the one given.

    async with cluster(tmp_path, 4) as net:
        await net.wait_for_height(3)
        net.cut("node0", "node1")

Each node is the real `RoundService`; only the parts below it are replaced. A wait that fails shows the state of every
node. An unforeseen error ends no node, but fails the test, unless the node `may_fail`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from chain.block import Block, Id
from chain.codec import compute_block_id
from chain.genesis import PROTOCOL_VERSION, Genesis
from chain.pow import is_valid_work
from chain.signing import SigningKey
from chain.store.interface import Faults
from chain.store.sqlite import SqliteStore
from ml import payload
from ml.guard import OnRefused
from ml.specs.told import tell_nothing
from ml.tasks import CLASSIFICATION
from node.boundary import UNFORESEEN, Boundary
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.offload import Offload
from node.p2p.overlay import MESH_MAX
from node.runs.specs import RunSpecs
from node.training.exchange import Exchange
from node.training.progress import OnProgress, Progress
from node.training.trainer import NOTHING_TAKEN, Measured, OwnAnswers, Predicted, RunTask, Trained, Trainer, TrainerInfo
from support.data.chains import make_genesis_mapping, make_keys
from support.data.run_schemas import with_schema
from support.federation.inline import InlineOffload
from support.federation.memory_transport import MemoryNetwork

USUAL_ITERATIONS = 20  # the default of dfpl
DIM = 4  # the length of the prototypes that `ScriptedTrainer` makes up
NUM_CLASSES = 10  # as in `support.data.chains`
INITIAL_MODEL = payload.encode_arrays({"model/none": np.zeros(1, dtype=np.float32)})  # no test here loads it


class VirtualClock:
    """The loop's own time, as wall clock and as steady clock. `skew_ms` sets the wall clock ahead."""

    def __init__(self, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + 1_800_000_000_000 + self.skew_ms

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class SleepyMiner:
    """Searches for real, and takes virtual time as if it tried `rate` hashes a second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.hashes = 0

    async def start(self) -> None:
        pass

    async def mine(self, seal: bytes, difficulty: int, start_nonce: int, count: int) -> int | None:
        nonce = self.search(seal, difficulty, start_nonce, count)
        await self.rest(count if nonce is None else nonce - start_nonce + 1)
        return nonce

    def search(self, seal: bytes, difficulty: int, start_nonce: int, count: int) -> int | None:
        nonces = range(start_nonce, start_nonce + count)
        return next((nonce for nonce in nonces if is_valid_work(compute_block_id(seal, nonce), difficulty)), None)

    async def rest(self, tried: int) -> None:
        self.hashes += tried
        await asyncio.sleep(tried / self.rate)

    async def close(self) -> None:
        pass


class ScriptedTrainer:
    """Makes up prototypes from its seed and the height, after `train_s` of virtual time: for a local phase of any
    length, or with `alpha_s` for each iteration. It keeps what it receives."""

    last_death: str | None = None

    def __init__(self, seed: int, train_s: float = 0.02, alpha_s: float | None = None) -> None:
        self.seed = seed
        self.train_s = train_s
        self.alpha_s = alpha_s
        self.applied: dict[int, bytes | None] = {}
        self.trained: list[int] = []
        self.passed_over: list[int] = []
        self.iterations: dict[int, int] = {}  # by height

    async def warm_up(self) -> None:
        pass

    async def start(self, task: RunTask) -> TrainerInfo:
        return TrainerInfo(1, 1, "cpu", 1, 1)

    async def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        iterations = USUAL_ITERATIONS if num_iterations is None else num_iterations
        alpha_s = self.alpha_s
        if alpha_s is None:
            alpha_s = self.train_s / iterations
            await asyncio.sleep(self.train_s)
        else:
            for step in range(1, iterations + 1):
                await asyncio.sleep(alpha_s)
                if on_progress is not None:
                    on_progress(Progress(step, iterations, step * alpha_s))
        self.trained.append(height)
        self.iterations[height] = iterations
        measured = {"iterations": iterations, "steps": iterations, "seconds": iterations * alpha_s, "alpha_s": alpha_s}
        prototypes = make_prototypes(self.seed, height)
        return Trained(1, {"prototypes": prototypes}, {"loss": 0.0, "accuracy": 0.5, **measured})

    def abandon(self) -> bool:
        return False

    async def apply(
        self,
        height: int,
        aggregate: bytes | None,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Mapping[str, float]:
        self.applied[height] = aggregate
        return {"accuracy": 0.5}

    async def pass_over(self, height: int) -> Mapping[str, float]:
        self.passed_over.append(height)
        return {"accuracy": 0.5}

    async def measure(self) -> Measured:
        return Measured()

    async def list_answers(self) -> OwnAnswers:
        return OwnAnswers(1, 0, None)

    async def predict(
        self,
        samples: bytes,
        *,
        alone: bool = False,
        kappa: float | None = None,
        kept: int | None = None,
        calibrated: bool = False,
    ) -> Predicted:
        """Always predicts class 0, with probability 1."""
        count = len(payload.decode_arrays(samples, len(samples))["x"])
        answer: dict[str, payload.Array] = {
            "labels": np.zeros(count, dtype=np.int64),
            "probabilities": np.eye(1, NUM_CLASSES, dtype=np.float32).repeat(count, axis=0),
        }
        return Predicted(payload.encode_arrays(answer), max(self.applied, default=0))

    async def score(self, height: int, aggregates: Sequence[bytes]) -> Sequence[float]:
        """Returns the largest number in each aggregate as its loss."""
        decoded = (payload.decode_arrays(data, len(data)) for data in aggregates)
        return [max(float(np.abs(array).max(initial=0.0)) for array in arrays.values()) for arrays in decoded]

    async def tell_of(self, aggregate: bytes, min_samples: int) -> bytes:
        """Returns no evaluation, as a site with too few samples does."""
        return payload.encode_arrays(tell_nothing(CLASSIFICATION, NUM_CLASSES))

    async def close(self) -> None:
        pass


def make_prototypes(seed: int, height: int) -> bytes:
    """Makes an encoded payload: two classes, DIM numbers each."""
    rng = np.random.default_rng([seed, height])
    rows = rng.standard_normal((2, DIM)).astype(np.float32)
    return payload.encode_arrays({"classes": np.array([seed % 8, 8], dtype=np.int64), "prototypes": rows})


class Node:
    """One member: what survives a crash (key, directory), and the service that runs now, if any."""

    def __init__(self, name: str, key: SigningKey, path: Path, trainer: Trainer) -> None:
        self.name = name
        self.key = key
        self.path = path
        self.trainer = trainer
        self.clock = VirtualClock()
        self.asks_to_train = False
        self.approves_genesis = True
        self.own_noise: dict[str, float] = {}
        self.store: SqliteStore | None = None
        self.disk: Offload = InlineOffload()
        self.service: RoundService | None = None
        self.context: NodeContext | None = None
        self.task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    def get_context(self) -> NodeContext:
        """Returns the context of the service that runs, or ran last."""
        assert self.context is not None
        return self.context

    def get_service(self) -> RoundService:
        """Returns the service that runs now."""
        assert self.service is not None
        return self.service

    @property
    def height(self) -> int:
        return self.service.tip.height if self.service is not None else -1

    def get_block(self, height: int) -> Block:
        assert self.store is not None
        stored = self.store.get_block(height)
        assert stored is not None, f"{self.name} has no block {height}"
        return stored.block

    def describe(self) -> str:
        if self.failure is not None:
            return f"{self.name}: failed with {self.failure!r}"
        if self.service is None:
            return f"{self.name}: down"
        machine = self.service.machine
        if machine is None:
            return f"{self.name}: height {self.height}, done"
        return (
            f"{self.name}: head {self.height}, at {machine.height} {machine.phase} view {machine.view}"
            f" step {machine.voting.step.name}, {len(machine.verified)} verified of {len(machine.contributions)},"
            f" {len(machine.candidates)} candidates, stall {self.service.stall}"
        )


class Cluster:
    """The nodes by name, and the network between them."""

    def __init__(
        self,
        path: Path,
        keys: Sequence[SigningKey],
        genesis: Genesis,
        network: MemoryNetwork,
        trainers: Sequence[Trainer],
        hash_rate: float,
        initial_model: bytes,
    ) -> None:
        self.genesis = genesis
        self.network = network
        self.hash_rate = hash_rate
        self._initial_model = initial_model
        self.nodes = {f"node{i}": Node(f"node{i}", key, path / f"node{i}", trainers[i]) for i, key in enumerate(keys)}
        self.boundaries: list[tuple[str, Boundary]] = []  # one for each start of a node
        self.may_fail = False
        self.mesh_max = MESH_MAX
        self.make_disk: Callable[[], Offload] = InlineOffload
        self.make_miner: Callable[[float], SleepyMiner] = SleepyMiner
        self.service_class: Callable[[NodeContext], RoundService] = make_round_service

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def id(self, name: str) -> Id:
        return self.nodes[name].key.id

    def start(
        self,
        name: str,
        service_class: Callable[[NodeContext], RoundService] | None = None,
        *,
        faults: Faults | None = None,
    ) -> None:
        """Boots a node from what its directory holds; `service_class` may lie, `faults` may end it at a durable
        step."""
        node = self.nodes[name]
        assert node.task is None, f"{name} runs already"
        node.store = SqliteStore.open(node.path, self.genesis, faults=faults)
        node.store.put_blob(self._initial_model)
        node.disk = self.make_disk()
        transport = self.network.transport(node.key.id)
        # drops boundaries of earlier lives that caught nothing: a soak has very many
        self.boundaries = [(whose, one) for whose, one in self.boundaries if whose != name or one.failures]
        self.boundaries.append((name, transport.boundary))
        context = NodeContext(
            genesis=self.genesis,
            runs=RunSpecs.load(node.store),
            key=node.key,
            store=node.store,
            transport=transport,
            trainer=node.trainer,
            miner=self.make_miner(self.hash_rate),
            clock=node.clock,
            disk=node.disk,
            arithmetic=InlineOffload(),
            bulk=InlineOffload(),
            random=Random(name),
            boundary=transport.boundary,
            asks_to_train=node.asks_to_train,
            approves_genesis=node.approves_genesis,
            own_noise=node.own_noise,
            mesh_max=self.mesh_max,
        )
        node.failure = None
        node.context = context
        node.service = (service_class or make_round_service)(context)
        node.task = asyncio.create_task(node.service.run(), name=name)
        node.task.add_done_callback(lambda task: self._on_end(node, task))

    @staticmethod
    def _on_end(node: Node, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            node.failure = task.exception()

    async def crash(self, name: str) -> None:
        """Ends the process without warning; what was durable stays."""
        node = self.nodes[name]
        if node.task is not None:
            node.task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # a failure is kept in node.failure
                await node.task
        node.disk.close()
        if node.store is not None:
            node.store.close()
        node.task = node.service = node.store = None

    def cut(self, a: str, b: str) -> None:
        self.network.cut(self.id(a), self.id(b))

    def partition(self, *sides: Sequence[str]) -> None:
        self.network.partition(*([self.id(name) for name in side] for side in sides))

    def heal(self) -> None:
        self.network.heal()

    async def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
        """Waits until `condition` holds, checked every 5 ms of virtual time. Fails with the state of every node."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    for node in self.nodes.values():
                        if node.failure is not None:
                            raise AssertionError(f"waiting for {what}: {self.describe()}") from node.failure
                    self.check_foreseen()
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"after {timeout_s} s still no {what}:\n{self.describe()}") from None

    async def wait_for_height(self, height: int, *names: str, timeout_s: float = 120.0) -> None:
        nodes = [self.nodes[name] for name in (names or self.nodes)]
        await self.wait_for(
            lambda: all(node.height >= height for node in nodes), f"height {height} on {names or 'all'}", timeout_s
        )

    async def wait_for_first(self, height: int, timeout_s: float = 120.0) -> None:
        await self.wait_for(
            lambda: any(node.height >= height for node in self.nodes.values()), f"first of height {height}", timeout_s
        )

    def describe(self) -> str:
        return "\n".join(node.describe() for node in self.nodes.values())

    def check_foreseen(self) -> None:
        """Checks that no node's boundary caught an unforeseen error."""
        failures = [f"{name}: {dict(one.failures)}" for name, one in self.boundaries if one.failures]
        assert self.may_fail or not failures, f"{UNFORESEEN}, which is in the log: {failures}"

    def check_agreement(self) -> int:
        """Checks that no two running nodes differ at a height (I1). Returns their least height."""
        running = [node for node in self.nodes.values() if node.store is not None]
        least = min(node.height for node in running)
        for height in range(1, least + 1):
            assert len({node.get_block(height).id for node in running}) == 1, f"two blocks at height {height}"
        return least


@asynccontextmanager
async def cluster(
    path: Path,
    n: int,
    *,
    seed: int = 0,
    rounds: int = 0,
    train_s: float = 0.02,
    hash_rate: float = 10_000.0,
    trainers: Sequence[Trainer] | None = None,
    start: Sequence[str] | None = None,
    network: Mapping[str, Any] | None = None,
    network_class: type[MemoryNetwork] = MemoryNetwork,
    initial_model: bytes = INITIAL_MODEL,
    may_fail: bool = False,
    **genesis: Any,
) -> AsyncIterator[Cluster]:
    """Runs n members on a small dfpl federation, all started unless `start` names some. Further arguments go to
    genesis."""
    keys = make_keys(n)
    overrides: dict[str, Any] = {
        "rounds": rounds,
        "model": {"name": "mlp", "hidden": [DIM]},
        "pow": {"difficulty": 64, "min": 1, "max": 2**32, "target_ms": 100},
        "initial_model": hashlib.sha256(initial_model).hexdigest(),
        "protocol": PROTOCOL_VERSION,
        **genesis,
    }
    net = Cluster(
        path,
        keys,
        Genesis.from_mapping(with_schema(make_genesis_mapping(keys, **overrides))),
        network_class(seed, **(network or {})),
        trainers or [ScriptedTrainer(i, train_s) for i in range(n)],
        hash_rate,
        initial_model,
    )
    net.may_fail = may_fail
    for name in net.nodes if start is None else start:
        net.start(name)
    try:
        yield net
        net.check_foreseen()
    finally:
        for name in net.nodes:
            await net.crash(name)
