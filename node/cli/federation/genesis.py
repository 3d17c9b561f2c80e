"""`fednode genesis`: the file that all members share."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chain.pow import USUAL_DIFFICULTY
from node.cli.options import AsJson, DropOption, TaskOption, add_drop, make_group
from node.cli.trial.testnet import (
    AdaptiveOption,
    DifficultyOption,
    MethodOption,
    ModelOption,
    ObserverOption,
    PretrainedOption,
    SizeOption,
)

if TYPE_CHECKING:
    from chain.genesis import Genesis
    from node.config.genesis_draft import GenesisSpec

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A genesis.yaml, its initial model beside it.")]


def register(app: typer.Typer) -> None:
    group = make_group("Make and show the file that all members share.")
    group.command("new")(make)
    group.command("add-member")(add_member)
    group.command("fork")(fork)
    group.command("show")(show)
    group.command("hash")(show_hash)
    app.add_typer(group, name="genesis")


def make(
    members: Annotated[
        list[str],
        typer.Argument(metavar="MEMBER...", help="[NAME=]ID@HOST:PORT, as fednode init prints it; one for each."),
    ],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Never written over; its model lies beside it.")
    ] = Path("genesis.yaml"),
    method: MethodOption = "auto",
    model: ModelOption = "auto",
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="Read classes and input from it: digits, or FORMAT:PATH."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", metavar="A,B,…", help="Without --data: the classes, in their order.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="CxHxW|F|A,B,…",
            help="Without --data: what samples are fitted to, as 1x28x28; of tables the columns, as age,bmi, or how "
            "many.",
        ),
    ] = None,
    size: SizeOption = None,
    drop: DropOption = None,
    rounds: Annotated[int, typer.Option("--rounds", metavar="R", min=0, help="0: until stopped.")] = 0,
    seed: Annotated[int, typer.Option("--seed", metavar="S", min=0, help="The initial model follows from it.")] = 1,
    chain_name: Annotated[str, typer.Option("--chain-name", metavar="NAME", help="What people call it.")] = "fednode",
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="The waits: local, site or wide.")] = "site",
    difficulty: DifficultyOption = USUAL_DIFFICULTY,
    adaptive: AdaptiveOption = False,
    pretrained: PretrainedOption = None,
    task: TaskOption = "classification",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the method (lr=0.05) or of genesis (waits.collect_s=60, input.mean=[0.5]).",
        ),
    ] = None,
    i_understand: Annotated[
        bool,
        typer.Option(
            "--i-understand",
            help="For fededs: its nodes send a learned transformation of their samples to every other node, which is "
            "obfuscation and not cryptography. Each site has to say so in its own configuration too.",
        ),
    ] = False,
    observers: ObserverOption = None,
    as_json: AsJson = False,
) -> None:
    """Make a federation's genesis and its initial model. It takes the members' ids; the model is written beside the
    genesis, as initial_model.safetensors, and beside a NAME.yaml as NAME.initial_model.safetensors.

    Both files go to every member as they are; they are no secret, but all must have the same: fednode genesis hash.

    The method and the model are what suits the data, unless --method and --model name others: of a table FedAvg and a
    network with a linear path, of images MP-FedCL. What is set by --set stays.

    For four members and more, and where the method takes them, it sets aggregation to trimmed_mean and weight_cap to 4:
    one member that lies then moves nobody out of the others' range. --set aggregation=mean is the papers' rule.
    Whoever the members are, of a class with fewer than 5 samples no prototypes leave a site (min_class_samples), and a
    site signs the number of its samples as a power of two (weights: bucketed).

    Inputs are normalised by the mean and deviation of all members' training samples: in round 1 each tells its sums,
    and nothing is trained. --set input.normalize=auto takes those of --data instead, --set input.mean and input.std say
    others, --set input.normalize=none leaves samples as they are. With --pretrained they are those that FILE names.
    fednode simulate keeps the papers' settings.

    With --task multilabel or regression --classes are the names of the labels or of the targets, and --data has several
    labels in columns of 0 and 1 (--set data.columns.label=[a,b]) or numbers. What targets are learned at, their mean
    and deviation, is measured too, and stands in genesis as target. Methods that exchange prototypes have no such
    tasks; fedavg and the others that exchange models have.

    Example: fednode genesis new a=k5ry…@a.example:7050 b=m7xw…@b.example:7050 c=b2hs…@c.example:7050 --method dfpl
    --model cnn_mnist --classes benign,malignant --input 1x28x28
    """
    from node.config.genesis_draft import GenesisSpec, make_genesis
    from node.config.genesis_file import name_initial_model
    from node.config.genesis_members import parse_members

    if data is not None and (classes is not None or shape is not None):
        raise typer.BadParameter("expected --data, or --classes and --input")
    if size is not None and data is None:
        raise typer.BadParameter("--size goes with --data; without data --input says the size")
    names = None if shape is None or "," not in shape else _read_names(shape)
    spec = GenesisSpec(
        method=method,
        model=model,
        data=data,
        classes=None if classes is None else tuple(classes.split(",")),
        input_shape=None if shape is None else (len(names), 1, 1) if names else _read_shape(shape),
        columns=names,
        size=size,
        rounds=rounds,
        seed=seed,
        chain_name=chain_name,
        profile=profile,
        difficulty=difficulty,
        adaptive=adaptive,
        pretrained=pretrained,
        task=task,
        settings=add_drop(settings, drop),
        i_understand=i_understand,
        observers=tuple(observers or ()),
    )
    genesis, left_out = make_genesis(out, parse_members(members), spec)
    if left_out:
        _explain_left_out(left_out, genesis.state.n)
    _warn_of_no_loss(genesis)
    _warn_of_shown(genesis)
    _explain_input(genesis, spec)
    _explain_columns(genesis)
    _explain_target(genesis)
    if as_json:
        _print_made(out, genesis)
        return
    print(f"{out}: {genesis.state.n} members, quorum {genesis.state.q}, chain {genesis.chain_id.hex()}")
    model = name_initial_model(out).name
    print(f"fednode: {out} and {model} beside it go to every member as they are", file=sys.stderr)


def _warn_of_no_loss(genesis: Genesis) -> None:
    """Warns where rounds wait for every member, and another setting would avoid that."""
    state = genesis.state
    if state.n == 3 and state.q == 3:
        print(
            "fednode: three members under bft stand no loss: any block or change needs all three. Four members "
            "stand one; so do three with --set quorum=majority, which trusts that none lies",
            file=sys.stderr,
        )


def _warn_of_shown(genesis: Genesis) -> None:
    """Warns of what a run of masked sums does not hide."""
    from ml.specs.masked.spec import describe_shown
    from node.config.genesis_file import get_genesis_spec

    if genesis.run.is_masked and (shown := describe_shown(get_genesis_spec(genesis))) is not None:
        print(f"fednode: {shown}", file=sys.stderr)


def _explain_input(genesis: Genesis, spec: GenesisSpec) -> None:
    """Explains how samples are normalised, or that they are not."""
    input_, is_told = genesis.run.input, any(text.startswith("input.") for text in spec.settings)
    if "normalize" in input_:
        print(
            f"fednode: in round 1 members tell sums of their training samples, of {input_['min_count']} at least, and "
            "agree on what normalises them; training begins in round 2. --set input.normalize=none does without",
            file=sys.stderr,
        )
    elif "input.normalize=auto" in spec.settings:
        print(f"fednode: input.mean and input.std are of {spec.data}, and all members see them", file=sys.stderr)
    elif spec.pretrained is not None and not is_told:
        print(f"fednode: input.mean and input.std are those that {spec.pretrained} names", file=sys.stderr)


def _explain_columns(genesis: Genesis) -> None:
    """Explains what genesis says of a table's columns, or that features have no names."""
    input_ = genesis.run.input
    if list(input_["shape"][1:]) != [1, 1]:
        return
    if "columns" not in input_:
        print(
            "fednode: features have no names in genesis: at every site, and in every file to predict, the columns have "
            "to be the same in the same order, and nobody notices others. --input age,bmi,… names them, as --data does",
            file=sys.stderr,
        )
        return
    columns = input_["columns"]
    categories = sum("values" in column for column in columns)
    shown = f", {categories} of them categories with their values," if categories else ""
    print(f"fednode: {len(columns)} columns{shown} stand in genesis, and are matched by name", file=sys.stderr)


def _explain_target(genesis: Genesis) -> None:
    """Explains that targets are learned in their own units, where no mean and deviation are set."""
    run = genesis.run
    if run.task == "regression" and run.target is None:
        print(
            f"fednode: {', '.join(run.classes)} are learned as they are: far from -1..1 nothing may be learned. --set "
            "target.mean=[…] and target.std=[…] say their mean and deviation; --data measures them",
            file=sys.stderr,
        )


def _explain_left_out(left_out: Mapping[str, object], num_members: int) -> None:
    from node.config.recommended import MIN_GUARDED

    told = " and ".join(f"{key}: {value}" for key, value in left_out.items())
    print(
        f"fednode: {told} are for {MIN_GUARDED} members and more, and not written for {num_members}: fewer cannot "
        "outvote one that lies, and what one sends may go anywhere",
        file=sys.stderr,
    )


def _read_names(text: str) -> tuple[str, ...]:
    """Reads the names of a table's columns, all of them numbers."""
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def _read_shape(text: str) -> tuple[int, int, int]:
    """Reads channels, height and width; features are channels of one pixel."""
    parts = text.split("x")
    is_size = all(part.isascii() and part.isdecimal() and 0 < int(part) <= 65_536 for part in parts)
    if len(parts) not in (1, 3) or not is_size:
        raise typer.BadParameter(
            "--input: expected CHANNELSxHEIGHTxWIDTH, as in 1x28x28, or of tables the number of features, as in 30, or "
            f"their names, as in age,bmi (got {text!r})"
        )
    channels, height, width = map(int, parts if len(parts) == 3 else (parts[0], "1", "1"))
    return channels, height, width


def _print_made(file: Path, genesis: Genesis) -> None:
    facts = {
        "file": str(file),
        "chain_id": genesis.chain_id.hex(),
        "members": genesis.state.n,
        "quorum": genesis.state.q,
    }
    print(json.dumps(facts))


def add_member(
    file: _File,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="[NAME=]ID@HOST:PORT, as fednode init prints it.")],
    as_json: AsJson = False,
) -> None:
    """Add a member to a genesis that no node has started from.

    It is another chain's genesis then, so whoever has the old file needs the new one. From the first start on members
    join by fednode propose add-member: a genesis is refused for which there is a chain under a configuration in the
    same folder.

    Example: fednode genesis add-member genesis.yaml d=q3vn…@d.example:7050
    """
    from node.config import genesis_members

    genesis = genesis_members.add_member(file, member)
    if as_json:
        _print_made(file, genesis)
        return
    print(f"{file}: {genesis.state.n} members, quorum {genesis.state.q}, chain {genesis.chain_id.hex()}")
    print("fednode: every member needs this file in the place of the old one", file=sys.stderr)


def fork(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="The data directory of a stopped member of the old chain.")
    ],
    members: Annotated[
        Path, typer.Option("--members", metavar="FILE", help="Who goes on: a line [NAME=]ID[@HOST:PORT] for each.")
    ],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Never written over; its model lies beside it.")
    ] = Path("genesis.yaml"),
    is_lost: Annotated[
        bool,
        typer.Option(
            "--i-know-the-quorum-is-lost", help="Needed where this node did not run in the last hour, and cannot know."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Begin a new chain where one ended that lost its quorum. It begins with the run, the rules and the model of the
    old head, and names the old chain and its head.

    For when no change can pass any more: too many members are gone for good. While a quorum was there within the last
    hour it is refused. One of those who go on makes the file; all others take it as it is, compare its hash by voice,
    and begin in an empty data directory. Nothing verifies across it: keep the old data directory.

    Example: fednode genesis fork --data-dir data/node3 --members members.txt -o genesis.yaml
    """
    import time

    from node.ledger.genesis_fork import fork_chain

    made = fork_chain(data_dir, members, out, now_ms=time.time_ns() // 1_000_000, is_lost=is_lost)
    if not made.continues:
        print("fednode: the old head holds no model: it begins with the one that the run began with", file=sys.stderr)
    _warn_of_no_loss(made.genesis)
    _warn_of_shown(made.genesis)
    if as_json:
        _print_made(out, made.genesis)
        return
    state, point = made.genesis.state, made.genesis.forked_from
    assert point is not None  # noqa: S101 (it is a fork)
    print(f"{out}: {state.n} members, quorum {state.q}, from height {point.height} of chain {point.chain_id.hex()}")
    print(f"compare with all who go on: {made.genesis.chain_id.hex()}")


def show(file: _File, as_json: AsJson = False) -> None:
    """Check a genesis file and print it in full. Defaults are written out.

    Example: fednode genesis show genesis.yaml
    """
    from node.config.genesis_file import load_genesis
    from node.config.yaml_source import dump_yaml

    genesis, _ = load_genesis(file)
    if as_json:
        print(json.dumps({"chain_id": genesis.chain_id.hex(), "genesis": genesis.to_mapping()}))
    else:
        print(f"# chain {genesis.chain_id.hex()}, {genesis.state.n} members, quorum {genesis.state.q}")
        print(dump_yaml(genesis.to_mapping()), end="")


def show_hash(file: _File, as_json: AsJson = False) -> None:
    """Check a genesis file and print its hash, the chain id.

    Members who see the same hash have the same file: read it to each other before the first start.

    Example: fednode genesis hash genesis.yaml
    """
    from node.config.genesis_file import load_genesis

    genesis, _ = load_genesis(file)
    print(json.dumps({"chain_id": genesis.chain_id.hex()}) if as_json else genesis.chain_id.hex())
