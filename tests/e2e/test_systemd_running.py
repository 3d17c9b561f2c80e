"""deploy/systemd under a running systemd, by the commands of docs/deploy/systemd.md: four nodes on one machine.

Every test leaves the four running.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from support.machines.systemd_machine import Machine, booted, find_obstacle

NODES = ("node0", "node1", "node2", "node3")
FEDNODE = "/opt/fednode/bin/fednode"
REFUSALS = "EACCES ENOENT EPERM EROFS EAFNOSUPPORT"  # how a confined process is told no
WARNING, ERROR, INFO = "4", "3", "6"  # the journal's priorities

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(5400)]

# As docs/deploy/systemd.md has it, for a federation that is made for trying it out.
INSTALL = f"""
cd /src
install -m 0644 deploy/systemd/fednode@.service /etc/systemd/system/
install -m 0644 deploy/systemd/sysusers.conf /usr/lib/sysusers.d/fednode.conf && systemd-sysusers
install -d /etc/fednode
{FEDNODE} testnet -n {len(NODES)} --rounds 0 --set 'model.hidden=[8]' -o /root/cluster
cd /root/cluster
install -m 0600 keys/*.key /etc/fednode/
install -m 0644 *.yaml initial_model.safetensors /etc/fednode/
touch /home/secret
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    obstacle = find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    with booted(f"fednode-systemd-{os.getpid()}") as made:
        made.sh(INSTALL)
        # node1 logs what is for machines; node3's worker writes its checkpoint only at its end.
        made.sh("sed -i 's/format: text/format: auto/' /etc/fednode/node1.yaml")
        made.sh("sed -i 's/^training:/training:\\n  checkpoint_every: 1000000/' /etc/fednode/node3.yaml")
        made.run("systemctl", "enable", "--now", *(f"fednode@{node}" for node in NODES))
        wait_for_progress(made)
        yield made


def ask(machine: Machine, node: str, *command: str) -> Any:
    return json.loads(machine.run(FEDNODE, *command, "--socket", f"/run/fednode/{node}/node.sock", "--json"))


def get_heights(machine: Machine, nodes: Sequence[str]) -> list[int]:
    """-1 of a node that does not answer."""
    asking = f"{FEDNODE} status --json --socket /run/fednode/$node/node.sock 2>/dev/null || echo"
    told = machine.sh(f"for node in {' '.join(nodes)}; do {asking}; done").splitlines()
    return [json.loads(line)["height"] if line else -1 for line in told]


def wait_for_progress(machine: Machine, nodes: Sequence[str] = NODES, num_blocks: int = 2) -> int:
    """Until all these nodes are some blocks beyond the highest of them; that height."""
    wanted = max(get_heights(machine, nodes)) + num_blocks
    units = [f"fednode@{node}" for node in nodes]
    machine.wait_for(lambda: min(get_heights(machine, nodes)) >= wanted, f"height {wanted} on {nodes}", *units)
    return wanted


def get_told_height(machine: Machine, node: str) -> int:
    """As systemd last heard it."""
    found = re.match(r"height (\d+)", machine.show(f"fednode@{node}", "StatusText"))
    return int(found[1]) if found else -1


def get_block(machine: Machine, node: str, height: int) -> str:
    block: str = ask(machine, node, "chain", "show", str(height))["id"]
    return block


def list_processes(machine: Machine, unit: str) -> list[int]:
    """The node, the process that trains, and any that mine."""
    group = machine.show(unit, "ControlGroup")
    found = machine.sh(
        f"cat /sys/fs/cgroup/systemd{group}/cgroup.procs 2>/dev/null || cat /sys/fs/cgroup{group}/cgroup.procs"
    )
    return [int(pid) for pid in found.split()]


def find_messages(machine: Machine, unit: str, pattern: str) -> list[dict[str, Any]]:
    return [entry for entry in machine.read_journal(unit) if re.search(pattern, str(entry["MESSAGE"]))]


def test_the_nodes_finalise_one_chain_and_systemd_knows_their_height(machine: Machine) -> None:
    height = wait_for_progress(machine)
    assert len({get_block(machine, node, height) for node in NODES}) == 1
    for node in NODES:
        assert machine.show(f"fednode@{node}", "ActiveState") == "active"
        assert int(machine.show(f"fednode@{node}", "NRestarts")) == 0
    told = machine.run("systemctl", "status", "--no-pager", "-n0", "fednode@node0")
    assert re.search(r'Status: "height \d+', told), told
    machine.wait_for(lambda: get_told_height(machine, "node0") >= height, "the height in the status", "fednode@node0")


def test_a_node_reaches_nothing_but_what_is_its_own(machine: Machine) -> None:
    machine.sh("install -m 0600 /etc/fednode/node0.key /etc/fednode/probe.key")
    pid = machine.show("fednode@node0", "MainPID")
    machine.write(
        "/etc/systemd/system/fednode@probe.service.d/probe.conf",
        "[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nExecStart=\n"
        f"ExecStart=/opt/fednode/bin/python /src/tests/support/machines/systemd_probe.py node0 {pid}\n",
    )
    machine.sh("systemctl daemon-reload; systemctl start fednode@probe")
    (told,) = find_messages(machine, "fednode@probe", r"^\{")
    found = json.loads(told["MESSAGE"])
    needed = ("write state", "write runtime", "write /tmp", "read key", "give way", "inet")
    assert {name: found.pop(name) for name in needed} == dict.fromkeys(needed)
    assert {name: error for name, error in found.items() if error not in REFUSALS.split()} == {}


def test_no_process_of_a_node_has_rights_or_could_get_them(machine: Machine) -> None:
    pids = list_processes(machine, "fednode@node0")
    assert len(pids) >= 2
    for pid in pids:
        status = dict(line.split(":\t", 1) for line in machine.run("cat", f"/proc/{pid}/status").splitlines())
        assert "0" not in status["Uid"].split()
        assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        limits = machine.run("cat", f"/proc/{pid}/limits")
        assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE), limits


def test_the_journal_has_what_a_node_says_and_how_grave_it_is(machine: Machine) -> None:
    blocks = find_messages(machine, "fednode@node0", r"INFO +node\.consensus\.reporter: block \d+")
    assert {entry["PRIORITY"] for entry in blocks} == {INFO}
    entries = [json.loads(entry["MESSAGE"]) for entry in find_messages(machine, "fednode@node1", r"^\{")]
    assert any(entry["node"] == "node1" and entry["height"] > 0 for entry in entries)

    worker: int = ask(machine, "node1", "status")["worker_pid"]
    machine.sh(f"kill -KILL {worker}")
    machine.wait_for(lambda: bool(find_messages(machine, "fednode@node1", "died and was replaced")), "a warning")
    assert {e["PRIORITY"] for e in find_messages(machine, "fednode@node1", "died and was replaced")} == {WARNING}
    wait_for_progress(machine)


def test_stop_is_clean_and_the_worker_writes_its_checkpoint_first(machine: Machine) -> None:
    wait_for_progress(machine)
    checkpoints = "/var/lib/fednode/node3/chain/checkpoints/run-1"
    machine.sh(f"rm -rf {checkpoints}/*")
    machine.run("systemctl", "stop", "fednode@node3")
    assert (machine.show("fednode@node3", "Result"), machine.show("fednode@node3", "ExecMainStatus")) == (
        "success",
        "0",
    )
    assert find_messages(machine, "fednode@node3", "SIGKILL|timed out") == []
    assert machine.run("ls", checkpoints).split() != []
    (last,) = find_messages(machine, "fednode@node3", "stopped at height")[-1:]
    height = int(last["MESSAGE"].split()[-1])

    machine.run("systemctl", "start", "fednode@node3")
    assert find_messages(machine, "fednode@node3", rf"chain height {height} ")
    wait_for_progress(machine)


def test_a_killed_node_is_started_again_and_goes_on_where_it_was(machine: Machine) -> None:
    height = wait_for_progress(machine)
    before, count = get_block(machine, "node1", height), int(machine.show("fednode@node1", "NRestarts"))
    machine.run("systemctl", "kill", "-s", "KILL", "fednode@node1")
    machine.wait_for(lambda: int(machine.show("fednode@node1", "NRestarts")) > count, "a restart", "fednode@node1")
    wait_for_progress(machine)
    (opened,) = find_messages(machine, "fednode@node1", r"chain height \d+  head")[-1:]
    found = re.search(r"chain height (\d+)", opened["MESSAGE"])
    assert found is not None
    assert int(found[1]) >= height
    assert get_block(machine, "node1", height) == before


def test_a_frozen_node_is_started_again_while_the_others_go_on(machine: Machine) -> None:
    others = tuple(node for node in NODES if node != "node2")
    machine.run("systemctl", "kill", "-s", "STOP", "--kill-whom=main", "fednode@node2")
    wait_for_progress(machine, others)
    machine.wait_for(
        lambda: bool(find_messages(machine, "fednode@node2", "Failed with result 'watchdog'")),
        "the watchdog",
        "fednode@node2",
    )
    wait_for_progress(machine)
    assert machine.show("fednode@node2", "ActiveState") == "active"


SPOILED = {  # by instance: what is done to its files, the exit code, and what the journal has of it
    "usage": ("sed -i 's/--config/--confg/' {unit}", 2, "No such option"),
    "badkey": ("echo no key > {key}", 77, "identity.key: "),
    "badconfig": ("echo 'version: one' > {config}", 78, "badconfig.yaml:1:"),
    "nokey": ("rm {key}", 243, "CREDENTIALS"),
    "noprogram": ("sed -i 's,bin/fednode,bin/none,' {unit}", 203, "No such file or directory"),
}


@pytest.mark.parametrize("instance", SPOILED)
def test_what_a_restart_cannot_mend_is_tried_once_and_told(machine: Machine, instance: str) -> None:
    spoil, code, why = SPOILED[instance]
    unit = f"fednode@{instance}"
    own = f"/etc/systemd/system/{unit}.service"  # goes before the template
    key, config = f"/etc/fednode/{instance}.key", f"/etc/fednode/{instance}.yaml"
    machine.sh(f"cp /etc/systemd/system/fednode@.service {own}; cp /etc/fednode/node0.yaml {config}")
    machine.sh(f"install -m 0600 /etc/fednode/node0.key {key}; {spoil.format(unit=own, key=key, config=config)}")
    machine.run("systemctl", "daemon-reload")

    machine.run("systemctl", "start", unit, codes=(1,))
    # One that is to be tried again would be "activating" meanwhile.
    assert [machine.show(unit, name) for name in ("ActiveState", "NRestarts")] == ["failed", "0"]
    assert machine.show(unit, "ExecMainStatus") == str(code)
    told = find_messages(machine, unit, re.escape(why))
    assert told, machine.read_journal(unit)
    if code in (77, 78):  # what the node itself says
        assert {entry["PRIORITY"] for entry in told} == {ERROR}


def test_a_node_starts_with_the_settings_for_a_gpu(machine: Machine) -> None:
    folder = "/etc/systemd/system/fednode@node3.service.d"
    machine.sh(f"install -D -m 0644 -t {folder} /src/deploy/systemd/gpu.conf")
    machine.sh("systemctl daemon-reload; systemctl restart fednode@node3")
    try:
        assert machine.show("fednode@node3", "PrivateDevices") == "no"
        assert machine.show("fednode@node3", "DevicePolicy") == "closed"
        assert "char-nvidia-uvm rw" in machine.show("fednode@node3", "DeviceAllow")
        wait_for_progress(machine)
    finally:
        machine.sh(f"rm -r {folder}; systemctl daemon-reload; systemctl restart fednode@node3")


def test_enabled_nodes_come_back_after_a_reboot(machine: Machine) -> None:
    height = wait_for_progress(machine)
    before = get_block(machine, "node0", height)
    machine.reboot()
    wait_for_progress(machine)
    assert {get_block(machine, node, height) for node in NODES} == {before}
    assert int(machine.show("fednode@node0", "NRestarts")) == 0
