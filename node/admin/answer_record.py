"""Answers about samples as JSON shows them, by the kind of task."""

from __future__ import annotations

from typing import Any

from node.admin.asking import Answered
from node.admin.json_view import to_json

_OF_CLASSES, _OF_LABELS = ("label", "class", "probability"), ("labels",)


def make_record(answered: Answered, file: str | None) -> dict[str, Any]:
    """Returns what JSON shows of one sample: its `class`, `labels` or `values` by target, and the label in the file."""
    said = to_json(answered.prediction)
    values = {each.target: each.value for each in answered.prediction.values}
    del said["values"]
    if values:
        told: dict[str, Any] = {"values": values}
    elif isinstance(answered.expected, tuple) or not answered.prediction.class_name:
        told = {key: value for key, value in said.items() if key not in _OF_CLASSES}
    else:
        told = {key: value for key, value in said.items() if key not in _OF_LABELS}
    expected = list(answered.expected) if isinstance(answered.expected, tuple) else answered.expected
    return {
        "file": file,
        "row": answered.row,
        **told,
        "notes": list(answered.notes),
        "expected": expected,
        "correct": answered.is_correct,
        "applied_round": answered.applied_round,
    }
