"""The systems compared, and how each is set up: gpushare's daemon, or the bare simulated device with gates in the
tenants."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gpubench.config import clean_environment
from run.running import Daemon

from arbiterbench.workloads import Tenant, Workload
from gpushare import paths

DEVICE = "16GiB"
MEMORY = "320MiB"  # 32 of them fit
_ANSWER_SECONDS = 20


@dataclass(frozen=True)
class System:
    """`gate`: options for tenant.c. `controller`: arguments for controller.c, where the system hands out leases.
    `settles`: seconds before the measurement begins."""

    name: str
    title: str
    note: str
    gate: Callable[[Tenant], list[str]] = lambda _: []
    controller: tuple[str, ...] = ()
    settles: float = 1.2


# nvshare has 30 s and 5 s. Both are divided by 30: a run of seconds shows nothing of turns of half a minute.
LOCK_QUANTUM_MS, LOCK_IDLE_NS = 1000, 167_000_000
SLICE_MS = 250

SYSTEMS = (
    System("none", "no arbitration", "the simulated device's own slices of 2 ms"),
    System(
        "tokens",
        "token bucket",
        "on utilisation samples as HAMi-core publishes it: 120 ms period, last second, 10 ms sleeps; the limit is the "
        "share; graph launches pay nothing",
        lambda tenant: ["--gate=tokens", f"--percent={round(tenant.share_milli / 10)}"],
        settles=3,
    ),
    System(
        "lock",
        "exclusive lock",
        f"as nvshare publishes it, first come first served; quantum {LOCK_QUANTUM_MS} ms and early release after "
        f"{LOCK_IDLE_NS // 1_000_000} ms idle, its 30 s and 5 s divided by 30; graph launches are held back too; it "
        "has no shares",
        lambda _: ["--gate=lease", f"--idle-ns={LOCK_IDLE_NS}", "--windows"],
        ("lock", str(LOCK_QUANTUM_MS)),
    ),
    System(
        "slices",
        "fixed slices",
        f"{SLICE_MS} ms in rotation weighted by share, as Run:ai describes its time slicing; a tenant that "
        "wants nothing at its turn is skipped, a slice that has begun is kept",
        lambda _: ["--gate=lease"],
        ("rotation", str(SLICE_MS)),
    ),
    System("gpushare", "gpushare", "the daemon and `gpushare run`"),
)  # fmt: skip


class Stage:
    """The device and its arbitration for one case; a context manager. `programs`: where the C programs are."""

    def __init__(self, system: System, workload: Workload, programs: Path, scratch: Path) -> None:
        self.system, self.workload, self.programs = system, workload, programs
        self.scratch = scratch
        self.page = scratch / "page"
        self._simulator: subprocess.Popen[bytes] | None = None
        self._daemon: Daemon | None = None
        self._controller: subprocess.Popen[str] | None = None
        self.sim_dir = scratch / "sim"

    def __enter__(self) -> Self:
        try:
            if self.system.name == "gpushare":
                self._start_daemon()
            else:
                self._start_simulator()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._controller is not None and self._controller.poll() is None:
            self._controller.kill()
            self._controller.communicate()
        if self._simulator is not None:
            self._simulator.terminate()
            self._simulator.wait(10)
        if self._daemon is not None:
            self._daemon.stop()

    def _start_daemon(self) -> None:
        devices = f"{self.workload.devices}x{DEVICE}"
        config = self.scratch / "gpushare.toml"
        config.write_text(f"[arbiter]\nbound_ms = {self.workload.bound_ns / 1e6}\n")
        self._daemon = Daemon(self.scratch / "state", devices, clean_environment(), ("--config", str(config)))
        self._daemon.start()
        self.sim_dir = Path(self._daemon.sim_dir)

    def _start_simulator(self) -> None:
        self.sim_dir.mkdir()
        command = [paths.SIM_BINARY, "--socket", self.socket, "--devices", f"{self.workload.devices}x{DEVICE}"]
        self._simulator = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self.socket.exists():
            if self._simulator.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("gpushare-sim did not start")
            time.sleep(0.005)

    @property
    def socket(self) -> Path:
        return self.sim_dir / "sim.sock"

    def start(self, tenant: Tenant, index: int) -> "subprocess.Popen[str]":
        command = [str(self.programs / "tenant"), f"--page={self.page}", f"--index={index}",
                   f"--module={paths.SPIN_PTX}", *tenant.work.arguments()]  # fmt: skip
        if self._daemon is not None:
            share = {"class": tenant.class_, "gpu": str(tenant.device)}
            command = self._daemon.run(MEMORY, str(tenant.share_milli), *command, **share)
            env = clean_environment()
        else:
            command += [*self.system.gate(tenant), f"--device={tenant.device}", f"--sim-device={tenant.device}"]
            env = clean_environment() | {
                "GPUSHARE_SIM_DIR": str(self.sim_dir),
                "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR),
            }
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def start_controller(self) -> None:
        """Call it after the page has been filled in."""
        if self.system.controller:
            command = [str(self.programs / "controller"), str(self.page), *self.system.controller]
            self._controller = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def controller_answer(self) -> str:
        """What the controller printed when the run was stopped; empty for a system without one."""
        return "" if self._controller is None else self._controller.communicate(timeout=_ANSWER_SECONDS)[0]

    def deciders(self, tenants: Sequence[int]) -> list[Path]:
        """/proc directories of the threads that decide which tenant may submit."""
        if self._controller is not None:
            return [Path(f"/proc/{self._controller.pid}/task/{self._controller.pid}")]
        name, pids = "bench-gate", list(tenants)
        if self._daemon is not None:
            assert self._daemon.process is not None
            name, pids = "gs-arbiter", [self._daemon.process.pid]
        found = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
        return [task for task in found if (task / "comm").read_text().strip() == name]

    # Of gpushare's node API.

    def grants(self) -> dict[int, str]:
        """Process -> grant."""
        if self._daemon is None:
            return {}
        return {grant["pid"]: grant["id"] for grant in self._daemon.client.grants()}

    def events(self, after: int) -> tuple[list[dict[str, Any]], int]:
        if self._daemon is None:
            return [], after
        answer = self._daemon.client.call("GET", f"/v1/events?after={after}")
        return answer["events"], answer["after"]


def cpu_ns(task: Path) -> int:
    """CPU time of a thread so far; 0 once it has ended."""
    try:
        return int((task / "schedstat").read_text().split()[0])
    except FileNotFoundError:
        return 0
