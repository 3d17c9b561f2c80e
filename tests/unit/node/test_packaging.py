"""The wheel that `pip install` gets: its contents, and the locked versions of its dependencies."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
PACKAGES = ("fednode", "node", "chain", "ml")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
ASSETS = {"docker-compose.yml", "deploy/docker-compose.gpu.yml"} | {
    str(file.relative_to(ROOT))
    for folder in ("deploy/systemd", "deploy/monitoring")
    for file in (ROOT / folder).rglob("*")
    if file.is_file()
}


def copy_source(source: Path) -> Path:
    """A copy of all that a wheel could be made of, as building leaves things behind."""
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "docker-compose.yml"):
        shutil.copy(ROOT / name, source)
    for name in (*PACKAGES, "tests", "deploy"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    return source


def build_wheel(source: Path, out: Path, environment: Mapping[str, str] | None = None) -> Path:
    """By the setuptools that is here, so nothing is fetched."""
    build = ("wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out))
    command = [sys.executable, "-m", "pip", *build, str(source)]
    subprocess.run(command, check=True, env={**os.environ, **(environment or {})})
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_source(directory / "source"), directory / "out")


@pytest.mark.outer
def test_the_wheel_holds_the_packages_whole_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    of_package = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.suffix in (".py", ".yaml") or file.name == "py.typed" or (file.suffix == ".pyi")
    }
    page = {str(file.relative_to(ROOT)) for file in (ROOT / "node/web/page").rglob("*") if file.is_file()}
    assert {"fednode/py.typed", "node/py.typed", "chain/py.typed", "ml/py.typed", "node/pb/peer_pb2.py"} <= names
    manifests = {
        f"node/testnet/targets/kubernetes_{name}/{file.name}"
        for name, folder in (("base", "base"), ("gpu", "components/gpu"))
        for file in (ROOT / "deploy/kubernetes" / folder).iterdir()
    }
    assert "node/testnet/targets/kubernetes_base/statefulset.yaml" in manifests
    assert {name for name in names if ".dist-info/" not in name} == of_package | page | manifests | {
        f"node/assets/{name}" for name in ASSETS
    }


@pytest.mark.outer
def test_the_assets_of_the_wheel_are_the_files_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    """As files, where the repository has links, so that none can differ; the command of the wheel writes them."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = "import sys, node.cli; print(node.cli.__file__); sys.exit(node.cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "assets", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used, *written = done.stdout.splitlines()
    assert Path(used).is_relative_to(tmp_path / "site")
    assert {str(Path(name).relative_to(tmp_path / "out")) for name in written} == ASSETS
    for name in ASSETS:
        assert (tmp_path / "out" / name).read_bytes() == (ROOT / name).read_bytes()
        assert not (tmp_path / "site/node/assets" / name).is_symlink()


@pytest.mark.outer
def test_the_wheel_says_where_it_starts_and_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = wheel.name.split("-py3")[0] + ".dist-info"
        assert "fednode = fednode.__main__:main" in archive.read(f"{info}/entry_points.txt").decode()
        needs = re.findall(r"^Requires-Dist: (.*)$", archive.read(f"{info}/METADATA").decode(), re.MULTILINE)
        assert f"{info}/licenses/LICENSE" in archive.namelist()
    assert {str(Requirement(need)) for need in needs if "extra ==" not in need} == {
        str(Requirement(need)) for need in PROJECT["dependencies"]
    }


def test_every_library_but_torch_is_locked_by_version_and_hash() -> None:
    text = (ROOT / "deploy/requirements.txt").read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line and line[0] not in "# "]
    assert len(entries) == len(lines)
    locked = {name.lower().replace("_", "-"): version for name, version, _ in entries}
    built_by = PYPROJECT["build-system"]["requires"]
    extras = [need for extra in ("data", "privacy", "report") for need in PROJECT["optional-dependencies"][extra]]
    for need in map(Requirement, (*PROJECT["dependencies"], *extras, *built_by)):
        name = need.name.lower().replace("_", "-")
        if name != "torch":
            assert need.specifier.contains(locked.get(name, "0")), f"{need}: locked is {locked.get(name)}; make lock"
    assert not [name for name in locked if name.startswith(("torch", "nvidia", "cuda", "triton"))]


@pytest.mark.parametrize(("device", "build"), [("cpu", "+cpu"), ("cuda", "")])
def test_torch_is_locked_by_version_for_each_device(device: str, build: str) -> None:
    (version,) = set(re.findall(r"torch==([\d.]+)", (ROOT / "Makefile").read_text()))
    assert (ROOT / f"deploy/torch-{device}.txt").read_text() == f"torch=={version}{build}\n"


@pytest.mark.parametrize(
    "file", ["deploy/Dockerfile", "docs/deploy/image.md", "tests/support/machines/systemd.Dockerfile"]
)
def test_nothing_is_fetched_for_the_build_itself(file: str) -> None:
    """Wherever the program is installed, it is by the setuptools that is locked and installed before."""
    installs = re.findall(r"pip install (.*--no-deps.* (?:\.|/src))$", (ROOT / file).read_text(), re.MULTILINE)
    assert len(installs) == 1
    assert {"--no-index", "--no-build-isolation"} <= set(installs[0].split())


@pytest.mark.outer
def test_the_same_source_gives_the_same_wheel(tmp_path: Path) -> None:
    """Whenever it is built and whatever the times of its files, once the time of the source is said."""
    digests = set()
    for number in (1, 2):
        source = copy_source(tmp_path / f"source{number}")
        for file in source.rglob("*"):
            os.utime(file, (number * 10**9, number * 10**9))
        built = build_wheel(source, tmp_path / f"wheel{number}", {"SOURCE_DATE_EPOCH": "1700000000"})
        digests.add(hashlib.sha256(built.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_image_names_the_version_that_it_holds() -> None:
    labelled = re.findall(r'org\.opencontainers\.image\.version="(.*)"', (ROOT / "deploy" / "Dockerfile").read_text())
    assert labelled == [PROJECT["version"]]
