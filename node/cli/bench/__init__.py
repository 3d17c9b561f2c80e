"""`fednode bench`: what things cost on this machine, as ratios to a baseline measured in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli.bench.aggregation import bench_aggregation
from node.cli.bench.catch_up import bench_catch_up
from node.cli.bench.chain import bench_chain
from node.cli.bench.crypto import bench_crypto
from node.cli.bench.figures import RepeatsOption, print_figures, report, show_ratio
from node.cli.bench.flood import bench_flood
from node.cli.bench.ledger import bench_ledger
from node.cli.bench.net import bench_net
from node.cli.bench.pow import bench_pow
from node.cli.bench.soak import bench_soak
from node.cli.bench.transfer import bench_transfer
from node.cli.options import AsJson, make_group
from node.cli.testnet import (
    DataOption,
    MethodOption,
    MethodSettings,
    ModelOption,
    PartitionOption,
    SeedOption,
    ShotsOption,
    SizeOption,
)
from node.errors import ConfigError, NodeError

PRECISIONS = ("fp32", "bf16", "auto")

ThreadsOption = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Torch's threads on a CPU.")]


def register(app: typer.Typer) -> None:
    group = make_group("Measure what things cost on this machine.")
    group.command("round")(bench_round)
    group.command("train")(bench_train)
    group.command("simulate")(bench_simulate)
    group.command("methods")(bench_methods)
    group.command("reconstruct")(bench_reconstruct)
    group.command("share")(bench_share)
    group.command("ledger")(bench_ledger)
    group.command("flood")(bench_flood)
    group.command("transfer")(bench_transfer)
    group.command("catch-up")(bench_catch_up)
    group.command("soak")(bench_soak)
    group.command("chain")(bench_chain)
    group.command("net")(bench_net)
    group.command("crypto")(bench_crypto)
    group.command("aggregation")(bench_aggregation)
    group.command("pow")(bench_pow)
    group.callback()(lambda: None)
    app.add_typer(group, name="bench")


def bench_round(
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=2, max=32, help="How many processes.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=5, help="How many rounds.")] = 60,
    method: MethodOption = "fedavg",
    model: ModelOption = "mlp",
    partition: PartitionOption = "iid",
    seed: SeedOption = 1,
    settings: MethodSettings = None,
    cold_starts: Annotated[
        int, typer.Option("--cold-starts", metavar="N", min=0, help="Also start the federation N times on one core.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """A round, start-up and memory of real processes. The baseline is the same arithmetic in one process.

    Example: fednode bench round -n 4 --rounds 60 --json
    """
    from node.bench.fixtures import DIFFICULTY
    from node.bench.round import run_round_bench
    from node.testnet.layout import TestnetSpec

    spec = TestnetSpec(
        num_nodes=nodes,
        method=method,
        model=model,
        partition=partition,
        rounds=rounds,
        seed=seed,
        settings=tuple(settings or ()),
        difficulty=DIFFICULTY,
        base_port=0,
    )
    print_figures(run_round_bench(spec, cold_starts=cold_starts, report=report), _show_round, as_json)


def bench_train(
    models: Annotated[
        str, typer.Option("--models", metavar="NAMES", help="Some of mlp, cnn_mnist, cnn_cifar, resnet18 and head_256.")
    ] = "mlp,cnn_mnist,cnn_cifar,resnet18,head_256",
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Of one repetition; by default each model's own.")
    ] = None,
    repeats: RepeatsOption = 7,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, auto, cuda or cuda:N.")] = "cpu",
    threads: ThreadsOption = 1,
    precision: Annotated[
        str, typer.Option("--precision", metavar="P", help="The engine's: fp32, bf16 or auto.")
    ] = "fp32",
    channels_last: Annotated[bool, typer.Option("--channels-last", help="The engine's layout of images.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="The engine's loss through torch.compile.")] = False,
    as_json: AsJson = False,
) -> None:
    """Training samples a second, against a plain PyTorch loop. The loop uses a DataLoader. For head_256, training on
    the features of the frozen encoder is set against running the encoder in each step.

    Example: fednode bench train --json
    """
    from ml.errors import MlError
    from node.bench.train import run_train_bench
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()  # for both: what it brings is not the engine's merit
    if precision not in PRECISIONS:
        raise ConfigError(f"--precision: expected fp32, bf16 or auto (got {precision!r})")
    engine = {"precision": precision, "channels_last": channels_last, "compiled": compiled}
    try:
        figures = run_train_bench(
            models.split(","),
            steps=steps,
            repeats=repeats,
            device=device,
            threads=threads,
            engine=engine,
            report=report,
        )
    except MlError as error:
        raise NodeError(str(error)) from error
    print_figures(figures, _show_train, as_json)


def bench_simulate(
    clients: Annotated[int, typer.Option("--clients", "-n", metavar="N", min=2, help="How many take part.")] = 10,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=2, help="Of each simulation.")] = 6,
    method: MethodOption = "dfpl",
    model: ModelOption = "mlp",
    partition: PartitionOption = "iid",
    seed: SeedOption = 1,
    settings: MethodSettings = None,
    repeats: RepeatsOption = 7,
    device: Annotated[
        str,
        typer.Option("--device", metavar="NAME", help="cpu, cuda, cuda:N, or all: the CPU and a GPU if there is one."),
    ] = "all",
    threads: ThreadsOption = 1,
    as_json: AsJson = False,
) -> None:
    """A simulation in one batched pass, against one by one.

    Example: fednode bench simulate --json
    """
    from ml.simulation.run import SimulationConfig
    from node.bench.simulate import run_simulate_bench
    from node.config.genesis_file import translate_errors
    from node.config.settings import apply_settings, make_model
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    sections = {"method": {"name": method}, "model": make_model(model)}
    source = apply_settings(sections, settings or (), tuple(sections))
    with translate_errors(source):
        config = SimulationConfig(
            method=source.value["method"],
            model=source.value["model"],
            partition=partition,
            clients=clients,
            rounds=rounds,
            seed=seed,
            device=device,
            threads=threads,
        )
        figures = run_simulate_bench(config, repeats=repeats, report=report)
    print_figures(figures, _show_simulate, as_json)


def bench_methods(
    clients: Annotated[int, typer.Option("--clients", "-n", metavar="N", min=1, help="How many take part.")] = 5,
    model: ModelOption = "mlp",
    size: SizeOption = None,
    partition: PartitionOption = "dirichlet:0.3",
    seed: SeedOption = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of all methods that have it (local_epochs=1, num_prototypes=4), or of the model "
            "(model.hidden=[32]).",
        ),
    ] = None,
    repeats: RepeatsOption = 7,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, auto, cuda or cuda:N.")] = "cpu",
    threads: ThreadsOption = 1,
    as_json: AsJson = False,
) -> None:
    """A local phase of each method, against FedAvg's. It shows what contrasts, prototypes and clusters add to plain
    training. Digits, all clients one after the other.

    Example: fednode bench methods --model mlp_mnist --size 28 --set local_epochs=1
    """
    from ml.simulation.run import SimulationConfig
    from node.bench.methods import run_methods_bench
    from node.config.genesis_file import translate_errors
    from node.config.settings import apply_settings, make_input, make_model
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    data = {"format": "digits"}
    sections: dict[str, Any] = {"method": {}, "model": make_model(model)}
    source = apply_settings(sections, settings or (), tuple(sections))
    with translate_errors(source):
        config = SimulationConfig(
            method=source.value["method"],
            data=data,
            model=source.value["model"],
            input=make_input(data, source.value["model"], size),
            partition=partition,
            clients=clients,
            seed=seed,
            device=device,
            threads=threads,
        )
        figures = run_methods_bench(config, repeats=repeats, report=report)
    print_figures(figures, _show_methods, as_json)


def bench_reconstruct(
    layers: Annotated[
        str,
        typer.Option("--layers", metavar="NAMES", help="Some of gaussian, orthogonal, diag, conv1x1 and identity."),
    ] = "gaussian,identity",
    pairs: Annotated[
        str,
        typer.Option(
            "--pairs", metavar="N,…", help="How many of the site's samples the attacker knows, beside half of them."
        ),
    ] = "16,64,256",
    encryptors: Annotated[
        int,
        typer.Option("--encryptors", metavar="N", min=1, help="How many the attacker without pairs trains of its own."),
    ] = 2,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Of the attacker's each decoder.")] = 400,
    unet_width: Annotated[
        int, typer.Option("--unet-width", metavar="N", min=1, help="Of encryptors and decoders; the paper's is 64.")
    ] = 8,
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", min=1, help="An encryptor is trained for, as in the paper.")
    ] = 20,
    data: DataOption = "digits",
    model: ModelOption = "cnn_cifar",
    size: SizeOption = 32,
    partition: PartitionOption = "iid",
    clients: Annotated[
        int, typer.Option("--clients", "-n", metavar="N", min=2, help="Sites; the first is attacked by the second.")
    ] = 2,
    shots: ShotsOption = None,
    seed: SeedOption = 1,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Each with another seed, from --seed on.")
    ] = 1,
    settings: MethodSettings = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw what is recovered, too.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, auto, cuda or cuda:N.")] = "cpu",
    threads: ThreadsOption = 1,
    as_json: AsJson = False,
) -> None:
    """What an attacker recovers from a set that fededs shares. A learned transformation of the samples leaves a node;
    this trains a decoder that undoes it, from known pairs and from none.

    Example: fednode bench reconstruct --data cifar:cifar-10-batches-py --model resnet18_nobn --clients 5 --unet-width
    64 --device cuda --png recovered.png
    """
    from ml.data import open_once
    from ml.simulation.run import SimulationConfig
    from node.bench.reconstruct import Attack, run_reconstruct_bench
    from node.bench.reconstruct_plot import check_picture, draw_panels
    from node.config.genesis_file import translate_errors
    from node.config.settings import apply_settings, complete_data, make_data, make_input, make_model
    from node.host.allocator import keep_freed_memory

    keep_freed_memory()
    if png is not None:
        check_picture(png)
    method = {"name": "fededs", "unet_width": unet_width, "encryptor_epochs": epochs}
    asked: dict[str, Any] = {"method": method, "model": make_model(model), "data": make_data(data), "input": {}}
    source = apply_settings(asked, settings or (), tuple(asked))
    own = complete_data(source.value["data"])
    with translate_errors(source), open_once():
        config = SimulationConfig(
            method=source.value["method"],
            data=own,
            model=source.value["model"],
            input=make_input(own, source.value["model"], size, source.value["input"]),
            partition=partition,
            shots=shots,
            clients=clients,
            seed=seed,
            device=device,
            threads=threads,
        )
        attack = Attack(pairs=_read_counts(pairs), encryptors=encryptors, steps=steps, width=unet_width)
        made = run_reconstruct_bench(config, attack, layers=layers.split(","), repeats=repeats, report=report)
    if png is not None:
        job = made.figures["job"]
        shared = f"fededs on {own['format']}: what is shared of samples, and what comes back"
        draw_panels(png, made.panels, f"{shared} ({job['model']['name']}, encryptor of width {unet_width})")
    print_figures(made.figures, _show_reconstruct, as_json)


def bench_share(
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=2, max=16, help="How many share.")] = 2,
    set_mb: Annotated[float, typer.Option("--mb", metavar="MB", min=0.01, help="What each one's set weighs.")] = 100.0,
    seed: SeedOption = 1,
    as_json: AsJson = False,
) -> None:
    """Memory, speed and delays while fededs shares large sets. The processes are real, and train on the sets.

    Example: fednode bench share --json
    """
    from node.bench.share import run_share_bench

    print_figures(run_share_bench(nodes=nodes, set_mb=set_mb, seed=seed, report=report), _show_share, as_json)


def _read_counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(word) if word.isdecimal() else 0 for word in text.split(","))
    if not all(counts):
        raise ConfigError(f"--pairs: expected whole numbers from 1 on, as in 16,64 (got {text!r})")
    return counts


def _show_train(figures: dict[str, Any]) -> None:
    machine, engine = figures["machine"], figures["engine"]
    settings = "  ".join(f"{key} {str(value).lower()}" for key, value in engine.items())
    print(f"torch          {machine['torch']} on {machine['device']}, {machine['threads']} threads")
    print(f"engine         {settings}, batches of {figures['batch_size']}")
    if figures["models"]:
        print("samples/s      engine, loader without workers, loader with 2; ratios are the engine's speed over theirs")
    for name, found in figures["models"].items():
        ratios = "  ".join(show_ratio(ratio) for ratio in found["ratio"].values())
        print(f"{name:14} {_show_speeds(found)}   {ratios}")
    if figures["frozen"]:
        print("samples/s      engine on features computed once, on images with the encoder in each step; the ratio")
    for name, found in figures["frozen"].items():
        print(f"{name:14} {_show_speeds(found)}   {show_ratio(found['ratio'])}")
        print(
            f"{'':14} computing the features of {found['samples']:,} samples takes {found['pass_s']['median']:.2f} s, "
            f"which pays for itself in {found['paid_after_epochs']['median']:.1f} epochs"
        )


def _show_speeds(found: dict[str, Any]) -> str:
    return "  ".join(f"{speed['median']:9,.0f}" for speed in found["samples_per_s"].values())


def _show_simulate(figures: dict[str, Any]) -> None:
    job = figures["job"]
    print(
        f"job            {job['clients']} clients, {job['method']['name']}, {job['model']['name']}, {job['partition']}"
    )
    for device, found in figures["devices"].items():
        machine = found["machine"]
        threads = f"{machine['threads']} threads, {found['precision']}"
        print(f"{device:14} torch {machine['torch']} on {machine['device']}, {threads}")
        for what, key in (("local phases", "phase_s"), ("whole rounds", "round_s")):
            apart, together = found[key]["apart"], found[key]["together"]
            print(f"{what:14} one after the other {_show_spread(apart)}, together {_show_spread(together)}")
            print(f"{'':14} {apart['median'] / together['median']:.2f} times as fast")
        per_s = found["steps"] / found["phase_s"]["together"]["median"]
        print(f"{'steps':14} {found['steps']:.0f} of all clients in a phase: {per_s:,.0f} a second together")
        print(f"{'difference':14} {found['largest_difference']:.1e} between weights after a phase, at most")


def _show_methods(figures: dict[str, Any]) -> None:
    machine, job = figures["machine"], figures["job"]
    steps = next(iter(figures["methods"].values()))["steps"]
    print(f"torch          {machine['torch']} on {machine['device']}, {machine['threads']} threads")
    print(
        f"job            {job['clients']} clients with {min(job['samples'])} to {max(job['samples'])} samples, "
        f"{job['model']['name']}, {job['partition']}; {steps} steps of all in a phase"
    )
    print("phase          in ms and times fedavg's; then where it goes: preparing, steps, what is sent, the rest")
    for name, found in figures["methods"].items():
        parts = "  ".join(f"{1000 * seconds:7.1f}" for seconds in found["parts_s"].values())
        print(f"{name:22} {1000 * found['phase_s']['median']:8.1f}  {show_ratio(found['ratio']):22} {parts}")


def _show_reconstruct(figures: dict[str, Any]) -> None:
    machine, job, layers = figures["machine"], figures["job"], figures["layers"]
    samples, method, attack = job["samples"], job["method"], job["attack"]
    print(f"torch          {machine['torch']} on {machine['device']}, {machine['threads']} threads")
    print(
        f"set            {samples['victim']} samples of {'x'.join(map(str, job['shape']))}, {job['model']['name']}, "
        f"encryptor of width {method['unet_width']}, {method['encryptor_epochs']} epochs; "
        f"{len(job['seeds'])} run{'s' * (len(job['seeds']) > 1)} with each layer"
    )
    print(
        f"attacker       {samples['attacker']} samples of its own, encryptors: {attack['encryptors']}, "
        f"{attack['steps']} steps for a decoder of width {attack['width']}"
    )
    print(
        f"recovered      of {samples['held_out']} samples it does not know: PSNR in dB, SSIM, and how many are told "
        "apart,\n               nearer to their own original than to any other"
    )
    print(f"{'layer':18}" + "".join(f"{layer:>24}" for layer in layers))
    for name in next(iter(layers.values()))["attacks"]:
        scores = [found["attacks"][name] for found in layers.values()]
        print(f"{name:18}" + "".join(f"{_show_scores(score):>24}" for score in scores))
    labels = "".join(f"{found['labels_shown']:>24.0%}" for found in layers.values())
    print(f"{'classes shown':18}{labels}   by the soft labels, to everyone")
    print(f"It means: {figures['meaning']}.")


def _show_share(figures: dict[str, Any]) -> None:
    job, sizes = figures["job"], figures["set_mb"].values()
    shape = "x".join(map(str, job["shape"]))
    print(f"job            {job['nodes']} nodes, seed {job['seed']}, {job['samples']} digits of {shape} each")
    used = ", ".join(f"{name} {count} times" for name, count in figures["sets_trained_on"].items())
    print(f"set            {min(sizes):.1f} to {max(sizes):.1f} MB; others' were trained on by {used}")
    print("memory         in MB: when its worker was ready, most while sharing, most in training; growth in sets, and")
    print("               of what is anonymous")
    for name, found in figures["processes"].items():
        phases = "  ".join(f"{found[key]:8.1f}" for key in ("before_mb", "sharing_mb", "training_mb"))
        sampled = "" if found["is_exact"] else "   sampled"
        print(f"{name:14} {phases}   {found['growth_sets']:5.2f}  {found['anonymous_sets']:5.2f}{sampled}")
    verdict = {True: "below", False: "NOT below", None: "sets too small to hold it against"}[figures["is_within"]]
    print(f"growth         {verdict} {figures['most_sets']:g} sets in every process")
    for pull in figures["transfers"]:
        way = f"set of {pull['set']} from {pull['from']} to {pull['to']}"
        print(f"transfer       {way}: {pull['seconds']:.2f} s, {pull['mb_per_s']:.0f} MB/s")
    for name, answers in figures["answers_s"].items():
        median, longest, sharing = (1000 * answers[key] for key in ("median", "longest", "longest_while_sharing"))
        print(
            f"{name + ' answers':14} {median:.1f} ms, at most {longest:.0f} ms, {sharing:.0f} ms with sets on their way"
        )


def _show_scores(scores: dict[str, dict[str, float]]) -> str:
    psnr, ssim, told_apart = (scores[name]["median"] for name in ("psnr", "ssim", "told_apart"))
    return f"{psnr:.1f}  {ssim:.2f}  {told_apart:4.0%}"


def _show_round(figures: dict[str, Any]) -> None:
    cluster, bare = figures["cluster"], figures["bare"]
    print(f"bare round     {_show_spread(bare['round_s'])}   the same arithmetic in one process, one thread")
    print(f"round          {_show_spread(cluster['round_s'])}   {figures['job']['nodes']} processes, all included")
    print(f"ratio          {figures['ratio']:.2f}")
    phases = "  ".join(f"{phase} {1000 * took:.0f}" for phase, took in cluster["phases_s"].items() if phase != "wall")
    print(f"phases, ms     {phases}")
    print(
        f"sent           {cluster['sent_bytes'] / 1000:.1f} kB a node and round; "
        f"its payload weighs {cluster['payload_bytes'] / 1000:.1f} kB"
    )
    print(f"start          {figures['start']['first_step_s']:.2f} s from start to the first training step")
    memory = figures["memory"]
    print(
        f"memory         daemon {memory['daemon_mb']:.0f} MB, worker {memory['worker_mb']:.0f} MB, torch alone "
        f"{memory['torch_alone_mb']:.0f} MB: {memory['daemon_and_worker_over_torch_mb']:.0f} MB over it"
    )
    kill = figures["kill"]
    print(
        f"kill -9        round {1000 * kill['before_s']:.0f} ms before, once {kill['slowest_after_s']:.2f} s "
        f"(collect_s {kill['collect_s']:g}), then {1000 * kill['others_after_s']:.0f} ms"
    )
    if "cold_starts" in figures:
        cold = figures["cold_starts"]
        print(
            f"cold starts    {cold['succeeded']} of {cold['tried']} on one core, round 3 after "
            f"{cold['seconds']['median']:.1f} s (median), {cold['seconds']['max']:.1f} s (longest)"
        )


def _show_spread(seconds: dict[str, float]) -> str:
    return f"{1000 * seconds['median']:6.1f} ms ({1000 * seconds['min']:.1f} to {1000 * seconds['max']:.1f})"
