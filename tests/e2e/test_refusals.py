"""Starts that a node refuses: each with a clear line, an exit code that says whose fault it is, and nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.federation.real_nodes import Federation, Finished, make_federation, run_process

pytestmark = pytest.mark.e2e


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A lone member's files."""
    return make_federation(tmp_path / "net", num_nodes=1, rounds=0, difficulty=4096)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


def list_files(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


def refuse(directory: Path, code: int, *options: object) -> list[str]:
    """The lines on stderr of a start that ends with `code` and leaves the directory as it was."""
    before = list_files(directory)
    done = run_process("--config", directory / "node0.yaml", *options)
    check(done, code)
    assert list_files(directory) == before
    return done.err.splitlines()


def check(done: Finished, code: int) -> None:
    assert done.code == code, done.err
    assert done.out == ""
    assert "Traceback" not in done.err


def test_every_problem_of_a_configuration_is_named_with_its_place(directory: Path) -> None:
    config = directory / "node0.yaml"
    edit(config, "listen: '127.0.0.1:", "listen: '127.0.0.1:x")
    edit(config, "advertise:", "advertize:")
    edit(config, "threads: 1", "threads: none")
    lines = refuse(directory, 78)
    assert lines[-1] == f"fednode: 3 problems in {config}; nothing was started"
    text = config.read_text(encoding="utf-8").splitlines()
    problems = (
        ("listen", "expected host:port"),
        ("advertize", "unknown key. Did you mean 'advertise'?"),
        ("threads", "expected auto or a number of threads"),
    )
    for line, (key, said) in zip(lines, problems, strict=False):
        place = re.match(rf"{re.escape(str(config))}:(\d+):(\d+): ", line)
        assert place is not None, line
        assert text[int(place[1]) - 1][int(place[2]) - 1 :].startswith(key)
        assert said in line


def test_a_missing_file_is_named(directory: Path) -> None:
    for name in ("initial_model.safetensors", "genesis.yaml", "keys/node0.key", "node0.yaml"):
        (directory / name).unlink()
        [line] = refuse(directory, 78)
        assert f"{directory / name}: no such file" in line


def test_a_key_that_others_can_read_is_not_used(directory: Path) -> None:
    key = directory / "keys/node0.key"
    key.chmod(0o644)
    [line] = refuse(directory, 77)
    assert f"{key}: expected mode 0600, got 0644" in line


@pytest.mark.slow
async def test_places_that_are_taken_and_another_genesis(directory: Path) -> None:
    config, genesis = directory / "node0.yaml", directory / "genesis.yaml"
    async with Federation(directory, stands_alone=True) as net:  # its worker still imports torch, and writes nothing
        await net.start("node0")
        data_dir, address = net.get_data_dir("node0"), net.nodes["node0"].node.address
        [line] = refuse(directory, 78)
        assert line == f"fednode: {data_dir}: in use by another process; ask the running node, or stop it first"
        done = run_process(
            *("--config", config, "--set", "node.data_dir=data/other", "--set", "admin.socket=run/other.sock")
        )
        check(done, 78)
        assert done.err.splitlines()[-1].startswith("fednode: ")
        assert address in done.err.splitlines()[-1]
        assert not (directory / "run/other.sock").exists()
        done = run_process("--config", config, "--set", "node.data_dir=data/another")
        check(done, 78)
        assert f"{net.nodes['node0'].socket}: another process is listening there" in done.err
        assert await net.stop("node0") == 0  # most likely while its worker is still importing torch
    edit(genesis, "chain_name: testnet", "chain_name: another")
    [line] = refuse(directory, 78)
    assert str(data_dir) in line
    assert "chain id of its genesis: expected" in line
    edit(genesis, "chain_name: another", "chain_name: testnet")
    async with Federation(directory) as net:
        await net.start("node0")
        await net.wait_for_height(1)
