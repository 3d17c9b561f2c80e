"""Builders of changes: turn what an operator asks for into a change of the state in force, or say why it cannot be.

A request has a kind and its terms, by names and by the values that are wanted; seats, keys and old values are filled in
here. All is checked before anything is signed: raises ChangeRefused with a sentence for the operator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from chain.block import Id
from chain.changes.base import Kind, Place
from chain.changes.change import Change, read_change
from chain.changes.execution import execute_change
from chain.changes.members import AddMember, AddObserver, Pardon, RemoveMember, RemoveObserver, ReplaceKey
from chain.changes.rules import SetRules, Upgrade
from chain.changes.runs import CONTINUE, EndRun, SetRounds, StartRun
from chain.errors import ChainError, GenesisError
from chain.protocol import describe_spoken, speaks
from chain.rules import MIB
from chain.run import Run
from chain.schema import Section, describe, quote, read_digest, suggest
from chain.signing import encode_id
from chain.state import Member, Observer, State
from chain.tip import Tip
from ml.errors import SpecError
from ml.plugins import NO_PLUGINS, Plugins
from ml.specs import MaskedStatisticsSpec, MethodSpec
from ml.specs.masked.spec import describe_shown
from ml.specs.methods.lending import MEASURING, LendingSpec
from node.config.genesis_file import WHAT_LEAVES, get_run_spec
from node.config.yaml_source import parse_value
from node.errors import ChangeRefused, ConfigError
from node.federation.continuing import check_continues
from node.federation.diff import flatten
from node.federation.join_line import JoinLine, read_join_line
from node.federation.measured_model import MeasuredModel, read_evaluation_terms
from node.federation.run_terms import begin_from, begin_from_zeros, check_data, check_run, draft_run

_Named = TypeVar("_Named", Member, Observer)

ZEROS = "zeros"  # the initial model of a run in which nobody trains
USUAL_HEIGHTS = 500  # how long a change stays open by default


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A change as an operator asks for it. A block may hold it from height `first` on, the next height by default, and
    it stays open for `num_heights`."""

    kind: str
    terms: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    first: int | None = None
    num_heights: int | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """A change that is valid now, the state that it would give, and the blob that comes with it, None if there is
    none."""

    change: Change
    after: State
    blob: bytes | None = None


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """The inputs of a builder: the tip, this node's key, the `data` section of its configuration, None without one, the
    plugins that the configuration allows, the newest run that has `trained`, and for an evaluation the model."""

    tip: Tip
    me: Id
    data: Mapping[str, Any] | None = None
    plugins: Plugins = NO_PLUGINS
    trained: Run | None = None
    model: MeasuredModel | None = None

    @property
    def state(self) -> State:
        return self.tip.state


def build_change(wish: ChangeRequest, ground: ChangeContext) -> Built:
    """Returns the change that `wish` asks for. Raises ChangeRefused."""
    member = ground.state.get_member(ground.me)
    if member is None:
        raise ChangeRefused("this node is no member, and only members propose changes")
    try:
        return _build(wish, ground, member)
    except ChainError as error:
        raise ChangeRefused(describe(error)) from error
    except (SpecError, ConfigError) as error:
        raise ChangeRefused(str(error)) from error


def _build(wish: ChangeRequest, ground: ChangeContext, me: Member) -> Built:
    if wish.kind not in _BUILDERS:
        raise GenesisError("kind", f"expected one of {', '.join(_BUILDERS)}, got {quote(wish.kind)}")
    built = _BUILDERS[wish.kind](wish.terms, ground, me)
    kind, blob = built if isinstance(built, tuple) else (built, None)
    made = ground.tip.height
    first = made + 1 if wish.first is None else wish.first
    expires = max(made, first - 1) + (USUAL_HEIGHTS if wish.num_heights is None else wish.num_heights)
    change = read_change(Change(kind, me.seat, made, first, expires, wish.note).data)  # keys in the order others show
    after = execute_change(ground.state, change, Place(first, ground.tip.header.aggregate))
    check_site(kind, ground.state, after, ground.data)
    return Built(change, after, blob)


def check_site(kind: Kind, before: State, after: State, data: Mapping[str, Any] | None) -> None:
    """Raises ChangeRefused or SpecError for a change that the chain would accept and that sites could not follow."""
    if isinstance(kind, Upgrade) and not speaks(kind.protocol):
        raise ChangeRefused(f"protocol {kind.protocol}: this release speaks {describe_spoken()}; update fednode first")
    old, new = before.run, after.run
    is_resized = new.is_masked and not new.is_ended and after.n != before.n  # or more: a masked sum has bounds on both
    if is_resized or after.rules.limits != before.rules.limits or (new.number, new.rounds) != (old.number, old.rounds):
        get_run_spec(after.run, after.rules, after.n)
    if (new.classes, new.labels, new.input) != (old.classes, old.labels, old.input):
        check_data(after.run, data)
    if isinstance(kind, StartRun) and kind.number == after.run.number:
        check_continues(kind, before, after)


# ---- names


def find_member(state: State, text: str) -> Member:
    """Returns the member of this name or whole id. Raises GenesisError."""
    return _find("member", state.members, text)


def _find(role: str, known: Sequence[_Named], text: str) -> _Named:
    """Returns the member or observer of this name or whole id. The beginning of an id is refused, as somebody can make
    another key whose id begins alike."""
    found = [one for one in known if text in (one.name, encode_id(one.key))]
    if len(found) == 1:
        return found[0]
    if found:
        raise GenesisError("name", f"{quote(text)} is the id of one {role} and the name of another")
    names = tuple(one.name for one in known)
    begun = [f"{one.name} {encode_id(one.key)}" for one in known if encode_id(one.key).startswith(text)]
    hint = f", but so begins the id of {', '.join(begun)}" if begun else suggest(text, names)
    who = f"{role.capitalize()}s: {', '.join(names) or 'none'}"
    raise GenesisError("name", f"no {role} is called {quote(text)}{hint}. {who}")


# ---- kinds

_Answer = Kind | tuple[Kind, bytes | None]  # with the blob that the change brings along
_Build = Callable[[Mapping[str, Any], ChangeContext, Member], _Answer]


def _read_seat(terms: Mapping[str, Any], ground: ChangeContext, *others: str) -> int:
    return find_member(ground.state, Section("", terms, ("name", *others)).text("name")).seat


def _read_line(terms: Mapping[str, Any], ground: ChangeContext, *others: str) -> JoinLine:
    return read_join_line(Section("", terms, ("request", *others)).text("request"), ground.state.chain_id)


def _leave(terms: Mapping[str, Any], ground: ChangeContext, me: Member) -> Kind:
    Section("", terms, ())
    return RemoveMember(me.seat)


def _add(kind: type[AddMember] | type[AddObserver]) -> _Build:
    def build(terms: Mapping[str, Any], ground: ChangeContext, me: Member) -> Kind:
        line = _read_line(terms, ground)
        return kind(line.key, line.name)

    return build


def _replace_key(terms: Mapping[str, Any], ground: ChangeContext, me: Member) -> Kind:
    key = _read_line(terms, ground, "name").key
    return ReplaceKey(_read_seat(terms, ground, "request"), key)


def _remove_observer(terms: Mapping[str, Any], ground: ChangeContext, me: Member) -> Kind:
    name = Section("", terms, ("name",)).text("name")
    return RemoveObserver(_find("observer", ground.state.observers, name).key)


def _start_run(terms: Mapping[str, Any], ground: ChangeContext, me: Member) -> _Answer:
    """Builds the next run. Sections in `run` replace those in force; `initial` is `continue`, `zeros`, a digest, or a
    path on this node's machine."""
    top = Section("", terms, ("run", "set", "rounds", "initial"))
    given, rounds = top.tree("run", {}), top.optional_integer("rounds")
    initial = top.text("initial")
    settings = top.texts("set") if top.has("set") else ()
    continues = initial == CONTINUE
    start = draft_run(
        ground.state, given, settings, rounds, ground.plugins, continues=continues, trained=ground.trained
    )
    if Path(initial).is_absolute():
        return begin_from(start, ground.state, Path(initial))
    if initial == CONTINUE:
        return start, None
    if initial == ZEROS:
        return begin_from_zeros(start, ground.state)
    if len(initial) != 64:
        raise GenesisError("initial", f"expected continue, a file, or a digest of 64 hex digits, got {quote(initial)}")
    return StartRun(start.number, start.terms, read_digest("initial", initial)), None


def _start_evaluation(terms: Mapping[str, Any], ground: ChangeContext, me: Member) -> _Answer:
    """Builds the run that measures `ground.model`. It continues from the aggregate in force if that is this model."""
    model = ground.model
    if model is None:
        raise GenesisError("round", "expected a model to measure")
    settings, blob = read_evaluation_terms(terms), model.blob
    given, rounds = model.to_sections(settings), MEASURING if settings.get("lend") else 1
    start = draft_run(ground.state, given, (), rounds, ground.plugins, continues=blob is None, is_whole=True)
    if blob is None:
        return start, None
    return StartRun(start.number, start.terms, hashlib.sha256(blob).digest()), blob


def _set_rounds(terms: Mapping[str, Any], ground: ChangeContext, me: Member) -> Kind:
    run = ground.state.run
    return SetRounds(run.number, run.rounds, Section("", terms, ("rounds",)).integer("rounds"))


def _end_run(terms: Mapping[str, Any], ground: ChangeContext, me: Member) -> Kind:
    Section("", terms, ())
    return EndRun(ground.state.run.number)


def _set_rules(terms: Mapping[str, Any], ground: ChangeContext, me: Member) -> Kind:
    """Builds a change of rules. Terms are rules by dotted path with their new values, or lines PATH=VALUE;
    `limits.payload_mib` is in MiB, as genesis may have it."""
    top = Section("", terms, ("rules", "set"))
    wanted = top.tree("rules", {}) | (_read_lines(top.texts("set")) if top.has("set") else {})
    flat = flatten(ground.state.rules.to_mapping())
    values: dict[str, tuple[Any, Any]] = {}
    for path, value in wanted.items():
        if path == "limits.payload_mib" and isinstance(value, int | float):
            path, value = "limits.payload_bytes", int(value * MIB)
        if path not in flat:
            raise GenesisError(f"rules.{path}", f"there is no such rule{suggest(path, tuple(flat))}")
        old = flat[path]
        if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise GenesisError(f"rules.{path}", f"expected text or a number, got {quote(value)}")
        values[path] = (old, value)
    if not values:
        raise GenesisError("rules", "expected PATH=VALUE, as in waits.collect_s=5, got none")
    return SetRules(values)


def _read_lines(lines: Sequence[str]) -> dict[str, Any]:
    """Returns the values in lines PATH=VALUE, by path. Raises GenesisError and ConfigError."""
    values: dict[str, Any] = {}
    for line in lines:
        path, equals, text = line.partition("=")
        if not equals or not path:
            raise GenesisError("rules", f"expected PATH=VALUE, as in waits.collect_s=5, got {quote(line)}")
        if path in values:
            raise GenesisError(f"rules.{path}", "is given twice")
        values[path] = parse_value(text, f"rules.{path}")
    return values


_BUILDERS: Mapping[str, _Build] = {
    "add_member": _add(AddMember),
    "remove_member": lambda terms, ground, me: RemoveMember(_read_seat(terms, ground)),
    "leave": _leave,
    "replace_key": _replace_key,
    "pardon": lambda terms, ground, me: Pardon(_read_seat(terms, ground)),
    "add_observer": _add(AddObserver),
    "remove_observer": _remove_observer,
    "start_run": _start_run,
    "evaluation": _start_evaluation,
    "set_rounds": _set_rounds,
    "end_run": _end_run,
    "set_rules": _set_rules,
    "upgrade": lambda terms, ground, me: Upgrade(Section("", terms, ("protocol",)).integer("protocol")),
}


# ---- warnings for an operator


def list_warnings(kind: Kind, before: State, after: State) -> list[str]:
    """Returns warnings about a valid change that an operator should read before approving it."""
    warnings = _warn_of_needed_approval(kind, before)
    if after.q == after.n > 1 and after.n != before.n:
        warnings.append(f"all {after.n} members have to vote then: one that is away stops the federation")
    if isinstance(kind, StartRun):
        warnings += _warn_of_run(after)
    return warnings


def _warn_of_needed_approval(kind: Kind, before: State) -> list[str]:
    """Warns if all members have to approve and one of them is to be removed or gets a new key: a member that has lost
    its key cannot approve."""
    if not isinstance(kind, ReplaceKey | RemoveMember) or not before.q == before.n > 1:
        return []
    member = before.get_seat(kind.seat)
    if member is None:
        return []
    who = f"{member.name}, with its old key," if isinstance(kind, ReplaceKey) else member.name
    return [
        f"{who} has to agree, as all {before.n} members have to: where that key is gone for good no change can pass, "
        "and fednode genesis fork is what is left"
    ]


def warn_of_key_in_use(change: Change, tip: Tip) -> list[str]:
    """Warns that a key is in use which others want to replace as lost or stolen."""
    kind = change.kind
    if not isinstance(kind, ReplaceKey) or kind.seat == change.by:
        return []
    member = tip.state.get_seat(kind.seat)
    if member is None:
        return []
    heights = [header.height for header in tip.headers if header.miner == member.key]
    if member.key in {contribution.author for contribution in tip.block.contributions}:
        heights.append(tip.height)
    if not heights:
        return []
    return [
        f"the key of {member.name} is in use: it signed for block {max(heights)}, and the newest is {tip.height}. "
        f"Ask {member.name} by voice, and compare the new id with it, before you agree"
    ]


def _warn_of_run(after: State) -> list[str]:
    try:
        check_run(after)
    except ChangeRefused as error:
        return [f"this site could not train in it: {error}"]
    spec = get_run_spec(after.run, after.rules, after.n)
    warnings = [f"{spec.name} {WHAT_LEAVES}"] if spec.shares_samples else []
    if after.run.is_masked:
        warnings.append(_explain_masks(after, spec))
    if (shown := describe_shown(spec)) is not None:
        warnings.append(shown)
    if isinstance(spec, LendingSpec):
        of = f"run {spec.hyperparameters.of_run}, round {spec.hyperparameters.of_round}"
        warnings.append(
            f"a site that approves with --lend sends the weights of its own model of {of} to all members and "
            "observers, who may keep them, and weights can tell of the samples they were trained on; no other site does"
        )
    return warnings


def _explain_masks(after: State, spec: MethodSpec) -> str:
    num_hidden, box = after.n - after.q, spec.hyperparameters.box
    if isinstance(spec, MaskedStatisticsSpec):
        harm = "moves the sums to any that samples can have"
    elif box is None:
        harm = "sets the mean to any model it likes, as the run has no masked_radius"
    else:
        harm = f"moves each number of the mean by up to {box.radius:g} a round"
    return (
        f"with masked sums nobody sees what a single member sends: {num_hidden} of {after.n} that collude see the sum "
        "of the others, and more than that may see more; nor can anybody leave out what is wrong: one member that "
        f"lies, whatever its weight, {harm}, or spoils the sum, and nobody knows which"
    )
