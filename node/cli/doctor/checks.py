"""The checks of `fednode doctor`: each looks at one precondition of a node on its own, and says what to do about it.

Nothing is changed, and the node may run or not. What a check rests on comes before it; where that has failed, what
cannot be looked at is left out rather than guessed.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

from chain.errors import ChainError, StoreLocked, StoreMismatch
from chain.genesis import Genesis
from chain.signing import SigningKey, encode_id
from chain.store.sqlite import SqliteStore
from node.cli.doctor.findings import Finding, Verdict, fail, ok, warn
from node.cli.doctor.listeners import check_admin, check_http, check_port, find_existing
from node.cli.doctor.membership import Roster, check_membership, read_addresses, read_roster
from node.cli.doctor.model import check_model
from node.cli.doctor.reach import check_proxy, check_reach, read_connections
from node.cli.output import show_bytes
from node.config.federation import Federation, read_join_file
from node.config.genesis_file import check_initial_model, read_genesis
from node.config.identity import open_identity
from node.config.node_config import NodeConfig, load_config
from node.errors import ConfigError, NodeError
from node.host.child import NAMES
from node.host.procfs import describe_process, find_lock_holder
from node.p2p.clock_skew import ENOUGH_TO_TELL, MAX_SKEW_S, compute_skews_s, describe_skew, is_wrong
from node.p2p.probe import Greeting, NotLetIn, NotReached, ProbeFailed, Refused, find_twin, probe_peer
from node.p2p.transport.rpc import validate_free
from node.version import get_version

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

DISTRIBUTION = "fednode"
FEW_BYTES = 64 << 20  # free disk space below which no write can be trusted
LITTLE_BYTES = 1 << 30
MODELS_KEPT = 20  # for each member: the size of a few rounds of blobs and checkpoints
PROBES_AT_ONCE = 16
WAITS_TO_BE_LET_IN = (
    "a member lets a new site in once its operator has agreed to the join request that fednode init printed: fednode "
    "propose add-member, or fednode approve; and both need the same genesis"
)


def examine(path: Path, overrides: Sequence[str], env: Mapping[str, str]) -> Iterator[Finding]:
    """Yields every finding about the node that `path` configures, as soon as it is known."""
    try:
        config = load_config(path, overrides, env)
    except ConfigError as error:
        for problem in error.problems or (str(error),):
            yield fail("configuration", problem, "correct it; fednode config schema describes every key")
        return
    yield ok("configuration", str(path))
    yield from _check_names()
    key = yield from _check_key(config)
    read = yield from _check_genesis(config)
    node = ask_running(config)
    if node is not None:
        yield from _check_running(node, key)
    yield from _check_data_dir(config, read, node)
    yield from _check_disk(config, read)
    yield from check_port(config, key, node)
    yield from check_admin(config, node)
    yield from check_http(config.http, node)
    yield from _check_device(config)
    if read is not None:
        roster = read_roster(config, read.genesis, is_running=node is not None)
        yield from check_membership(config, path, read.genesis, roster, key)
        yield from check_model(config, read.genesis)
        yield from _check_data(config, path, read.genesis)
        if key is not None:
            connections = {} if node is None else read_connections(config)
            yield from _check_peers(config, read.genesis, roster, key, connections)
            if node is None:
                yield from _check_twin(config, read.genesis, key)


# ---- what the node is


def _check_names() -> Iterator[Finding]:
    """Checks that no two distributions have a package of the same name: they write into one directory, and each may
    have the other's files."""
    owners = packages_distributions()
    for name in NAMES:
        others = sorted({other for other in owners.get(name, ()) if other != DISTRIBUTION})
        if others:
            yield warn(
                "names",
                f"the Python package {name!r} is also brought by {', '.join(others)}",
                "install fednode into an environment of its own: python3 -m venv",
            )
            return
    yield ok("names", f"{', '.join(NAMES)}: no other distribution brings one of these")


def _check_key(config: NodeConfig) -> Generator[Finding, None, SigningKey | None]:
    file = config.node.identity_key_file
    try:
        key = open_identity(config)
        mode = stat.S_IMODE(file.stat().st_mode)
    except NodeError as error:
        yield fail("key", str(error), "fednode keygen -o makes one, and chmod 600 makes one private")
        return None
    passphrase = config.node.identity_passphrase_file
    if passphrase is not None and stat.S_IMODE(passphrase.stat().st_mode) & 0o077:
        yield warn("key", f"{passphrase}: others can read the passphrase", f"chmod 600 {passphrase}")
    if stat.S_IMODE(file.parent.stat().st_mode) & 0o022:
        yield warn("key", f"{file.parent}: others can put another key there", f"chmod 700 {file.parent}")
    yield ok("key", f"{file}, mode {mode:04o}, id {encode_id(key.id)}")
    return key


def _check_genesis(config: NodeConfig) -> Generator[Finding, None, Federation | None]:
    if config.join_file is not None:
        return (yield from _check_join_file(config.join_file))
    try:
        source, genesis, spec = read_genesis(config.federation_file)
    except ConfigError as error:
        for problem in error.problems or (str(error),):
            yield fail("genesis", problem, "take the file that the other members have, as it is")
        return None
    shown = f"{config.federation_file}: chain {genesis.chain_name} ({genesis.chain_id.hex()})"
    yield ok("genesis", f"{shown}, {genesis.run.method['name']}, {genesis.state.n} members, quorum {genesis.state.q}")
    try:
        model = check_initial_model(config.federation_file, source, genesis, spec)
    except ConfigError as error:
        yield fail("initial model", str(error), "copy it anew from a member, with its genesis.yaml")
        return None
    yield ok("initial model", f"{model}, SHA-256 {genesis.run.initial_model.hex()}")
    return Federation(genesis, model)


def _check_join_file(path: Path) -> Generator[Finding, None, Federation | None]:
    try:
        joined = read_join_file(path)
    except ConfigError as error:
        yield fail("join file", str(error), "ask a member for a new one: fednode join-file")
        return None
    genesis, height = joined.genesis, joined.checkpoint.height
    shown = f"{path}: chain {genesis.chain_name} ({genesis.chain_id.hex()}), checkpoint at height {height}"
    yield ok("join file", f"{shown}, hash {joined.describe_digest()}; compare it by voice")
    return Federation(genesis, None, joined.checkpoint, joined.addresses)


# ---- whether it runs, and where


def ask_running(config: NodeConfig) -> pb.NodeStatus | None:
    """Returns the status of the node that answers at the admin socket, None where none does."""
    if config.admin.socket is None:
        return None
    from node.admin.client import AdminClient, is_served

    try:
        if not is_served(config.admin.socket):
            return None
        with AdminClient(config.admin.socket) as client:
            return client.get_status()
    except NodeError:
        return None


def _check_running(node: pb.NodeStatus, key: SigningKey | None) -> Iterator[Finding]:
    shown = f"process {node.pid}, fednode {node.version}, height {node.height}, round {node.round}"
    if key is not None and node.id != encode_id(key.id):
        yield fail(
            "node",
            f"another node answers at the admin socket: {node.name} ({node.id})",
            "give each node an admin.socket of its own",
        )
    elif node.version != get_version():
        yield warn("node", f"running: {shown}; {get_version()} is installed", "start it anew to run what is installed")
    elif node.stalled:
        yield warn("node", f"running: {shown}; stalled: {node.stall_reason}", "see the peers below")
    elif node.HasField("silence"):
        yield warn("node", f"running: {shown}; silent: {node.silence}", "fednode status follows it")
    else:
        yield ok("node", f"running: {shown}")


def _check_data_dir(config: NodeConfig, read: Federation | None, node: pb.NodeStatus | None) -> Iterator[Finding]:
    path = config.node.data_dir
    existing = find_existing(path)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        advice = f"let user {os.geteuid()} write there, or choose another node.data_dir"
        yield fail("data directory", f"{existing}: cannot be written ({error.strerror})", advice)
        return
    if existing != path:
        yield ok("data directory", f"{path}: will be made")
        return
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o022:
        yield warn("data directory", f"{path}: mode {mode:04o}, others can write there", f"chmod 700 {path}")
    try:
        stored = SqliteStore.stored_genesis(path)
    except StoreLocked:
        holder = find_lock_holder(path / "lock")
        if node is not None and holder in (None, node.pid):
            yield ok("data directory", f"{path}: in use by this node, process {node.pid}")
            return
        who = "another process" if holder is None else f"process {holder} ({describe_process(holder)})"
        yield fail("data directory", f"{path}: locked by {who}", "stop it, or choose another node.data_dir")
        return
    except StoreMismatch as error:
        yield fail("data directory", str(error), "this directory belongs to another version: choose another")
        return
    except ChainError as error:
        yield fail("data directory", str(error), "fednode chain verify says more; fednode unsafe-reset begins anew")
        return
    except OSError as error:
        yield fail("data directory", f"{path}: cannot be read ({error.strerror})", "let this user read it")
        return
    if stored is not None and read is not None and Genesis.from_mapping(stored) != read.genesis:
        other = Genesis.from_mapping(stored).chain_id.hex()
        yield fail(
            "data directory",
            f"{path}: expected chain {read.genesis.chain_id.hex()}, got {other}",
            "choose another node.data_dir for this genesis: a chain and its keys stay together",
        )
        return
    yield ok("data directory", f"{path}: writable, {'not used yet' if stored is None else 'of this chain'}")


def _check_disk(config: NodeConfig, read: Federation | None) -> Iterator[Finding]:
    from node.training.kept_rounds import count_kept

    place = find_existing(config.node.data_dir)
    free = shutil.disk_usage(place).free
    wanted, kept = LITTLE_BYTES, ""
    if read is not None and read.initial_model is not None:
        size, run = read.initial_model.stat().st_size, read.genesis.run
        wanted = max(wanted, MODELS_KEPT * read.genesis.state.n * size)
        if num := count_kept(config.training.keep_models, run):
            wanted += num * size
            kept = f"; training.keep_models keeps {num} models of a run, {show_bytes(num * size)}"
    shown = f"{free / 1e9:.1f} GB free at {place}{kept}"
    if free < FEW_BYTES:
        yield fail("disk", shown, "make room: a node that cannot write stops")
    elif free < wanted:
        yield warn("disk", f"{shown}, {wanted / 1e9:.1f} GB would be comfortable", "make room")
    else:
        yield ok("disk", shown)


# ---- what it trains on


def _check_device(config: NodeConfig) -> Iterator[Finding]:
    asked = config.training.device
    try:
        import torch

        from ml.clients.build import get_device
        from ml.errors import MlError
    except ImportError as error:
        yield fail("device", f"torch cannot be loaded ({error})", "install fednode with its dependencies")
        return
    try:
        device = get_device(asked)
        torch.ones(8, 8, device=device).matmul(torch.ones(8, 8, device=device)).sum().item()
    except MlError as error:
        yield fail("device", str(error), "choose a training.device that is there; auto takes what there is")
        return
    except RuntimeError as error:
        yield fail("device", f"{asked}: {str(error).splitlines()[0]}", "look at its driver, and at who else uses it")
        return
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        shown = f"{device} {torch.cuda.get_device_name(device)}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    else:
        shown = f"cpu, {torch.get_num_threads()} threads"
    yield ok("device", f"{shown} (training.device: {asked})")


def _check_data(config: NodeConfig, path: Path, genesis: Genesis) -> Iterator[Finding]:
    from ml.data.columns import sort_by_missing
    from ml.errors import DataError
    from node.training.own_data import OwnData

    try:
        own = OwnData.open(config.get_data(), config.node.data_dir, genesis.run)
    except DataError as error:
        advice = "fednode data inspect shows what is there; genesis says which classes and which shape are wanted"
        yield fail("data", f"{path}: {error}", advice)
        return
    for finding in own.findings:
        if finding.level == "warning":
            yield warn("data", finding.text, "fednode data inspect shows more")
        else:
            yield ok("data", finding.text)
    shape, is_table = genesis.run.input["shape"], own.train.is_table
    shown = f"{shape[0]} features" if is_table else f"shape {'x'.join(map(str, shape))}"
    noun = {"multilabel": "labels", "regression": "targets"}.get(genesis.run.task, "classes")
    fits = f"{len(genesis.run.classes)} {noun} and {shown} as genesis has them"
    rows = "rows" if is_table else "samples"
    missing = tuple((one.name, one.num_missing, one.num_rows) for one in sort_by_missing(own.train.columns))
    yield ok("data", f"{config.data.format}: {own.describe()} {rows}; {fits}", missing)


# ---- whom it talks to


def _check_peers(
    config: NodeConfig, genesis: Genesis, roster: Roster, key: SigningKey, connections: Mapping[bytes, str]
) -> Iterator[Finding]:
    known = {*roster.members, *roster.observers} - {key.id}
    addresses = {peer: at for peer, at in read_addresses(config, genesis).items() if peer in known}
    names, num_members = roster.members, len(roster.members)
    uses_tls, proxy = config.network.tls == "mutual", config.network.proxy
    yield from check_proxy(proxy)

    def probe(peer: bytes) -> Greeting | ProbeFailed | None:
        try:
            return probe_peer(key, peer, addresses[peer], tls=uses_tls, proxy=proxy)
        except ProbeFailed as error:
            return error

    with ThreadPoolExecutor(PROBES_AT_ONCE) as pool:
        answers = dict(zip(addresses, pool.map(probe, addresses), strict=True))
    clocks_s = {peer: _read_clock_s(answer) for peer, answer in answers.items() if isinstance(answer, Greeting)}
    skews_s = compute_skews_s({key.id: 0.0} | clocks_s)
    stands_beside = config.node.observer or config.join_file is not None
    counts_itself = not stands_beside or key.id in roster.members
    answering = {key.id} if counts_itself and not config.network.dial_out else set()
    for peer, answer in answers.items():
        check = f"peer {names.get(peer, encode_id(peer)[:8])}"
        if isinstance(answer, NotReached) and peer in connections:
            yield ok(check, f"{answer}; it is connected all the same")
            continue
        if isinstance(answer, NotLetIn) and stands_beside and key.id not in roster.members:
            yield warn(check, str(answer), WAITS_TO_BE_LET_IN)
            continue
        finding = _judge_peer(check, addresses[peer], answer, genesis, skews_s.get(peer, 0.0), len(skews_s))
        yield finding
        if finding.verdict is not Verdict.FAIL and not isinstance(answer, NotReached):
            answering.add(peer)
    if num_members > 1:
        yield _judge_clock(skews_s, key.id)
    yield from check_reach(roster.members, answering, connections)
    num_reached = counts_itself + len((answering | connections.keys()) & (roster.members.keys() - {key.id}))
    shown = f"{num_reached} of {num_members} members in reach, {roster.quorum} needed"
    if num_reached < roster.quorum:
        yield fail("quorum", shown, "nothing is finalised before: see the peers above")
    else:
        yield ok("quorum", shown)


def _check_twin(config: NodeConfig, genesis: Genesis, key: SigningKey) -> Iterator[Finding]:
    """Checks that no second node runs with this key: each of two would sign what contradicts the other, and both would
    be convicted."""
    if not config.network.dial_out:
        try:
            validate_free(config.network.listen)
        except OSError:
            return  # another check reports who listens there
    own = config.network.get_addresses(genesis).get(key.id)
    twin = find_twin(
        key, dict.fromkeys(address for address in (config.network.advertise, own) if address), config.network.proxy
    )
    if twin is not None:
        advice = "stop that one first: two nodes with one key are convicted of signing twice"
        yield fail("key in use", f"{twin}: a node with this node's key runs already", advice)


def _read_clock_s(greeting: Greeting) -> float:
    """Returns the least number of seconds that a peer's clock is ahead of ours: it may have been read at any time of
    the round trip."""
    return math.copysign(max(0.0, abs(greeting.skew_s) - greeting.rtt_s / 2), greeting.skew_s)


def _judge_peer(
    check: str,
    address: str,
    answer: Greeting | ProbeFailed | None,
    genesis: Genesis,
    skew_s: float,
    num_clocks: int,
) -> Finding:
    if isinstance(answer, NotReached | Refused):
        return warn(check, str(answer), answer.advice)
    if isinstance(answer, ProbeFailed):
        return fail(check, str(answer), answer.advice)
    if answer is None:
        return warn(check, f"{address}: it runs a version that does not tell", "bring it up to date")
    if answer.chain_id and answer.chain_id != genesis.chain_id:
        found = f"{address}: expected chain {genesis.chain_id.hex()}, it is on {answer.chain_id.hex()}"
        return fail(check, found, "both need the same genesis file")
    if answer.protocol < genesis.protocol:
        found = f"{address}: expected protocol {genesis.protocol}, it speaks no newer one than {answer.protocol}"
        return fail(check, found, "install the same version on both")
    shown = f"{address}, fednode {answer.version}, {answer.rtt_s * 1000:.1f} ms"
    if answer.version != get_version():
        return warn(check, f"{shown}; this is fednode {get_version()}", "install the same version on both")
    if is_wrong(skew_s) and num_clocks >= ENOUGH_TO_TELL:
        return warn(
            check, f"{shown}; its clock is {describe_skew(skew_s, num_clocks)}", "its site has to set it by NTP"
        )
    return ok(check, shown)


def _judge_clock(skews_s: Mapping[bytes, float], me: bytes) -> Finding:
    """Judges this clock against the median of all clocks, itself among them: so everybody finds the same one wrong."""
    if not skews_s:
        return warn("clock", "no peer could be asked for the time", "see the peers above")
    num_clocks, apart_s = len(skews_s), max(skews_s.values()) - min(skews_s.values())
    if num_clocks < ENOUGH_TO_TELL and is_wrong(apart_s):
        shown = f"{apart_s:.1f} s apart from the only peer that could be asked: one of the two is wrong"
        return warn("clock", shown, "set both by NTP")
    shown = describe_skew(skews_s[me], num_clocks)
    if is_wrong(skews_s[me]):
        advice = f"set it by NTP: beyond {MAX_SKEW_S:g} s the others take no block of this node at first"
        return fail("clock", shown, advice)
    return ok("clock", shown)
