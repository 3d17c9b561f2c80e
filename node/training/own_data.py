"""A site's own samples as its node would train on them, inspected before there is a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.run import Run
from ml.data import open_dataset
from ml.data.base import ArrayDataset, InputFormat, SampleDomains
from ml.data.checks import check_data, is_quick
from ml.data.findings import Finding
from ml.data.image_cache import ImageCache
from ml.data.partition import split_from_mapping
from ml.data.split import complete_val, divide
from node.training.own_split import open_own_sides


@dataclass(frozen=True, slots=True, eq=False)
class OwnData:
    """Holds the samples, what is odd about them, and how many train, test and are val here: those of the site's part,
    where it has a part of shared data."""

    train: ArrayDataset
    test: ArrayDataset
    findings: Sequence[Finding]
    num_train: int
    num_test: int
    num_val: int = 0

    def describe(self) -> str:
        """Describes how many samples there are on each side."""
        return f"{self.num_train} train / {self.num_test} test{f' / {self.num_val} val' if self.num_val else ''}"

    @classmethod
    def open(cls, data: Mapping[str, Any], data_dir: Path, run: Run) -> OwnData:
        """Opens the samples by the site's own split, and the decoded images in its data directory. Raises DataError."""
        wanted, data = InputFormat.from_mapping(run.input), complete_val(data, selects=run.select is not None)
        train, test = open_dataset(
            data,
            shape=wanted.shape,
            classes=run.classes,
            task=run.task,
            table=wanted.table,
            meaning=run.labels,
            sides=open_own_sides(data_dir, data),
            cache=ImageCache.of_node(data, data_dir),
        )
        findings = check_data(train, test, input_=wanted, thorough=is_quick(train, test))
        if data["partition"] is None:
            return cls(train, test, findings, len(train) - train.num_val, len(test), train.num_val)
        split = split_from_mapping(data["partition"], train.y, test.y, SampleDomains.of(train, test))
        num_val = 0 if train.is_val is None else len(divide(split.train, train.is_val, train.y)[1])
        return cls(train, test, findings, len(split.train) - num_val, len(split.test), num_val)
