"""The cgroup device program, by which the kernel enforces which GPU device nodes a workload may open.

The engine's own device rules stay in force: every program on the path to the root must allow an open. This one only
denies device files of guarded majors that are not granted.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from gpushare.enforce import bpf
from gpushare.enforce.bpf import R1, R2, R3, instruction, leave


def program(guarded: Iterable[int], granted: Iterable[tuple[int, int]]) -> bytes:
    """Returns BPF instructions that deny character devices whose major is in `guarded` and whose (major, minor) is not
    in `granted`."""
    allow, deny = leave(1), leave(0)
    wanted = sorted(set(granted))
    code = character()
    for major in sorted(set(guarded)):
        minors = b""
        for minor in [minor for found, minor in wanted if found == major]:
            minors += instruction(bpf.JNE_IMM, R3, offset=2, immediate=minor) + allow
        minors += deny
        code += instruction(bpf.JNE_IMM, R2, offset=len(minors) // 8, immediate=major) + minors
    return code + allow


def character() -> bytes:
    """Returns the prologue: allows anything that is not a character device; else r2 = major and r3 = minor."""
    code = instruction(bpf.LDX_W, R2, R1, bpf.CONTEXT_ACCESS_TYPE)
    code += instruction(bpf.AND_IMM, R2, immediate=0xFFFF)
    code += instruction(bpf.JEQ_IMM, R2, offset=2, immediate=bpf.DEVCG_DEV_CHAR) + leave(1)
    code += instruction(bpf.LDX_W, R2, R1, bpf.CONTEXT_MAJOR)
    return code + instruction(bpf.LDX_W, R3, R1, bpf.CONTEXT_MINOR)


def attach(cgroup: Path, guarded: Iterable[int], granted: Iterable[tuple[int, int]]) -> None:
    """Loads the program and attaches it to a v2 cgroup for the cgroup's lifetime.

    `guarded`: majors of which everything is denied except `granted`, the (major, minor) pairs. Raises FailedError.
    """
    descriptor = bpf.load(program(guarded, granted))
    try:
        bpf.attach(cgroup, descriptor)
    finally:
        os.close(descriptor)
