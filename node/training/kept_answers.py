"""A client's answers to its own test samples, kept as they were after a round and measured when there is time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ml.measures.kinds import Answers, AnyMeasures
from ml.payload import compute_encoded_bytes, decode_arrays, encode_arrays

if TYPE_CHECKING:
    from ml.clients.client import Client

Measure = Callable[[], AnyMeasures | None]
MAX_BYTES = 4 << 20  # of answers that are sent


class KeptAnswers:
    """Keeps one client's answers after it has applied a round, and those before the exchange, if it has trained for
    that round."""

    def __init__(self) -> None:
        self.measure_after: Measure = lambda: None
        self.measure_before: Measure = lambda: None
        self.draw: Callable[[], dict[str, Any] | None] = lambda: None
        self.missing: Sequence[int] = ()
        self.round_number = 0  # the round that was applied last; 0: none yet
        self._answers: Answers | None = None
        self._trained: tuple[int, Measure] = (0, lambda: None)

    def on_trained(self, round_number: int, client: Client) -> None:
        self._trained = round_number, client.keep_answers()

    def on_taken_in(self, round_number: int, client: Client) -> None:
        """Notes that the client has applied the round, or passed it over."""
        self.measure_after, self.draw = client.keep_answers(), client.keep_curves()
        self.missing, self.round_number = client.missing_classes, round_number
        self._answers = client.get_answers()
        trained_for, measure = self._trained
        self.measure_before = measure if trained_for == round_number else lambda: None

    def describe(self) -> Mapping[str, Any]:
        """Returns values for JSON: `measures`, those `before` the exchange, `curves`, and the `missing` classes."""
        after, before = self.measure_after(), self.measure_before()
        return {
            "measures": None if after is None else after.to_mapping(),
            "before": None if before is None else before.to_mapping(),
            "curves": self.draw(),
            "missing": self.missing,
        }

    def encode(self) -> Mapping[str, bytes]:
        """Returns the answers under `answers`, for `decode_answers`; nothing where there are none, or more than
        MAX_BYTES."""
        if self._answers is None:
            return {}
        arrays = self._answers._asdict()
        if compute_encoded_bytes({name: (of.dtype.name, of.shape) for name, of in arrays.items()}) > MAX_BYTES:
            return {}
        return {"answers": encode_arrays(arrays)}


def decode_answers(data: bytes) -> Answers:
    """Reverses `KeptAnswers.encode`."""
    return Answers(**decode_arrays(data, MAX_BYTES))
