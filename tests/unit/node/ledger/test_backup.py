"""Backups: what is in one, that it is whole, and that nothing else is ever restored."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import tarfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from chain.beacon import make_reveal
from chain.block import Contribution
from chain.codec import sign_contribution
from chain.store.interface import RESTORED
from chain.store.sqlite import SqliteStore
from chain.tip import Tip
from ml.data.image_cache import DIRECTORY
from node.cli import main
from node.cli.node.backup import read_site
from node.config.identity import create_identity, open_key
from node.config.node_config import load_config
from node.errors import ConfigError, NodeError, VerificationFailed
from node.ledger.backup import (
    END,
    MANIFEST,
    SITE_CONFIG,
    SITE_KEY,
    SITE_SPARE_KEY,
    Manifest,
    make_header,
    read_archive,
    take_snapshot,
    write_archive,
)
from node.ledger.restoring import UNFINISHED, restore
from node.testnet.layout import TestnetSpec, make_testnet
from node.training.checkpoint import CHECKPOINTS, get_run_dir
from support.data.chains import make_genesis, make_keys
from support.data.changes import LivingChain

KEYS = make_keys(4)
EASY = {"difficulty": 1, "min": 1, "max": 1, "target_ms": 100}
BLOB = b"a blob" * 1000


class Site:
    """A stopped node's data directory at height 5, and a backup of it."""

    def __init__(self, path: Path, num_members: int = len(KEYS)) -> None:
        self.path = path
        self.chain = LivingChain(make_genesis(KEYS[:num_members], pow=EASY), KEYS[:num_members])
        self.data_dir = path / "data"
        with SqliteStore.open(self.data_dir, self.chain.genesis) as store:
            for _ in range(5):
                self.extend(store)
            self.blob = store.put_blob(BLOB)
        run_dir = get_run_dir(self.data_dir / CHECKPOINTS, 1)
        run_dir.mkdir(parents=True)
        (run_dir / "applied.safetensors").write_bytes(b"model")
        (self.data_dir / "bans.json").write_text("{}")
        self.file = path / "backup.tar"

    def extend(self, store: SqliteStore) -> None:
        tip = self.chain.tip
        store.put_contribution(sign(self.chain, tip))
        self.chain.add_rounds()
        store.append(*self.chain.blocks[-1])

    def back_up(self, file: Path | None = None) -> Manifest:
        folder = self.path / "folder"
        folder.mkdir(exist_ok=True)
        with SqliteStore.open(self.data_dir, self.chain.genesis, readonly=True) as store:
            snapshot = take_snapshot(store, self.chain.genesis, folder)
            manifest = write_archive(file or self.file, snapshot.manifest, snapshot.read(), {})
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        return manifest


def sign(chain: LivingChain, tip: Tip) -> Contribution:
    return sign_contribution(
        KEYS[0],
        chain.genesis.chain_id,
        height=tip.height + 1,
        prev=tip.id,
        weight=1,
        reveal=make_reveal(KEYS[0], chain.genesis.chain_id, tip.block, tip.state.protocol),
        payloads=(),
    )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def read_tree(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_what_was_there_is_there_again_and_the_node_is_told(site: Site, tmp_path: Path) -> None:
    manifest = site.back_up()
    assert (manifest.height, manifest.head) == (5, site.chain.tip.id.hex())
    target = tmp_path / "new"
    assert restore(site.file, target, site.chain.genesis) == manifest
    assert (get_run_dir(target / CHECKPOINTS, 1) / "applied.safetensors").read_bytes() == b"model"
    assert (target / "bans.json").read_text() == "{}"
    with SqliteStore.open(target, site.chain.genesis) as store:
        assert store.head().block.id == site.chain.tip.id
        assert store.get_signed_height() == 5
        assert store.get_blob(site.blob) == BLOB
        assert store.get_meta(RESTORED) == {"until": None}
        assert store.describe_loss() is None
    assert not (target / UNFINISHED).exists()


def test_a_backup_is_an_ordinary_tar_archive_for_its_owner_alone(site: Site) -> None:
    manifest = site.back_up()
    with tarfile.open(site.file) as archive:
        assert archive.getnames() == [MANIFEST, *(member.name for member in manifest.members)]
        assert {info.mode for info in archive} == {0o600}
    assert site.file.stat().st_mode & 0o777 == 0o600


def test_the_same_directory_gives_the_same_bytes(site: Site, tmp_path: Path) -> None:
    site.back_up()
    site.back_up(tmp_path / "again.tar")
    assert site.file.read_bytes() == (tmp_path / "again.tar").read_bytes()


def test_decoded_images_stay_out_of_it(site: Site) -> None:
    kept = site.data_dir / DIRECTORY
    kept.mkdir()
    (kept / f"{'a' * 64}.npy").write_bytes(b"a patient's")
    names = [member.name for member in site.back_up().members]
    assert not [name for name in names if DIRECTORY in name]
    assert b"a patient's" not in site.file.read_bytes()


def test_nothing_is_written_over(site: Site, tmp_path: Path) -> None:
    site.file.write_text("precious")
    with pytest.raises(NodeError, match="nothing is written over"):
        site.back_up()
    assert site.file.read_text() == "precious"
    assert not list(tmp_path.glob(".*.part"))
    site.file.unlink()
    site.back_up()
    before = read_tree(site.data_dir)
    with pytest.raises(NodeError, match="expected an empty directory, got"):
        restore(site.file, site.data_dir)
    assert read_tree(site.data_dir) == before


def test_a_key_is_in_it_only_where_it_was_given(site: Site, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with SqliteStore.open(site.data_dir, site.chain.genesis, readonly=True) as store:
        snapshot = take_snapshot(store, site.chain.genesis, tmp_path / "folder")
        write_archive(site.file, snapshot.manifest, snapshot.read(), {SITE_KEY: b"secret"})
    restore(site.file, tmp_path / "new")
    assert (tmp_path / "new" / SITE_KEY).read_bytes() == b"secret"
    assert (tmp_path / "new" / SITE_KEY).stat().st_mode & 0o777 == 0o600


def test_a_store_that_is_written_to_meanwhile_gives_a_whole_backup(site: Site, tmp_path: Path) -> None:
    """Signed rows, blocks and blobs come while it is copied; what is in it is one moment of that."""
    (tmp_path / "folder").mkdir()
    done = threading.Event()
    failures: list[BaseException] = []

    def work(store: SqliteStore) -> None:
        try:
            while not done.is_set() and site.chain.tip.height < 300:
                site.extend(store)
                store.put_blob(site.chain.tip.id * 100)
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    with SqliteStore.open(site.data_dir, site.chain.genesis) as store:
        thread = threading.Thread(target=work, args=(store,))
        thread.start()
        snapshot = take_snapshot(store, site.chain.genesis, tmp_path / "folder", lambda part, what: None)
        done.set()
        thread.join()
        assert not failures
        write_archive(site.file, snapshot.manifest, snapshot.read(), {})
        height = store.head_height
    restore(site.file, tmp_path / "new")
    with SqliteStore.open(tmp_path / "new", site.chain.genesis) as store:
        assert 5 <= store.head_height <= height
        assert store.head_height <= store.get_signed_height() <= store.head_height + 1
        assert list(store.find_damage()) == []


# ---- archives that are not as they should be


def corrupt(site: Site, change: Callable[[bytearray], None]) -> None:
    site.back_up()
    data = bytearray(site.file.read_bytes())
    change(data)
    site.file.write_bytes(data)


def find(data: bytearray, name: str) -> int:
    """Where the bytes of a file begin."""
    at = 0
    while True:
        info = tarfile.TarInfo.frombuf(bytes(data[at : at + 512]), "ascii", "strict")
        if info.name == name:
            return at + 512
        at += 512 + info.size + -info.size % 512


def flip(data: bytearray, at: int) -> None:
    data[at] ^= 1


def rename_to_traversal(data: bytearray) -> None:
    at = find(data, "bans.json") - 512
    data[at : at + 512] = make_header("../../evil", 2)


def make_link(data: bytearray) -> None:
    at = find(data, "bans.json") - 512
    info = tarfile.TarInfo("bans.json")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    data[at : at + 512] = info.tobuf(tarfile.GNU_FORMAT)


BROKEN: dict[str, Callable[[bytearray], None]] = {
    "a flipped bit in the database": lambda data: flip(data, find(data, "chain.db") + 5000),
    "a flipped bit in the manifest": lambda data: flip(data, 600),
    "a flipped bit in a header": lambda data: flip(data, find(data, "bans.json") - 500),
    "cut in the middle": lambda data: data.__delitem__(slice(len(data) // 2, None)),
    "without its end": lambda data: data.__delitem__(slice(-1024, None)),
    "with more after its end": lambda data: data.extend(b"x" * 512),
    "empty": lambda data: data.clear(),
    "another name": rename_to_traversal,
    "a link": make_link,
    "no tar at all": lambda data: data.__setitem__(slice(None), b"#!/bin/sh\n" * 1000),
    "a manifest without end": lambda data: data.__setitem__(slice(0, 512), make_header(MANIFEST, 1 << 40)),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_what_is_not_whole_is_refused_and_nothing_is_written(
    site: Site, tmp_path: Path, change: Callable[[bytearray], None]
) -> None:
    corrupt(site, change)
    with pytest.raises(VerificationFailed, match="not a whole backup: "):
        restore(site.file, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def forge(site: Site, members: dict[str, bytes], **terms: object) -> None:
    """An archive that is consistent, by somebody who can compute digests."""
    listed = [{"name": n, "size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in members.items()]

    tree = {"version": 1, "chain_id": "00", "chain_name": "x", "height": 0, "head": "", "members": listed, **terms}
    encoded = json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
    out = io.BytesIO()
    out.write(make_header(MANIFEST, len(encoded)) + encoded + bytes(-len(encoded) % 512))
    for name, data in members.items():
        out.write(make_header(name, len(data)) + data + bytes(-len(data) % 512))
    out.write(END)
    site.file.write_bytes(out.getvalue())


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "blobs/../../evil",
        "lock",
        "watermark",
        "blobs/aa/" + "b" * 64,
        "site/x",
        ".restoring/x",
        "",
    ],
)
def test_no_file_is_restored_that_a_data_directory_does_not_have(site: Site, tmp_path: Path, name: str) -> None:
    forge(site, {"chain.db": b"", name: b"evil"})
    with pytest.raises(VerificationFailed, match="expected"):
        restore(site.file, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.parent.glob("evil"))


def test_a_database_that_is_none_leaves_nothing(site: Site, tmp_path: Path) -> None:
    forge(site, {"chain.db": b"SQLite format 3\0" + b"\1" * 5000})
    with pytest.raises(VerificationFailed):
        restore(site.file, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    with pytest.raises(VerificationFailed):
        restore(site.file, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] in ([], ["lock"])


def test_a_manifest_that_lies_about_its_database_is_found_out(site: Site, tmp_path: Path) -> None:
    manifest = site.back_up()
    data = site.file.read_bytes()
    members = {
        member.name: bytes(data[(at := find(bytearray(data), member.name)) : at + member.size])
        for member in manifest.members
    }
    terms = {"chain_id": manifest.chain_id, "chain_name": manifest.chain_name, "head": manifest.head}
    forge(site, members, **terms, height=4)
    with pytest.raises(VerificationFailed, match="not as its manifest says"):
        restore(site.file, tmp_path / "new")
    forge(site, members, **{**terms, "chain_id": "11" * 32}, height=5)
    with pytest.raises(VerificationFailed, match="not its manifest's"):
        restore(site.file, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_another_chain_is_refused(site: Site, tmp_path: Path) -> None:
    site.back_up()
    with pytest.raises(ConfigError, match="expected a backup of the chain of the configuration's genesis"):
        restore(site.file, tmp_path / "new", make_genesis(KEYS, chain_name="another"))
    assert not (tmp_path / "new").exists()


def test_what_has_no_room_is_not_begun(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.back_up()
    monkeypatch.setattr("node.ledger.restoring.SPARE_BYTES", 1 << 60)
    with pytest.raises(NodeError, match="bytes of free disk"):
        restore(site.file, tmp_path / "new")
    assert not (tmp_path / "new").exists()


# ---- killed


def run_killed(work: Callable[[], object]) -> None:
    """In a child that ends itself with SIGKILL on its way."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("num_members", "says_so"), [(3, True), (4, False)])
def test_where_all_members_have_to_vote_restore_says_what_that_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_members: int, says_so: bool
) -> None:
    site = Site(tmp_path, num_members)
    site.back_up()
    assert main(["restore", str(site.file), "--data-dir", str(tmp_path / "new")]) == 0
    assert (
        "all 3 members have to vote. Where that is so still, no height passes" in capsys.readouterr().err
    ) == says_so


@pytest.mark.parametrize("count", range(1, 7))
def test_a_restore_that_is_killed_leaves_no_node_that_does_not_know(site: Site, tmp_path: Path, count: int) -> None:
    site.back_up()
    target, seen = tmp_path / "new", []

    def at(step: str) -> None:
        seen.append(step)
        if len(seen) == count:
            kill()

    run_killed(partial(restore, site.file, target, faults=at))
    if (target / "chain.db").exists():  # then it is whole
        with SqliteStore.open(target, site.chain.genesis) as store:
            assert store.get_meta(RESTORED) == {"until": None}
            assert store.get_blob(site.blob) == BLOB
    else:
        restore(site.file, target)  # which sweeps
        with SqliteStore.open(target, site.chain.genesis) as store:
            assert store.head_height == 5


@pytest.mark.parametrize("what", ["database", "digests", "archive"])
def test_a_backup_that_is_killed_leaves_no_file_of_its_name(site: Site, tmp_path: Path, what: str) -> None:
    def on_progress(done: float, doing: str) -> None:
        if doing == what:
            kill()

    def work() -> None:
        (tmp_path / "folder").mkdir()
        with SqliteStore.open(site.data_dir, site.chain.genesis, readonly=True) as store:
            snapshot = take_snapshot(store, site.chain.genesis, tmp_path / "folder", on_progress)
            write_archive(site.file, snapshot.manifest, snapshot.read(), {}, on_progress)

    run_killed(work)
    assert not site.file.exists()
    for path in sorted((tmp_path / "folder").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    site.back_up()  # over what was left
    read_archive(site.file)


def test_with_the_key_comes_the_other_one_of_a_member_that_rotates(tmp_path: Path) -> None:
    """From the rotation on it is the one in force, wherever it lies."""
    directory = make_testnet(tmp_path / "net", TestnetSpec()).directory
    path = next(directory.rglob("node0*.yaml"))
    assert read_site(path).keys() == {SITE_CONFIG, SITE_KEY}
    config = load_config(path, (), {})
    spare = create_identity(config.node.spare_key_file, None)
    site = read_site(path)
    (tmp_path / "held.key").write_bytes(site[SITE_SPARE_KEY])
    (tmp_path / "held.key").chmod(0o600)
    assert open_key(tmp_path / "held.key").id == spare.id
