"""Small files and mounts for grants; test_grantdir.py tests the directories made of them."""

import errno
import os
import stat
from pathlib import Path

import pytest

from gpushare.inject import files, mounts


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        files.directory(tmp_path / "d", 0o751)
        files.make(tmp_path / "m", b"data", 0o604, size=10)
        files.write(tmp_path / "w", b"data", 0o644)
        files.replace(tmp_path / "r", b"data", 0o640)
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in "dmwr"] == [0o751, 0o604, 0o644, 0o640]
    assert (tmp_path / "m").read_bytes() == b"data" + bytes(6)


def test_no_file_is_made_where_one_is_or_through_a_link(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "file").write_text("theirs")
    for name in ("link", "file"):
        with pytest.raises(FileExistsError):
            files.make(tmp_path / name, b"data", 0o644)
    with pytest.raises(OSError, match="symbolic links") as raised:
        files.write(tmp_path / "link", b"data", 0o644)
    assert raised.value.errno == errno.ELOOP
    assert (elsewhere.exists(), (tmp_path / "file").read_text()) == (False, "theirs")


def test_a_replacement_appears_whole_whatever_was_there(tmp_path):
    target, through = tmp_path / "file", tmp_path / "new"
    target.symlink_to("elsewhere")
    through.write_text("what a kill has left, longer than what is written next")
    files.replace(target, b"data", 0o640, through=through)
    assert (target.read_bytes(), mode(target), through.exists()) == (b"data", 0o640, False)
    through.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        files.replace(target, b"more", 0o640, through=through)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_with_that_content_is_left_alone(tmp_path):
    target = tmp_path / "file"
    files.replace(target, b"data", 0o644)
    before = target.stat().st_ino
    files.replace(target, b"data", 0o644)
    assert target.stat().st_ino == before
    files.replace(target, b"data", 0o600)
    assert (target.stat().st_ino, mode(target)) != (before, 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount")
def test_a_file_system_has_the_room_it_was_given_and_nothing_stays_mounted(tmp_path):
    for _ in range(2):  # the second over the first
        mounts.tmpfs(tmp_path, 2 * 4096, 4, 0o750)
    try:
        assert (tmp_path.is_mount(), mode(tmp_path)) == (True, 0o750)
        with pytest.raises(OSError, match="No space left on device"):
            files.make(tmp_path / "f", b"", 0o600, size=1 << 20, room=1 << 20)
        (tmp_path / "f").unlink()
        with pytest.raises(OSError, match="No space left on device"):
            files.replace(tmp_path / "g", bytes(1 << 20), 0o600)
        assert list(tmp_path.iterdir()) == []
    finally:
        mounts.unmount(tmp_path)
    assert not tmp_path.is_mount()
    mounts.unmount(tmp_path)
