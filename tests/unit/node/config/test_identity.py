"""A key file is created once, readable by its owner alone, and refused otherwise."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NoReturn

import pytest

from node.config.identity import create_identity, load_identity, open_key, validate_access
from node.errors import KeyFileError


def fake_stat(mode: int, uid: int, gid: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


def test_a_new_identity_is_private_and_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "node.key"
    key = create_identity(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_identity(path).id == key.id


def test_a_passphrase_is_needed_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    key = create_identity(path, b"open sesame")
    assert load_identity(path, b"open sesame").id == key.id
    with pytest.raises(KeyFileError, match="no passphrase"):
        load_identity(path)
    with pytest.raises(KeyFileError, match="passphrase"):
        load_identity(path, b"sesame")


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    key = create_identity(path)
    with pytest.raises(KeyFileError, match="never overwritten"):
        create_identity(path)
    assert load_identity(path).id == key.id


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601])
def test_a_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "node.key"
    create_identity(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"expected mode 0600, got {mode:04o}") as refusal:
        load_identity(path)
    assert refusal.value.exit_code == 77


def test_a_mode_stricter_than_needed_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    key = create_identity(path)
    path.chmod(0o400)
    assert load_identity(path).id == key.id


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\n", b"x" * 100_000])
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError):
        load_identity(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot read"):
        load_identity(tmp_path / "node.key")
    with pytest.raises(KeyFileError):
        load_identity(tmp_path)


def test_a_mounted_secret_of_our_group_is_accepted_only_read_only() -> None:
    path, gid, stranger = Path("node.key"), os.getegid(), os.geteuid() + 1
    validate_access(path, fake_stat(0o440, 0, gid), read_only=True)
    foreign_gid = max({gid, *os.getgroups()}) + 1
    for status, read_only in [
        (fake_stat(0o440, 0, gid), False),
        (fake_stat(0o640, 0, gid), True),
        (fake_stat(0o444, 0, gid), True),
        (fake_stat(0o440, 0, foreign_gid), True),
        (fake_stat(0o400, stranger, gid), True),
    ]:
        with pytest.raises(KeyFileError):
            validate_access(path, status, read_only=read_only)


def test_a_credential_that_systemd_lets_us_read_by_an_access_list_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getegid", lambda: 1234)
    monkeypatch.setattr(os, "getgroups", list)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    validate_access(Path("identity.key"), fake_stat(0o440, 0, 0), read_only=True)
    for status, read_only in [(fake_stat(0o440, 0, 0), False), (fake_stat(0o444, 0, 0), True)]:
        with pytest.raises(KeyFileError):
            validate_access(Path("identity.key"), status, read_only=read_only)


def test_a_file_of_another_owner_is_refused() -> None:
    with pytest.raises(KeyFileError, match="expected owner uid"):
        validate_access(Path("node.key"), fake_stat(0o600, os.geteuid() + 1, os.getegid()), read_only=False)


def test_a_key_in_a_folder_that_is_not_ours_to_look_into_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, *_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "stat", refuse)  # as for anyone but root; root may look everywhere
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(KeyFileError, match="Permission denied"):
        open_key(tmp_path / "node.key")
