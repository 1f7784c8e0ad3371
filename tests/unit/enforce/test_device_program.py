"""The device program with device nodes that every kernel has: major 1 (mem) stands in for the GPU's."""

import os
import struct
import subprocess
import sys

import pytest

from gpushare.enforce import bpf, cgroup, device_program, exclusive
from gpushare.errors import FailedError

NULL, ZERO, FULL, TTY = (1, 3), (1, 5), (1, 7), (5, 0)

_OPEN = "import os, sys\nos.close(os.open(sys.argv[1], os.O_RDWR))"


def decide(code: bytes, kind: int, major: int, minor: int) -> int:
    """Interprets the instructions as the kernel would; supports those that `program` emits."""
    context = {0: kind | 6 << 16, 4: major, 8: minor}
    registers = [0] * 11
    at = 0
    for _ in range(1000):
        operation, both, offset, immediate = struct.unpack_from("<BBhi", code, at * 8)
        destination = both & 15
        at += 1
        match operation:
            case 0x61:
                registers[destination] = context[offset]
            case 0xB7:
                registers[destination] = immediate
            case 0x57:
                registers[destination] &= immediate
            case 0x15:
                at += offset if registers[destination] == immediate else 0
            case 0x55:
                at += offset if registers[destination] != immediate else 0
            case 0x95:
                return registers[0]
            case _:
                raise AssertionError(f"instruction {operation:#x}")
    raise AssertionError("does not end")


@pytest.mark.promise("own-nodes-only")
def test_decisions():
    code = device_program.program({195, 511}, {(195, 0), (195, 255), (511, 0)})
    allowed = {(major, minor) for major in (1, 195, 511) for minor in (0, 1, 7, 255) if decide(code, 2, major, minor)}
    assert allowed == {(1, 0), (1, 1), (1, 7), (1, 255), (195, 0), (195, 255), (511, 0)}
    assert decide(code, 1, 195, 1), "block devices of the same number are other devices"


def test_nothing_guarded_and_nothing_granted():
    assert decide(device_program.program((), ()), 2, 195, 0)
    assert not decide(device_program.program((195,), ()), 2, 195, 0)
    assert decide(device_program.program((195,), ()), 2, 196, 0)


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


def opens(group: cgroup.Cgroup, path: str) -> bool:
    result = subprocess.run(
        [sys.executable, "-c", _OPEN, path], capture_output=True, text=True, preexec_fn=lambda: group.add(os.getpid())
    )
    assert result.returncode == 0 or "PermissionError" in result.stderr, result.stderr
    return result.returncode == 0


@pytest.mark.promise("own-nodes-only")
def test_kernel_holds_it(group):
    assert opens(group, "/dev/zero")
    device_program.attach(group.path, {1}, {NULL, (1, 8), (1, 9)})
    assert opens(group, "/dev/null")
    assert not opens(group, "/dev/zero")
    assert not opens(group, "/dev/full")
    os.close(os.open("/dev/zero", os.O_RDWR))  # nothing has changed outside the cgroup


def test_holds_inside_the_subtree(group):
    device_program.attach(group.path, {1}, {NULL, (1, 8), (1, 9)})
    inner = group.path / "inner"
    inner.mkdir()
    assert not opens(cgroup.Cgroup(inner, v2=True), "/dev/zero")


def test_failures_are_one_line(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with pytest.raises(FailedError, match="cannot change the device program of"):
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
    found = bpf.attached(group.path, "gpushare_test")
    assert len(found) == 1, "the later one is in place of the other"
    os.close(found[0])
    guarded = ("/dev/zero", "/dev/full", "/dev/random")
    assert opens(group, "/dev/null")
    assert not any(opens(group, path) for path in guarded)
    passes = exclusive.group(inner.path.parent)
    program.passes.add(passes)
    assert all(opens(inner, path) for path in guarded)
    assert not opens(group, "/dev/zero")
    program.passes.discard(passes)
    program.passes.discard(passes)
    assert not opens(inner, "/dev/zero")
    program.passes.add(exclusive.user(os.geteuid()))
    assert opens(inner, "/dev/zero")
    program.close()
    assert opens(inner, "/dev/zero"), "what is attached stays"
    exclusive.take_away(group.path, "gpushare_test")
    assert bpf.attached(group.path, "gpushare_test") == []
