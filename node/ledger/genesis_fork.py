"""The fork of a chain whose quorum is lost for ever: a genesis that names the old chain and its last block, and begins
with that chain's run and model (FEDERATION §3).

It is refused while a quorum may exist. The data directory shows what is known of that: when the head was made, and when
each member was last seen. Nothing is known of times when the node itself did not run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from chain.agreed_input import AGREED, INHERITED
from chain.block import ZERO, Digest
from chain.codec import encode_certificate
from chain.errors import BlobMissing, ChainError, StoreCorrupted, StoreLocked
from chain.genesis import PROTOCOL_VERSION, ForkPoint, Founder, Genesis
from chain.run import Run
from chain.signing import decode_id
from chain.state import State
from chain.store.interface import SEEN
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError, SpecError
from ml.payload import decode_arrays, encode_arrays
from ml.specs import add_kind, get_kind
from ml.specs.run_schema import describe_payloads
from node.config.genesis_file import check_initial, get_genesis_spec, refuse_existing, write_genesis
from node.config.genesis_members import parse_member
from node.errors import ConfigError, NodeError, NotFound, VerificationFailed
from node.runs.initial import combine
from node.runs.specs import RunSpecs

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Fork:
    """The genesis as written. `continues` is true if its initial model is that of the old head, and false if it is the
    one that the old run started from."""

    genesis: Genesis
    continues: bool


def read_members(path: Path, state: State) -> tuple[Founder, ...]:
    """Reads members from a file with a line for each, `[NAME=]ID[@HOST:PORT]`. A member without a name there keeps that
    of the old chain. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text ({getattr(error, 'strerror', None) or error})") from error
    founders: list[Founder] = []
    for number, line in enumerate(lines, start=1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        try:
            entry = parse_member(text, "")
        except ConfigError as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
        key = decode_id(entry["key"])
        known = state.get_member(key)
        name = entry["name"] or (f"node{len(founders)}" if known is None else known.name)
        founders.append(Founder(key, name, entry.get("address", "")))
    if not founders:
        raise ConfigError(f"{path}: expected a line for each member, [NAME=]ID[@HOST:PORT], got none")
    return tuple(sorted(founders, key=lambda founder: founder.key))


def fork_chain(data_dir: Path, members: Path, out: Path, *, now_ms: int, is_lost: bool) -> Fork:
    """Writes the genesis of a fork into `out`, and its initial model beside it. `is_lost` is the operator's statement
    that the quorum is lost, which counts where nothing is known. Raises NodeError."""
    refuse_existing(out)
    try:
        mapping = SqliteStore.stored_genesis(data_dir)
        if mapping is None:
            raise NotFound(f"{data_dir}: expected a node's data directory, but no node has run there")
        old = Genesis.from_mapping(mapping)
        with SqliteStore.open(data_dir, old, readonly=True) as store:
            _refuse_while_it_lives(store, now_ms, is_lost=is_lost)
            genesis, model, continues = _make_fork(
                store, old, read_members(members, store.get_state(store.head_height))
            )
    except StoreLocked as error:
        raise NodeError(f"{data_dir}: a node is running on it; stop it first") from error
    except StoreCorrupted as error:
        raise VerificationFailed(str(error)) from error
    except ChainError as error:
        raise ConfigError(str(error)) from error
    try:
        write_genesis(out, genesis, model)
    except OSError as error:
        raise NodeError(f"{out}: cannot be written ({error.strerror})") from error
    return Fork(genesis, continues)


def _refuse_while_it_lives(store: SqliteStore, now_ms: int, *, is_lost: bool) -> None:
    state, head = store.get_state(store.head_height), store.head().block
    since_ms = now_ms - HOUR_MS
    if head.height > 0 and head.header.time_ms > since_ms:
        raise NodeError(f"a quorum made block {head.height} within the last hour: propose a change to it instead")
    noted = store.get_meta(SEEN) or {"at": 0, "members": {}}
    seen = [state.get_member(bytes.fromhex(key)) for key, seen_ms in noted["members"].items() if seen_ms > since_ms]
    names = sorted(member.name for member in seen if member is not None)
    if len(names) + 1 >= state.q:  # plus this node itself
        raise NodeError(
            f"{len(names) + 1} of {state.n} members were there within the last hour, which is a quorum of {state.q}: "
            f"{', '.join(names)} and this one; propose a change to them instead"
        )
    if noted["at"] <= since_ms and not is_lost:
        raise NodeError(
            "this node did not run within the last hour, so it does not know whether a quorum is lost: start it, and "
            "try again after an hour; or say --i-know-the-quorum-is-lost"
        )


def _make_fork(store: SqliteStore, old: Genesis, founders: Sequence[Founder]) -> tuple[Genesis, bytes, bool]:
    """Returns the genesis, its initial model, and whether that is the head's."""
    height = store.head_height
    state, head = store.get_state(height), store.head()
    if head.certificate is None:
        raise ConfigError("the chain ends with block 0: there is nothing to fork; make a new genesis")
    point = ForkPoint(old.chain_id, height, head.block.id, encode_certificate(head.certificate))
    keys, num_min = {founder.key for founder in founders}, state.rules.min_contributions
    quorum = state.rules.compute_quorum(len(founders))
    if num_min is not None:
        num_min = min(num_min, quorum)
    draft = Genesis(
        protocol=PROTOCOL_VERSION,
        chain_name=old.chain_name,
        created_at_ms=head.block.header.time_ms,
        founders=tuple(founders),
        run=restart_run(state.run),
        rules=replace(state.rules, min_contributions=num_min),
        profile=old.profile,
        observers=tuple(observer for observer in state.observers if observer.key not in keys),
        forked_from=point,
    )
    if draft.run.input != state.run.input:
        draft = replace(draft, run=replace(draft.run, schema=describe_payloads(get_genesis_spec(draft))))
    model = _combine(draft, _read_blobs(store, head.block.header.aggregate, state.run))
    final = replace(draft, run=replace(draft.run, initial_model=hashlib.sha256(model).digest()))
    return final, model, _holds_model(store, head.block.header.aggregate)


def restart_run(run: Run) -> Run:
    """Returns the run as the first of a new chain. Statistics that it inherited are agreed on again, by the new
    members."""
    input_ = {**run.input, "normalize": AGREED} if run.input.get("normalize") == INHERITED else run.input
    return replace(run, number=1, first_height=1, is_ended=False, stopped=0, input=input_)


def _read_blobs(store: SqliteStore, aggregate: Digest, run: Run) -> list[bytes]:
    """Returns the blobs in this directory from which the model is composed, newest first. An aggregate may hold only a
    part of the model or none; the rest is in the initial models of this run and of those before it."""
    origins = [origin.initial_model for origin in RunSpecs.load(store).list_origins(run.number)]
    held = []
    for digest in (aggregate, *origins):
        if digest != ZERO:
            with suppress(BlobMissing):
                held.append(store.get_blob(digest))
    return held


def _holds_model(store: SqliteStore, digest: Digest) -> bool:
    """Returns whether an aggregate is held, and has parameters of a model."""
    if digest == ZERO:
        return False
    try:
        data = store.get_blob(digest)
        return get_kind(decode_arrays(data, len(data)), "model") is not None
    except (BlobMissing, PayloadError):
        return False


def _combine(genesis: Genesis, blobs: Sequence[bytes]) -> bytes:
    try:
        data = combine(genesis.run, blobs) if blobs else b""
        model = check_initial(get_genesis_spec(genesis), decode_arrays(data, len(data)))
    except PayloadError as error:
        raise NotFound(
            "neither the model of the head nor that which its run began with is in this data directory"
        ) from error
    except SpecError as error:
        raise ConfigError(f"the run of the old chain: {error}") from error
    return encode_arrays(add_kind("model", model))
