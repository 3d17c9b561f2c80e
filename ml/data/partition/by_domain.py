"""Skew of features by domains that the data set has of its own: Digit-5, Office-10, DomainNet (ALGORITHMS §7.3).

Client i holds domain i mod D. A domain of one client alone is all its; one of several clients is cut evenly at random.
A client is tested on all test samples of its domain (§8.1), as the others of that domain are. With fewer clients than
domains, the last domains belong to no client and stay in the global test set.

Where we deviate from FedPCL's code: `shots` takes some of each class at random by the seed, not the first ones.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from ml.data.base import Labels, SampleDomains
from ml.data.partition.base import ClientSplit, take


def deal_domains(
    domains: SampleDomains, train_y: Labels, num_clients: int, rng: Generator, shots: int | None
) -> list[ClientSplit]:
    """Returns the splits of all clients, in their order."""
    num_domains = len(domains.names)
    splits: dict[int, ClientSplit] = {}
    for d, name in enumerate(domains.names):
        clients = range(d, num_clients, num_domains)
        test = np.flatnonzero(domains.test == d)
        shuffled = rng.permutation(np.flatnonzero(domains.train == d))
        for client, part in zip(clients, np.array_split(shuffled, max(len(clients), 1)), strict=False):
            train = take(part, train_y[part], np.arange(len(part)), shots) if len(part) else part
            splits[client] = ClientSplit(np.sort(train), test, name, is_own=True)
    return [splits[client] for client in range(num_clients)]
