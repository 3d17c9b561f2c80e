"""The conditions under which a run can go on from the run before: the model is the same, as far as it is not trained
otherwise.

The chain checks that one aggregate holds the other. Parts that the run trains and the run before did not come from the
model that the earlier run began with; parts that it freezes stay as in the aggregate.
"""

from __future__ import annotations

from chain.changes.runs import StartRun
from chain.state import State
from ml.errors import SpecError
from ml.specs import MethodSpec
from ml.specs.masked.aggregate import MASKED
from ml.specs.masked.spec import get_unmasked_spec
from ml.specs.methods.evaluation import EVALUATION
from ml.specs.methods.feddbe import REPRESENTATION
from ml.specs.methods.scaffold import CONTROL, ROUNDS
from ml.specs.outer import OUTER
from ml.specs.stale import STALE
from node.config.genesis_file import get_run_spec
from node.errors import ChangeRefused

_NAME_ONE = "name a model for it to begin with: fednode model export writes this one"

# the arrays that each run begins afresh: of keys, of rounds that the run before had, or measures of a model
_PER_RUN_KINDS = (MASKED, STALE, OUTER, CONTROL, ROUNDS, EVALUATION, REPRESENTATION)


def check_continues(start: StartRun, before: State, after: State) -> None:
    """Raises ChangeRefused if a run continues and needs arrays that no model of its members holds. Raises SpecError."""
    if start.initial is not None:
        return
    try:
        old = get_run_spec(before.run, before.rules, before.n)
    except SpecError:
        return  # a method of a newer release: members that know it check this
    new = get_run_spec(after.run, after.rules, after.n)
    held = old.task.initial_schema.arrays
    for name, array in new.task.initial_schema.arrays.items():
        if held.get(name) != array:
            raise ChangeRefused(f"initial: run {before.run.number} has no {name!r} to continue with; {_NAME_ONE}")
    aggregated = before.run.schema.get("aggregate", {})
    for name in after.run.schema.get("aggregate", {}):
        is_carried = not name.startswith(tuple(f"{kind}/" for kind in _PER_RUN_KINDS))
        if name not in aggregated and is_carried and _reads_parent(new):
            raise ChangeRefused(
                f"initial: {new.name} goes by the aggregate in force, which has no {name!r} to begin with; {_NAME_ONE}"
            )


def _reads_parent(masked: MethodSpec) -> bool:
    spec = get_unmasked_spec(masked)
    return any(spec.reads_parent(number) for number in range(1, spec.sharing_heights + 2))
