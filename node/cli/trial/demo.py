"""`fednode demo`: a federation of real processes on this machine, from nothing to the last round."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from node.cli.options import AsJson, DropOption, SiteOption, add_drop, make_group, read_sites
from node.cli.output import print_json
from node.cli.target import refuse_options_before
from node.cli.trial import demo_control
from node.cli.trial.testnet import (
    DataOption,
    HttpPortOption,
    MethodOption,
    MethodSettings,
    ModelOption,
    PartitionOption,
    SeedOption,
    SizeOption,
    UnderstandOption,
)
from node.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from node.testnet.demo import Accuracies, DemoResult, Statuses
    from node.testnet.layout import Testnet, TestnetSpec


FIRST_HTTP_PORT = 8080  # of a demo that stays, unless another is named


def register(app: typer.Typer) -> None:
    group = make_group(
        "Run a federation of real processes, and show the result. It uses bundled data unless told otherwise.\n\n"
        "Examples: fednode demo -n 4 --rounds 5 --method mpfedcl, or fednode demo --stay --http-port 8080, or fednode "
        "demo --keep cluster --json; from another terminal fednode demo ps, logs and down"
    )
    group.callback(invoke_without_command=True, no_args_is_help=False)(run)
    demo_control.register(group)
    app.add_typer(group, name="demo")


def run(
    context: typer.Context,
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=1, max=64, help="How many members.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=1, help="How many rounds.")] = 10,
    method: MethodOption = "auto",
    data: DataOption = "digits",
    partition: PartitionOption = "classes:3,1",
    site: SiteOption = None,
    model: ModelOption = "auto",
    size: SizeOption = None,
    drop: DropOption = None,
    seed: SeedOption = 1,
    settings: MethodSettings = None,
    i_understand: UnderstandOption = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave the cluster in DIR; its nodes start again.")
    ] = None,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Keep the nodes running after the last round, until Ctrl-C or fednode demo down."),
    ] = False,
    http_port: HttpPortOption = None,
    as_json: AsJson = False,
) -> None:
    """Run a federation of real processes, and show the result. It uses bundled data unless told otherwise."""
    if context.invoked_subcommand is not None:
        refuse_options_before(context)
        return
    from node.testnet.layout import TestnetSpec

    sites = read_sites(context, site, ("data", "partition", "nodes"))
    nodes = len(sites) if sites else nodes
    spec = TestnetSpec(
        num_nodes=nodes,
        method=method,
        data=data,
        model=model,
        size=size,
        partition="domains" if sites else partition,
        sites=tuple(sites or ()),
        rounds=rounds,
        seed=seed,
        settings=add_drop(settings, drop),
        base_port=0,
        http_port=http_port,
        i_understand=i_understand,
    )
    if http_port is not None:
        _validate_free(http_port, nodes)
    elif stay:
        spec = replace(spec, http_port=_find_free(nodes))
    result = _run_to_the_end(spec, keep, stay=stay, as_json=as_json)
    if keep is not None and not as_json:
        print(f"start a node again with: fednode --config {keep / 'node0.yaml'}")
    if not result.heads_agree:
        raise typer.Exit(5)


def _run_to_the_end(spec: TestnetSpec, keep: Path | None, *, stay: bool, as_json: bool) -> DemoResult:
    """Runs the demo and shows the result as soon as it is there; with `stay` the nodes run on until a signal."""
    from node.testnet.layout import make_testnet
    from node.testnet.running import announced

    results: list[DemoResult] = []
    with _get_directory(keep) as directory, _interrupted_by_sigterm():
        testnet = make_testnet(directory, spec)

        def on_result(result: DemoResult) -> None:
            results.append(result)
            if as_json:
                print_json(result.to_json())
            else:
                _show_result(result, testnet)
            if stay:
                _explain_stay(testnet, keep, to_stderr=as_json)

        with announced(testnet.directory), _until_interrupted_after(results):
            _watch(testnet, spec, on_result, stay=stay, to_stderr=as_json)
    return results[0]


def _validate_free(first: int, count: int) -> None:
    """Raises ConfigError where a port for HTTP is in use."""
    from node.p2p.transport.base import AddressInUse
    from node.p2p.transport.rpc import validate_free

    for port in range(first, first + count):
        try:
            validate_free(f"127.0.0.1:{port}")
        except AddressInUse as error:
            raise ConfigError(f"--http-port: {error.strerror}") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"--http-port: {port}: cannot listen there ({error})") from error


def _find_free(count: int) -> int | None:
    """Returns the first of so many free ports in a row for HTTP; None where there are none."""
    for first in range(FIRST_HTTP_PORT, FIRST_HTTP_PORT + 100 * count, count):
        try:
            _validate_free(first, count)
        except ConfigError:
            continue
        return first
    return None


def _explain_stay(testnet: Testnet, keep: Path | None, *, to_stderr: bool) -> None:
    """Prints how to look at the nodes from another terminal."""
    from shlex import quote

    from node.testnet.demo import write_samples
    from node.testnet.running import read_demo

    node = read_demo(testnet.directory).nodes[0]
    samples = write_samples(testnet)
    place = f"--socket {quote(str(node.socket))}"
    down = "fednode demo down" + ("" if keep is None else f" --dir {quote(str(testnet.directory))}")
    lines = [
        f"the nodes keep running until Ctrl-C, or {down}. From another terminal:",
        f"  fednode status {place}",
        f"  fednode chain list {place}",
        f"  fednode predict {quote(str(samples))} {place}",
        *([] if node.http is None else [f"  fednode open {place}", f"  curl http://{node.http}/metrics"]),
    ]
    out = sys.stderr if to_stderr else sys.stdout
    print("", *_list_pages(testnet), *lines, sep="\n", file=out, flush=True)


def _list_pages(testnet: Testnet) -> list[str]:
    """Lists the addresses of the nodes' pages; empty where no node has one."""
    from node.testnet.running import read_demo

    pages = [node for node in read_demo(testnet.directory).nodes if node.http is not None]
    return ["each node has a page:", *(f"  {node.name}  http://{node.http}/" for node in pages)] if pages else []


@contextmanager
def _until_interrupted_after(results: list[DemoResult]) -> Iterator[None]:
    """Ends a demo that stays on Ctrl-C without an error, once there is a result; before that, Ctrl-C interrupts it."""
    try:
        yield
    except KeyboardInterrupt:
        if not results:
            raise


@contextmanager
def _get_directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    from node.testnet.running import PREFIX

    with tempfile.TemporaryDirectory(prefix=PREFIX) as temporary:
        yield Path(temporary) / "cluster"


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM end the demo as Ctrl-C does: the nodes are stopped first."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(
    testnet: Testnet, spec: TestnetSpec, on_result: Callable[[DemoResult], None], *, stay: bool, to_stderr: bool
) -> None:
    import asyncio

    from rich.console import Console
    from rich.live import Live

    from node.testnet.demo import run_demo

    console = Console(stderr=to_stderr)
    out = sys.stderr if to_stderr else sys.stdout
    run = testnet.genesis.run
    print(
        f"{len(testnet.nodes)} nodes on this machine: {run.method['name']} on {spec.data} split {spec.partition}, "
        f"{run.rounds} rounds",
        file=out,
    )
    what = "digits" if spec.data == "digits" else "classes"
    for node in testnet.nodes:
        samples = f"{node.num_train} train / {node.num_test} test, {what} {' '.join(node.classes)}"
        print(f"  {node.name}  {samples}", file=out, flush=True)
    print(*_list_pages(testnet), sep="\n", end="\n" if spec.http_port is not None else "", file=out, flush=True)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=8) as live:

            def on_end(result: DemoResult) -> None:
                live.stop()
                on_result(result)

            asyncio.run(
                run_demo(
                    testnet,
                    on_statuses=lambda statuses: live.update(_make_table(statuses)),
                    on_round=lambda number, accuracies: None,
                    on_result=on_end,
                    stay=stay,
                )
            )
        return
    lines = _Lines(out)
    asyncio.run(
        run_demo(testnet, on_statuses=lines.on_statuses, on_round=lines.on_round, on_result=on_result, stay=stay)
    )


class _Lines:
    """Prints a line when all nodes are up, and one for each round."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began_s = time.monotonic()
        self._is_up = False

    def on_statuses(self, statuses: Statuses) -> None:
        if not self._is_up and all(status is not None and status["ready"] for status in statuses.values()):
            self._is_up = True
            self._show("all nodes are up and see each other")

    def on_round(self, number: int, accuracies: Accuracies) -> None:
        shown = "  ".join(f"{name} {_show_share(accuracy) or '-'}" for name, accuracy in accuracies.items())
        self._show(f"round {number:2} applied by all  accuracy  {shown}")

    def _show(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", file=self._out, flush=True)


def _make_table(statuses: Statuses) -> Table:
    from rich.table import Table

    table = Table("node", "height", "head", "round", "phase", "accuracy", "peers", box=None, pad_edge=False)
    for name, status in statuses.items():
        if status is None:
            table.add_row(name, "", "", "", "starting", "", "")
            continue
        table.add_row(
            name,
            str(status["height"]),
            status["head"][:8],
            str(status["round"]),
            status["phase"],
            _show_share(status["accuracy"]),
            f"{status['peers_connected']} of {status['members'] - 1}",
        )
    return table


def _show_result(result: DemoResult, testnet: Testnet) -> None:
    print()
    print(f"{'NODE':<8}{'HEIGHT':>6}  {'HEAD':<10}{'ACCURACY':>8}  {'BEFORE EXCHANGE':>15}  {'SENT PER ROUND':>14}")
    for node in result.nodes:
        print(
            f"{node['name']:<8}{node['height']:>6}  {node['head'][:8]:<10}{_show_share(node['accuracy']):>8}  "
            f"{_show_share(node['local_accuracy']):>15}  {_show_bytes(node['bytes_sent_per_round']):>14}"
        )
    print()
    print("heads agree" if result.heads_agree else "HEADS DIFFER")
    _show_traffic(result, len(testnet.nodes) - 1)
    seconds = result.seconds
    phases = ", ".join(f"{phase} {took:.2f}" for phase, took in seconds.items() if phase != "wall")
    print(f"a round took {seconds['wall']:.2f} s: {phases}")


def _show_traffic(result: DemoResult, num_peers: int) -> None:
    sent = sum(node["bytes_sent_per_round"] for node in result.nodes) / len(result.nodes)
    payload, model = result.payload_bytes_per_round, result.model_bytes
    peers = "1 peer" if num_peers == 1 else f"{num_peers} peers"
    print(
        f"a node sent {_show_bytes(sent)} a round, everything included; what it shares weighs {_show_bytes(payload)}. "
        f"Its whole model weighs {_show_bytes(model)}: to {peers} {_show_bytes(model * num_peers)} a round"
    )


def _show_share(share: float | None) -> str:
    return "" if share is None else f"{share:.3f}"


def _show_bytes(num_bytes: float) -> str:
    return f"{num_bytes:.0f} B" if num_bytes < 1000 else f"{num_bytes / 1000:.1f} kB"
