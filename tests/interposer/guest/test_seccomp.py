"""System calls that a sandbox refuses: the interposer does without them, and does not spin."""

import errno
import os
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from run.interposed import Interpose
from run.waiting import until

FUTEX_WAITV = 449
MEMBARRIER = {"x86_64": 324, "aarch64": 283}[os.uname().machine]
# A filter as container engines set them: one system call is refused with an error, all others are allowed.
SANDBOX = """
    import ctypes, struct, threading
    libc = ctypes.CDLL(None, use_errno=True)
    def forbid(number, error):
        load, equal, answer = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K
        refuse, allow = 0x00050000 | error, 0x7FFF0000
        steps = [(load, 0, 0, 0), (equal, 0, 1, number), (answer, 0, 0, refuse), (answer, 0, 0, allow)]
        code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
        program = ctypes.create_string_buffer(struct.pack("=H6xQ", len(steps), ctypes.addressof(code)))
        assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
        assert libc.prctl(22, 2, program, 0, 0) == 0, "PR_SET_SECCOMP, SECCOMP_MODE_FILTER"
    text = b".version 7.0\\n.target sm_52\\n.address_size 64\\n.visible .entry none()\\n{\\n\\tret;\\n}\\n"
    def launch(function, times=1):
        for _ in range(times):
            ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    def function():
        return ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b"none"))
"""


def gate_thread(pid: int) -> Path:
    """The thread's directory in /proc, once the thread has set its name."""
    tasks = Path(f"/proc/{pid}/task")
    return until(
        lambda: next((t for t in tasks.iterdir() if (t / "comm").read_text() == "gpushare-gate\n"), None),
        "a gate thread",
    )


def slept(task: Path) -> int:
    """Number of times that the thread gave up its processor to wait."""
    lines = (task / "status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("voluntary_ctxt_switches")))


def cpu_ns(task: Path) -> int:
    return int((task / "schedstat").read_text().split()[0])


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.EACCES])
def test_a_refused_wait_for_several_leases_is_a_sleep(
    pair: Simulator, both: Grant, interpose: Interpose, error: int
) -> None:
    grant = both
    worker = interpose(grant, None, on=pair)
    worker.do(SANDBOX)
    worker.do(f"forbid({FUTEX_WAITV}, {error})")
    for device in (0, 1):
        worker.do(f"ctx = context({device}); launch(function()); ok(d.cuCtxSynchronize())")
    task = gate_thread(worker.pid)
    before, began = slept(task), cpu_ns(task)
    # Measured as CPU time per sleep, not by the clock: a spinning thread does not sleep at all.
    until(lambda: slept(task) >= before + 30, "the thread sleeps again and again")
    assert (cpu_ns(task) - began) / (slept(task) - before) < 500_000
    for device in (1, 0):
        word = grant.revoke(device)
        until(lambda device=device, word=word: grant.slot(0, device).drained == word, "the revoke is seen")


def test_a_refused_memory_barrier_loses_nothing(grant: Grant, interpose: Interpose) -> None:
    """The filter is set after the first launches: the lock that one thread owned until then is still shared
    correctly."""
    worker = interpose(grant)
    worker.do(SANDBOX)
    worker.do("f = function(); launch(f, 1000)")
    worker.do(f"forbid({MEMBARRIER}, {errno.EPERM})")
    worker.do("""
        def work():
            ok(d.cuCtxSetCurrent(ctx)); launch(f, 500)
        threads = [threading.Thread(target=work) for _ in range(3)]
        [thread.start() for thread in threads]; launch(f, 500); [thread.join() for thread in threads]
        ok(d.cuCtxSynchronize())
    """)
    assert grant.slot().launches == 3000
