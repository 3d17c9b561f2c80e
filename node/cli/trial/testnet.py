"""`fednode testnet`: the files of a whole federation, for processes of this machine or for containers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chain.pow import USUAL_DIFFICULTY
from node.cli.options import AsJson, DropOption, SiteOption, add_drop, read_sites

if TYPE_CHECKING:
    from node.testnet.layout import Testnet

MethodOption = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="NAME",
        help="auto (what suits the data), dfpl, mpfedcl, uapdfl, fededs, "
        "fedrep, ditto, fedbn, fedala, feddbe, "
        "or a baseline: local, fedavg, blade_fl, moon, swim, fedintr, fedprox, fednova, scaffold, fedproto, fedper, "
        "fedavg_p2p, dfedavgm, dispfl or criticalfl.",
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME",
        help="auto (what suits data and method), linear, mlp, wide_deep, cnn_mnist, mlp_mnist, cnn_cifar, resnet18, "
        "resnet18_cifar, resnet18_nobn, vgg11, head_256, or your own as package.module:factory.",
    ),
]
PretrainedOption = Annotated[
    Path | None,
    typer.Option(
        "--pretrained", metavar="FILE", help="Start from a published state dict: a .safetensors, .pt or .pth file."
    ),
]
DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="DATA",
        help="The data set that is dealt out: digits, or FORMAT:PATH with npz, imagefolder, csv, parquet, hf, idx, "
        "cifar, svhn or medmnist, or domains with a directory of several of these. See fednode data inspect.",
    ),
]
SizeOption = Annotated[
    int | None, typer.Option("--size", metavar="N", help="Resize images to N x N. By default what suits the model.")
]
PartitionOption = Annotated[
    str,
    typer.Option(
        "--partition",
        metavar="SCHEME",
        help="Who gets which samples: classes:AVG,STD, owned:0+1,2+3, dirichlet:ALPHA, domains, shards:S or iid, with "
        "flags after a comma, as in dirichlet:0.3,per=client. See fednode data partition --help.",
    ),
]
ShotsOption = Annotated[
    int | None, typer.Option("--shots", metavar="N", min=1, help="Samples per class of each node; all by default.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="S", min=0, help="Everything but the keys follows from it.")]
UnderstandOption = Annotated[
    bool,
    typer.Option(
        "--i-understand",
        help="For fededs: its nodes send a learned transformation of their samples to every other node, which is "
        "obfuscation and not cryptography. Their configurations then say consensus.approves_genesis: true.",
    ),
]
DifficultyOption = Annotated[
    int,
    typer.Option("--difficulty", metavar="D", min=1, help="Expected hashes per block: for good, unless --adaptive."),
]
AdaptiveOption = Annotated[
    bool,
    typer.Option("--adaptive", help="Let difficulty follow what mining takes, up to 64 times as hard or as easy."),
]
HttpPortOption = Annotated[
    int | None,
    typer.Option(
        "--http-port", metavar="P", min=1, help="Node i serves its page, metrics and probes on loopback at this plus i."
    ),
]
ObserverOption = Annotated[
    list[str] | None,
    typer.Option(
        "--observer",
        metavar="[NAME=]ID",
        help="A node that may sync and read, and no more. Once for each.",
    ),
]
MethodSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the method (lr=0.05), of genesis (waits.collect_s=1, input.normalize=auto) or of every "
        "node's data (data.columns.label=grade).",
    ),
]


def register(app: typer.Typer) -> None:
    app.command("testnet")(make)


def make(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new or empty directory.")],
    nodes: Annotated[int, typer.Option("--nodes", "-n", metavar="N", min=1, help="How many members.")] = 4,
    method: MethodOption = "auto",
    data: DataOption = "digits",
    partition: PartitionOption = "classes:3,1",
    site: SiteOption = None,
    shots: ShotsOption = None,
    model: ModelOption = "auto",
    size: SizeOption = None,
    drop: DropOption = None,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=0, help="0: until stopped.")] = 10,
    seed: SeedOption = 1,
    settings: MethodSettings = None,
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="The waits: local, site or wide.")
    ] = "local",
    difficulty: DifficultyOption = USUAL_DIFFICULTY,
    adaptive: AdaptiveOption = False,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Where nodes are dialled; {i} in it is the node's number.")
    ] = "127.0.0.1",
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            metavar="P",
            min=0,
            help="Node i listens on this plus i; 0 takes free ports. By default 7050, or more where somebody listens.",
        ),
    ] = None,
    http_port: HttpPortOption = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="cpu (the default), auto, cuda or cuda:N.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            metavar="N",
            min=1,
            help="Deal this machine's N GPUs out: node i trains on GPU i modulo N. Of k8s each pod has one of its own.",
        ),
    ] = None,
    pretrained: PretrainedOption = None,
    i_understand: UnderstandOption = False,
    observers: ObserverOption = None,
    target: Annotated[
        str,
        typer.Option("--target", metavar="NAME", help="Who runs the nodes: local (processes here), compose or k8s."),
    ] = "local",
    as_json: AsJson = False,
) -> None:
    """Write all the files of a test network. These are keys, genesis, initial model and configurations, and a Compose
    file or a Kustomize directory if one of those is to run it.

    Inputs are normalised by what the data's training samples measure, unless --set input.normalize=none leaves them.
    The method's settings are those that learn on images and tables; fednode simulate keeps the papers'.

    Example: fednode testnet -n 4 -o cluster --data idx:mnist --model cnn_mnist --partition dirichlet:0.3; then start
    each node by fednode --config cluster/node0.yaml
    """
    from node.testnet.layout import TestnetSpec, make_testnet

    if gpus is not None and device is not None:
        raise typer.BadParameter(f"expected either --gpus or --device (got --gpus {gpus} and --device {device})")
    sites = read_sites(context, site, ("data", "partition", "nodes"))
    made = make_testnet(
        out,
        TestnetSpec(
            num_nodes=len(sites) if sites else nodes,
            method=method,
            model=model,
            data=data,
            size=size,
            partition="domains" if sites else partition,
            sites=tuple(sites or ()),
            shots=shots,
            rounds=rounds,
            seed=seed,
            settings=add_drop(settings, drop),
            profile=profile,
            difficulty=difficulty,
            adaptive=adaptive,
            host=host,
            base_port=base_port,
            http_port=http_port,
            device=device or "cpu",
            gpus=gpus,
            pretrained=pretrained,
            i_understand=i_understand,
            observers=tuple(observers or ()),
            target=target,
        ),
    )
    if as_json:
        print(json.dumps(_describe(made)))
        return
    _show(made, out, http_port)
    print(_explain_start(target, out, made.nodes[0].config_file.name, has_gpus=gpus is not None))


def _describe(made: Testnet) -> dict[str, object]:
    from chain.signing import encode_id

    members = [
        {
            "name": node.name,
            "id": encode_id(node.key),
            "address": node.address,
            "config": str(node.config_file),
            "num_train": node.num_train,
            "num_test": node.num_test,
            "classes": list(node.classes),
        }
        for node in made.nodes
    ]
    return {"directory": str(made.directory), "chain_id": made.genesis.chain_id.hex(), "nodes": members}


def _show(made: Testnet, out: Path, http_port: int | None) -> None:
    from chain.signing import encode_id

    print(f"{out}: {len(made.nodes)} nodes on chain {made.genesis.chain_id.hex()}")
    for i, node in enumerate(made.nodes):
        samples = f"{node.num_train} train / {node.num_test} test, classes {' '.join(node.classes)}"
        page = "" if http_port is None else f"  page http://127.0.0.1:{http_port + i}/"
        print(f"  {node.name}  {encode_id(node.key)[:8]}…  {node.address}  {samples}{page}")
    if made.taken_port is not None:
        first, last = (made.nodes[i].address.rpartition(":")[2] for i in (0, -1))
        print(f"port {made.taken_port} is taken on this machine: these nodes have {first} to {last}")
    if made.pretrained is not None:
        print(made.pretrained)


def _explain_start(target: str, out: Path, config: str, *, has_gpus: bool) -> str:
    from node.testnet.targets import UID
    from node.testnet.targets.compose import COMPOSE_FILE, GPU_FILE, TOKEN_FILE, needs_owner

    if target == "k8s":
        return f"start them with: kubectl apply -k {out}"
    if target == "local":
        return f"start each with: fednode --config {out / config}"
    owner = f"sudo chown {UID}:{UID} {out}/keys/*.key {out}/{TOKEN_FILE} && " if needs_owner() else ""
    files = " ".join(f"-f {out}/{name}" for name in (COMPOSE_FILE, *([GPU_FILE] if has_gpus else [])))
    return f"start them with: {owner}docker compose {files} up -d"
