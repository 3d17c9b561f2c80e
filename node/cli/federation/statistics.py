"""`fednode statistics`: the word of a run's members of their samples, all together and site by site."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.options import AsJson
from node.cli.output import print_json, print_table
from node.cli.target import DataDir, NodeConfigFile, Socket, open_ledger

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

_BARS = " ▁▂▃▄▅▆▇█"


def register(app: typer.Typer) -> None:
    app.command("statistics")(statistics)


def statistics(
    run: Annotated[int, typer.Argument(metavar="[RUN]", min=0, help="Its number; 0 is the newest.")] = 0,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Print the input of a run on such data, as YAML, and nothing else.")
    ] = False,
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what members told of their samples.

    That is what they agreed on in the first round of a run: of each feature the mean and the deviation, how many cells
    are empty, and where the run asks for that how many values lie where, and how each feature correlates with each
    class. Below the table stands what differs between sites as units do, and what only some of them have. With masked
    sums there are those of all sites together, and no others. fednode propose statistics begins a run of that alone.

    Examples: fednode statistics -c node.yaml, or fednode statistics 2 --suggest > input.yaml
    """
    with open_ledger(socket, config, data_dir) as ledger:
        told = ledger.get_statistics(run)
        terms = ledger.list_runs(told.run)[0].terms if suggest else ""
    if suggest:
        _print_suggestion(told, terms)
        return
    if as_json:
        print_json(told)
        return
    sites = [told.all] * told.HasField("all") + [site for site in told.sites if site.held]
    print(f"run {told.run}, height {told.height}: {len(told.sites)} sites, {told.all.samples} training samples\n")
    names = ["ALL" if site is told.all else site.name for site in sites]
    rows = [
        (feature.name, *(_describe_values(feature, site.features[i], site.samples) for site in sites))
        for i, feature in enumerate(told.features)
    ]
    if any(site.classes for site in sites):
        rows += [(f"class {name}", *(str(site.classes[k]) for site in sites)) for k, name in enumerate(told.classes)]
    print_table(("FEATURE", *names), [("samples", *(str(site.samples) for site in sites)), *rows])
    _print_correlations(told, sites, names)
    for line in _describe_histograms(told, sites, names):
        print(line)
    gone = [site.name for site in told.sites if not site.held]
    if told.masked:
        print(f"\nmasked: the sums of {', '.join(gone)}, and nobody sees those of one of them")
    elif gone:
        print(f"\nwhat {', '.join(gone)} told is not here")
    print(f"\ncounts of bins and categories are rounded down to a multiple of {told.min_count}: few are told as none")
    print("\n".join(told.differences or ["nothing differs between sites as units do"]))


def _describe_values(feature: pb.StatisticsFeature, one: pb.FeatureStatistics, samples: int) -> str:
    """Returns a feature in words: `54.1 ± 9`, and the number of missing cells if there are any; for a category its
    share."""
    if not one.HasField("mean"):
        return "-"
    if feature.category:
        return f"{one.mean:.1%}"
    missing = f", {_show_share(1 - one.values / samples)} empty" if 0 < one.values < samples else ""
    return f"{one.mean:.4g} ± {one.std:.3g}{missing}"


def _show_share(share: float) -> str:
    return "<1%" if share < 0.01 else f"{share:.0%}"


def _print_correlations(told: pb.StatisticsReply, sites: Sequence[pb.SiteStatistics], names: Sequence[str]) -> None:
    """Prints correlations: of two classes with the second, site by site; of more with each class, over all sites."""
    if not sites or not any(feature.classes for feature in sites[0].features):
        return
    if len(told.classes) == 2:
        print(f"\ncorrelation with {told.classes[1]}")
        columns = [[feature.classes[1] for feature in site.features] for site in sites]
    else:
        print(f"\ncorrelation with each class, of {names[0]}")
        names = list(told.classes)
        columns = [[feature.classes[k] for feature in sites[0].features] for k in range(len(names))]
    rows = [
        (feature.name, *(f"{own[i].correlation:+.2f}" if own[i].HasField("correlation") else "-" for own in columns))
        for i, feature in enumerate(told.features)
    ]
    print_table(("FEATURE", *names), rows)


def _describe_histograms(
    told: pb.StatisticsReply, sites: Sequence[pb.SiteStatistics], names: Sequence[str]
) -> Iterator[str]:
    """Yields a line of bars for each site, as high as the share of its values, and how they are spread."""
    width = max(map(len, names), default=0)
    for i, feature in enumerate(told.features):
        if feature.edges:
            ends = f"below {feature.edges[0]:g}, then to {', '.join(f'{edge:g}' for edge in feature.edges[1:])}"
            yield f"\n{feature.name}: {ends}, and from {feature.edges[-1]:g} on"
            for name, site in zip(names, sites, strict=True):
                bins = site.features[i].bins
                most = max(bins, default=0) or 1
                bars = "".join(_BARS[math.ceil(count / most * (len(_BARS) - 1))] for count in bins)
                counts = " ".join(map(str, bins))
                yield f"  {name:<{width}}  {bars}  {counts}{_describe_quartiles(site.features[i])}"


def _describe_quartiles(one: pb.FeatureStatistics) -> str:
    """Returns the quartiles; a dash for those outside of the edges."""
    quartiles = ("lower_quartile", "median", "upper_quartile")
    if not any(map(one.HasField, quartiles)):
        return ""
    return "  quartiles " + ", ".join(f"{getattr(one, key):.3g}" if one.HasField(key) else "-" for key in quartiles)


def _print_suggestion(told: pb.StatisticsReply, terms: str) -> None:
    """Prints the input of the run, with the rules that these statistics suggest."""
    import json

    import yaml

    from ml.data.table_input import TableInput

    input_: dict[str, Any] = dict(json.loads(terms)["input"])
    columns = [{key: value for key, value in column.items() if key != "edges"} for column in input_["columns"]]
    sites = [told.all] if told.masked else [site for site in told.sites if site.held]
    is_empty = any(one.values < site.samples for site in sites for one in site.features if one.HasField("mean")) or any(
        not one.HasField("mean") for site in sites for one in site.features
    )
    others = [i for i, feature in enumerate(told.features) if feature.name.endswith("=(other)")]
    has_others = any(site.features[i].mean > 0 for site in sites for i in others)
    rules: dict[str, str] = {}
    if is_empty:
        rules["missing"] = "mean+flag"
    if has_others:
        rules["unknown"] = "other"
    carried = ("empty",) if told.masked else ("empty", "min_count")
    kept: dict[str, Any] = {key: input_[key] for key in carried if key in input_}
    table: dict[str, Any] = {"columns": columns, **kept, **rules}
    read = TableInput.from_mapping(table)
    features = () if read is None else read.get_features(read.columns or ())
    constants: dict[str, Any] = {"normalize": "agreed"}
    if told.masked:  # members that train with masked sums agree on nothing besides
        known = {feature.name: one for feature, one in zip(told.features, told.all.features, strict=True)}
        own = [known[name] if name in known and known[name].HasField("mean") else None for name in features]
        constants = {"mean": [one.mean if one else 0.0 for one in own], "std": [one.std if one else 1.0 for one in own]}
    suggested = {"shape": [len(features) or 1, 1, 1], **constants, **table}
    print(yaml.safe_dump({"input": suggested}, sort_keys=False, allow_unicode=True), end="")
