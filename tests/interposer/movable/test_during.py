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
from run.interposed import Interpose, Spawner
from run.waiting import until

from gpushare._native import lib

HERE = Path(__file__).resolve().parent
SUPPORT = HERE.parents[1] / "support"


@pytest.fixture
def lender(tmp_path: Path, sim: Simulator) -> Iterator[Lender]:
    made = Lender(tmp_path / "lender", sim)
    made.lease()
    yield made
    made.close()


class Asking:
    """answers.py in the grant."""

    def __init__(self, sim: Simulator, lender: Lender) -> None:
        env = Spawner(sim, lender).environment({"PYTHONPATH": f"{HERE}:{SUPPORT}"})
        self.process = subprocess.Popen(
            [sys.executable, HERE / "answers.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def __call__(self, *command: str) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(" ".join(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def asking(sim: Simulator, lender: Lender) -> Iterator[Asking]:
    made = Asking(sim, lender)
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
    assert lender.slot().hosted_bytes == lender.slot().movable_bytes > 1 << 30
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
    a = ok(d.cuMemAlloc(3 << 20))
    streams = [ok(d.cuStreamCreate(1)) for _ in range(2)]
    flag = ok(d.cuMemHostAlloc(64, 2))
    word = ctypes.c_uint32.from_address(flag)
    word.value = 0
    results = []
    def start(work):
        def run():
            ok(d.cuCtxSetCurrent(ctx))
            results.append(work())
        thread = threading.Thread(target=run)
        thread.start()
        return thread
"""


@pytest.mark.parametrize(
    ("before", "then", "after"),
    [
        pytest.param(
            "ok(d.cuStreamBeginCapture(streams[0], d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))",
            "d.cuMemsetD8Async(a, 7, 4096, streams[0])",
            "graph = ok(d.cuStreamEndCapture(streams[0])); assert ok(d.cuGraphGetNodes(graph, 9))[1] == 1",
            id="work is captured",
        ),
        pytest.param(
            "ok(d.cuStreamWaitValue32(streams[0], flag, 1, 0))",
            "d.cuStreamWriteValue32(streams[1], flag, 1, 0)",
            "ok(d.cuStreamSynchronize(streams[0]))",
            id="a stream waits for what another writes",
        ),
        pytest.param(
            "ok(d.cuStreamWaitValue32(streams[0], flag, 1, 0))",
            "(d.cuMemcpyHtoD(a, bytes(4096), 4096)[0], setattr(word, 'value', 1))",
            "ok(d.cuStreamSynchronize(streams[0]))",
            id="a stream waits for what the program writes after a copy",
        ),
    ],
)
def test_a_move_gives_way_to_what_waits_for_it(
    lender: Lender, interpose: Interpose, before: str, then: str, after: str
) -> None:
    """The call would wait for the move, and the move for what the call ends."""
    worker = interpose(lender)
    worker.do(WORK)
    worker.do(before)
    lender.revoke()
    word = lender.want(lib.GS_HOSTED)
    until(lambda: lender.segments, "the move has begun")
    worker.do(f"thread = start(lambda: {then})")
    assert lender.carried_out(word) == lib.GS_MOVE_WORKING
    worker.do("thread.join()")
    lender.lease()
    worker.do(after)
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
