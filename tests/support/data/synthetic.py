"""Synthetic chains and geneses, made in seconds instead of rounds. A synthetic chain is valid, and nobody trained for
it; it looks as a late node finds it. A synthetic genesis has no files, for federations in one process.

One process signs for all members of a test network. Payloads are prototypes of noise; everything else is as real rounds
leave it: contributions with their blobs, work, aggregates, certificates. `chain verify --deep` finds it sound.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chain import codec
from chain import pow as work
from chain.beacon import make_reveal
from chain.block import Block, Body, Certificate, Contribution, Digest, Header, PayloadRef, Phase
from chain.genesis import PROTOCOL_VERSION, Genesis
from chain.signing import SigningKey, encode_id
from chain.store.sqlite import SqliteStore
from chain.tip import Tip
from ml import specs
from ml.payload import Arrays, encode_arrays, kind_code
from node.config.genesis_file import get_genesis_spec, load_genesis
from node.config.identity import open_identity
from node.config.node_config import load_config
from node.errors import ConfigError

if TYPE_CHECKING:
    from node.testnet.layout import Testnet, TestnetNode  # importing it loads torch


KIND = "prototypes"
BLOCK_MS = 1  # between two blocks: so small that the chain lies in the past when nodes continue it
INITIAL_MODEL = b"nothing is trained"


class _Maker:
    """Signs for all members on one store. Each member sends so many different payloads in turn; with `variety` 0 always
    new ones."""

    def __init__(self, genesis: Genesis, keys: Sequence[SigningKey], store: SqliteStore, variety: int) -> None:
        self._genesis = genesis
        self._keys = sorted(keys, key=lambda key: key.id)
        self._store = store
        self._spec = get_genesis_spec(genesis)
        self._variety = variety
        schemas = self._spec.schemas(1)
        if set(schemas) != {KIND}:
            raise ConfigError(
                f"method: expected one whose payloads are {KIND} alone (got {genesis.run.method['name']})"
            )
        self._dim = int(schemas[KIND].arrays["prototypes"].shape[1])

    def extend(self, tip: Tip) -> Tip:
        """Puts the next block and its blobs into the store."""
        height = tip.height + 1
        offered = {key: self._make_payload(i, height) for i, key in enumerate(self._keys)}
        contributions = [self._contribute(tip, key, encode_arrays(arrays)) for key, arrays in offered.items()]
        authors = [specs.AuthorPayloads(key.id, 1, {KIND: arrays}) for key, arrays in offered.items()]
        aggregate = specs.compute_aggregate(self._spec, height, authors, None)
        assert aggregate is not None
        block = self._mine(tip, contributions, self._store.put_blob(aggregate))
        self._store.append(block, self._certify(block))
        return tip.extend(block)

    def _make_payload(self, author: int, height: int) -> Arrays:
        count = len(self._genesis.run.classes)
        random = np.random.default_rng((author, height % self._variety if self._variety else height))
        return {
            "classes": np.arange(count, dtype=np.int64),
            "prototypes": random.standard_normal((count, self._dim)).astype(np.float32),
        }

    def _contribute(self, tip: Tip, key: SigningKey, data: bytes) -> Contribution:
        return codec.sign_contribution(
            key,
            self._genesis.chain_id,
            height=tip.height + 1,
            prev=tip.id,
            weight=1,
            payloads=(PayloadRef(kind_code(KIND), self._store.put_blob(data), len(data)),),
            reveal=make_reveal(key, self._genesis.chain_id, tip.block, tip.state.protocol),
        )

    def _mine(self, tip: Tip, contributions: Sequence[Contribution], aggregate: Digest) -> Block:
        state, body = tip.state, Body(tuple(contributions))
        miner, time_ms = self._keys[tip.height % len(self._keys)], tip.header.time_ms + BLOCK_MS
        header = Header(
            version=state.protocol,
            height=tip.height + 1,
            prev=tip.id,
            body=codec.compute_body_digest(body),
            aggregate=aggregate,
            state_next=state.digest,
            miner=miner.id,
            start_ms=time_ms - self._genesis.rules.pow.target_ms,  # exactly what keeps the difficulty as it is
            time_ms=time_ms,
            difficulty=tip.next_difficulty,
        )
        seal, nonce, start = codec.compute_seal(self._genesis.chain_id, header), None, 0
        while nonce is None:
            nonce, start = work.search(seal, header.difficulty, start, 1 << 20), start + (1 << 20)
        return codec.make_block(self._genesis.chain_id, header, nonce, body, miner)

    def _certify(self, block: Block) -> Certificate:
        votes = [
            codec.sign_vote(
                key,
                self._genesis.chain_id,
                phase=Phase.PRECOMMIT,
                height=block.height,
                view=0,
                block_id=block.id,
            )
            for key in self._keys[: self._genesis.state.q]
        ]
        return Certificate(0, tuple((index, vote.signature) for index, vote in enumerate(votes)))


def make_chain(testnet: Testnet, rounds: int, holders: Sequence[TestnetNode]) -> None:
    """Writes the same chain of `rounds` blocks for each of `holders`, which have not run yet.

    Raises ConfigError for a method that shares other payloads than prototypes.
    """
    configs = {node.name: load_config(node.config_file) for node in testnet.nodes}
    keys = [open_identity(config) for config in configs.values()]
    first, *others = [configs[node.name].node.data_dir for node in holders]
    initial_model = load_genesis(configs[holders[0].name].federation_file).initial_model
    with SqliteStore.open(first, testnet.genesis) as store:
        store.put_blob(initial_model.read_bytes())
        extend_chain(store, testnet.genesis, keys, rounds)
    for other in others:
        shutil.copytree(first, other)


def extend_chain(
    store: SqliteStore, genesis: Genesis, keys: Sequence[SigningKey], rounds: int, *, variety: int = 0
) -> None:
    """Puts so many blocks into an empty store. `keys` are all members'; each goes through `variety` payloads, or with 0
    sends a new one every round. Raises ConfigError as `make_chain`."""
    maker, tip = _Maker(genesis, keys, store, variety), Tip.at(genesis.state, [genesis.block0])
    for _ in range(rounds):
        tip = maker.extend(tip)


def make_genesis(keys: Sequence[SigningKey], *, difficulty: int, target_ms: int, **overrides: Any) -> Genesis:
    """Makes a genesis with members `keys`, the initial model INITIAL_MODEL, and a fixed difficulty. An override
    replaces a whole field of genesis.yaml. Raises GenesisError."""
    mapping = {
        "protocol": PROTOCOL_VERSION,
        "chain_name": "idle",
        "created_at": "2026-01-01T00:00:00Z",
        "members": [{"key": encode_id(key.id), "name": f"node{i}"} for i, key in enumerate(keys)],
        "method": {"name": "local"},
        "model": {"name": "mlp", "hidden": [1]},
        "classes": ["0", "1"],
        "input": {"shape": [1, 1, 1], "resize": None, "mean": [0.0], "std": [1.0]},
        "initial_model": hashlib.sha256(INITIAL_MODEL).hexdigest(),
        "rounds": 0,
        "quorum": "bft",
        "profile": "local",
        "pow": {"difficulty": difficulty, "min": difficulty, "max": difficulty, "target_ms": target_ms},
        "limits": {"max_weight": 1, "payload_mib": 1},
    }
    return Genesis.from_mapping(mapping | overrides)


def make_prototype_genesis(num_members: int, *, seed: int, difficulty: int) -> tuple[Genesis, list[SigningKey]]:
    """Makes a genesis of members that share prototypes of digits with dfpl, and their keys in the order of their ids:
    the same for the same seed."""
    private = [hashlib.sha256(f"member {i} of seed {seed}".encode()).digest() for i in range(num_members)]
    keys = sorted((SigningKey.from_private_bytes(raw) for raw in private), key=lambda key: key.id)
    genesis = make_genesis(
        keys,
        difficulty=difficulty,
        target_ms=50,
        method={"name": "dfpl"},
        model={"name": "mlp", "hidden": [64, 32]},
        classes=[str(digit) for digit in range(10)],
        input={"shape": [1, 8, 8], "resize": None, "mean": [0.0], "std": [1.0]},
    )
    return genesis, keys
