"""Partitions: one data set dealt out among clients, to rehearse a federation (ALGORITHMS §7, §8.1).

    classes:AVG,STD   each client owns AVG-STD to AVG+STD classes (FedProto's scheme, which DFPL uses)       §7.1
        count=normal    their number is drawn by a normal distribution, of which STD is the deviation
        samples=shots   each client has a block of its own in every class, not an even share of all of it
        cover=true      drawn again until every class has an owner
    owned:C+C,C+C     the classes of each client, by number and client after client, as in 0+1,0+1,2+3,2+3
    dirichlet:ALPHA   each class is cut by Dir(ALPHA), clients being held to about equal sizes               §7.2
        balance=false   sizes are not balanced
        per=client      each client draws its mixture of classes from Dir(ALPHA), and all are of equal size
    domains           one domain per client in turn, of the data's own (`readers.domain_folders`) if any;    §7.3
                      else samples as under iid, transformed for each client in another way (`domain_shift`)
    shards:S          sorted by label and cut into equal shards, of which each client has S; 2 by default    §7.4
    iid               a random permutation cut into equal parts                                              §7.5

Every partition is a function of (labels, parameters, seed) alone. No training sample goes to two clients and no client
is empty. A client's `matched` test set follows its training labels and has its own classes only; the `global` one is
the whole test set, which needs no partition, except that under `domains` each of its samples is transformed into the
domain of the client that it matches, unless it has one of its own. All schemes but `domains` deal the union of such
domains.

Legend: n number of samples, c a class, C their number, N the number of clients, _M indices into the data set.
"""

from __future__ import annotations

from ml.data.partition.assign import hash_splits, make_partition, split_from_mapping, splits_from_mapping
from ml.data.partition.base import ClientSplit, Indices, Scheme
from ml.data.partition.grammar import SCHEMES, parse_partition, partition_from_mapping
from ml.data.partition.skew import compute_distances, count_classes

__all__ = [
    "SCHEMES",
    "ClientSplit",
    "Indices",
    "Scheme",
    "compute_distances",
    "count_classes",
    "hash_splits",
    "make_partition",
    "parse_partition",
    "partition_from_mapping",
    "split_from_mapping",
    "splits_from_mapping",
]
