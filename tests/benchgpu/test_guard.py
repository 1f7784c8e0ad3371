"""Part 8 against a stand-in for the driver's kernel half (standin.c): the programs, the borrowed files, the controls
and their undoing are the real ones."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from gpubench import build, machine, rm
from gpubench.config import Config
from gpubench.context import Context
from gpubench.deadline import Deadline
from gpubench.parts import controls, guard
from gpubench.worker import Worker
from running import until

from gpushare import paths

OBJECT = struct.Struct("<10IQ")
COMPUTE = rm.GRAPHICS
root = pytest.mark.skipif(os.geteuid() != 0, reason="taking another process's files needs root here")


class Standin:
    """The device file: what the stand-in has done to the objects."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "nvidiactl"
        self.path.write_bytes(bytes(8 + 64 * OBJECT.size))
        self.library = directory / "standin.so"
        source = Path(__file__).with_name("standin.c")
        command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", self.library, source]
        subprocess.run(command, check=True, timeout=60)

    def groups(self) -> list[dict[str, int]]:
        found = []
        raw = self.path.read_bytes()
        for index in range(struct.unpack_from("<I", raw)[0]):
            fields = OBJECT.unpack_from(raw, 8 + index * OBJECT.size)
            names = ("client", "parent", "handle", "class", "engine", "pid", "disabled", "preempts", "changes")
            one = dict(zip(names, fields, strict=False)) | {"timeslice_us": fields[-1]}
            if one["class"] == rm.CHANNEL_GROUP:
                found.append(one)
        return found

    def environment(self, preload: str, *, tenant: bool) -> dict[str, str]:
        libraries = ":".join(filter(None, [preload, str(self.library)]))
        found = {"LD_PRELOAD": libraries, "STANDIN": str(self.path), "IOLOG_FILES": str(self.path)}
        return found | ({"STANDIN_TENANT": "1"} if tenant else {})


@pytest.fixture
def context(monkeypatch):
    """On the simulated device, whose driver makes no ioctl."""
    monkeypatch.setenv("PYTHONPATH", str(machine.ROOT / "bench" / "gpu"), prepend=os.pathsep)
    work = Path(tempfile.mkdtemp(prefix="gsb-", dir="/tmp"))
    build.programs(
        build.Shell(work / "build.log", Deadline(None)), work / "programs", paths.SIM_LIB_DIR / "libcuda.so.1", gpu=None
    )
    found = Context(Config(True, str(work), str(work / "programs"), str(paths.LIB_DIR)))
    yield found
    found.stage.close()
    shutil.rmtree(work)


@pytest.fixture
def standin(context, monkeypatch, tmp_path):
    """Every program of the stage runs above it."""
    device = Standin(tmp_path)
    start = context.stage.start

    def above(arm, argv, *, environment=None, **more):
        given = dict(environment or {})
        preload = given.get("LD_PRELOAD", "")
        given |= device.environment(preload, tenant=bool(preload))
        return start(arm, argv, environment=given, **more)

    monkeypatch.setattr(context.stage, "start", above)
    monkeypatch.setattr(controls, "DEVICE", str(device.path))
    return device


def told(capsys) -> tuple[dict[str, dict], list[str], list[str]]:
    """Rows by name, what was skipped, what broke."""
    messages = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = {message["row"]["name"]: message["row"] for message in messages if "row" in message}
    return (
        rows,
        [message["skip"] for message in messages if "skip" in message],
        [message["broken"] for message in messages if "broken" in message],
    )


@root
def test_controls_are_issued_through_the_other_processs_file(context, standin, capsys):
    guard.measure(context)
    rows, skipped, broken = told(capsys)
    assert not broken
    assert not skipped
    assert "1 x RM_ALLOC (48 bytes, device memory 0x40)" in rows["alloc 64MiB: allocating ioctls"]["text"]
    assert rows["cuMemAlloc of 256 MiB while the kernel says ENOMEM"]["text"] == "CUDA_ERROR_OPERATING_SYSTEM"
    assert rows["and when it no longer says so"]["text"] == "CUDA_SUCCESS"
    assert rows["kernels afterwards"]["text"].startswith("CUDA_SUCCESS: ")
    assert rows["channel groups of a process that compute, reached by another"]["value"] == 1
    assert (
        "groups of all engines: 2; channels in those that compute: 2"
        in (rows["channel groups of a process that compute, reached by another"]["against"])
    )
    assert rows["the same through a file that the other opened itself"]["text"] == "NV_ERR_INVALID_CLIENT"
    for control in ("SET_TIMESLICE", "GPFIFO_SCHEDULE off", "GPFIFO_SCHEDULE on", "PREEMPT"):
        assert 0 < rows[f"{control} on a busy process"]["value"] < 100_000
        assert rows[f"{control} on a busy process"]["against"].startswith("NV_OK (15 times); its work in this time ")
    stopped = rows["work of a busy process behind GPFIFO_SCHEDULE, off"]
    assert stopped["value"] < 10
    assert "NV_OK" in stopped["against"]
    for name in ("both with the driver's timeslice of 1024 us", "its timeslice 102 us", "its timeslice put back"):
        assert 0 < rows[f"share of the first of two busy processes, {name}"]["value"] < 100
    assert rows["FIFO_DISABLE_CHANNELS by another client, off"]["text"] == "NV_ERR_INVALID_CLIENT"
    # The first busy process was the only one that anything was done to, and only where it computes.
    groups = standin.groups()
    assert all(one["disabled"] == 0 and one["timeslice_us"] == 1024 for one in groups)
    changed = [one for one in groups if one["changes"]]
    assert [(one["engine"], one["preempts"]) for one in changed] == [(COMPUTE, 15)]


@root
def test_another_client_that_may_disable_channels_enables_them_again(context, standin, capsys, monkeypatch):
    monkeypatch.setenv("STANDIN_FOREIGN", "1")
    controls.measure(context)
    rows, skipped, broken = told(capsys)
    assert not skipped + broken
    assert rows["work of a busy process behind FIFO_DISABLE_CHANNELS by another client, off"]["value"] < 10
    assert not any(one["disabled"] for one in standin.groups())


@pytest.fixture
def held(context, standin):
    """A program and a controlling process that has changed all there is to change on it."""
    log = context.stage.work / "log"
    environment = {"LD_PRELOAD": context.stage.program("iolog.so"), "IOLOG": str(log)}
    with (
        context.stage.start("bare", context.stage.load_argv(), environment=environment) as tenant,
        context.stage.start("bare", context.stage.python("controls.py", controls.DEVICE)) as other,
    ):
        assert other.ask(f"groups {tenant.pid} {log}")["timeslice_us"] == [1024]
        assert other.ask(f"timeslice {tenant.pid} 10")["status"] == {"NV_OK": 1}
        assert other.ask(f"schedule {tenant.pid} 0")["status"] == {"NV_OK": 1}
        (group,) = (one for one in standin.groups() if one["engine"] == COMPUTE)
        assert (group["disabled"], group["timeslice_us"]) == (1, 10)
        yield tenant, other


def _as_before(standin: Standin) -> bool:
    return all((one["disabled"], one["timeslice_us"]) == (0, 1024) for one in standin.groups())


@root
@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "undo"])
def test_everything_is_put_back_however_it_ends(held, standin, how):
    tenant, other = held
    if how == "undo":
        assert other.ask("undo")["status"] == {"schedule": {"NV_OK": 1}, "timeslice": {"NV_OK": 1}}
    elif how == "SIGTERM":
        other.process.send_signal(signal.SIGTERM)
        other.process.wait(20)
    else:
        other.close()
    assert _as_before(standin)
    assert tenant.ask("memory")["event"] == "memory"


@root
def test_a_measurement_that_fails_is_undone_and_the_next_one_heard(context, held, standin):
    tenant, other = held

    def fails() -> None:
        other.send(f"repeat schedule {tenant.pid} 3")
        raise ValueError("no answer was read")

    with pytest.raises(ValueError, match="no answer"), controls._undone(context, other):
        fails()
    assert _as_before(standin)
    assert other.ask(f"foreign {tenant.pid}")["status"] == {"NV_ERR_INVALID_CLIENT": 1}


@root
def test_a_borrowed_file_is_closed_at_once(held):
    tenant, other = held
    ctl = controls.DEVICE

    def holds(process: Worker) -> int:
        links = Path(f"/proc/{process.pid}/fd").iterdir()
        return sum(str(link.readlink()) == ctl for link in links)

    assert (holds(tenant), holds(other)) == (1, 0)


@root
def test_a_process_that_is_gone_is_no_failure(held, standin):
    tenant, other = held
    tenant.process.kill()
    tenant.process.wait()
    until(lambda: not Path(f"/proc/{tenant.pid}").exists(), 10)
    assert other.ask(f"schedule {tenant.pid} 1")["status"] == {"pidfd_getfd: No such process": 1}
    assert other.ask("undo")["status"]["timeslice"] == {"pidfd_getfd: No such process": 1}


@root
def test_without_ioctls_nothing_is_claimed(context, capsys):
    guard.measure(context)
    rows, skipped, broken = told(capsys)
    assert not rows
    assert not broken
    assert skipped == [
        "no ioctl of the driver went through the C library: nothing is known about them",
        "no program was seen to make a channel group: controls on them are not tried",
    ]


REQUESTS = """
import ctypes, errno, fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
def call(nr, data, size=None):
    block = ctypes.create_string_buffer(data, len(data))
    try:
        fcntl.ioctl(fd, 3 << 30 | (size or len(data)) << 16 | ord("F") << 8 | nr, block, True)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"
def heap(function, flags=0, attributes=0):
    data = bytearray(184)
    struct.pack_into("<I", data, 8, function)
    struct.pack_into("<I", data, 52, flags)
    struct.pack_into("<I", data, 64 if function == 6 else 56, attributes)
    return bytes(data)
def alloc(class_):
    return struct.pack("<4I2Q4I", 1, 2, 0, class_, 0, 0, 0, 0, 0, 0)
inner = ctypes.create_string_buffer(alloc(0x40), 48)
transfer = struct.pack("<IIQ", 0x2b, 48, ctypes.addressof(inner))
print(call(0x2b, alloc(0x40)), call(0x2b, alloc(0x3e)), call(0x4a, heap(2)), call(0x4a, heap(6)), call(0x4a, heap(14)),
      call(0x4a, heap(3)), call(0x4a, heap(2, flags=0x80000)), call(0x4a, heap(6, attributes=1 << 25)),
      call(0xd3, transfer))
"""


def test_only_device_memory_is_denied(context, tmp_path):
    """A plain file answers every ioctl with ENOTTY: what is not denied comes to it."""
    log, device = tmp_path / "log", tmp_path / "nvidiactl"
    device.touch()
    Path(f"{log}.deny").touch()
    env = {**os.environ, "LD_PRELOAD": context.stage.program("iolog.so"), "IOLOG": str(log), "IOLOG_FILES": str(device)}
    command = [sys.executable, "-c", REQUESTS, str(device)]
    said = [
        subprocess.run(command, env=env | more, capture_output=True, text=True, timeout=60, check=True).stdout.split()
        for more in ({}, {"IOLOG_DENY": "1"})
    ]
    assert said[0] == ["ENOTTY"] * 9
    assert said[1] == ["ENOMEM", "ENOTTY", "ENOMEM", "ENOMEM", "ENOMEM", "ENOTTY", "ENOTTY", "ENOTTY", "ENOMEM"]
    calls = guard._calls(log)[0]
    numbers = [(0x2B, 48, 0x40), (0x2B, 48, 0x3E), *((0x4A, 184, one) for one in (2, 6, 14, 3, 2, 6)), (0x2B, 48, 0x40)]
    assert [call[1:] for call in calls] == numbers * 2


def test_a_steps_allocations_of_memory_are_told_apart_from_other_objects():
    calls = [
        ("nvidiactl", 0x2B, 48, 0x41),
        ("nvidiactl", 0x2B, 48, 0x40),
        ("nvidiactl", 0x2B, 48, 0x40),
        ("nvidiactl", 0x4A, 184, 2),
        ("nvidiactl", 0x2A, 32, 0x40),
        ("nvidia-uvm", 0x2B, 0, 0),
    ]
    assert guard._shown(calls) == (
        "2 x RM_ALLOC (48 bytes, device memory 0x40); 1 x VID_HEAP_CONTROL (184 bytes, class or function 0x2); "
        "RM_ALLOC of 1 objects that are no memory"
    )
    assert guard._shown([]) == "none"
