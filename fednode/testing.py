"""The conformance kit: whether a method, a loop or a model of one's own does what fednode expects of it.

    from fednode.testing import check_method, check_model

    def test_it_conforms():
        check_method(MySpec)                      # or "my-method", the name of an installed entry point
        check_model("my_package.nets:make", input_shape=(1, 28, 28), num_classes=10)

A fault raises `DoesNotConform`, an AssertionError that says what was expected and what was found. The checks need no
pytest, no network and no more than some seconds, on the digits that come with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml.specs import MethodSpec

__all__ = ["check_method", "check_model", "DoesNotConform"]


class DoesNotConform(AssertionError):
    """A method or a model that does not conform; the text says where, what was expected and what was found."""


def check_method(
    method: str | type[MethodSpec],
    *,
    settings: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    nodes: int = 3,
    rounds: int = 2,
    seed: int = 1,
) -> None:
    """Raises DoesNotConform unless a method conforms: one of fednode's or of a plugin, by its name, or the class of a
    spec.

    The checks: its settings survive a genesis; its payloads have the kinds, shapes and sizes that its schema says;
    members without its code judge them alike; two clients of one seed compute the same bytes, and so does one restored
    from a checkpoint; the aggregates of a simulation equal those of members that know only what was sent to them.
    `settings` are the method's, `model` and `data` as genesis and a node's configuration have them.
    """
    _claim_names()
    from fednode._conformance import Trial, run_trial

    own = {"name": "mlp", "hidden": [16]} if model is None else model
    source = {"format": "digits"} if data is None else data
    run_trial(method, Trial(dict(settings or {}), own, source, nodes, rounds, seed))


def check_model(
    model: str | Mapping[str, Any],
    *,
    input_shape: Sequence[int],
    num_classes: int,
    args: Mapping[str, Any] | None = None,
) -> None:
    """Raises DoesNotConform unless a model conforms: `package.module:factory`, or the name of an entry point.

    The checks: it builds; it splits into embed and classify, each with parameters of its own; two builds have the same
    shapes and answers; it can be trained; and a copy that loads its parameters answers alike.
    """
    _claim_names()
    from fednode._conformance import try_model

    try_model({"name": model, "args": dict(args or {})} if isinstance(model, str) else model, input_shape, num_classes)


def _claim_names() -> None:
    from fednode._names import claim_names

    claim_names()
