"""`genesis.yaml`, the readable form of what all members share, with the initial model beside it.

Both are checked when they are read: each complaint names its place in the file, and the model's digest must be the one
that genesis names.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from chain.errors import GenesisError
from chain.genesis import Genesis
from chain.rules import MIB, Rules
from chain.run import Run
from ml.errors import DataError, MlError, PayloadError, SpecError
from ml.payload import Arrays, ArraySchema, decode_arrays, encode_arrays, validate_arrays
from ml.plugins import Plugins
from ml.specs import MaskedSpec, MethodSpec, add_kind, get_judge, get_kind, get_spec
from ml.specs.closing import ClosingEvaluationSpec
from ml.specs.run_schema import check_evaluated, describe_payloads
from node.config.problems import Problem, report
from node.config.yaml_source import YamlSource, dump_yaml, read_sections
from node.errors import ConfigError, NodeError

INITIAL_MODEL = "initial_model.safetensors"
DEFAULT_NAME = "genesis"  # the model of genesis.yaml is called INITIAL_MODEL; any other has a model of its own name
WHAT_LEAVES = (
    "sends a learned transformation of each member's samples to every other member. It is obfuscation, not "
    "cryptography: there is no key, and whoever has it may try to undo it (SECURITY.md)"
)

GENESIS_HEADER = """\
# The federation's genesis: every member has this same file; its hash names the chain.
# Whoever changes a value, other than an address, starts another chain.
"""


class GenesisFile(NamedTuple):
    """Holds the content of a genesis file, and the path of its initial model."""

    genesis: Genesis
    initial_model: Path


def load_genesis(path: Path) -> GenesisFile:
    """Reads genesis in `path`, and checks its method's settings and its initial model. Raises ConfigError."""
    source, genesis, spec = read_genesis(path)
    return GenesisFile(genesis, check_initial_model(path, source, genesis, spec))


def read_genesis(path: Path) -> tuple[YamlSource, Genesis, MethodSpec]:
    """Reads genesis alone, and its method's settings. Raises ConfigError."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file (take the other members' as it is, or make one: fednode genesis new)")
    source = read_sections(path)
    if "genesis_file" in source.value:
        raise ConfigError(f"{path}: expected a genesis (got a node's configuration, which names it: genesis_file)")
    try:
        genesis = Genesis.from_mapping(source.value)
        spec = get_genesis_spec(genesis)
        check_schema(genesis.run, spec)
        return source, genesis, spec
    except (GenesisError, SpecError) as error:
        raise report([place_error(source, error)], path) from error


def check_initial_model(path: Path, source: YamlSource, genesis: Genesis, spec: MethodSpec) -> Path:
    """Returns the path of the initial model beside the genesis in `path`. Raises ConfigError unless it is the one that
    genesis names."""
    model_path = find_initial_model(path)
    _validate_initial_model(_read_model(model_path, path), model_path, source, genesis, spec)
    return model_path


def name_initial_model(path: Path) -> Path:
    """Returns the path to which the initial model of the genesis in `path` is written: beside it, with the genesis'
    name in front unless that is genesis.yaml, so that several can be in one directory."""
    return path.with_name(INITIAL_MODEL if path.stem == DEFAULT_NAME else f"{path.stem}.{INITIAL_MODEL}")


def find_initial_model(path: Path) -> Path:
    """Returns the path from which the initial model is read: the file with the genesis' name, or INITIAL_MODEL where
    only that exists."""
    own, shared = name_initial_model(path), path.with_name(INITIAL_MODEL)
    return own if own.exists() or not shared.exists() else shared


def refuse_existing(path: Path) -> None:
    """Raises ConfigError where writing a genesis to `path`, and its initial model, would replace a file."""
    for taken in (path, name_initial_model(path)):
        if taken.exists() or taken.is_symlink():
            raise ConfigError(f"{taken}: expected no file, as nothing is written over; move it away or name another")


def get_genesis_spec(genesis: Genesis) -> MethodSpec:
    """Returns the method of the first run. Raises SpecError as `get_run_spec`."""
    return get_run_spec(genesis.run, genesis.rules, genesis.state.n)


def make_spec(run: Run, rules: Rules, num_members: int) -> MethodSpec:
    """Returns the method of a run, as far as a validator needs it. Imports no plugin. Raises SpecError."""
    return get_judge(run.method, run.schema, *_get_task(run), **_get_terms(run, rules, num_members))


def draft_spec(run: Run, rules: Rules, num_members: int, plugins: Plugins) -> MethodSpec:
    """Returns the method of a run whose schema is not written yet; a plugin's method by its own code, as it is
    installed here. Raises SpecError as `get_run_spec`."""
    method = {key: value for key, value in run.method.items() if key != "plugin"}
    terms = _get_terms(run, rules, num_members)
    spec = get_spec(method, *_get_task(run), **terms, plugins=plugins)
    return _check_evaluated(_check_sizes(spec, rules), run, rules)


def _get_task(run: Run) -> tuple[Mapping[str, Any], int, Sequence[int]]:
    return run.model, len(run.classes), run.input["shape"]


def _get_terms(run: Run, rules: Rules, num_members: int) -> dict[str, Any]:
    limits = rules.limits
    return {
        "max_weight": limits.max_weight,
        "rounds": run.rounds,
        "max_abs": limits.max_abs,
        "num_members": num_members,
        "input_": run.input,
        "kind": run.task,
        "target": run.target,
    }


def get_run_spec(run: Run, rules: Rules, num_members: int) -> MethodSpec:
    """Returns the method of a run as `make_spec`. Raises SpecError also where `limits` would refuse the payloads, or
    where the run would evaluate a model that its members do not have in common."""
    return _check_evaluated(_check_sizes(make_spec(run, rules, num_members), rules), run, rules)


def _check_sizes(spec: MethodSpec, rules: Rules) -> MethodSpec:
    """Raises SpecError where a payload may be longer than `limits` allow."""
    apart = 3 if isinstance(spec, MaskedSpec) else spec.sharing_heights + 1  # heights that differ; later ones do not
    for number in range(1, apart + 1):
        for kind, schema in spec.schemas(number).items():
            if schema.max_bytes > rules.limits.payload_bytes:
                raise SpecError(
                    "limits.payload_mib",
                    f"expected at least {math.ceil(schema.max_bytes / MIB)}, for a {kind} of "
                    f"{spec.name} may have {schema.max_bytes} bytes; "
                    f"got {rules.limits.payload_bytes / MIB:g}",
                )
    if isinstance(spec, MaskedSpec):
        _check_aggregate(f"{spec.name} with aggregation masked_sum", spec.max_aggregate_bytes, spec, rules)
    elif spec.task.num_members and spec.carried:
        whole = {name: array for name, array in spec.carried.items() if all(isinstance(n, int) for n in array.shape)}
        voted = sum(spec.schemas(apart)[kind].max_bytes for kind in spec.rules(apart))
        _check_aggregate(spec.name, voted + ArraySchema(whole).max_bytes, spec, rules)
    return spec


def _check_evaluated(spec: MethodSpec, run: Run, rules: Rules) -> MethodSpec:
    """Raises SpecError where the end of a run would evaluate a model that is in no aggregate, or in payloads that are
    too large."""
    if run.select is None or not run.select.evaluate:
        return spec
    check_evaluated(spec)
    _check_sizes(ClosingEvaluationSpec.of(spec), rules)
    return spec


def _check_aggregate(what: str, max_bytes: int, spec: MethodSpec, rules: Rules) -> None:
    """Raises SpecError where an aggregate may be longer than other nodes accept."""
    n, got = spec.task.num_members, rules.limits.payload_bytes
    if max_bytes > (most := rules.limits.bound_aggregate(n)):
        enough_mib = math.ceil(max_bytes * got / most / MIB)
        raise SpecError(
            "limits.payload_mib",
            f"expected at least {enough_mib}, for an aggregate of {what} may have {max_bytes} bytes of {n} members; "
            f"got {got / MIB:g}",
        )


def check_schema(run: Run, spec: MethodSpec) -> None:
    """Raises GenesisError unless the schema of `run` is what this version computes for its method and model."""
    if run.schema == describe_payloads(spec):
        return
    what = f"the payloads of {spec.name} on {run.model['name']} as this version of fednode describes them"
    if not run.schema:
        raise GenesisError("schema", f"expected {what}, got none (fednode genesis new writes it down)")
    raise GenesisError("schema", f"expected {what}, got others (was method or model changed by hand?)")


def check_initial(spec: MethodSpec, aggregate: Arrays) -> Arrays:
    """Returns the model in block 0's aggregate. Raises PayloadError unless it is one that `spec` begins with."""
    arrays = get_kind(aggregate, "model")
    if arrays is None:
        raise PayloadError("expected arrays named model/…, got none")
    validate_arrays(arrays, spec.task.initial_schema, max_abs=spec.task.max_abs)
    return arrays


def describe_sharing(path: Path, genesis: Genesis, *, is_approved: bool) -> str | None:
    """Returns why a node does not train in the run that genesis begins: transformed samples would leave the node, and
    its operator has not approved that. None where nothing prevents it."""
    if is_approved or not get_genesis_spec(genesis).shares_samples:
        return None
    return (
        f"{path}: method.name: {genesis.run.method['name']} {WHAT_LEAVES}. A node trains in this run only with "
        "consensus.approves_genesis: true in its own configuration (got false)"
    )


def write_genesis(path: Path, genesis: Genesis, initial_model: bytes) -> None:
    """Writes genesis and its initial model beside it; neither may exist. Raises OSError."""
    with path.open("x", encoding="utf-8") as file:
        file.write(GENESIS_HEADER + dump_yaml(genesis.to_mapping()))
    with name_initial_model(path).open("xb") as file:
        file.write(initial_model)


def _read_model(path: Path, genesis_file: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file ({genesis_file.name} needs its initial model beside it)") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error


def _hint_at_own_name(path: Path, genesis_file: Path) -> str:
    """Returns advice for the case that the model with the shared name belongs to another genesis in the directory."""
    own = name_initial_model(genesis_file).name
    return "" if own == path.name else f"; if that is another genesis' model, put this one's beside it as {own}"


def _validate_initial_model(data: bytes, path: Path, source: YamlSource, genesis: Genesis, spec: MethodSpec) -> None:
    digest = hashlib.sha256(data).digest()
    if digest != genesis.run.initial_model:
        origin = source.get_origin(("initial_model",))
        raise ConfigError(
            f"{path}: expected the initial model that {origin} names, {genesis.run.initial_model.hex()} "
            f"(got {digest.hex()}){_hint_at_own_name(path, source.path)}"
        )
    try:
        arrays = check_initial(spec, decode_arrays(data, len(data)))
        if encode_arrays(add_kind("model", arrays)) != data:
            raise PayloadError("expected the model's arrays alone")
    except PayloadError as error:
        raise ConfigError(f"{path}: not the initial parameters of {spec.task.model['name']}: {error}") from error


def place_error(source: YamlSource, error: GenesisError | SpecError) -> Problem:
    """Makes a problem, with its place in the file, of an error that `chain` or `ml` raised."""
    parts = (part for part in re.split(r"[.\[\]]+", error.path) if part)
    keys = tuple(int(part) if re.fullmatch("[0-9]{1,9}", part) else part for part in parts)  # "²" is a key's digit
    return Problem.at(source, keys, error.message)


@contextmanager
def translate_errors(source: YamlSource) -> Iterator[None]:
    """Translates the errors of `ml` inside the context: a refused setting of `source` becomes a ConfigError, with its
    place if it has one; an error of the run itself a NodeError."""
    try:
        yield
    except SpecError as error:
        raise ConfigError(place_error(source, error).text) from error
    except DataError as error:
        raise ConfigError(str(error)) from error
    except MlError as error:
        raise NodeError(str(error)) from error
