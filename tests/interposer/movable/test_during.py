"""Calls while memory moves: what the program asks has the answers that it had before, and a move gives way to a program
that waits for it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages.handmade import Simulator
from pages.lending import Lender
from run.interposed import Interpose, Interposed, Spawner

from gpushare._native import lib

HERE = Path(__file__).resolve().parent
SUPPORT = HERE.parents[1] / "support"


class Asking:
    """answers.py in the grant."""

    def __init__(self, sim: Simulator, lender: Lender, size: str) -> None:
        env = Spawner(sim, lender).environment({"PYTHONPATH": f"{HERE}:{SUPPORT}"})
        self.process = subprocess.Popen(
            [sys.executable, HERE / "answers.py", size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def __call__(self, *command: str) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(" ".join(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(params=["small", pytest.param("large", marks=pytest.mark.slow)])
def asking(sim: Simulator, lender: Lender, request: pytest.FixtureRequest) -> Iterator[Asking]:
    made = Asking(sim, lender, request.param)
    yield made
    made.process.kill()
    made.process.communicate()


def test_the_answers_do_not_change(lender: Lender, asking: Asking) -> None:
    """On the device, on its way out, away, on its way back, and back."""
    first = asking("ask")
    lender.revoke()
    asking("hold", "cuMemUnmap")
    word = lender.want(lib.GS_HOSTED)
    assert asking("held"), "the mover is about to unmap"
    assert asking("ask") == first
    asking("release")
    assert lender.carried_out(word) == lib.GS_MOVED
    assert lender.slot().hosted_bytes == lender.slot().movable_bytes > 0
    assert asking("ask") == first
    asking("hold", "cuMemSetAccess")
    word = lender.want(lib.GS_RESIDENT)
    assert asking("held"), "the mover has mapped memory that is not usable yet"
    assert asking("ask") == first
    asking("release")
    assert lender.carried_out(word) == lib.GS_MOVED
    lender.lease()
    assert asking("ask") == first
    asking("end")
    assert not lender.wants


WORK = """
    import threading
    from memory import holds
    a = ok(d.cuMemAlloc(3 << 20))
    streams = [ok(d.cuStreamCreate(1)) for _ in range(2)]
    flag = ok(d.cuMemHostAlloc(64, 2))
    word = ctypes.c_uint32.from_address(flag)
    word.value = 0
    over = threading.Event()
    def start(work):
        def run():
            ok(d.cuCtxSetCurrent(ctx))
            work()
        thread = threading.Thread(target=run)
        thread.start()
        return thread
    def capture():
        while not over.is_set():
            ok(d.cuMemsetD8Async(a, 7, 4096, streams[0]))
    def copy_and_write():
        ok(d.cuMemcpyHtoD(a, bytes(4096), 4096))
        word.value = 1
"""


@pytest.fixture
def worker(lender: Lender, interpose: Interpose) -> Interposed:
    made = interpose(lender)
    made.do(WORK)
    return made


def gives_way(lender: Lender, worker: Interposed, word: int, end: str) -> None:
    assert lender.carried_out(word) == lib.GS_MOVE_WORKING
    worker.do("over.set(); thread.join()")
    lender.lease()
    worker.do(end)
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED


def test_a_move_gives_way_to_an_open_capture(lender: Lender, worker: Interposed) -> None:
    """A call that is captured waits for the move, and the move for the capture."""
    worker.do("ok(d.cuStreamBeginCapture(streams[0], d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))")
    worker.do("thread = start(capture)")
    lender.revoke()
    gives_way(lender, worker, lender.want(lib.GS_HOSTED), "assert ok(d.cuStreamEndCapture(streams[0]))")


@pytest.mark.parametrize("call", ["lambda: ok(d.cuStreamWriteValue32(streams[1], flag, 1, 0))", "copy_and_write"])
def test_a_move_gives_way_to_what_ends_the_work_in_flight(lender: Lender, worker: Interposed, call: str) -> None:
    """The work waits for what a thread does behind a call that waits for the move."""
    worker.do("ok(d.cuStreamWaitValue32(streams[0], flag, 1, 0))")
    worker.do("hold = holds.Hold('cuCtxRecordEvent', holds.AFTER)")
    lender.revoke()
    word = lender.want(lib.GS_HOSTED)
    assert worker.get("hold.stopped(20)"), "the move has stopped calls, and waits for work"
    worker.do(f"thread = start({call})")
    worker.do("assert hold.release()")
    gives_way(lender, worker, word, "ok(d.cuStreamSynchronize(streams[0]))")
