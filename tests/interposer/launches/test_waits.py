"""A wait shows that the work before it is done, and nothing about what other threads submit meanwhile. The reference is
the simulator's accounting; its holds fix the order of events."""

import time

import pytest
from pages.handmade import MS, Grant, Simulator
from run.interposed import Interpose, Interposed
from run.waiting import until

SHORT, LONG = 20_000, 200 * MS
PRELUDE = f"""
from memory import holds
text = b".version 7.0\\n.target sm_52\\n.address_size 64\\n"
text += b".visible .entry spin_ns(.param .u64 ns)\\n{{\\n\\tret;\\n}}\\n"
spin = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b"spin_ns"))
stream, event = ok(d.cuStreamCreate(0)), ok(d.cuEventCreate(2))
memory, host = ok(d.cuMemAlloc(4096)), bytearray(4)
def launch(ns, blocks=1):
    ok(d.cuCtxSetCurrent(ctx))
    value = ctypes.c_uint64(ns)
    params = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    ok(d.cuLaunchKernel(spin, blocks, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(params), 0))
def waits():
    ok(d.cuCtxSetCurrent(ctx))
    {{wait}}
# in the legacy stream too, so that it is known, and often, so that the length is
ok(d.cuMemsetD8Async(memory, 0, 1, 0))
for _ in range(40):
    launch({SHORT})
    ok(d.cuStreamSynchronize(stream))
ok(d.cuCtxSynchronize())
"""
WAITS = {
    "cuStreamSynchronize": "ok(d.cuStreamSynchronize(stream))",
    "cuStreamQuery": "ok(d.cuStreamQuery(stream))",
    "cuCtxSynchronize": "ok(d.cuCtxSynchronize())",
    "cuEventSynchronize": "ok(d.cuEventSynchronize(event))",
    "cuEventQuery": "ok(d.cuEventQuery(event))",
    "cuMemcpyDtoH": "ok(d.cuMemcpyDtoH(host, memory, 4))",
}
LEGACY = {
    "cuStreamSynchronize": "ok(d.cuStreamSynchronize(0))",
    "cuStreamQuery": "ok(d.cuStreamQuery(0))",
}
ALL = [*WAITS.items(), *LEGACY.items()]


class Race:
    """A worker with a kernel whose duration is known to be short, and which takes long once."""

    def __init__(self, sim: Simulator, grant: Grant, wait: str) -> None:
        grant.lease()
        grant.set_bound(1000 * MS)
        self.sim, self.grant = sim, grant
        self.worker = Interposed(sim, grant)
        self.worker.do(PRELUDE.replace("{wait}", wait))
        self.before, self.metered = sim.busy_ns(self.worker.pid), grant.slot().busy_ns

    def busy_until_done(self) -> None:
        """The work is in flight for the grant as long as it is for the simulator; then all of it is charged."""
        looks = 0
        while True:
            inflight = self.grant.slot().inflight
            if self.sim.busy_ns(self.worker.pid) - self.before >= LONG:
                break
            assert inflight > 0
            looks += 1
            time.sleep(0.01)
        self.worker.do("ok(d.cuStreamSynchronize(stream))")
        charged = self.grant.slot().busy_ns - self.metered
        print(f"{looks} looks, charged {charged / MS:.2f} of {LONG / MS:.0f} ms")
        assert charged >= 0.95 * LONG
        until(lambda: self.grant.slot().inflight == 0, "nothing is in flight any more")


@pytest.mark.parametrize(("function", "wait"), ALL)
def test_work_submitted_during_the_wait(sim: Simulator, grant: Grant, function: str, wait: str) -> None:
    race = Race(sim, grant, wait)
    try:
        race.worker.do(f"""
            launch({SHORT}); ok(d.cuEventRecord(event, stream)); ok(d.cuStreamSynchronize(stream))
            one = holds.Operation(waits)
            hold = holds.Hold({function!r}, holds.AFTER, one.native_id)
            one.go()
        """)
        assert race.worker.get("hold.stopped(60) == one.native_id")
        race.worker.do(f"launch({LONG}); hold.release(); one.result('the wait')")
        race.busy_until_done()
    finally:
        race.worker.kill()


@pytest.mark.parametrize(("function", "wait"), ALL)
@pytest.mark.parametrize("ends", ["before", "after"])
def test_work_on_its_way_during_the_wait(sim: Simulator, grant: Grant, function: str, wait: str, ends: str) -> None:
    """A launch is booked before the wait, and reaches the driver during the wait or after it."""
    race = Race(sim, grant, wait)
    try:
        race.worker.do(f"""
            two = holds.Operation(lambda: launch({LONG}))
            away = holds.Hold("cuLaunchKernel", holds.BEFORE, two.native_id)
            two.go()
        """)
        assert race.worker.get("away.stopped(60) == two.native_id")
        race.worker.do(f"""
            ok(d.cuEventRecord(event, stream))
            one = holds.Operation(waits)
            hold = holds.Hold({function!r}, holds.AFTER, one.native_id)
            one.go()
        """)
        assert race.worker.get("hold.stopped(60) == one.native_id")
        first, second = ("hold", "one"), ("away", "two")
        for hold, thread in (first, second) if ends == "before" else (second, first):
            assert grant.slot().inflight > 0
            race.worker.do(f"{hold}.release(); {thread}.result('{thread}')")
        race.busy_until_done()
    finally:
        race.worker.kill()


@pytest.mark.parametrize("function", ["cuEventSynchronize", "cuEventQuery"])
def test_an_event_recorded_again_by_a_graph(sim: Simulator, grant: Grant, function: str) -> None:
    """The event completes with the work before its latest record, the graph's, not with the work before the program's
    own record."""
    race = Race(sim, grant, "pass")
    try:
        race.worker.do(f"""
            idle, graph = ok(d.cuStreamCreate(1)), ok(d.cuGraphCreate(0))
            ok(d.cuGraphAddEventRecordNode(graph, None, 0, event))
            records = ok(d.cuGraphInstantiate(graph, 0))
            launch({LONG}); ok(d.cuEventRecord(event, stream))
            ok(d.cuGraphLaunch(records, idle)); ok(d.cuStreamSynchronize(idle)); {WAITS[function]}
        """)
        race.busy_until_done()
    finally:
        race.worker.kill()


def test_an_event_recorded_again_by_another_process(sim: Simulator, grant: Grant) -> None:
    race, other = Race(sim, grant, "pass"), Interposed(sim, None)
    try:
        race.worker.do("event = ok(d.cuEventCreate(2 | 4)); handle = ok(d.cuIpcGetEventHandle(event))")
        handle = race.worker.get("list(ctypes.string_at(handle.getPtr(), 64))")
        other.do(f"""
            handle = d.CUipcEventHandle()
            ctypes.memmove(handle.getPtr(), bytes({handle}), 64)
            event, stream = ok(d.cuIpcOpenEventHandle(handle)), ok(d.cuStreamCreate(1))
        """)
        race.worker.do(f"launch({LONG}); ok(d.cuEventRecord(event, stream))")
        other.do("ok(d.cuEventRecord(event, stream)); ok(d.cuStreamSynchronize(stream))")
        race.worker.do("ok(d.cuEventSynchronize(event))")
        race.busy_until_done()
    finally:
        other.kill()
        race.worker.kill()


def test_work_on_its_way_during_a_mark(sim: Simulator, grant: Grant) -> None:
    """A mark behind another thread's launch does not cover the work on its way."""
    race = Race(sim, grant, "pass")
    try:
        race.worker.do(f"""
            for _ in range(40):
                launch({MS}, 2); ok(d.cuStreamSynchronize(stream))
            two = holds.Operation(lambda: launch({LONG}))
            away = holds.Hold("cuLaunchKernel", holds.BEFORE, two.native_id)
            two.go()
        """)
        assert race.worker.get("away.stopped(60) == two.native_id")
        race.worker.do(f"launch({MS}, 2); ok(d.cuStreamSynchronize(stream))")
        race.before, race.metered = sim.busy_ns(race.worker.pid), grant.slot().busy_ns
        assert grant.slot().inflight > 0
        race.worker.do("away.release(); two.result('the launch')")
        race.busy_until_done()
    finally:
        race.worker.kill()


def test_a_mark_after_its_stream_was_found_idle(sim: Simulator, grant: Grant) -> None:
    """A launch gets a mark behind the driver's call, by when its kernel may have ended and been seen to have ended."""
    race = Race(sim, grant, "pass")
    try:
        race.worker.do(f"""
            for _ in range(40):
                launch({MS}, 2); ok(d.cuStreamSynchronize(stream))
            two = holds.Operation(lambda: launch({SHORT}, 3))
            away = holds.Hold("cuLaunchKernel", holds.BEFORE, two.native_id)
            two.go()
        """)
        assert race.worker.get("away.stopped(60) == two.native_id"), "it measures a kernel of another shape"
        race.worker.do(f"""
            launch({MS}, 2); ok(d.cuStreamSynchronize(stream))
            late = holds.Hold("cuEventRecord", holds.BEFORE, two.native_id)
            away.release()
        """)
        assert race.worker.get("late.stopped(60) == two.native_id"), "behind the kernel"
        until(lambda: grant.slot().inflight == 0, "the kernel is seen to have ended")
        race.worker.do("late.release(); two.result('the launch')")
        until(lambda: grant.slot().inflight == 0, "nothing is in flight")
    finally:
        race.worker.kill()


def test_a_record_that_took_long(sim: Simulator, grant: Grant, interpose: Interpose) -> None:
    """The first event of a context relates the device's clock to the host's, to within the time of the record call. If
    the stream is never empty afterwards, no later record is more precise; a query or wait that finds an event not done
    is."""
    grant.lease()
    grant.set_bound(1000 * MS)
    worker = interpose(grant)
    worker.do(f"""
        import time
        from memory import holds
        text = b".version 7.0\\n.target sm_52\\n.address_size 64\\n"
        text += b".visible .entry spin_ns(.param .u64 ns)\\n{{\\n\\tret;\\n}}\\n"
        spin = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b"spin_ns"))
        stream, done = ok(d.cuStreamCreate(1)), [ok(d.cuEventCreate(3)) for _ in range(2)]
        def launch():
            ok(d.cuCtxSetCurrent(ctx))
            value = ctypes.c_uint64({40 * MS})
            params = (ctypes.c_void_p * 1)(ctypes.addressof(value))
            ok(d.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(params), 0))
        first = holds.Operation(launch)
        hold = holds.Hold("cuEventRecord", holds.BEFORE, first.native_id)
        first.go()
    """)
    assert worker.get("hold.stopped(60) == first.native_id")
    worker.do("""
        time.sleep(0.1); hold.release(); first.result("the launch")
        for i in range(20):
            launch(); ok(d.cuEventRecord(done[i % 2], stream))
            if i: ok(d.cuEventSynchronize(done[1 - i % 2]))
            time.sleep(0.002 * (i % 16))
        ok(d.cuStreamSynchronize(stream))
    """)
    charged, truth = grant.slot().busy_ns, sim.busy_ns(worker.pid)
    print(f"charged {charged / MS:.1f} of {truth / MS:.1f} ms")
    assert charged >= 0.98 * truth
