"""The engine as a program: its options, its socket, its exit, and misbehaving clients."""

import itertools
import os
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from run.simulated import (
    CLIENT,
    CONTROL,
    HELLO,
    LOADED,
    MAGIC,
    MEM_ALLOC,
    MEM_FREE,
    MEM_INFO,
    PROCESSES,
    STATS,
    STOP,
    VERSION,
    VIEWER,
    Wire,
    read_line,
)
from run.waiting import until

from gpushare.paths import SIM_BINARY

GIB = 1 << 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--devices", "2x16GiBs"], "--devices"),
        (["--devices", "0x16GiB"], "--devices"),
        (["--devices", "17x1GiB"], "--devices"),
        (["--devices", "-1GiB"], "--devices"),
        (["--devices", "NaN"], "--devices"),
        (["--devices", "99999TiB"], "--devices"),
        (["--devices", ""], "--devices"),
        (["--devices", "1GiB", "--slice-ns", "10"], "--slice-ns"),
        (["--devices", "1GiB", "--launch-ns", "12x"], "--launch-ns"),
        (["--devices", "1GiB", "--launch-ns", "-3"], "--launch-ns"),
        (["--devices", "1GiB", "--queue-depth", "0"], "--queue-depth"),
        (["--devices", "1GiB", "--preempt", "2"], "--preempt"),
        (["--devices", "1GiB", "--pageable-gbps", "0"], "--pageable-gbps"),
        (["--devices", "1GiB", "--pin-gibps", "fast"], "--pin-gibps"),
        (["--devices", "1GiB", "--vmm-ns", "1,2,3"], "--vmm-ns"),
        (["--devices", "1GiB", "--vmm-ns", "1,2,3,4,5"], "--vmm-ns"),
        (["--devices", "1GiB", "--vmm-ns", "1,2,x,4"], "--vmm-ns"),
        (["--devices", "1GiB", "--what", "2"], "--what"),
        (["--devices", "1GiB", "stray"], "stray"),
        ([], "--devices"),
    ],
)
def test_bad_options(tmp_path, options, message):
    done = subprocess.run(
        [SIM_BINARY, "--socket", tmp_path / "s", *options], capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[0]
    assert not (tmp_path / "s").exists()


def test_unusable_socket_path(tmp_path):
    for path in (tmp_path / "none" / "s", tmp_path / ("x" * 200)):
        done = subprocess.run(
            [SIM_BINARY, "--socket", path, "--devices", "1GiB"], capture_output=True, text=True, timeout=10
        )
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1


def test_a_second_engine_on_the_same_socket_refuses(sim):
    done = subprocess.run(
        [SIM_BINARY, "--socket", sim.socket, "--devices", "1GiB"], capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 1
    assert "another simulator" in done.stderr
    assert sim.answers()


def test_the_socket_of_a_killed_engine_is_taken_over(simulator):
    simulator.start()
    simulator.engine.kill()
    simulator.engine.communicate()
    assert simulator.socket.exists()
    simulator.start()
    assert simulator.device()["bytes"] == 0


def test_stop(simulator):
    simulator.start()
    with Wire(simulator.socket) as wire:
        assert wire.call(STOP)[0] == 0
    assert simulator.engine.wait(10) == 0
    assert not simulator.socket.exists()


def test_others_may_not_stop_it(sim):
    if os.geteuid() != 0:
        pytest.skip("needs another user to ask")
    path = sim.socket
    ours = itertools.takewhile(lambda part: part != Path(tempfile.gettempdir()), path.parents)
    for part in ours:
        part.chmod(0o755)
    code = (
        f"import socket, struct\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect({str(path)!r})\n"
        f"for op, a in (({HELLO}, {VIEWER}), ({STOP}, 0)):\n"
        f"    s.send(struct.pack('<IIIIQQ', {MAGIC}, {VERSION}, op, 0, a, 0)); m = s.recv(65536)\n"
        "print(struct.unpack_from('<i', m, 4)[0])"
    )
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", code], capture_output=True, text=True, timeout=20, user=65534, check=True
    )
    assert int(done.stdout) == -1  # -EPERM
    assert sim.answers()


@pytest.mark.slow
def test_alone_it_ends_after_ten_seconds(simulator):
    simulator.start()
    control = Wire(simulator.socket, CONTROL)
    start = time.monotonic()
    control.close()
    assert simulator.engine.wait(20) == 0
    assert 9 < time.monotonic() - start < 15


def test_devices_are_distinct_and_keep_their_names(simulator):
    simulator.start(devices="1x16GiB,2x512MiB")
    first = [device["uuid"] for device in simulator.stats()["devices"]]
    assert [device["total_bytes"] for device in simulator.stats()["devices"]] == [16 * GIB, GIB // 2, GIB // 2]
    assert len(set(first)) == 3
    simulator.stop()
    simulator.start()
    assert [device["uuid"] for device in simulator.stats()["devices"]] == first[:2]


def test_garbage_ends_the_connection_and_nothing_else(sim):
    for message in (b"x", b"\0" * 32, struct.pack("<IIIIQQ", MAGIC, 99, HELLO, 0, VIEWER, 0), b"y" * 5000):
        with Wire(sim.socket, None) as wire:
            assert wire.raw(message) == b""
    with Wire(sim.socket, None) as wire:
        assert wire.call(STATS)[0] == -71  # -EPROTO: nothing before the hello
    with Wire(sim.socket) as wire:
        assert wire.call(4711)[0] == -38  # -ENOSYS
        assert wire.call(MEM_INFO, 2)[0] == -19  # -ENODEV
        assert wire.call(MEM_ALLOC, 0, 1)[0] == -1  # -EPERM: a viewer holds nothing
        error, _, fds = wire.call(PROCESSES)
        assert error == 0
        os.close(fds[0])
    assert sim.answers()


def test_memory_books_over_the_wire(sim):
    with Wire(sim.socket, CLIENT) as wire:
        assert struct.unpack_from("<i", wire.hello, 16)[0] == os.getpid()
        assert wire.call(MEM_ALLOC, 1, 16 * GIB)[0] == 0
        assert wire.call(MEM_ALLOC, 1, 1)[0] == -12  # -ENOMEM
        assert wire.call(MEM_ALLOC, 1, 2**64 - 1)[0] == -12
        assert wire.call(MEM_FREE, 1, 16 * GIB + 1)[0] == -22  # -EINVAL
        assert wire.call(MEM_FREE, 1, GIB)[0] == 0
        assert wire.call(MEM_INFO, 1)[1] == (16 * GIB, 15 * GIB, 15 * GIB)
        assert sim.process(os.getpid(), 1)["bytes"] == 15 * GIB
    until(lambda: sim.device(1)["bytes"] == 0, "the memory")
    row = sim.process(os.getpid(), 1)
    assert (row["bytes"], row["peak_bytes"], row["alive"]) == (0, 16 * GIB, False)


def test_many_connections_come_and_go(sim):
    for _ in range(300):
        with Wire(sim.socket, CLIENT) as wire:
            assert wire.call(MEM_ALLOC, 0, 4096)[0] == 0
    until(lambda: sim.device()["bytes"] == 0, "the memory")
    assert len(os.listdir(f"/proc/{sim.engine.pid}/fd")) < 30


def test_a_client_that_never_reads_is_dropped(sim):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(str(sim.socket))
    sock.settimeout(5)
    with pytest.raises((BrokenPipeError, ConnectionResetError, TimeoutError)):
        while True:
            sock.send(struct.pack("<IIIIQQ", MAGIC, VERSION, HELLO, 0, 99, 0))
    sock.close()
    assert sim.answers()


def test_clients_of_a_killed_engine_end_with_an_error_not_a_crash(simulator, compiled):
    simulator.start()
    worker = simulator.spawn(compiled("worker.c"))
    assert read_line(worker) == "ready"
    assert simulator.device()["bytes"] == LOADED
    simulator.engine.kill()
    simulator.engine.wait()
    worker.stdin.write("alloc 4096\n")
    worker.stdin.flush()
    assert read_line(worker) == "999"  # CUDA_ERROR_UNKNOWN
    simulator.engine.stderr.close()
    simulator.engine = None
