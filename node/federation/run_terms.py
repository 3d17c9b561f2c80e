"""The terms of a run as an operator asks for them: settings on top of the run in force, or a file's, checked for what a
chain cannot check: that the method and the model exist, that payloads fit, that this site's data have the classes.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chain.agreed_input import AGREED, INHERITED, explain_uninherited
from chain.changes.runs import StartRun
from chain.run import Run
from chain.schema import Section
from chain.state import State
from ml.data import validate_labels
from ml.errors import DataError, PayloadError, SpecError
from ml.payload import decode_arrays, encode_arrays
from ml.plugins import NO_PLUGINS, Plugins
from ml.specs import MethodSpec, add_kind, get_kind
from ml.specs.architectures import complete_model
from ml.specs.methods.evaluation import EVALUATION
from ml.specs.run_schema import describe_payloads
from ml.tasks import CLASSIFICATION, REGRESSION
from node.config.genesis_file import check_initial, draft_spec, get_run_spec
from node.config.recommended import AUTO, choose_guards, choose_method, choose_model
from node.config.settings import apply_settings, is_vector
from node.errors import ChangeRefused
from node.training.model_file import without_card

SECTIONS = ("method", "model", "classes", "input", "rounds", "task", "target", "labels", "select")
OF_TASK = ("model", "classes", "input", "task", "target", "labels")
CARD_BYTES = 64 << 20  # the most that a model file may have beyond its arrays


def check_run(state: State) -> None:
    """Raises ChangeRefused if this site does not know the method or the model of a state's run, or if the run's schema
    is not that of its method."""
    run = state.run
    try:
        spec = get_run_spec(run, state.rules, state.n)
    except SpecError as error:
        raise ChangeRefused(f"run {run.number}: {error}") from error
    if run.schema != describe_payloads(spec):
        raise ChangeRefused(
            f"run {run.number}: its schema is not that of {spec.name} on {run.model['name']} in this version of fednode"
        )


def draft_run(
    state: State,
    given: Mapping[str, Any],
    settings: Sequence[str],
    rounds: int | None,
    plugins: Plugins = NO_PLUGINS,
    *,
    continues: bool = True,
    trained: Run | None = None,
    is_whole: bool = False,
) -> StartRun:
    """Returns the next run: `given` sections replace those in force, and `settings` KEY=VALUE come on top. After an
    evaluation, what is trained, and for how long, is that of `trained`, the newest run that trained. With `is_whole` no
    section of the run in force stays.

    The run continues from the aggregate in force, or begins from a model that the caller names. The method of a plugin
    states itself what it sends, if the plugin is among `plugins`. A method or a model called `auto` becomes the one
    that a genesis would have for such samples. Raises ConfigError, GenesisError or SpecError naming the place.
    """
    in_force = {key: value for key, value in state.run.to_terms().items() if key in SECTIONS}
    if trained is not None and state.run.method["name"] == EVALUATION:
        in_force |= {key: value for key, value in trained.to_terms().items() if key in SECTIONS and key not in OF_TASK}
    Section("", given, SECTIONS)  # this refuses unknown keys
    in_force |= {key: {"name": AUTO} for key in ("method", "model") if f"{key}.name={AUTO}" in settings}
    terms = ({} if is_whole else in_force) | dict(given) | ({} if rounds is None else {"rounds": rounds})
    terms = dict(apply_settings(terms, settings, SECTIONS).value)
    if not any(setting.startswith("input.normalize=") for setting in settings):
        terms = _settle_statistics(state, terms, continues=continues)
    terms |= _choose(terms, state.n)
    if isinstance(terms["model"], Mapping):
        terms["model"] = complete_model(terms["model"])
    if terms.get("task", CLASSIFICATION) != REGRESSION:
        terms.pop("target", None)  # another task has no targets
    if terms["classes"] != in_force["classes"] and terms.get("labels") == in_force.get("labels"):
        terms.pop("labels", None)  # other classes have other labels
    number = state.run.number + 1
    draft = _make_run(terms, number)
    spec = draft_spec(draft, state.rules, state.n, plugins)
    terms |= {"method": spec.to_mapping(), "schema": describe_payloads(spec)}
    made = _make_run(terms, number)
    agreed = {key: value for key, value in made.to_terms().items() if key != "initial_model"}
    return StartRun(number, agreed, None)


def _choose(terms: Mapping[str, Any], num_members: int) -> dict[str, Any]:
    """Returns the method and the model of `terms`. One that is called `auto` becomes what a genesis for so many members
    has."""
    method, model, input_ = terms["method"], terms["model"], terms["input"]
    shape = input_.get("shape") if isinstance(input_, Mapping) else None
    is_table = isinstance(shape, list | tuple) and is_vector(shape)
    if _is_auto(method):
        own = {key: value for key, value in method.items() if key != "name"}
        method = choose_method(AUTO, own, terms.get("task", CLASSIFICATION), is_table=is_table)
        method |= choose_guards(method, num_members)
    if _is_auto(model):
        own = {key: value for key, value in model.items() if key != "name"}
        model = choose_model(AUTO, own, method, is_table=is_table)
    return {"method": method, "model": model}


def _is_auto(section: Any) -> bool:
    return isinstance(section, Mapping) and section.get("name") == AUTO


def _settle_statistics(state: State, terms: Mapping[str, Any], *, continues: bool) -> dict[str, Any]:
    """Returns `terms` with agreed statistics: inherited from the run in force if they can be, else agreed on again."""
    input_ = terms["input"]
    if not isinstance(input_, Mapping) or input_.get("normalize") not in (AGREED, INHERITED):
        return dict(terms)
    inherited = {**state.run.input, **input_, "normalize": INHERITED}
    can_inherit = explain_uninherited(state.run.input, inherited, continues=continues) is None
    return {**terms, "input": {**input_, "normalize": INHERITED if can_inherit else AGREED}}


def _make_run(terms: Mapping[str, Any], number: int) -> Run:
    top = Section("", {**terms, "initial_model": "0" * 64}, (*SECTIONS, "schema", "initial_model"))
    return Run.from_terms(top, number=number, first_height=1)


def begin_from(start: StartRun, state: State, path: Path) -> tuple[StartRun, bytes]:
    """Returns the run that begins from the model in a file, and the model's blob. Raises ChangeRefused if the run
    cannot begin with that model."""
    run = _make_run(start.terms, start.number)
    spec = get_run_spec(run, state.rules, state.n)
    blob = read_initial(path, spec)
    return StartRun(start.number, start.terms, hashlib.sha256(blob).digest()), blob


def begin_from_zeros(start: StartRun, state: State) -> tuple[StartRun, bytes]:
    """Returns the run that begins from a model of zeros, and its blob: for a run that agrees on statistics and trains
    nothing."""
    spec = get_run_spec(_make_run(start.terms, start.number), state.rules, state.n)
    schema = spec.task.initial_schema.arrays
    blob = encode_arrays(
        add_kind("model", {name: np.zeros([int(n) for n in it.shape], it.dtype) for name, it in schema.items()})
    )
    return StartRun(start.number, start.terms, hashlib.sha256(blob).digest()), blob


def read_initial(path: Path, spec: MethodSpec) -> bytes:
    """Returns the initial aggregate in a file: one that lies beside a genesis, or a model file with the names of its
    arrays. Raises ChangeRefused."""
    most = spec.task.initial_schema.max_bytes * (1 + len(spec.task.layout.tied)) + CARD_BYTES
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a device or a pipe has no end
            raise ChangeRefused(f"{path}: expected a file that the node can read, got something else")
        if found.st_size > most:
            raise ChangeRefused(
                f"{path}: expected at most {most} bytes, as of {spec.task.model['name']}, got {found.st_size}"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ChangeRefused(f"{path}: cannot be read by the node ({error.strerror})") from error
    try:
        arrays = decode_arrays(without_card(data), most)
        model = get_kind(arrays, "model") or arrays
        once = {name: array for name, array in model.items() if name not in spec.task.layout.tied}
        return encode_arrays(add_kind("model", check_initial(spec, add_kind("model", once))))
    except PayloadError as error:
        raise ChangeRefused(f"{path}: not the initial parameters of {spec.task.model['name']}: {error}") from error


def check_data(run: Run, data: Mapping[str, Any] | None) -> None:
    """Raises ChangeRefused if this site's samples have labels that are not among the classes of a run."""
    if data is None:
        return
    try:
        validate_labels(data, classes=run.classes, task=run.task, meaning=run.labels)
    except DataError as error:
        raise ChangeRefused(f"this site's data do not fit: {error}") from error
