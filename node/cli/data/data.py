"""`fednode data`: looks at samples before anything trains on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from node.cli.data.data_cache import clear_cache
from node.cli.data.data_partition import partition
from node.cli.data.data_resplit import resplit
from node.cli.data.inspect_table import describe_raw, print_columns, print_proposed
from node.cli.model.predict import read_columns
from node.cli.options import AsJson, TaskOption, make_group
from node.cli.output import print_facts, print_json, print_table
from node.errors import ConfigError, NodeError

if TYPE_CHECKING:
    from chain.run import Run
    from ml.data import Split
    from ml.data.base import ArrayDataset, InputFormat
    from ml.data.findings import Finding
    from ml.data.image_cache import ImageCache
    from ml.data.published import Recognised
    from ml.data.readers.domain_folders import Domain
    from ml.data.table_checks import FeatureStats
    from ml.data.table_input import TableInput

SHOWN_FEATURES = 40

_Data = Annotated[
    str | None,
    typer.Argument(metavar="[DATA]", help="digits, FORMAT:PATH, or a path whose format can be seen. Or --config."),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A key of the data, as in data.columns.label=grade."),
]
_Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="COLUMN",
        help="The labels' column, where the data are a table; of several labels or targets, each time one.",
    ),
]
_Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The data of this node, measured by its genesis.")
]
_Genesis = Annotated[
    Path | None, typer.Option("--genesis", metavar="FILE", help="Measure the data by its classes and input.")
]
_Size = Annotated[
    int | None, typer.Option("--size", metavar="N", min=1, max=1024, help="Resize images to N x N as they are read.")
]


def register(app: typer.Typer) -> None:
    group = make_group("Look at samples before anything trains on them.")
    group.command("inspect")(inspect)
    group.command("stats")(show_stats)
    group.command("partition")(partition)
    group.command("resplit")(resplit)
    group.command("clear-cache")(clear_cache)
    app.add_typer(group, name="data")


def inspect(
    data: _Data = None,
    settings: _Settings = None,
    label: _Label = None,
    config: _Config = None,
    genesis: _Genesis = None,
    size: _Size = None,
    task: TaskOption = "classification",
    as_json: AsJson = False,
) -> None:
    """Read and check all samples, and show what there is.

    That is splits, classes, sizes and digests. What cannot be trained on is an error naming file and place, and exit
    code 1. What may mislead is a warning: duplicates between training and test, classes without samples, images of one
    colour, features whose scales are far apart or that never change, labels that look like measurements.

    A table may be as it lies there: its columns are shown with their types, empty cells, ranges and categories, and
    what genesis new may be told of them. Which column has the labels may be said later.

    Examples: fednode data inspect scans/ --size 64, or fednode data inspect csv:patients.csv --label diagnosis, or
    fednode data inspect csv:labs.csv --task regression --label glucose --label iron, or
    fednode data inspect --config node0.yaml
    """
    from ml.data import get_split_names, list_domains, open_once
    from ml.data.checks import check_data
    from ml.data.published import recognise
    from ml.data.table_checks import compute_feature_stats

    with open_once():
        asked, run, kept = _find(data, _add_label(settings, label), config, genesis, task)
        raw = None if run is not None else describe_raw(asked, task)
        if raw is not None and not raw.labels:
            raw.show_alone(asked, as_json=as_json)
            return
        try:
            split, wanted = _open_split(asked, run, size, task, None if raw is None else raw.table, kept)
        except NodeError:
            if raw is not None and not as_json:
                print_columns(raw.columns, raw.labels)
            raise
        domains, names = list_domains(asked), list(get_split_names(asked))
    findings = check_data(*split, input_=wanted)
    columns = split[0].columns if raw is None else raw.columns
    if raw is not None:
        findings = raw.add_findings(findings, split[0].columns)
    features = compute_feature_stats(split[0]) if split[0].is_table else []
    places = [(domain.format, domain.path) for domain in domains]
    places += [(asked["format"], Path(asked["path"]).expanduser())] if asked.get("path") else []
    published = [found for format_, path in places for found in recognise(format_, path)]
    if as_json:
        print_json(
            {
                **asked,
                "classes": list(split[0].classes),
                "shape": list(split[0].shape),
                "input_shape": None if wanted is None else list(wanted.shape),
                "kind": "table" if split[0].is_table else "images",
                "features": [asdict(own) for own in features] or None,
                "columns": [own.to_mapping() for own in columns] or None,
                "proposed_input": None if raw is None else raw.proposed.to_mapping(),
                "held_out": _is_held_out(split),
                "split_names": names,
                "splits": [_describe(part) for part in split],
                "domains": [_describe_domain(domain) for domain in domains],
                "published": [{"file": str(found.path), "data_set": found.data_set} for found in published],
                "findings": [{"level": finding.level, "text": finding.text} for finding in findings],
            }
        )
    else:
        _print(asked, split, names, domains, is_own=kept.split_dir is not None)
        _print_published(published)
        if columns:
            print_columns(columns, () if raw is None else raw.labels)
        elif features:
            _print_features(features)
        if raw is not None:
            print_proposed(raw)
        _print_findings(findings, is_table=bool(features))


def show_stats(
    data: _Data = None,
    settings: _Settings = None,
    label: _Label = None,
    config: _Config = None,
    genesis: _Genesis = None,
    size: _Size = None,
    task: TaskOption = "classification",
    as_json: AsJson = False,
) -> None:
    """Show each channel's mean and deviation, for genesis.

    They are measured on the training samples in 0..1, and printed as genesis' `input`; of data with domains of their
    own for each of these, too.

    Example: fednode data stats cifar:cifar-10-batches-py
    """
    from ml.data.checks import compute_stats

    asked, (train, _), wanted = _open(data, _add_label(settings, label), config, genesis, size, task)
    shape = train.shape if wanted is None else wanted.shape

    def measure(part: ArrayDataset) -> dict[str, Any]:
        mean, std = compute_stats(part, shape)
        return {"samples": len(part), "mean": mean, "std": std}

    whole = measure(train)
    domains = {part.split: measure(part) for part in train.list_domains()}
    if as_json:
        print_json({**asked, "shape": list(shape), **whole, "stats_by_domain": domains or None})
        return
    print(f"input: {{shape: {list(shape)}, mean: {whole['mean']}, std: {whole['std']}}}")
    print(f"# of {len(train):,} training samples; fednode genesis new --data and fednode testnet take it by themselves")
    for name, own in domains.items():
        print(f"# {name}: {own['samples']:,} of them, mean: {own['mean']}, std: {own['std']}")


def _add_label(settings: list[str] | None, label: list[str] | None) -> list[str]:
    """Adds `--label` to the settings, as the setting that it stands for."""
    columns = read_columns(label)
    return [*(settings or ()), *([] if columns is None else [f"data.columns.label={json.dumps(columns)}"])]


def _open(
    data: str | None,
    settings: list[str] | None,
    config: Path | None,
    genesis: Path | None,
    size: int | None,
    task: str,
) -> tuple[dict[str, Any], Split, InputFormat | None]:
    """Returns the data asked for, its samples, and the input that they are to become, if that is known.

    Raises ConfigError for a wrong request, NodeError for wrong data.
    """
    asked, run, kept = _find(data, settings, config, genesis, task)
    return asked, *_open_split(asked, run, size, task, None, kept)


class _Kept(NamedTuple):
    """The directory of a site's own split, and its decoded images, where they exist."""

    split_dir: Path | None = None
    cache: ImageCache | None = None


def _find(
    data: str | None, settings: list[str] | None, config: Path | None, genesis: Path | None, task: str
) -> tuple[dict[str, Any], Run | None, _Kept]:
    """Returns the data asked for, the run in the genesis that belongs to it, if there is one, and what a node keeps
    beside its samples. Raises ConfigError."""
    from ml.data.image_cache import ImageCache
    from ml.tasks import TASKS
    from node.config.settings import apply_settings, complete_data, make_data

    join_file: Path | None = None
    kept = _Kept()
    if (data is None) == (config is None):
        raise ConfigError("expected either DATA, such as digits or npz:scans.npz, or --config FILE")
    if config is not None:
        from node.config.node_config import load_config

        loaded = load_config(config, settings or ())
        asked = loaded.data.model_dump(mode="json", exclude={"partition"})
        genesis, join_file = genesis or loaded.genesis_file, loaded.join_file
        data_dir = loaded.node.data_dir
        cache = ImageCache.of_node(loaded.data.model_dump(mode="json"), data_dir)
        kept = _Kept(data_dir if loaded.data.partition is None else None, cache)
    else:
        asked = complete_data(apply_settings({"data": make_data(data or "")}, settings or (), ("data",)).value["data"])
    run = None
    if genesis is None and join_file is not None:
        from node.config.federation import read_join_file

        run = read_join_file(join_file).genesis.run
    elif genesis is not None:
        from node.config.genesis_file import load_genesis

        run = load_genesis(genesis).genesis.run
    if task not in TASKS:
        raise ConfigError(f"--task: expected one of {', '.join(TASKS)} (got {task!r})")
    return asked, run, kept


def _open_split(
    asked: dict[str, Any],
    run: Run | None,
    size: int | None,
    task: str,
    table: TableInput | None,
    kept: _Kept,
) -> tuple[Split, InputFormat | None]:
    """Returns the samples, and the input that they are to become; `table` says what a table's columns become where
    there is no run. Raises NodeError."""
    from ml.data import open_dataset
    from ml.data.base import InputFormat
    from ml.errors import DataError
    from node.training.own_split import open_own_sides

    classes, wanted = (None, None) if run is None else (run.classes, InputFormat.from_mapping(run.input))
    task = task if run is None else run.task
    try:
        own_sides = None if kept.split_dir is None else open_own_sides(kept.split_dir, asked)
        if size is not None and wanted is None:
            wanted = InputFormat.from_mapping({"shape": [_get_channels(asked, task), size, size]})
        split = open_dataset(
            asked,
            shape=None if wanted is None else wanted.shape,
            classes=classes,
            task=task,
            table=table if wanted is None else wanted.table,
            meaning=None if run is None else run.labels,
            sides=own_sides,
            cache=kept.cache,
        )
    except DataError as error:
        raise NodeError(str(error)) from error
    return split, wanted


def _get_channels(asked: dict[str, Any], task: str) -> int:
    from ml.data import get_default_input

    channels: int = get_default_input(asked, {}, task)["shape"][0]
    return channels


def _is_held_out(split: Split) -> bool:
    from ml.data import HELD_OUT

    return split[1].split == HELD_OUT


def _describe(part: ArrayDataset) -> dict[str, Any]:
    import numpy as np

    return {
        "split": part.split,
        "origin": part.origin,
        "samples": len(part),
        "dtype": str(part.x.dtype),
        "min": float(np.nanmin(part.x)),
        "max": float(np.nanmax(part.x)),
        "counts": part.count_classes().tolist(),
        "sha256": part.sha256,
    }


def _describe_domain(domain: Domain) -> dict[str, Any]:
    return {
        "domain": domain.name,
        "path": str(domain.path),
        "format": domain.format,
        "shape": list(domain.train.shape),
        "train": len(domain.train_y),
        "test": len(domain.test_y),
        "held_out": domain.is_held_out,
        "not_looked_at": list(domain.others),
    }


def _print(asked: dict[str, Any], split: Split, names: list[str], domains: Sequence[Domain], *, is_own: bool) -> None:
    import numpy as np

    from ml.data.source import SHARE

    train = split[0]
    channels, height, width = train.shape
    what = f"{channels} features" if train.is_table else f"{channels} x {height} x {width} (channels, height, width)"
    noun = {"multilabel": "labels", "regression": "targets"}.get(train.task, "classes")
    sample, samples = ("row", "rows") if train.is_table else ("sample", "samples")
    print_facts(
        [
            ("data", f"{asked['format']} {asked.get('path') or ''}".rstrip()),
            (sample, f"{what}, {train.x.dtype} from {np.nanmin(train.x):g} to {np.nanmax(train.x):g}"),
            *((part.split, f"{len(part):,} {samples} of {part.origin}") for part in split),
            (noun, str(len(train.classes))),
            *((f"sha256 {part.split}", part.sha256) for part in split),
        ]
    )
    if train.num_val:
        print(f"{train.num_val} {samples} of {train.split} are val: not trained on, and rounds are compared by them")
    if _is_held_out(split) and not asked.get("split"):
        share = asked.get("held_out") or SHARE
        part = "a fifth" if share == SHARE else f"{share:.0%}"
        of_what = f"{part} of each class" if split[0].task == "classification" else f"{part} of all samples"
        which = "the same samples on every start" if is_own else "by a node others than these, by a seed of its own"
        print(f"there is no test split: {of_what} is held out, {which}")
    used = {part.split for part in split} | {asked.get("train_split") or "train"}
    others = [name for name in names if name not in used and len(names) > 1]
    others += sorted({f"{name} of {domain.name}" for domain in domains for name in domain.others})
    if others:
        print(f"not looked at: {', '.join(others)}; data.train_split and data.test_split choose, by --set")
    if domains:
        _print_domains(domains)
    print()
    if train.task == "regression":
        _print_targets(split)
        return
    counts = zip(train.classes, *(part.count_classes().tolist() for part in split), strict=True)
    print_table(
        ("LABEL" if train.task == "multilabel" else "CLASS", *(f">{part.split.upper()}" for part in split)),
        [(name, str(a), str(b)) for name, a, b in counts],
    )
    print()


def _print_published(published: Sequence[Recognised]) -> None:
    """Prints which files are identical to published ones, and which only have their names."""
    same: dict[str, list[str]] = {}
    for found in published:
        if found.data_set is None:
            print(f"other than published: {found.path} ({' or '.join(found.expected)} has another digest)")
        else:
            same.setdefault(found.data_set, []).append(
                found.path.name + (" (packed anew)" if found.is_repacked else "")
            )
    for data_set, names in same.items():
        print(f"as published: {data_set}, {', '.join(names)}")
    if published:
        print()


def _print_targets(split: Split) -> None:
    """Prints the range, mean and deviation of each target, on the training samples."""
    train = split[0]
    rows = [
        (name, *(f"{value:.4g}" for value in (y_N.min(), y_N.max(), y_N.mean(), y_N.std())))
        for name, y_N in zip(train.classes, train.y.T, strict=True)
    ]
    print_table(("TARGET", ">MIN", ">MAX", ">MEAN", ">DEVIATION"), rows)
    print()


def _print_features(features: Sequence[FeatureStats]) -> None:
    """Prints the columns of a table, on the training rows."""
    rows = [
        (own.name, *(f"{value:.4g}" for value in (own.min, own.max, own.mean, own.std)))
        for own in features[:SHOWN_FEATURES]
    ]
    print_table(("FEATURE", ">MIN", ">MAX", ">MEAN", ">DEVIATION"), rows)
    if len(features) > SHOWN_FEATURES:
        print(f"and {len(features) - SHOWN_FEATURES} more; --json has them all")
    print()


def _print_findings(findings: Sequence[Finding], *, is_table: bool) -> None:
    for finding in findings:
        print(f"{finding.level}: {finding.text}")
    if not findings:
        print(f"nothing amiss: no duplicates, no empty class, no constant {'feature' if is_table else 'image'}")


def _print_domains(domains: Sequence[Domain]) -> None:
    rows = [
        (
            *(domain.name, domain.format, " x ".join(map(str, domain.train.shape))),
            *(str(len(domain.train_y)), str(len(domain.test_y)), "held out" if domain.is_held_out else ""),
        )
        for domain in domains
    ]
    print()
    print_table(("DOMAIN", "FORMAT", "FIRST SAMPLE", ">TRAIN", ">TEST", ""), rows)
