"""Programs run beside their device, and over a link to it; the first predicts the second.

The link is slow enough (2 ms, 1 Gbit/s) that what it adds is far more than the noise of a machine, and both times are
medians of runs that take turns. What is measured is the link: no grant is between the carrier's server and its device,
nor between the program and its own. What is predicted from is counted in a grant."""

import json
import os
import socket
import statistics
import struct
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest
from links.slowlink import SlowLink
from remote import carrier
from run import built
from run.running import Daemon, daemon_apart
from run.waiting import until

from gpushare import paths
from gpushare.policy.remote import predict, told
from gpushare.policy.remote.predict import Path, Work

pytestmark = [pytest.mark.timing, pytest.mark.slow]

DELAY, RATE = 1e-3, 1e9
RUNS = 3
BULK = 8 << 20
NEAR = 0.2
"""How far a prediction may be from what was measured, as a part of that."""
PROGRAMS = {
    "many kernels, one wait": (20, "k 200000 40 s"),
    "a training step": (20, "i 1048576 k 400000 20 o 4 s"),
    "a decode step as a graph": (30, "g 50000 100 o 16"),
    "a small request": (30, "i 65536 k 5000000 1 o 65536"),
    "data comes": (8, "i 8388608 k 5000000 1 s"),
    "data goes": (8, "k 5000000 1 o 8388608"),
    "copies that are not waited for": (20, "I 1048576 k 3000000 1 O 65536 s"),
    "memory at each step": (20, "a 1048576 a 1048576 k 3000000 1 s"),
    "events": (20, "k 2000000 1 e k 2000000 1 e k 2000000 1 e"),
    "work of its own": (20, "w 5000000 k 2000000 1 s m"),
}


class Row(NamedTuple):
    """What was found. `here`: seconds beside the device."""

    name: str
    here: float
    work: Work
    path: Path
    measured: float
    predicted: float

    def __str__(self) -> str:
        return (
            f"{self.name:30} {self.here:6.3f} s {self.work.sync_calls:4} calls"
            f" {(self.work.bytes_in + self.work.bytes_out) / 1e6:6.1f} MB, link {told.path(self.path)}:"
            f" measured +{self.measured:6.1%}, predicted +{self.predicted:6.1%}"
            f" ({self.predicted / self.measured - 1:+.0%} of it)"
        )


def program(spec: tuple[int, str]) -> list[str]:
    return [str(built.program("steps")), str(paths.LIB_DIR / "spin.ptx"), str(spec[0]), *spec[1].split()]


def seconds(command: list[str], env: dict[str, str]) -> float:
    """How long its steps take."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["steps"])


def counted(daemon: Daemon, spec: tuple[int, str]) -> Work:
    """What the daemon counts of it in a grant."""
    before = {grant["id"] for grant in daemon.client.grants(ended=True)}
    seconds(daemon.run("1GiB", "100%", *program(spec)), daemon.env)
    until(lambda: not daemon.client.grants(), "the grant ends", 20)
    [grant] = [one for one in daemon.client.grants(ended=True) if one["id"] not in before]
    return Work(grant["sync_calls"], grant["host_bytes_in"], grant["host_bytes_out"])


@contextmanager
def echo():
    """The address of a server that gets pieces of 64 bytes, which say how many bytes it has to send."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with suppress(OSError):
                line, _ = listener.accept()
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with line:
                    while len(asked := line.recv(64, socket.MSG_WAITALL)) == 64:
                        line.sendall(bytes(struct.unpack("<Q56x", asked)[0]))

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()


def checked() -> Path:
    """The link, as a check of it finds it."""
    with echo() as address, SlowLink(address, delay=DELAY, rate=RATE) as link:

        def took(size: int) -> float:
            began = time.perf_counter()
            line.sendall(struct.pack("<Q", size) + bytes(56))
            left = size
            while left:
                left -= len(line.recv(min(left, 1 << 20)))
            return time.perf_counter() - began

        with socket.create_connection(link.address) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            rtt = statistics.median(took(64) for _ in range(50))
            bps = BULK * 8 / (statistics.median(took(BULK) for _ in range(3)) - rtt)
        return Path(rtt * 1e6, bps, bps)


def test_predictions_are_within_a_fifth_of_what_is_measured_in_nine_of_ten_programs(capsys):
    rows = []
    with daemon_apart() as daemon:
        bare = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), "GPUSHARE_SIM_DIR": daemon.sim_dir}
        start = counted(daemon, (0, "s"))
        for name, spec in PROGRAMS.items():
            work = Work(
                *(all_of_it - at_start for all_of_it, at_start in zip(counted(daemon, spec), start, strict=True))
            )
            beside, over = [], []
            with (
                carrier.Bare(bare) as served,
                SlowLink(("127.0.0.1", served.port), delay=DELAY, rate=RATE) as link,
            ):
                path = checked()
                for _ in range(RUNS):
                    beside.append(seconds(program(spec), bare))
                    over.append(seconds(program(spec), carrier.environment(link.address[1])))
            here, there = statistics.median(beside), statistics.median(over)
            rows.append(Row(name, here, work, path, there / here - 1, predict.slowdown(work, here, path)))
    with capsys.disabled():
        print("", *map(str, rows), sep="\n")
    near = [row.name for row in rows if abs(row.predicted - row.measured) <= NEAR * row.measured]
    assert len(near) >= 0.9 * len(PROGRAMS), f"only {near}"
