"""The claims that `fednode.testing` checks, a function each."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from chain.run import MAX_SCHEMA_BYTES, encode_canonical
from fednode.testing import DoesNotConform
from ml.clients.build import Federation, get_client_seed, make_client, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from ml.errors import MlError
from ml.methods.base import Trained
from ml.models import build_model, initial_parameters, load_parameters, resolve_model
from ml.payload import KINDS, Array, Arrays, decode_arrays, encode_arrays
from ml.plugins import ANY_PLUGIN
from ml.seeding import get_partition_seed
from ml.simulation.exchange import Exchange, validate_contribution
from ml.simulation.rounds import Rounds
from ml.simulation.run import use_threads
from ml.specs import METHODS, AuthorPayloads, MethodSpec, Task, compute_aggregate
from ml.specs.architectures import find_model
from ml.specs.by_schema import SchemaSpec
from ml.specs.own import check_judgeable, describe_judged
from ml.specs.run_schema import describe_payloads

PARTITION = "iid"


@dataclass(frozen=True, slots=True)
class Trial:
    """The terms under which a method is tried, as `fednode.testing.check_method` receives them."""

    settings: dict[str, Any]
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    nodes: int
    rounds: int
    seed: int


@dataclass(frozen=True, slots=True)
class _Of(Federation):
    """A federation whose spec is of a class that no entry point names."""

    spec_class: type[MethodSpec] | None = None

    def get_spec(self) -> MethodSpec:
        if self.spec_class is None:
            return Federation.get_spec(self)
        shape = tuple(self.input["shape"])
        task = Task(self.model, shape, len(self.classes), rounds=self.rounds, num_members=self.num_members)
        return self.spec_class.from_mapping(self.method, task)


def run_trial(method: str | type[MethodSpec], trial: Trial) -> None:
    """Runs all checks of a method. Raises DoesNotConform."""
    with use_threads(1):
        try:
            _run(method, trial)
        except MlError as error:
            raise DoesNotConform(f"{getattr(method, '__name__', method)}: {error}") from error


def _run(method: str | type[MethodSpec], trial: Trial) -> None:
    federation = _make_federation(method, trial)
    spec = federation.get_spec()
    _check_spec(spec, federation)
    judge = _make_judge(spec)
    _check_trained(federation, trial, spec, judge)
    _check_resumed(federation, trial)
    _check_digests(federation, trial, judge)


def _make_federation(method: str | type[MethodSpec], trial: Trial) -> _Of:
    spec_class = None
    if isinstance(method, str):
        name = method
    else:
        name = getattr(method, "name", method.__name__)
        spec_class = type(method.__name__, (method,), {"name": name, "__module__": method.__module__})
        _expect(bool(method.training), f"{method.__name__}: expected `training`, package.module:Class of what trains")
        _check_import(method)
    input_, classes = get_default_input(trial.data, trial.model), get_classes(trial.data)
    return _Of(
        method={"name": name, **trial.settings},
        model=resolve_model(trial.model, input_["shape"], len(classes)),
        classes=classes,
        input=input_,
        rounds=trial.rounds,
        num_members=trial.nodes,
        plugins=ANY_PLUGIN,
        spec_class=spec_class,
    )


# ---- the spec


def _check_import(spec_class: type[MethodSpec]) -> None:
    """Checks that a daemon may import the spec: importing it must not load torch."""
    program = f"import sys, {spec_class.__module__}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)  # noqa: S603 - ourselves
    if done.returncode == 1 and "Error" in done.stderr:
        return  # a module of the caller's that only it can import, such as a test's own
    _expect(done.returncode == 0, f"{spec_class.__module__}: expected a module of specs that does not import torch")


def _check_spec(spec: MethodSpec, federation: _Of) -> None:
    written = spec.to_mapping()
    _expect(json.loads(json.dumps(written)) == written, f"to_mapping: expected plain JSON, got {written!r}")
    again = replace(federation, method=written).get_spec()
    _expect(again.to_mapping() == written, f"to_mapping: expected settings that read back as {written}")
    size = len(encode_canonical(describe_payloads(spec)))
    _expect(size <= MAX_SCHEMA_BYTES, f"schemas: expected at most {MAX_SCHEMA_BYTES} bytes as JSON, got {size}")
    for height in range(1, spec.sharing_heights + 3):
        schemas, rules = spec.schemas(height), spec.rules(height)
        for kind in schemas:
            _expect(kind in KINDS, f"schemas({height}): expected kinds of {', '.join(KINDS)}, got {kind!r}")
        _expect(rules.keys() <= schemas.keys(), f"rules({height}): expected kinds of its schemas, got {sorted(rules)}")
        _expect(dict(spec.schemas(height)) == dict(schemas), f"schemas({height}): expected the same twice")


def _make_judge(spec: MethodSpec) -> MethodSpec:
    """Returns the spec by which members without the method's code judge its payloads; for a method of fednode's own,
    which every member has, the spec itself."""
    if spec.name in METHODS and not spec.training:
        return spec
    check_judgeable(spec)
    plugin = {"name": "tried", "version": "", "sha256": "0" * 64}
    method = {"plugin": plugin, **spec.to_mapping()}
    return SchemaSpec.read(method, describe_judged(spec), spec.task)


# ---- a client


def _make_members(federation: _Of, trial: Trial) -> tuple[list[Client], dict[str, Array]]:
    """Makes a client for each member, each built alone as its worker builds it, and the aggregate of block 0."""
    shape, num_classes = federation.input["shape"], len(federation.classes)
    initial = make_initial_aggregate(federation.model, shape, num_classes, trial.seed)
    sent = decode_arrays(encoded := encode_arrays(initial), len(encoded))
    dealt = {"scheme": PARTITION, "of": trial.nodes, "seed": get_partition_seed(trial.seed)}
    members = [
        make_client(
            federation,
            data={**trial.data, "partition": {**dealt, "index": i}},
            seed=get_client_seed(trial.seed, i),
            initial=sent,
        )
        for i in range(trial.nodes)
    ]
    return members, sent


def _check_trained(federation: _Of, trial: Trial, spec: MethodSpec, judge: MethodSpec) -> None:
    """Checks that payloads fit the schema, both for the method and for members without its code, and that the same seed
    yields the same payloads."""
    first, again = (_make_members(federation, trial)[0][0] for _ in range(2))
    one, other = (client.train(1, _get_beacon(1), me=_get_id(0)) for client in (first, again))
    validate_contribution(spec, 1, one)
    for kind, arrays in one.payloads.items():
        data = encode_arrays(arrays)
        longest = spec.schemas(1)[kind].max_bytes
        _expect(len(data) <= longest, f"payload {kind}: expected at most {longest} bytes, got {len(data)}")
        judge.validate_payload(kind, decode_arrays(data, longest), 1)
        _expect(
            data == encode_arrays(other.payloads[kind]),
            f"payload {kind}: expected the same bytes of two clients of one seed: draws come of Round.rng, and nothing "
            "of time, of a set's order or of an object kept between rounds",
        )
    judge.validate_kinds(one.payloads, 1)
    judge.validate_weight(one.weight)
    _expect(one.weight == other.weight, f"weight: expected the same twice, got {one.weight} and {other.weight}")
    _expect(_hash(first) == _hash(again), "after training: expected the same state of two clients of one seed")


def _check_resumed(federation: _Of, trial: Trial) -> None:
    """Checks that a client restored from a checkpoint reaches the same state as one that was never interrupted."""
    rounds = federation.get_spec().sharing_heights + 2
    straight = _play_alone(federation, replace(trial, rounds=rounds), restores=False)
    resumed = _play_alone(federation, replace(trial, rounds=rounds), restores=True)
    for height, (one, other) in enumerate(zip(straight, resumed, strict=True), 1):
        _expect(
            one == other,
            f"round {height}: expected a client from a checkpoint to come to the same as one that went on: all that a "
            "method remembers belongs into State.arrays",
        )


def _play_alone(federation: _Of, trial: Trial, *, restores: bool) -> list[bytes]:
    """Returns the state of all members after each round; with `restores` each is rebuilt from its state between
    steps."""
    members, parent = _make_members(federation, trial)
    network = _Network(federation.get_spec(), federation.get_spec(), trial.nodes, parent)
    states = []
    for height in range(1, trial.rounds + 1):
        trained = network.train(members, height)
        members = _restore(federation, trial, members) if restores else members
        network.apply(members, height, trained)
        members = _restore(federation, trial, members) if restores else members
        states.append(b"".join(map(_hash, members)))
    return states


def _restore(federation: _Of, trial: Trial, members: Sequence[Client]) -> list[Client]:
    fresh, _ = _make_members(federation, trial)
    for client, before in zip(fresh, members, strict=True):
        data = encode_arrays(before.state_arrays())
        client.load_state_arrays(decode_arrays(data, len(data)))
    return fresh


# ---- a federation


def _check_digests(federation: _Of, trial: Trial, judge: MethodSpec) -> None:
    """Checks that the aggregates of a simulation equal those of members that receive only bytes from each other."""
    data = dict(trial.data)
    ids = [_get_id(i) for i in range(trial.nodes)]
    members, initial = _make_members(federation, trial)
    simulated = make_clients(federation, data=data, partition=PARTITION, run_seed=trial.seed, initial=initial)
    rounds = Rounds(simulated, ids, initial)
    network = _Network(federation.get_spec(), judge, trial.nodes, initial)
    for height in range(1, network.spec.sharing_heights + trial.rounds + 1):
        played = rounds.play(height, _get_beacon(height))
        digest = network.apply(members, height, network.train(members, height))
        expected = None if played is None else played.digest
        _expect(
            digest == expected,
            f"round {height}: expected a federation to come to the simulation's aggregate, {_show(expected)}; got "
            f"{_show(digest)}",
        )
        for i, (one, other) in enumerate(zip(simulated, members, strict=True)):
            _expect(_hash(one) == _hash(other), f"round {height}: expected node {i} to stand as in the simulation")


class _Network:
    """The exchange between members: what each sends, as bytes, and how each applies it. They judge by `judge`."""

    def __init__(self, spec: MethodSpec, judge: MethodSpec, nodes: int, parent: Arrays) -> None:
        self.spec = spec
        self._judge = judge
        self._ids = [_get_id(i) for i in range(nodes)]
        self._parent: Arrays | None = parent
        self._kept: dict[int, Exchange] = {}

    def train(self, members: Sequence[Client], height: int) -> list[Trained]:
        shared, beacon = self._kept.get(self.spec.get_shared_height(height) or 0), _get_beacon(height)
        offers = shared.offers if shared else ()
        trained = []
        for me, client in zip(self._ids, members, strict=True):
            blobs = shared.take_for_training(height, beacon, me) if shared else {}
            made = client.train(height, beacon, me=me, offers=offers, blobs=blobs)
            trained.append(replace(made, payloads={kind: _send(arrays) for kind, arrays in made.payloads.items()}))
        return trained

    def apply(self, members: Sequence[Client], height: int, trained: Sequence[Trained]) -> bytes | None:
        """Applies a round at every member. Returns the digest of its aggregate, None where nothing is voted on."""
        exchange, beacon = Exchange.make(self._judge, height, self._ids, trained), _get_beacon(height)
        self._kept[height] = exchange
        authors = [AuthorPayloads(me, made.weight, made.payloads) for me, made in zip(self._ids, trained, strict=True)]
        data = compute_aggregate(self._judge, height, authors[::-1], self._parent)
        self._parent = None if data is None else decode_arrays(data, len(data))
        for me, client in zip(self._ids, members, strict=True):
            blobs = exchange.take(beacon, me, self._parent)
            client.apply(height, self._parent, beacon=beacon, me=me, offers=exchange.offers, blobs=blobs)
        return None if data is None else hashlib.sha256(data).digest()


def _send(arrays: Arrays) -> dict[str, Array]:
    data = encode_arrays(arrays)
    return decode_arrays(data, len(data))


def _get_id(i: int) -> bytes:
    return i.to_bytes(32, "big")


def _get_beacon(height: int) -> bytes:
    return hashlib.sha256(b"fednode.testing" + height.to_bytes(8, "big")).digest()


def _hash(client: Client) -> bytes:
    return hashlib.sha256(encode_arrays(client.state_arrays())).digest()


def _show(digest: bytes | None) -> str:
    return "none" if digest is None else digest.hex()[:8]


# ---- a model


def try_model(model: Mapping[str, Any], input_shape: Sequence[int], num_classes: int) -> None:
    """Checks a model. Raises DoesNotConform."""
    shape = tuple(input_shape)
    try:
        found = resolve_model({**model, "name": find_model(str(model["name"]))}, shape, num_classes)
        drawn = [initial_parameters(found, shape, num_classes, seed, plugins=ANY_PLUGIN) for seed in (1, 1, 2)]
        first, other = (build_model(found, shape, num_classes, plugins=ANY_PLUGIN) for _ in range(2))
    except MlError as error:
        raise DoesNotConform(str(error)) from error
    name = found["name"]
    encoded = [encode_arrays(arrays) for arrays in drawn]
    _expect(encoded[0] == encoded[1], f"{name}: expected initial parameters that torch's generator alone decides")
    _expect(encoded[0] != encoded[2], f"{name}: expected other initial parameters of another seed")
    x = torch.rand((3, *shape), generator=torch.Generator().manual_seed(1))
    for net in (first, other):
        load_parameters(net, drawn[0])
        net.eval()
    with torch.no_grad():
        same = torch.equal(first(x), other(x))
        alone = torch.cat([first(row[None]) for row in x])
    _expect(same, f"{name}: expected a copy with the same parameters to give the same answers")
    close = torch.allclose(first(x).detach(), alone, rtol=1e-3, atol=1e-4)
    _expect(close, f"{name}: expected the answer to a sample not to hang on those beside it, in eval mode")


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise DoesNotConform(message)
