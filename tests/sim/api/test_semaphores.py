"""External semaphores: signals and waits in stream order, within a process and between processes. And attributes of
core dumps, as a driver keeps them."""

import sys
from typing import Any

import pytest
from run.simworker import Worker, start
from run.waiting import until

IMPORT = """
    import ctypes, os
    kinds = d.CUexternalSemaphoreHandleType
    OPAQUE = kinds.CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD
    TIMELINE = kinds.CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD
    def described(fd, kind):
        made = d.CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC()
        made.type, made.handle.fd = kind, fd
        return made
    def imported(fd, kind):
        return ok(d.cuImportExternalSemaphore(described(fd, kind)))
    def signal(semaphore, stream, value=0):
        how = d.CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS()
        how.params.fence.value = value
        return d.cuSignalExternalSemaphoresAsync([semaphore], [how], 1, stream)
    def wait(semaphore, stream, value=0):
        how = d.CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS()
        how.params.fence.value = value
        return d.cuWaitExternalSemaphoresAsync([semaphore], [how], 1, stream)
    one, other = (ok(d.cuStreamCreate(1)) for _ in range(2))
"""
DONE, NOT_READY, INVALID = "CUDA_SUCCESS", "CUDA_ERROR_NOT_READY", "CUDA_ERROR_INVALID_VALUE"


@pytest.fixture
def worker(sim: Any) -> Worker:
    made = start(sim)
    made.do(IMPORT)
    return made


@pytest.mark.parametrize("made", ["os.eventfd(0)", "os.memfd_create('semaphore')"])
def test_a_wait_lasts_until_the_signal_and_takes_it(worker: Worker, made: str) -> None:
    worker.do(f"semaphore = imported({made}, OPAQUE)")
    for _ in range(2):
        worker.do("ok(wait(semaphore, one))")
        assert worker.error("d.cuStreamQuery(one)") == NOT_READY
        worker.do("ok(signal(semaphore, other)); ok(d.cuStreamSynchronize(one))")
    worker.do("ok(d.cuDestroyExternalSemaphore(semaphore))")
    assert worker.error("signal(semaphore, one)") == "CUDA_ERROR_INVALID_HANDLE"
    assert worker.error("d.cuDestroyExternalSemaphore(semaphore)") == "CUDA_ERROR_INVALID_HANDLE"


def test_a_signal_comes_after_the_work_before_it(worker: Worker) -> None:
    worker.do("""
        semaphore = imported(os.memfd_create("semaphore"), TIMELINE)
        memory, flag = ok(d.cuMemAlloc(8)), ok(d.cuMemAlloc(8))
        ok(d.cuMemsetD32(memory, 0, 2)); ok(d.cuMemsetD32(flag, 0, 2))
        ok(d.cuStreamWaitValue32(other, flag, 1, 0)); ok(d.cuMemsetD32Async(memory, 7, 1, other))
        ok(signal(semaphore, other, 3))
        ok(wait(semaphore, one, 2))
    """)
    assert worker.error("d.cuStreamQuery(one)") == NOT_READY, "other waits for the flag"
    worker.do("""
        ok(d.cuStreamWriteValue32(ok(d.cuStreamCreate(1)), flag, 1, 0)); ok(d.cuStreamSynchronize(one))
        seen = bytearray(4); ok(d.cuMemcpyDtoH(seen, memory, 4))
    """)
    assert worker.get("seen[0]") == 7
    worker.do("ok(wait(semaphore, one, 3)); ok(d.cuStreamSynchronize(one)); ok(wait(semaphore, one, 4))")
    assert worker.error("d.cuStreamQuery(one)") == NOT_READY, "a timeline reaches 4 when it is signalled with 4"
    worker.do("ok(signal(semaphore, other, 4)); ok(d.cuStreamSynchronize(one))")


@pytest.mark.parametrize("kind", ["OPAQUE", "TIMELINE"])
def test_two_processes(sim: Any, worker: Worker, kind: str) -> None:
    worker.do(f"file = os.memfd_create('semaphore'); semaphore = imported(os.dup(file), {kind})")
    second = start(sim)
    second.do(IMPORT)
    second.do(f"semaphore = imported(os.open('/proc/{worker.pid}/fd/{worker.get('file')}', os.O_RDWR), {kind})")
    worker.do("ok(wait(semaphore, one, 1))")
    assert worker.error("d.cuStreamQuery(one)") == NOT_READY
    second.do("ok(signal(semaphore, one, 1))")
    until(lambda: worker.error("d.cuStreamQuery(one)") == DONE, "the signal of the other process")


def test_in_graphs(worker: Worker) -> None:
    worker.do("""
        semaphore = imported(os.eventfd(0), OPAQUE)
        ok(d.cuStreamBeginCapture(one, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        ok(wait(semaphore, one)); graph = ok(d.cuStreamEndCapture(one))
        executable = ok(d.cuGraphInstantiate(graph, 0))
    """)
    for _ in range(2):
        worker.do("ok(d.cuGraphLaunch(executable, one))")
        assert worker.error("d.cuStreamQuery(one)") == NOT_READY
        worker.do("ok(signal(semaphore, other)); ok(d.cuStreamSynchronize(one))")


def test_what_is_no_semaphore(worker: Worker) -> None:
    def error(fd: str, kind: str) -> str:
        return worker.error(f"d.cuImportExternalSemaphore(described({fd}, {kind}))")

    assert error("-1", "OPAQUE") == error("os.pipe()[0]", "OPAQUE") == error("os.eventfd(0)", "TIMELINE") == INVALID
    windows = "kinds.CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32"
    assert error("0", windows) == "CUDA_ERROR_NOT_SUPPORTED"


DUMPS = """
import ctypes, os, socket
cuda = ctypes.CDLL("libcuda.so.1")
def get(call, attribute):
    size = ctypes.c_size_t(); call(attribute, None, ctypes.byref(size))
    value = ctypes.create_string_buffer(size.value)
    assert call(attribute, value, ctypes.byref(size)) == 0
    return value.raw[: size.value].rstrip(b"\\0")
def put(call, attribute, value):
    return call(attribute, ctypes.create_string_buffer(value, len(value)), ctypes.byref(ctypes.c_size_t(len(value))))
of_all, of_context = cuda.cuCoredumpGetAttributeGlobal, cuda.cuCoredumpGetAttribute
set_all, set_context = cuda.cuCoredumpSetAttributeGlobal, cuda.cuCoredumpSetAttribute
ON_EXCEPTION, TRIGGER_HOST, LIGHTWEIGHT, USER_TRIGGER, FILE, PIPE, FLAGS = range(1, 8)
"""


def test_core_dump_attributes(sim: Any) -> None:
    code = (
        DUMPS
        + """
assert get(of_all, FILE) == f"core.cuda.{socket.gethostname()}.{os.getpid()}".encode()
assert (get(of_all, ON_EXCEPTION), get(of_all, TRIGGER_HOST)) == (b"", b"\\1")
assert put(set_all, ON_EXCEPTION, b"\\1") == 0
context = ctypes.c_void_p()
assert put(set_context, LIGHTWEIGHT, b"\\1") == 3, "not initialised"
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
assert get(of_context, ON_EXCEPTION) == b"\\1", "as it was when the context was made"
assert put(set_all, ON_EXCEPTION, b"\\0") == 0 and get(of_context, ON_EXCEPTION) == b"\\1"
assert put(set_context, LIGHTWEIGHT, b"\\1") == 0
assert (get(of_context, FLAGS), get(of_all, FLAGS)) == (b"\\x2f", b"")
assert put(set_context, FILE, b"/tmp/a\\0") == 0 and get(of_context, FILE) == b"/tmp/a" != get(of_all, FILE)
assert put(set_context, USER_TRIGGER, b"\\1") == 801, "the process has one pipe"
assert put(set_all, PIPE, b"/tmp/p\\0") == 0 and put(set_all, USER_TRIGGER, b"\\1") == 0
assert put(set_all, PIPE, b"/tmp/q\\0") == 800, "it is open"
assert [put(set_all, FLAGS, b"\\xff\\0\\0\\0"), put(set_all, 8, b"\\1"), put(set_all, FILE, b"\\0")] == [1, 1, 1]
"""
    )
    sim.run(sys.executable, "-c", code)


def test_variables_of_core_dumps_are_final(sim: Any) -> None:
    code = (
        DUMPS
        + """
assert (get(of_all, ON_EXCEPTION), get(of_all, FILE)) == (b"\\1", b"/tmp/core")
assert (put(set_all, ON_EXCEPTION, b"\\0"), put(set_all, FILE, b"/tmp/x\\0")) == (800, 800)
"""
    )
    env = {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_COREDUMP_FILE": "/tmp/core"}
    sim.run(sys.executable, "-c", code, env=env)
