"""Changes to files as one list (native/binding/gs_files.c); test_grantdir.py tests the lists of grants."""

import errno
import os
import stat
from pathlib import Path

import pytest

from gpushare.inject import steps
from gpushare.inject.steps import Steps


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_list_is_carried_out_up_to_what_fails(tmp_path):
    made = Steps(
        steps.directory("a", 0o751),
        steps.file("a/f", 0o604, b"data", size=10),
        steps.symlink("a/l", "nowhere"),
        steps.rmdir("a"),
        steps.directory("b", 0o700),
    )
    with pytest.raises(OSError, match=rf"cannot remove a directory \(Directory not empty\): {tmp_path}/a$") as raised:
        made.run(tmp_path)
    assert raised.value.errno == errno.ENOTEMPTY
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "f", "l"]
    assert (mode(tmp_path / "a"), mode(tmp_path / "a/f")) == (0o751, 0o604)
    assert (tmp_path / "a/f").read_bytes() == b"data" + bytes(6)
    assert (tmp_path / "a/l").readlink() == Path("nowhere")


def test_a_list_runs_again_with_other_data_elsewhere(tmp_path):
    made = Steps(steps.file("f", 0o600, size=3))
    for name, data in (("one", b""), ("two", b"longer"), ("three", b"\0x")):
        (tmp_path / name).mkdir()
        made.put("f", data)
        made.run(tmp_path / name)
    assert [(tmp_path / name / "f").read_bytes() for name in ("one", "two", "three")] == [bytes(3), b"longer", b"\0x\0"]


def test_a_replacement_appears_whole_whatever_was_there(tmp_path):
    target, through = tmp_path / "file", tmp_path / "new"
    target.symlink_to("elsewhere")
    through.write_text("what a kill has left, longer than what is written next")
    made = Steps(steps.replacement("", 0o640, str(through)))
    made.put("", b"data")
    made.run(target)
    assert (target.read_bytes(), mode(target), through.exists()) == (b"data", 0o640, False)
    assert not (tmp_path / "elsewhere").exists()
    through.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="cannot create a file"):
        made.run(target)
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_no_file_that_all_may_read_is_told(tmp_path):
    file = tmp_path / "file"
    look = Steps(steps.readable(str(file)))
    with pytest.raises(FileNotFoundError, match=rf"cannot use a file \(No such file or directory\): {file}$"):
        look.run("/")
    file.touch(mode=0o640)
    with pytest.raises(PermissionError):
        look.run("/")
    file.chmod(0o644)
    look.run("/")
    with pytest.raises(PermissionError):
        Steps(steps.readable("")).run(tmp_path)


def test_a_name_that_no_path_can_have_is_refused(tmp_path):
    with pytest.raises(OSError, match="too long") as raised:
        Steps(steps.directory("x" * 5000, 0o700)).run(tmp_path)
    assert raised.value.errno == errno.ENAMETOOLONG
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount")
def test_a_file_system_has_the_room_it_was_given_and_nothing_stays_mounted(tmp_path):
    made = Steps(steps.tmpfs("", 2 * 4096, 3, 0o750))
    made.run(tmp_path)
    made.run(tmp_path)  # mounted over the first
    try:
        assert (tmp_path.is_mount(), mode(tmp_path)) == (True, 0o750)
        with pytest.raises(OSError, match=r"cannot make room for a file \(No space left on device\)"):
            Steps(steps.file("f", 0o600, size=1 << 20, room=1 << 20)).run(tmp_path)
    finally:
        Steps(steps.unmount("")).run(tmp_path)
    assert not tmp_path.is_mount()
    with pytest.raises(OSError, match=r"cannot unmount \(Invalid argument\)"):
        Steps(steps.unmount("")).run(tmp_path)
