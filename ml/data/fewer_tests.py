"""A test set made smaller, for experiments that would test on more samples than they train on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ml.data.base import AnyLabels, ArrayDataset, Labels, SampleDomains
from ml.seeding import numpy_rng


def keep_test_samples(test: ArrayDataset, num_kept: int | None, seed: int) -> ArrayDataset:
    """Returns the test set with `num_kept` of its samples, in their order, drawn by the seed that samples are dealt by;
    all where `num_kept` is None."""
    if num_kept is None or num_kept >= len(test):
        return test
    rows = _draw_rows(len(test), num_kept, seed)
    domain_of = None if test.domain_of is None else test.domain_of[rows]
    return replace(test, x=test.x[rows], y=test.y[rows], domain_of=domain_of, locate=None)


def keep_test_labels(
    test_y: AnyLabels, domains: SampleDomains | None, num_kept: int | None, seed: int
) -> tuple[AnyLabels, SampleDomains | None]:
    """Returns the labels and the domains of the samples that `keep_test_samples` keeps."""
    if num_kept is None or num_kept >= len(test_y):
        return test_y, domains
    rows = _draw_rows(len(test_y), num_kept, seed)
    return test_y[rows], None if domains is None else replace(domains, test=domains.test[rows])


def _draw_rows(num_test: int, num_kept: int, seed: int) -> Labels:
    return np.sort(numpy_rng("test samples", seed).permutation(num_test)[:num_kept])
