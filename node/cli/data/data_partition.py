"""`fednode data partition`: shows which samples a partition would give to whom, before anything trains on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.data.heat_map import print_heat_map
from node.cli.options import AsJson
from node.cli.output import format_table, print_facts, print_json
from node.cli.trial.testnet import DataOption, PartitionOption, SeedOption, ShotsOption
from node.errors import ConfigError

if TYPE_CHECKING:
    from ml.data.partition import ClientSplit


def partition(
    given: Annotated[str | None, typer.Argument(metavar="[DATA]", help="As --data, which it stands for.")] = None,
    data: DataOption = "digits",
    scheme: PartitionOption = "classes:3,1",
    clients: Annotated[int, typer.Option("--clients", "-n", metavar="N", min=1, help="How many take part.")] = 10,
    seed: SeedOption = 1,
    shots: ShotsOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the data, as in data.columns.label=grade."),
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw the heat map into FILE, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show who would get which samples, before anything trains.

    Samples are dealt as a testnet or a simulation with these options deals them. Labels alone are read.

    Schemes: classes:AVG,STD gives each client AVG classes, give or take STD (flags count=uniform|normal,
    samples=all|shots, cover=true); owned:0+1,0+1,2+3 names the classes of each; dirichlet:ALPHA skews labels, the more
    the smaller ALPHA (per=class|client, balance=true|false); domains gives each client one of the data's own domains,
    where they have several (domains:PATH), and else shows the same classes to each in another manner: as they are,
    inverted, noisy, rotated, blurred; shards:S sorts by label and gives each client S pieces; iid is no skew at all.

    The distance of a client is the total variation between its distribution of labels and that of all training
    samples: 0 if they are the same, 1 if they have no class in common. The SHA-256 is over all lists of indices: equal
    where the same samples went to the same clients.

    Example: fednode data partition cifar:cifar-10-batches-py --partition dirichlet:0.3 --clients 20 --png skew.png
    """
    from ml.errors import DataError

    try:
        dealt = _deal(given or data, scheme, clients, seed, shots, settings or ())
    except DataError as error:
        raise ConfigError(str(error)) from error
    if png is not None:
        from node.experiments.heat_map import draw_heat_map

        names = [f"{i} {split.domain}" if split.domain else str(i) for i, split in enumerate(dealt.splits)]
        draw_heat_map(png, dealt.counts, names, dealt.classes, dealt.title)
    if as_json:
        print_json(dealt.to_json())
    else:
        _print(dealt, png)


@dataclass(frozen=True, slots=True)
class _Dealt:
    """A partition and its properties: `counts[i][c]` training samples of class c for client i, whose distribution of
    labels is `distances[i]` away from that of all training samples. `domains` are those of the data themselves,
    `domain_counts[i][d]` the training samples of the d-th of them for client i."""

    options: dict[str, Any]
    seed: int
    classes: tuple[str, ...]
    num_train: int
    splits: list[ClientSplit]
    counts: list[list[int]]
    distances: list[float]
    sha256: str
    domains: tuple[str, ...]
    domain_counts: list[list[int]]

    @property
    def title(self) -> str:
        shots = f", {self.options['shots']} shots" if self.options["shots"] else ""
        return (
            f"{self.options['partition']} on {self.options['data']}, {self.options['clients']} clients{shots}, "
            f"seed {self.options['seed']}"
        )

    @property
    def mean_distance(self) -> float:
        return sum(self.distances) / len(self.distances)

    def to_json(self) -> dict[str, Any]:
        sizes = [len(split.train) for split in self.splits]
        return {
            **self.options,
            "partition_seed": self.seed,
            "sha256": self.sha256,
            "classes": list(self.classes),
            "train": self.num_train,
            "dealt": sum(sizes),
            "smallest": min(sizes),
            "largest": max(sizes),
            "mean_distance": self.mean_distance,
            "domains": list(self.domains) or None,
            "parts": [
                {
                    "client": i,
                    "train": len(split.train),
                    "test": len(split.test),
                    "domain": split.domain,
                    "counts": self.counts[i],
                    "domain_counts": self.domain_counts[i] if self.domain_counts else None,
                    "distance": self.distances[i],
                }
                for i, split in enumerate(self.splits)
            ],
        }


def _deal(data: str, scheme: str, clients: int, seed: int, shots: int | None, settings: Sequence[str]) -> _Dealt:
    import numpy as np

    from ml.data import open_labels
    from ml.data.partition import compute_distances, count_classes, hash_splits, make_partition, parse_partition
    from ml.data.partition.domain_shift import validate_shape
    from ml.seeding import get_partition_seed
    from node.config.settings import apply_settings, complete_data, make_data

    parsed = parse_partition(scheme)
    asked = apply_settings({"data": make_data(data)}, settings, ("data", "classes")).value
    known = open_labels(complete_data(asked["data"]), classes=asked.get("classes"))
    dealt_by = get_partition_seed(seed)
    splits = make_partition(parsed, known.train_y, known.test_y, clients, dealt_by, shots, known.domains)
    if splits[0].transform is not None:
        validate_shape(known.shape)
    parts = [split.train for split in splits]
    counts = count_classes(parts, known.train_y, len(known.classes))
    return _Dealt(
        options={"data": data, "partition": str(parsed), "clients": clients, "seed": seed, "shots": shots},
        seed=dealt_by,
        classes=known.classes,
        num_train=len(known.train_y),
        splits=splits,
        counts=counts.tolist(),
        distances=compute_distances(counts, np.bincount(known.train_y, minlength=len(known.classes))).tolist(),
        sha256=hash_splits(splits),
        domains=known.domains.names if known.domains else (),
        domain_counts=count_classes(parts, known.domains.train, len(known.domains.names)).tolist()
        if known.domains
        else [],
    )


def _print(dealt: _Dealt, png: Path | None) -> None:
    from rich.console import Console

    print(f"{dealt.title}\n")
    owned = [sum(count > 0 for count in row) for row in dealt.counts]
    labels = format_table((">CLIENT",), [(str(i),) for i in range(len(dealt.splits))])
    facts = format_table(
        (">TRAIN", ">TEST", ">CLASSES", ">DISTANCE", *(["DOMAIN"] if dealt.splits[0].domain else [])),
        [
            (
                *(str(len(split.train)), str(len(split.test)), str(owned[i]), f"{dealt.distances[i]:.3f}"),
                *([split.domain] if split.domain else []),
            )
            for i, split in enumerate(dealt.splits)
        ],
    )
    longest = max(map(len, facts))
    print_heat_map(Console(), labels, [fact.ljust(longest) for fact in facts], dealt.counts)
    if dealt.classes != tuple(map(str, range(len(dealt.classes)))):
        print("\n" + ", ".join(f"{c} {name}" for c, name in enumerate(dealt.classes)))
    sizes = [len(split.train) for split in dealt.splits]
    print()
    print_facts(
        [
            ("dealt", f"{sum(sizes):,} of {dealt.num_train:,} training samples"),
            ("smallest", f"{min(sizes):,} samples (client {sizes.index(min(sizes))})"),
            ("largest", f"{max(sizes):,} samples (client {sizes.index(max(sizes))})"),
            ("classes", f"{min(owned)} to {max(owned)}, {sum(owned) / len(owned):.2f} on average"),
            ("distance", f"{dealt.mean_distance:.3f} on average"),
            *([("domains", ", ".join(dealt.domains))] if dealt.domains else []),
            ("dealt by", f"seed {dealt.seed}, which follows from {dealt.options['seed']}"),
            ("sha256", dealt.sha256),
            *([("drawn into", str(png))] if png else []),
        ]
    )
