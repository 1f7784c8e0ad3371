"""The cgroup device program: which GPU nodes a workload may open, held by the kernel.

The engine's own device rules stay in force: every program on the path to the root must allow an open. This one only
denies device files of guarded majors that were not granted.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from gpushare.enforce import bpf
from gpushare.enforce.bpf import R1, R2, R3, instruction, leave


def program(guarded: Iterable[int], granted: Iterable[tuple[int, int]]) -> bytes:
    """BPF instructions: deny character devices whose major is in `guarded` and (major, minor) not in `granted`."""
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
    """The first instructions: whatever is no character device is allowed; of others r2 has the major, r3 the minor."""
    code = instruction(bpf.LDX_W, R2, R1, bpf.CONTEXT_ACCESS_TYPE)
    code += instruction(bpf.AND_IMM, R2, immediate=0xFFFF)
    code += instruction(bpf.JEQ_IMM, R2, offset=2, immediate=bpf.DEVCG_DEV_CHAR) + leave(1)
    code += instruction(bpf.LDX_W, R2, R1, bpf.CONTEXT_MAJOR)
    return code + instruction(bpf.LDX_W, R3, R1, bpf.CONTEXT_MINOR)


def attach(cgroup: Path, guarded: Iterable[int], granted: Iterable[tuple[int, int]]) -> None:
    """Loads the program and attaches it to a v2 cgroup, as long as that exists.

    `guarded`: majors of which everything is denied but `granted`, the (major, minor) pairs. Raises FailedError.
    """
    descriptor = bpf.load(program(guarded, granted))
    try:
        bpf.attach(cgroup, descriptor)
    finally:
        os.close(descriptor)
