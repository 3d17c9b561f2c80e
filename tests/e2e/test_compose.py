"""The image, docker-compose.yml and what `fednode testnet --target compose` writes, under whichever container engine
this machine has.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
UP = ("up", "-d")
NODES = ("node0", "node1", "node2", "node3")
BUILD_S = 1800  # torch is fetched on the first build
COMMAND_S = 180
PATIENCE_S = 600  # so that a busy machine fails nothing
PROMETHEUS_PORT = 9090

# As the image that the Compose files name is laid out, which a machine without a registry cannot have.
PROMETHEUS_IMAGE = """\
FROM fednode
USER root
COPY prometheus /bin/prometheus
RUN install -d -o 65534 -g 65534 /prometheus
USER 65534:65534
WORKDIR /prometheus
VOLUME /prometheus
HEALTHCHECK NONE
ENTRYPOINT ["/bin/prometheus"]
"""

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Engine:
    """A container engine and the command that reads Compose files with it."""

    program: str
    compose: tuple[str, ...]
    build: tuple[str, ...]

    def run(self, *arguments: str, timeout_s: float = COMMAND_S) -> str:
        return check([self.program, *arguments], timeout_s)

    def has_image(self, name: str) -> bool:
        probe = (self.program, "image", "inspect", name)
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Federation:
    """The services of Compose `files`, or of the one in `directory`, under a project name of this test's own."""

    engine: Engine
    project: str
    directory: Path
    files: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    def compose(self, *arguments: str, timeout_s: float = COMMAND_S) -> str:
        files = [part for file in self.files for part in ("-f", file)]
        command = [*self.engine.compose, "-p", self.project, *files, *arguments]
        return check(command, timeout_s, self.settings, self.directory)

    def ask(self, node: str, *command: str) -> Any:
        """What a command of fednode prints inside the container of `node`."""
        return json.loads(self.compose("exec", "-T", node, "fednode", *command, "--json"))

    def shell(self, node: str, script: str) -> str:
        return self.compose("exec", "-T", node, "/bin/sh", "-c", script)

    def inspect(self, node: str, template: str) -> str:
        """What the engine knows of the container of `node`, which may have ended."""
        labels = {"project": self.project, "service": node}
        filters = [part for key, of in labels.items() for part in ("--filter", f"label=com.docker.compose.{key}={of}")]
        (container,) = self.engine.run("ps", "--all", "--quiet", *filters).split()
        return self.engine.run("inspect", "--format", template, container).strip()

    def get_heights(self, nodes: Sequence[str] = NODES) -> list[int]:
        return [self.ask(node, "status")["height"] for node in nodes]

    def get_identities(self) -> list[str]:
        return [self.ask(node, "status")["id"] for node in NODES]

    def wait_for(self, claim: Callable[[], bool], what: str) -> None:
        """Raises AssertionError with every node's log when it does not come true."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                if claim():
                    return
                why = ""
            except subprocess.CalledProcessError as error:  # a node that does not answer yet
                why = f": {error.stderr}"
            if time.monotonic() > until_s:
                raise AssertionError(f"not within {PATIENCE_S} s: {what}{why}\n{self.compose('logs')}")
            time.sleep(1)

    def wait_for_height(self, height: int, nodes: Sequence[str] = NODES) -> None:
        self.wait_for(lambda: min(self.get_heights(nodes)) >= height, f"height {height} at {', '.join(nodes)}")

    def assert_one_chain(self) -> None:
        height = min(self.get_heights())
        blocks = {self.ask(node, "chain", "show", str(height))["id"] for node in NODES}
        assert len(blocks) == 1, f"different blocks at height {height}: {blocks}"


def check(
    command: Sequence[str], timeout_s: float, settings: Mapping[str, str] | None = None, directory: Path = ROOT
) -> str:
    environment = os.environ | dict(settings or {})
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, list(command), done.stdout, done.stderr)
    return done.stdout


def find_engine() -> Engine | None:
    docker = Engine("docker", ("docker", "compose"), ("build",))
    podman = Engine("podman", ("podman-compose",), ("build", "--network", "host"))
    for engine in (docker, podman):
        if not all(shutil.which(program) for program in (engine.program, engine.compose[0])):
            continue
        probes = ((engine.program, "info"), (*engine.compose, "version"))
        if all(subprocess.run(probe, capture_output=True, check=False).returncode == 0 for probe in probes):
            return engine
    return None


@pytest.fixture(scope="module")
def engine() -> Engine:
    """With the image built from the working tree."""
    found = find_engine()
    if found is None:
        pytest.skip("no container engine: expected docker with its compose plugin, or podman with podman-compose")
    found.run(*found.build, "-t", "fednode", "-f", "deploy/Dockerfile", ".", timeout_s=BUILD_S)
    return found


@pytest.fixture
def federation(engine: Engine, tmp_path: Path) -> Iterator[Federation]:
    made = make_federation(engine, tmp_path)
    try:
        made.compose(*UP)
        yield made
    finally:
        made.compose("down", "-v")


@pytest.fixture
def cloned(engine: Engine, tmp_path: Path) -> Iterator[Federation]:
    """`docker compose up` in a clean clone, which builds an image of its own."""
    check(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], COMMAND_S)
    project = f"fednode-clone-{os.getpid()}"
    made = Federation(engine, project, tmp_path / "clone", settings={"FEDNODE_IMAGE": project, "FEDNODE_ROUNDS": "0"})
    try:
        made.compose(*UP, timeout_s=BUILD_S)
        yield made
    finally:
        made.compose("down", "-v")
        engine.run("image", "rm", project)


@pytest.fixture
def watched(engine: Engine, tmp_path: Path) -> Iterator[Federation]:
    """With Prometheus, in the image that docker-compose.yml names or one of this machine's own program."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PROMETHEUS_PORT))
        except OSError:
            pytest.skip(f"port {PROMETHEUS_PORT}, which docker-compose.yml publishes, is taken")
    made = make_federation(engine, tmp_path)
    image = yaml.safe_load(Path(made.files[0]).read_text())["services"]["prometheus"]["image"]
    own = f"{made.project}-prometheus"
    if not engine.has_image(image):
        made = replace(made, files=(*made.files, str(make_prometheus(engine, own, tmp_path))))
    try:
        made.compose("--profile", "observability", *UP, *NODES, "prometheus")
        yield made
    finally:
        made.compose("--profile", "observability", "down", "-v")
        if engine.has_image(own):
            engine.run("image", "rm", own)


def make_federation(engine: Engine, directory: Path) -> Federation:
    # As root of a container, so that the keys become those of the image's user, whoever runs this.
    make = ("run", "--rm", "--user", "0", "-v", f"{directory}:/out", "fednode", "testnet", "--target", "compose")
    # Until stopped: how fast rounds go is no part of what is asked here.
    engine.run(*make, "-n", str(len(NODES)), "-o", "/out/cluster", "--rounds", "0")
    files = (str(directory / "cluster/docker-compose.yml"),)
    settings = {"FEDNODE_MONITORING": str(ROOT / "deploy/monitoring")}
    return Federation(engine, f"fednode-test-{os.getpid()}", directory / "cluster", files, settings)


def make_prometheus(engine: Engine, name: str, directory: Path) -> Path:
    """Builds the image `name`; the Compose file that puts it in its place."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no image of Prometheus, and no program `prometheus` to make one of")
    context = directory / "prometheus"
    context.mkdir()
    shutil.copy(program, context / "prometheus")
    (context / "Dockerfile").write_text(PROMETHEUS_IMAGE)
    engine.run(*engine.build, "-t", name, str(context))
    override = directory / "prometheus.yml"
    override.write_text(f"services: {{prometheus: {{image: {name}}}}}\n")
    return override


def ask_prometheus(query: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=COMMAND_S) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def test_image_runs_as_nobody_and_holds_no_key(engine: Engine) -> None:
    look = "id -u; find / -xdev -name '*.key' 2>/dev/null; find /data -type f"
    found = engine.run("run", "--rm", "--read-only", "--entrypoint", "/bin/sh", "fednode", "-c", look)

    assert found.split() == ["10001"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    label = '{{index .Config.Labels "org.opencontainers.image.version"}}'
    assert engine.run("image", "inspect", "--format", label, "fednode").strip() == version
    assert engine.run("run", "--rm", "--read-only", "fednode", "version").startswith(f"fednode {version}")


def test_image_holds_all_that_its_libraries_import(engine: Engine) -> None:
    modules = "torch, torch.func, torchgen, pyarrow.parquet, sklearn.datasets, scipy.stats, sympy, networkx, PIL.Image"
    python = ("run", "--rm", "--read-only", "--tmpfs", "/tmp", "--entrypoint", "python", "fednode")
    assert engine.run(*python, "-c", f"import {modules}; print('all')").split() == ["all"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--profile", "observability"),
        ("-f", "docker-compose.yml", "-f", "deploy/docker-compose.gpu.yml"),
    ],
)
def test_compose_reads_every_combination(engine: Engine, arguments: tuple[str, ...]) -> None:
    read = yaml.safe_load(check([*engine.compose, *arguments, "config"], COMMAND_S))
    assert {"setup", *NODES} <= set(read["services"])


def test_one_command_in_a_clean_clone_makes_keeps_and_forgets_a_federation(cloned: Federation) -> None:
    cloned.wait_for_height(3)
    cloned.assert_one_chain()
    keys = "find / -name '*.key' -not -path '/proc/*' 2>/dev/null || true"
    for node in NODES:
        assert cloned.shell(node, keys).split() == ["/etc/fednode/identity.key"]
    files = cloned.shell("node0", "stat -c '%a %u' /etc/fednode /etc/fednode/identity.key /run/secrets/metrics/token")
    assert files.splitlines() == ["700 10001", "600 10001", "640 10001"]
    seen = cloned.shell("node0", "touch /usr/written /etc/fednode/written 2>&1; cat /proc/1/status")
    assert seen.count("Read-only file system") == 2
    assert "CapEff:\t0000000000000000" in seen
    assert "NoNewPrivs:\t1" in seen
    assert cloned.inspect("setup", "{{.HostConfig.ReadonlyRootfs}} {{.Config.User}}") == "true 10001:10001"

    made, before = cloned.get_identities(), max(cloned.get_heights())
    cloned.compose("down")
    cloned.compose(*UP)
    cloned.wait_for_height(before + 2)
    cloned.assert_one_chain()
    assert cloned.get_identities() == made
    assert cloned.ask("node2", "chain", "verify")["ok"]

    cloned.compose("down")
    refused = replace(cloned, settings={**cloned.settings, "FEDNODE_METHOD": "fedavg"})
    try:
        refused.compose(*UP)
    except subprocess.CalledProcessError:
        assert {cloned.inspect(node, "{{.State.Status}}") for node in NODES} == {"created"}
    else:
        assert cloned.engine.program == "podman", "podman-compose does not ask how a service ended"
    # podman runs it again before each node that it starts.
    cloned.wait_for(lambda: cloned.inspect("setup", "{{.State.ExitCode}}") == "78", "the exit code of setup")
    reason = "FEDNODE_METHOD: expected 'auto', as it was made (got 'fedavg')"
    cloned.wait_for(lambda: reason in cloned.compose("logs", "setup"), "the reason in the log")

    cloned.compose("down", "-v")
    label = f"label=com.docker.compose.project={cloned.project}"
    assert cloned.engine.run("volume", "ls", "--quiet", "--filter", label).split() == []
    cloned.compose(*UP)
    cloned.wait_for_height(1)
    assert not set(cloned.get_identities()) & set(made)


def test_four_containers_agree_through_a_crash_a_kill_and_a_stop(federation: Federation) -> None:
    others = [node for node in NODES if node != "node2"]
    federation.wait_for_height(3)
    federation.assert_one_chain()
    keys = "find / -name '*.key' -not -path '/proc/*' 2>/dev/null || true"
    assert federation.shell("node0", keys).split() == ["/run/secrets/identity.key"]
    secrets = federation.shell("node0", "stat -c '%a %u' /run/secrets/identity.key /run/secrets/metrics/token")
    assert secrets.splitlines() == ["600 10001", "640 10001"]
    seen = federation.shell("node0", "touch /usr/written 2>&1; cat /proc/1/status")
    assert "Read-only file system" in seen
    assert "CapEff:\t0000000000000000" in seen
    assert "NoNewPrivs:\t1" in seen

    # From within, as by want of memory: the engine starts it again. What it is told to kill stays down.
    federation.shell("node2", "(sleep 1; kill -KILL -1) >/dev/null 2>&1 &")
    federation.wait_for(lambda: int(federation.inspect("node2", "{{.RestartCount}}")) > 0, "a restart of node2")
    federation.wait_for_height(max(federation.get_heights(others)) + 2)
    federation.compose("kill", "-s", "SIGKILL", "node2")
    federation.wait_for_height(max(federation.get_heights(others)) + 2, others)
    federation.compose("start", "node2")
    federation.wait_for_height(max(federation.get_heights(others)) + 2)
    federation.assert_one_chain()

    before = max(federation.get_heights())
    federation.compose("stop")
    assert [federation.inspect(node, "{{.State.ExitCode}}") for node in NODES] == ["0"] * len(NODES)
    federation.compose("down")
    federation.compose(*UP)
    federation.wait_for_height(before + 2)
    federation.assert_one_chain()
    for node in NODES:
        federation.compose("exec", "-T", node, "fednode", "health", "--ready", "--wait", "30")
    assert federation.ask("node2", "chain", "verify")["ok"]


CONFINED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")


@pytest.fixture
def joiner(federation: Federation) -> Iterator[str]:
    """A container's name, and that of its volume."""
    name = f"{federation.project}-hospital-d"
    try:
        yield name
    finally:
        engine = federation.engine.program
        subprocess.run((engine, "rm", "--force", name), capture_output=True, check=False)
        subprocess.run((engine, "volume", "rm", name), capture_output=True, check=False)


def test_a_site_joins_in_a_container_of_its_own_and_leaves(federation: Federation, joiner: str, tmp_path: Path) -> None:
    """As docs/deploy/compose.md has it."""

    def ask_joiner(*command: str) -> Any:
        return json.loads(federation.engine.run("exec", joiner, "fednode", *command, "--json"))

    def is_open(change: str, node: str) -> bool:
        return change in [each["id"] for each in federation.ask(node, "proposals")["proposals"]]

    def agree(change: str, *nodes: str) -> None:
        for node in nodes:
            federation.wait_for(partial(is_open, change, node), f"the change at {node}")
            federation.compose("exec", "-T", node, "fednode", "approve", change, "--yes")
        federation.wait_for(lambda: not is_open(change, nodes[0]), "the change in a block")

    federation.wait_for_height(2)
    node = NODES[0]
    federation.compose("exec", "-T", node, "fednode", "join-file", "-o", "/data/federation.join")
    file = tmp_path / "federation.join"
    file.write_text(federation.compose("exec", "-T", node, "cat", "/data/federation.join"))
    mounts = ("-v", f"{joiner}:/data", "-v", f"{file}:/federation.join:ro")
    options = ("--join", "/federation.join", "--name", "hospital-d", "--advertise", f"{joiner}:7050")
    request = federation.engine.run("run", "--rm", *mounts, "fednode", "init", "/data", *options).strip()
    place = ("--network", f"{federation.project}_default", "-v", f"{joiner}:/data")
    federation.engine.run("run", "-d", "--name", joiner, *place, *CONFINED, "fednode", "--config", "node.yaml")

    agree(federation.ask(node, "propose", "add-member", request, "--yes")["id"], *NODES[1:3])
    federation.wait_for(lambda: not ask_joiner("status").get("silence"), "hospital-d among the members")
    federation.wait_for(
        lambda: any("hospital-d" in each.get("contributor_names", []) for each in ask_joiner("rounds")["rounds"]),
        "a contribution of hospital-d",
    )
    agree(ask_joiner("leave", "--yes")["id"], *NODES[:3])
    federation.wait_for(
        lambda: "removed at height" in ask_joiner("status").get("silence", ""), "word of it at hospital-d"
    )
    federation.engine.run("stop", joiner)
    assert federation.engine.run("inspect", "--format", "{{.State.ExitCode}}", joiner).strip() == "0"
    federation.wait_for_height(max(federation.get_heights()) + 2)
    federation.assert_one_chain()


def test_engine_finds_the_nodes_healthy(federation: Federation) -> None:
    if federation.engine.program == "podman" and not Path("/run/systemd/system").is_dir():
        pytest.skip("podman leaves it to systemd to time health checks")

    def all_healthy() -> bool:
        return {federation.inspect(node, "{{.State.Health.Status}}") for node in NODES} == {"healthy"}

    federation.wait_for(all_healthy, "every node healthy")


def test_prometheus_reads_its_token_and_sees_every_node(watched: Federation) -> None:
    def sees_all() -> bool:
        try:
            return [float(one["value"][1]) for one in ask_prometheus("up")] == [1.0] * len(NODES)
        except OSError:  # it does not listen yet
            return False

    watched.wait_for(sees_all, "up == 1 for each node")
    watched.wait_for(lambda: bool(ask_prometheus("min(fednode_chain_height) > 1")), "heights in Prometheus")
    assert watched.inspect("prometheus", "{{.HostConfig.ReadonlyRootfs}}") == "true"
