"""`fednode evaluation`: what a model is worth at every site, by what each has signed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.model.measures import print_classes
from node.cli.options import AsJson
from node.cli.output import print_facts, print_json, print_table
from node.cli.target import DataDir, NodeConfigFile, Socket, open_ledger
from node.ledger.measure_titles import MAIN, TITLES, show_with_interval

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb


def register(app: typer.Typer) -> None:
    app.command("evaluation")(evaluation)


def evaluation(
    run: Annotated[
        int | None, typer.Option("--run", metavar="N", min=0, help="That run alone, class by class; 0: the newest.")
    ] = None,
    socket: Socket = None,
    config: NodeConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model is worth at every site.

    Each row is a model that was measured, each column a site: what that has signed of its own test samples. It is its
    own word, and nobody can change it later. Intervals hold with 95 % confidence. fednode propose evaluation has a
    model measured, and so does the end of a run with select.evaluate. With propose evaluation --lend sites can lend
    their own models: each of these has a row of its own.

    Examples: fednode evaluation -c node.yaml, or fednode evaluation --run 2 --json
    """
    with open_ledger(socket, config, data_dir) as ledger:
        found = ledger.list_evaluations(run)
    if as_json:
        print_json({"evaluations": found})
        return
    if not found:
        print("No model was evaluated at all sites yet: fednode propose evaluation has it done.")
    elif run is None:
        _print_matrix(found)
    else:
        for i, one in enumerate(found):
            print("\n" * min(i, 1), end="")
            _print_one(one)


def _print_matrix(found: Sequence[pb.EvaluationView]) -> None:
    """Prints a row for each model and a column for each site, with the first figure that any of them has."""
    sites = list(dict.fromkeys(site.name for one in found for site in one.sites))
    told = {name for one in found for site in one.sites for name in site.measures.summary}
    figure = next((name for name in MAIN if name in told), MAIN[0])
    rows = [(describe_model(one), *_describe_sites(one, sites, figure)) for one in found]
    print_table((f"{TITLES[figure].upper()} OF", *(f">{name.upper()}" for name in sites)), rows)
    for one in found:
        if lack := describe_lack(one):
            print(f"{describe_model(one)}: {lack}")
    for note in describe_copies(found):
        print(note)


def _describe_sites(one: pb.EvaluationView, sites: Sequence[str], figure: str) -> list[str]:
    own = {site.name: site.measures for site in one.sites if site.HasField("measures")}
    return [
        show_with_interval(own[name].summary, own[name].intervals, figure) if name in own else "-" for name in sites
    ]


def _print_one(one: pb.EvaluationView) -> None:
    measured = [site for site in one.sites if site.HasField("measures")]
    block = f"in block {one.height}" if one.HasField("height") else "not measured yet"
    print_facts([("model", describe_model(one)), ("by", f"run {one.run}, {block}"), ("digest", one.model or "-")])
    if measured:
        print()
        rows = [
            (title, *(show_with_interval(site.measures.summary, site.measures.intervals, name) for site in measured))
            for name, title in TITLES.items()
            if any(name in site.measures.summary for site in measured)
        ]
        samples = ("test samples", *(str(site.measures.num_samples) for site in measured))
        print_table(("MEASURE", *(f">{site.name.upper()}" for site in measured)), [samples, *rows])
    for site in measured:
        print(f"\n{site.name}")
        print_classes({"": site.measures})
    if lack := describe_lack(one):
        print(f"\n{lack}")
    print(f"\ncounts are rounded down to a multiple of {one.min_count}; fewer than that are told as none")


def describe_model(one: pb.EvaluationView) -> str:
    """Returns a model in words: `run 1, round 20`, and for a lent one `run 1, round 20, node2's own`."""
    own = f", {one.lender_name}'s own" if one.HasField("lender") else ""
    return f"run {one.of_run}, round {one.of_round}{own}"


def describe_copies(found: Sequence[pb.EvaluationView]) -> list[str]:
    """Returns a line for each lent model that equals another site's, and may have been copied."""
    first: dict[tuple[int, str], pb.EvaluationView] = {}
    lent = [one for one in found if one.HasField("lender")]
    pairs = [(one, first.setdefault((one.run, one.model), one)) for one in lent]
    return [
        f"{describe_model(one)}: the very model that {other.lender_name} lent"
        for one, other in pairs
        if one is not other
    ]


def describe_lack(one: pb.EvaluationView) -> str:
    """Returns which sites' figures are missing, and why."""
    if not one.sites:
        return "not measured yet"
    if not one.model:
        return "no site has lent its own model, and there is none in common"
    few = [site.name for site in one.sites if site.held and not site.HasField("measures")]
    gone = [site.name for site in one.sites if not site.held]
    why = ", or it gives no numbers" if one.HasField("lender") else ""
    told = [f"fewer than {one.min_samples} test samples at {', '.join(few)}{why}"] if few else []
    return "; ".join([*told, *([f"what {', '.join(gone)} told is not here"] if gone else [])])
