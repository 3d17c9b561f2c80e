"""Tables with a row, or a column, for each client, as MP-FedCL's table V has one for each domain.

`client` is no axis of a sweep. Where a table is laid out by it, a point stands once for each of its clients, which is
called by its domain where no other has that one, and by its number elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ml.data.partition.domain_shift import DOMAINS
from node.experiments.plan import Point

CLIENT = "client"
INDEX = "client.index"  # the fact that holds the number of the client


def is_by_client(*axes: Sequence[str]) -> bool:
    return any(CLIENT in names for names in axes)


def split_by_client(points: Iterable[Point]) -> list[Point]:
    """Returns each point once for each of its clients; the client is then one of its facts."""
    return [
        replace(point, facts={**point.facts, CLIENT: name, INDEX: i})
        for point in points
        for i, name in enumerate(_name_clients(point))
    ]


def _name_clients(point: Point) -> list[Any]:
    num_clients = point.facts["clients"]
    if point.facts["partition.scheme"] == "domains":
        data = point.facts["data.format"]
        domains = point.facts.get("data.domains", ()) if data == "domains" else DOMAINS
        if num_clients <= len(domains):
            return list(domains[:num_clients])
    return list(range(num_clients))
