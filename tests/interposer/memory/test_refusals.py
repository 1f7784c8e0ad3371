"""A refused allocation is counted in the slot of its process, and said once on its stderr."""

import os
import re

import pytest
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, LIMIT, MIB, OUT_OF_MEMORY
from run.interposed import Interpose

from gpushare._native import lib

GIB = 1 << 30
LINE = re.compile(
    r"gpushare: (\S+) refused: this share has --memory 2GiB, of which (\S+) are left \(gpushare why \S+\)\n"
)
WAYS = {
    "cuMemAlloc": f"alloc {3 * GIB}",
    "rows": f"pitch {1 << 20} {3 << 10}",
    "cuMemAllocAsync": f"async {3 * GIB}",
    "cuMemCreate": f"create {3 * GIB}",
    "managed memory": f"managed {3 * GIB}",
    "an array": "array3 16384 16384 3",
}


@pytest.mark.parametrize("way", WAYS)
def test_more_than_the_share_has(start, grant: Grant, sim: Simulator, way: str) -> None:
    client = start(grant)
    client.ok("init", "retain 0")
    assert client(WAYS[way]).result == OUT_OF_MEMORY
    slot = grant.usage.slot[0]
    assert (slot.refusals, slot.refused_device, slot.refused_why) == (1, 0, lib.GS_REFUSED_LIMIT)
    assert slot.refused_bytes >= 3 * GIB
    assert slot.refused_left == LIMIT - grant.charged()
    assert client(WAYS[way]).result == OUT_OF_MEMORY
    assert grant.usage.slot[0].refusals == 2
    assert sim.books()["devices"][0]["bytes"] <= grant.charged()
    assert LINE.fullmatch(client.end()), "once"


def test_a_program_that_frees_and_goes_on_is_left_in_peace(start, grant: Grant) -> None:
    client = start(grant)
    client.ok("init", "retain 0", f"alloc {GIB}", f"alloc {512 * MIB}")
    assert client(f"alloc {GIB}").result == OUT_OF_MEMORY
    client.ok("free 0", f"alloc {GIB}", "freeasync 2", "sync")
    assert client(f"alloc {LIMIT - CONTEXT}").result == OUT_OF_MEMORY
    client.ok(f"alloc {GIB}")  # it makes do with less
    assert grant.usage.slot[0].refusals == 2
    assert client.end() == ""


def test_the_same_again_is_said_at_once_and_anything_else_at_the_end(start, grant: Grant) -> None:
    first, last = start(grant), start(grant)
    first.ok("init", "retain 0", f"alloc {GIB}")
    assert [first(f"alloc {GIB}").result for _ in range(4)] == [OUT_OF_MEMORY] * 4
    os.set_blocking(first.process.stderr.fileno(), False)
    assert LINE.fullmatch(first.process.stderr.read()), "while it runs"
    last.ok("init", "retain 0")
    assert last(f"alloc {GIB}").result == OUT_OF_MEMORY
    last.ok("fork")  # the child ends without a word
    assert LINE.fullmatch(last.end())


def test_a_device_that_is_full_is_not_the_share_s_fault(start, interpose: Interpose, grant: Grant) -> None:
    bare = interpose(None)
    bare.do(f"ok(d.cuMemAlloc({3 * GIB}))")
    client = start(grant)
    client.ok("init", "retain 0")
    assert client(f"alloc {LIMIT - GIB // 2}").result == OUT_OF_MEMORY
    slot = grant.usage.slot[0]
    assert (slot.refusals, slot.refused_why) == (1, lib.GS_REFUSED_DEVICE)
    assert client.end().startswith(
        "gpushare: 1.50GiB refused by the driver: the device is full, although this share ha"
    )


TAKEN = """
    import fcntl, os
    def again():
        return [d.cuMemAlloc(3 << 30)[0].name for _ in range(2)]
    def with_stderr(number):
        kept = os.dup(2)
        os.dup2(number, 2)
        try:
            return again()
        finally:
            os.dup2(kept, 2)
"""


def test_nothing_but_a_stderr_that_can_take_it(interpose: Interpose, grant: Grant, tmp_path) -> None:
    file = tmp_path / "a program's own"
    worker = interpose(grant)
    worker.do(TAKEN)
    refused = ["CUDA_ERROR_OUT_OF_MEMORY"] * 2
    assert worker.get(f"with_stderr(os.open({str(file)!r}, os.O_RDWR | os.O_CREAT))") == refused
    assert file.read_bytes() == b""
    full = interpose(grant)
    full.do(TAKEN)
    full.do(
        """
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        try:
            while True:
                os.write(writes, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writes, True)
        """
    )
    assert full.get("with_stderr(writes)") == refused, "a full pipe does not hold it up"
    closed = interpose(grant)
    closed.do(TAKEN)
    closed.do("reads, writes = os.pipe(); os.close(reads)")
    assert closed.get("with_stderr(writes)") == refused, "nobody reads it any more"
    gone = interpose(grant)
    gone.do(TAKEN)
    gone.do("os.close(2)")
    assert gone.get("again()") == refused
