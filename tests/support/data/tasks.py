"""Real samples for tasks other than classes: the digits with three labels each, and scikit-learn's diabetes table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from ml.data.readers.digits import load_digits

LABELS = ("even", "large", "loop")  # labels of a digit: whether it is even, above 4, and drawn with a closed loop
LOOPS = (0, 6, 8, 9)


def label_digits(classes: np.ndarray) -> np.ndarray:
    """Returns the labels [N, 3], 0 or 1 each."""
    return np.stack([classes % 2 == 0, classes > 4, np.isin(classes, LOOPS)], 1).astype(np.int64)


def write_digits(path: Path) -> Path:
    """Writes all digits with their labels, as an archive."""
    train, test = load_digits()
    np.savez(
        path,
        x_train=train.x,
        y_train=label_digits(train.y),
        x_test=test.x,
        y_test=label_digits(test.y),
        classes=np.array(LABELS),
    )
    return path


def write_diabetes(directory: Path, num_sites: int, *, as_kept: bool = False) -> list[Path]:
    """Writes the diabetes table, unscaled, in parts for so many sites, and a last file for everyone's tests; the target
    is the progress of the disease after a year. `as_kept` writes the sex as a word and leaves every ninth bmi empty."""
    bunch = load_diabetes(scaled=False)
    order = np.random.default_rng(7).permutation(len(bunch.target))
    *own, common = np.array_split(order, num_sites + 1)
    paths = []
    for name, rows in [(f"site{i}", part) for i, part in enumerate(own)] + [("common", common)]:
        path = directory / f"{name}.csv"
        lines = [",".join([*bunch.feature_names, "progression"])]
        for i in rows:
            cells = dict(zip(bunch.feature_names, (f"{value:g}" for value in bunch.data[i]), strict=True))
            if as_kept:
                cells |= {"sex": {"1": "female", "2": "male"}[cells["sex"]]} | ({} if i % 9 else {"bmi": ""})
            lines.append(",".join([*cells.values(), f"{bunch.target[i]:g}"]))
        path.write_text("\n".join(lines) + "\n")
        paths.append(path)
    return paths


def write_findings(path: Path) -> Path:
    """Writes the diabetes table with two labels in place of its target, the sex as a word, and empty cells."""
    (table, _) = write_diabetes(path.parent, 1, as_kept=True)
    head, *rows = table.read_text().splitlines()
    lines = [head.removesuffix("progression") + "advanced,thin"]
    bmi = head.split(",").index("bmi")
    for row in rows:
        *cells, progression = row.split(",")
        is_thin = cells[bmi] != "" and float(cells[bmi]) < 25
        lines.append(",".join([*cells, str(int(float(progression) > 140)), str(int(is_thin))]))
    path.write_text("\n".join(lines) + "\n")
    return path
