"""Deals the samples out: by a scheme for all clients, or as a node's configuration says for one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from ml.data.base import AnyLabels, Labels, SampleDomains
from ml.data.partition.base import ClientSplit, Indices, Scheme
from ml.data.partition.by_domain import deal_domains
from ml.data.partition.grammar import parse_partition, partition_from_mapping
from ml.data.partition.iid import Domains
from ml.data.partition.strata import stratify
from ml.errors import DataError
from ml.seeding import numpy_rng


def make_partition(
    scheme: str | Scheme,
    train_y: AnyLabels,
    test_y: AnyLabels,
    num_clients: int,
    seed: int,
    shots: int | None = None,
    domains: SampleDomains | None = None,
) -> list[ClientSplit]:
    """Deals a training and a test set out to `num_clients` clients. `shots` limits the samples per class of each; under
    `classes` a client draws its distance from that limit, up to STD. `domains` are those of the data set, if it has any
    of its own; only the scheme of that name uses them. Labels and targets are dealt out by `strata`.

    Raises DataError when the scheme cannot be met with these labels, or would leave a client without samples.
    """
    if isinstance(scheme, str):
        scheme = parse_partition(scheme)
    if num_clients < 1:
        raise DataError(f"partition: expected at least 1 client, got {num_clients}")
    if shots is not None and shots < 1:
        raise DataError(f"partition: expected at least 1 shot per class, got {shots}")
    if len(train_y) < num_clients:
        raise DataError(
            f"partition: expected at least one sample for each of {num_clients} clients, got {len(train_y)}"
        )
    train_y, test_y = stratify(train_y, test_y)
    rng = numpy_rng("partition", seed)
    if domains is not None and isinstance(scheme, Domains):
        splits = deal_domains(domains, train_y, num_clients, rng, shots)
    else:
        splits = _deal(scheme, train_y, test_y, num_clients, rng, shots)
    _validate(splits, str(scheme))
    return splits


def _deal(
    scheme: Scheme, train_y: Labels, test_y: Labels, num_clients: int, rng: Generator, shots: int | None
) -> list[ClientSplit]:
    num_classes = int(train_y.max()) + 1
    train_M = scheme.deal(_shuffle_by_class(train_y, num_classes, rng), num_clients, rng, shots)
    counts_NC = np.stack([np.bincount(train_y[own], minlength=num_classes) for own in train_M])
    test_M = scheme.match(_shuffle_by_class(test_y, num_classes, rng), counts_NC)
    return [
        ClientSplit(np.sort(train), np.sort(test), scheme.get_domain(i))
        for i, (train, test) in enumerate(zip(train_M, test_M, strict=True))
    ]


def splits_from_mapping(
    mapping: Mapping[str, Any],
    train_y: AnyLabels,
    test_y: AnyLabels,
    domains: SampleDomains | None = None,
) -> tuple[list[ClientSplit], int]:
    """Returns the splits of all clients and the index of one, for `{scheme: iid, index: 3, of: 4, seed: 7, shots:
    null}`.

    A `sha256` in it is compared with the splits: two nodes that were dealt different ones could hold the same sample.
    Raises DataError.
    """
    index, of, seed = (_get_int(mapping, key) for key in ("index", "of", "seed"))
    if index >= of:
        raise DataError(f"data.partition.index: expected 0 to {of - 1}, got {index}")
    shots = None if mapping.get("shots") is None else _get_int(mapping, "shots")
    splits = make_partition(partition_from_mapping(mapping), train_y, test_y, of, seed, shots, domains)
    expected = mapping.get("sha256")
    if expected is not None and expected != hash_splits(splits):
        raise DataError(
            f"data.partition.sha256: expected {expected}, got {hash_splits(splits)}: other samples, another order of "
            "them or another version of numpy than where the parts were dealt"
        )
    return splits, index


def split_from_mapping(
    mapping: Mapping[str, Any],
    train_y: AnyLabels,
    test_y: AnyLabels,
    domains: SampleDomains | None = None,
) -> ClientSplit:
    """Returns the samples of client `index` alone. Raises DataError as `splits_from_mapping` does."""
    splits, index = splits_from_mapping(mapping, train_y, test_y, domains)
    return splits[index]


def hash_splits(splits: Sequence[ClientSplit]) -> str:
    """Returns the SHA-256 in hex over all clients in order: training indices, test indices and the domain's name, each
    after its length as 8 bytes. Indices are int64, and all numbers little-endian."""
    digest = hashlib.sha256()
    for split in splits:
        for indices in (split.train, split.test):
            digest.update(len(indices).to_bytes(8, "little") + indices.astype("<i8").tobytes())
        domain = (split.domain or "").encode()
        digest.update(len(domain).to_bytes(8, "little") + domain)
    return digest.hexdigest()


def _shuffle_by_class(y_N: Labels, num_classes: int, rng: Generator) -> list[Indices]:
    return [rng.permutation(np.flatnonzero(y_N == c)) for c in range(num_classes)]


def _validate(splits: Sequence[ClientSplit], scheme: str) -> None:
    for i, split in enumerate(splits):
        if not len(split.train) or not len(split.test):
            raise DataError(
                f"partition: {scheme} over {len(splits)} clients leaves client {i} with {len(split.train)} training "
                f"and {len(split.test)} test samples; expected at least one of each"
            )
    everyone = np.concatenate([split.train for split in splits])
    if len(np.unique(everyone)) != len(everyone):
        raise DataError(f"partition: {scheme} over {len(splits)} clients gave a training sample to two of them")


def _get_int(mapping: Mapping[str, Any], key: str) -> int:
    value = mapping.get(key)
    if type(value) is not int or value < 0:
        raise DataError(f"data.partition.{key}: expected a whole number, got {value!r}")
    return value
