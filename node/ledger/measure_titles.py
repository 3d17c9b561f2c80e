"""The titles of measures, and the format of their values. They are apart from the code that computes measures, so that
a command can show them and load no arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ml.measures.intervals import Interval
    from node.pb import admin_pb2 as pb

TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "weighted_f1": "weighted F1",
    "auc": "AUC",
    "average_precision": "average precision",
    "brier": "Brier score",
    "calibration_error": "calibration error",
    "exact_match": "exact match",
    "hamming_loss": "Hamming loss",
    "micro_f1": "micro F1",
    "r2": "R2",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "loss": "loss",
}

MAIN = ("auc", "r2", "balanced_accuracy", "exact_match", "accuracy", "loss")  # what models are compared by


def show_figure(value: float) -> str:
    """Returns a figure with three digits after the point; a very small or large one with four significant digits."""
    return f"{value:.3f}" if 0.001 <= abs(value) < 1000 or not value else f"{value:.4g}"


def show_interval(interval: pb.Interval | Interval) -> str:
    """Returns the interval in which a figure lies with 95 % confidence."""
    return f"{show_figure(interval.low)} to {show_figure(interval.high)}"


def show_with_interval(
    values: Mapping[str, float], intervals: Mapping[str, pb.Interval] | Mapping[str, Interval], name: str
) -> str:
    """Returns a figure with its interval, if it has one; a dash where it was not measured."""
    if name not in values:
        return "-"
    interval = f" ({show_interval(intervals[name])})" if name in intervals else ""
    return f"{show_figure(values[name])}{interval}"
