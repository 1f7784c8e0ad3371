"""One link per device: the copies of all processes share each direction of it. Judged by event times, which are exact.

The test writes copies of other processes into the log that all processes share, so that it decides when they begin."""

import mmap
import os
import struct
import time
from typing import Any

import pytest
from run.simulated import Wire
from run.simworker import Worker, start

LINKS_GET, TRANSFERS = 27, 4096
TO, FROM = 0, 1  # directions
DIRECTION = 8 + 32 * TRANSFERS
MS = 10**6
LATENCY = 1500
BYTES = 10 * MS  # 10 ms at 1 GB/s


class Link:
    """The log of a device: native/sim/wire/sim_proto.h, struct sim_direction."""

    def __init__(self, sim: Any, device: int = 0) -> None:
        with Wire(sim.socket) as wire:
            error, _, (fd,) = wire.call(LINKS_GET, device)
        assert error == 0
        self.page = mmap.mmap(fd, 2 * DIRECTION)
        os.close(fd)

    def begin(
        self, direction: int, alone: int, pageable: bool = False, at: int | None = None, whole: bool = True
    ) -> int:
        """Another process's copy, which began just now. whole: false if it died while it wrote the entry."""
        base = direction * DIRECTION
        (count,) = struct.unpack_from("<Q", self.page, base)
        at = time.monotonic_ns() if at is None else at
        entry = (count + 1 if whole else 0, at, alone, pageable)
        struct.pack_into("<4Q", self.page, base + 8 + 32 * (count % TRANSFERS), *entry)
        struct.pack_into("<Q", self.page, base, count + 1)
        return at

    def latest(self, direction: int) -> int:
        """When the latest copy began."""
        (count,) = struct.unpack_from("<Q", self.page, direction * DIRECTION)
        _, at, _, _ = struct.unpack_from("<4Q", self.page, direction * DIRECTION + 8 + 32 * ((count - 1) % TRANSFERS))
        return int(at)


PREPARE = f"""
    s = ok(d.cuStreamCreate(1)); p = ok(d.cuMemAlloc({BYTES})); own = ctypes.create_string_buffer({BYTES})
    plain, pinned = ctypes.addressof(own), int(ok(d.cuMemHostAlloc({BYTES}, 0)))
    inwards = lambda host, count={BYTES}: ok(d.cuMemcpyHtoDAsync(p, host, count, s))
    outwards = lambda host, count={BYTES}: ok(d.cuMemcpyDtoHAsync(host, p, count, s))
    took = lambda work: elapsed(s, work) * 1e6
"""


@pytest.fixture
def slow(simulator: Any) -> Any:
    """1 GB/s, of which a pageable copy takes at most a quarter."""
    return simulator.start("--copy-gbps", "1")


def prepared(sim: Any) -> Worker:
    worker = start(sim)
    worker.do(PREPARE)
    return worker


def near(ns: float) -> Any:
    return pytest.approx(ns, rel=1e-5)


def test_pinned_and_pageable_memory(simulator: Any) -> None:
    """cuMemHostAlloc, cuMemAllocHost and cuMemHostRegister pin."""
    worker = prepared(simulator.start("--copy-gbps", "10", "--pageable-gbps", "2.5"))
    fast, slow_ = LATENCY + BYTES / 10, LATENCY + BYTES / 2.5
    for way in ("inwards", "outwards"):
        for host in ("pinned", f"int(ok(d.cuMemAllocHost({BYTES})))"):
            assert worker.get(f"took(lambda: {way}({host}))") == near(fast)
        # the call waits for such a copy, so there can be no gate
        worker.do(f"""
            begin, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0)); ok(d.cuEventRecord(begin, s)); {way}(plain)
            ok(d.cuEventRecord(end, s)); ok(d.cuStreamSynchronize(s))
        """)
        assert worker.get("ok(d.cuEventElapsedTime(begin, end)) * 1e6") >= slow_ * (1 - 1e-5)
        worker.do(f"ok(d.cuMemHostRegister(plain, {BYTES}, 0))")
        assert worker.get(f"took(lambda: {way}(plain))") == near(fast)
        worker.do("ok(d.cuMemHostUnregister(plain))")


@pytest.mark.parametrize(("way", "direction"), [("inwards", TO), ("outwards", FROM)])
def test_copies_in_one_direction_share_it(slow: Any, way: str, direction: int) -> None:
    worker, link = prepared(slow), Link(slow)
    alone = LATENCY + BYTES
    assert worker.get(f"took(lambda: {way}(pinned))") == near(alone)
    link.begin(1 - direction, 60_000 * MS)
    assert worker.get(f"took(lambda: {way}(pinned))") == near(alone), "the other direction has a rate of its own"
    link.begin(direction, 60_000 * MS)
    assert worker.get(f"took(lambda: {way}(pinned))") == near(2 * alone)
    link.begin(direction, 60_000 * MS)
    assert worker.get(f"took(lambda: {way}(pinned))") == near(3 * alone)
    copied = [slow.process(worker.pid)[key] for key in ("copied_in_bytes", "copied_out_bytes")]
    gates = 4 * [8, 0][direction]  # of the device's memory, which the host opens
    assert copied[direction] == 4 * BYTES + gates
    assert copied[1 - direction] == 32 - gates


def test_a_copy_that_ends_leaves_its_rate_to_the_others(slow: Any) -> None:
    """What it has left when ours begins is what ours takes longer. The gate's few bytes take a part."""
    worker, link = prepared(slow), Link(slow)
    began = link.begin(TO, 20 * MS)
    took = worker.get("took(lambda: inwards(pinned))")
    left = began + 20 * MS - link.latest(TO)  # on a busy machine ours may find nothing of it
    assert took == pytest.approx(LATENCY + BYTES + min(max(left, 0), LATENCY + BYTES), abs=50_000)


def test_a_pageable_copy_takes_only_its_own_rate(simulator: Any) -> None:
    """1 GB/s, of which a pageable copy takes at most a quarter: a pinned one beside it has the rest."""
    sim = simulator.start("--copy-gbps", "4", "--pageable-gbps", "1")
    worker, link = prepared(sim), Link(sim)
    alone = LATENCY + BYTES / 4
    link.begin(TO, 60_000 * MS, pageable=True)
    assert worker.get("took(lambda: inwards(pinned))") == near(alone * 4 / 3)
    link.begin(TO, 60_000 * MS, pageable=True)
    assert worker.get("took(lambda: inwards(pinned))") == near(alone * 2)
    for _ in range(2):
        link.begin(TO, 60_000 * MS, pageable=True)
    assert worker.get("took(lambda: inwards(pinned))") == near(alone * 5), "a fair share is less than their rate now"


@pytest.mark.parametrize("count", [TRANSFERS - 1, TRANSFERS + 1, 3 * TRANSFERS])
def test_a_process_that_has_not_looked_for_long(slow: Any, count: int) -> None:
    worker, link = prepared(slow), Link(slow)
    at = time.monotonic_ns()
    for i in range(count):
        link.begin(TO, 1, at=at + i)
    assert worker.get("took(lambda: inwards(pinned))") == near(LATENCY + BYTES)


def test_a_process_that_died_while_it_wrote(slow: Any) -> None:
    worker, link = prepared(slow), Link(slow)
    link.begin(TO, 60_000 * MS, whole=False)
    assert worker.get("took(lambda: inwards(pinned))") == near(LATENCY + BYTES)
    link.begin(TO, 60_000 * MS)
    assert worker.get("took(lambda: inwards(pinned))") == near(2 * (LATENCY + BYTES))


def test_real_processes_share(slow: Any) -> None:
    """No machine is so fast that three of them move 12 times 10 ms in less than 120 ms."""
    workers = [prepared(slow) for _ in range(3)]
    for worker in workers:
        worker.do("import time; began = time.monotonic_ns()\nfor _ in range(4): inwards(pinned)")
    for worker in workers:
        worker.do("ok(d.cuStreamSynchronize(s)); ended = time.monotonic_ns()")
    whole = max(worker.get("ended") for worker in workers) - min(worker.get("began") for worker in workers)
    assert whole >= 12 * BYTES
    assert sum(slow.process(worker.pid)["copied_in_bytes"] for worker in workers) == 12 * BYTES


# ---- what calls cost the program

PIN = {
    "HostRegister": "ok(d.cuMemHostRegister(plain, 10_000_000, 0))",
    "HostAlloc": "ok(d.cuMemHostAlloc(10_000_000, 0))",
}


@pytest.mark.parametrize("call", PIN.values(), ids=PIN)
def test_pinning_takes_its_time(simulator: Any, call: str) -> None:
    worker = prepared(simulator.start("--pin-gibps", "1"))
    worker.do(f"import time; began = time.monotonic(); {call}; took_ = time.monotonic() - began")
    assert worker.get("took_") >= 10e6 / 2**30


def test_mapping_takes_its_time(simulator: Any) -> None:
    """Each call for each handle or mapping."""
    worker = prepared(simulator.start("--vmm-ns", "3000000,4000000,5000000,6000000"))
    worker.do("""
        import time
        def timed(call):
            began = time.monotonic(); answer = call(); times.append(time.monotonic() - began)
            return answer
        times, size = [], 2 << 20; a = ok(d.cuMemAddressReserve(2 * size, 0, 0, 0))
        for i in range(2):
            h = timed(lambda: ok(d.cuMemCreate(size, on_device(), 0)))
            timed(lambda: ok(d.cuMemMap(d.CUdeviceptr(int(a) + i * size), size, 0, h, 0)))
        timed(lambda: ok(d.cuMemSetAccess(a, 2 * size, [access()], 1))); timed(lambda: ok(d.cuMemUnmap(a, 2 * size)))
    """)
    costs = [0.003, 0.004, 0.003, 0.004, 0.010, 0.012]
    assert all(took >= cost for took, cost in zip(worker.get("times"), costs, strict=True))
