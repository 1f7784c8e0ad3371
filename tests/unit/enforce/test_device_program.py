"""The device program with device nodes that every kernel has: major 1 (mem) stands in for the GPU's."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from gpushare.enforce import cgroup, device_program, exclusive
from gpushare.errors import FailedError

NULL, ZERO, PTMX = (1, 3), (1, 5), (5, 2)

_OPEN = """
import os, sys
try:
    os.close(os.open(sys.argv[1], os.O_RDWR))
except OSError as error:
    sys.exit(error.errno)
"""


@pytest.fixture
def group():
    if os.geteuid() != 0:
        pytest.skip("needs root")
    where = cgroup.Hierarchies.of()
    if where.unified is None:
        pytest.skip("needs a cgroup v2 hierarchy")
    made = cgroup.Cgroup(where.unified / f"test-device-{os.getpid()}", v2=True)
    made.make()
    yield made
    made.kill()
    assert made.remove()


def opened(group: cgroup.Cgroup, path: str) -> int:
    """The error with which a process of the cgroup opens the file; 0: none."""
    command = [sys.executable, "-c", _OPEN, path]
    return subprocess.run(command, preexec_fn=lambda: group.add(os.getpid())).returncode


def opens(group: cgroup.Cgroup, path: str) -> bool:
    code = opened(group, path)
    assert code in (0, errno.EPERM), os.strerror(code)
    return code == 0


@pytest.mark.promise("own-nodes-only")
def test_kernel_holds_it(group):
    assert opens(group, "/dev/zero")
    device_program.attach(group.path, {1}, {NULL, (1, 8), (1, 9)})
    assert opens(group, "/dev/null")
    assert not opens(group, "/dev/zero")
    assert not opens(group, "/dev/full")
    os.close(os.open("/dev/zero", os.O_RDWR))  # nothing has changed outside the cgroup


def test_several_majors_are_guarded_and_no_block_device_is(group, tmp_path):
    block = tmp_path / "block"
    os.mknod(block, stat.S_IFBLK | 0o600, os.makedev(1, 250))  # no driver has it
    before = opened(group, str(block))
    device_program.attach(group.path, {1, 5}, {ZERO, PTMX})
    assert [opens(group, path) for path in ("/dev/zero", "/dev/ptmx")] == [True, True]
    assert [opens(group, path) for path in ("/dev/null", "/dev/tty")] == [False, False]
    assert opened(group, str(block)) == before != errno.EPERM, "block devices of the same number are other devices"


def test_nothing_guarded_and_nothing_granted(group):
    device_program.attach(group.path, (), ())
    assert opens(group, "/dev/zero")
    device_program.attach(group.path, (1,), ())
    assert not opens(group, "/dev/zero")
    assert opens(group, "/dev/ptmx")


def test_holds_inside_the_subtree(group):
    device_program.attach(group.path, {1}, {NULL, (1, 8), (1, 9)})
    inner = group.path / "inner"
    inner.mkdir()
    assert not opens(cgroup.Cgroup(inner, v2=True), "/dev/zero")


def test_failures_are_one_line(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with pytest.raises(FailedError, match="cannot attach the device program: "):
        device_program.attach(tmp_path, {1}, set())


def test_the_exclusive_program_lets_pass_who_is_in_its_map(group):
    """The map has cgroups, with all below them, and users. The program guards several ranges of device numbers, and
    nothing else."""
    with pytest.raises(FailedError, match="cannot make a map: Invalid argument"):
        exclusive.Exclusive([(1, 0, 1)], "a name with spaces")
    first = exclusive.Exclusive([ZERO + ZERO[1:]], "gpushare_test")
    program = exclusive.Exclusive([(1, 5, 5), (1, 7, 8)], "gpushare_test")
    inner = cgroup.Cgroup(group.path / "one" / "two", v2=True)
    inner.path.mkdir(parents=True)
    for one in (first, program):
        one.attach(group.path)
    first.close()
    found = device_program.attached(group.path, "gpushare_test")
    assert len(found) == 1, "the later one is in place of the other"
    os.close(found[0])
    guarded = ("/dev/zero", "/dev/full", "/dev/random")
    assert opens(group, "/dev/null")
    assert not any(opens(group, path) for path in guarded)
    passes = exclusive.group(inner.path.parent)
    program.admit(passes)
    assert all(opens(inner, path) for path in guarded)
    assert not opens(group, "/dev/zero")
    program.expel(passes)
    program.expel(passes)
    assert not opens(inner, "/dev/zero")
    program.admit(exclusive.user(os.geteuid()))
    assert opens(inner, "/dev/zero")
    program.close()
    assert opens(inner, "/dev/zero"), "what is attached stays"
    exclusive.take_away(group.path, "gpushare_test")
    assert device_program.attached(group.path, "gpushare_test") == []
