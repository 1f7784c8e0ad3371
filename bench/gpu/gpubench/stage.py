"""Where a group is measured: a daemon of its own on the real or simulated device, and programs started bare or under
gpushare."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpubench.config import Config, MissingError, clean_environment
from gpubench.process import tied
from gpubench.worker import Worker, WorkerError

_START_SECONDS = 90.0  # the daemon measures what a context costs first
_STOP_SECONDS = 15.0
PROGRAMS = Path(__file__).resolve().parent.parent / "programs"


class Nvml:
    """NVML's view of one device, read without a daemon."""

    def __init__(self, gpu: int) -> None:
        """`gpu`: in the order of the bus, which is NVML's. Raises gpushare's UnreachableError without a driver and
        MissingError without the package."""
        from gpushare.node.nvml import load

        try:
            self._nvml: Any = load()
        except ImportError:
            raise MissingError("needs Python's nvidia-ml-py") from None
        self._handle = self._nvml.nvmlDeviceGetHandleByIndex(gpu)

    def used_bytes(self) -> int:
        """Of the whole device."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def process_bytes(self, pid: int) -> int | None:
        """None when NVML does not list the process, or lists it under the number of another PID namespace."""
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        return next((int(one.usedGpuMemory) for one in found if one.pid == pid and one.usedGpuMemory is not None), None)


class Stage:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.simulated = config.simulated
        self.gpu = config.gpu
        self.work = Path(config.work)
        self.log = self.work / "programs.log"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        self._nvml: Nvml | None = None
        self._settings = ""
        self._calibrated: dict[str, tuple[float, float]] = {}

    # The daemon.

    @property
    def client(self) -> Any:
        """Of the node API; the daemon is started when it is first needed."""
        if self._client is None:
            self._start()
        return self._client

    def configure(self, settings: str) -> None:
        """The daemon is another one from now on, with this text as its gpushare.toml."""
        self.close()
        self._settings = settings

    def _start(self) -> None:
        from gpushare.client import Client
        from gpushare.errors import GpushareError

        state = self.work / "state"
        log = self.work / "daemon.log"
        command = [sys.executable, "-m", "gpushare", "daemon", "--state-dir", str(state)]
        if self.simulated:
            command += ["--simulate", "1x16GiB"]
        if self._settings:
            (self.work / "gpushare.toml").write_text(self._settings)
            command += ["--config", str(self.work / "gpushare.toml")]
        with open(log, "ab") as out:
            self._daemon = subprocess.Popen(
                command,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.work,
                preexec_fn=tied(signal.SIGTERM),
            )
        client = Client(state / "run" / "node.sock")
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                client.version()
                break
            except GpushareError:
                if self._daemon.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-1500:]
                    raise WorkerError(f"gpushare daemon did not start: {tail}") from None
                time.sleep(0.02)
        self._client = client

    def close(self) -> None:
        if self._daemon is None:
            return
        self._daemon.terminate()
        try:
            self._daemon.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._daemon = self._client = None

    # Programs.

    def _bare_environment(self) -> dict[str, str]:
        from gpushare import paths

        env = clean_environment()
        if self.simulated:
            env["GPUSHARE_SIM_DIR"] = str(self.client.node()["sim_dir"])
            env["LD_LIBRARY_PATH"] = str(paths.SIM_LIB_DIR)
        else:  # CUDA's own order is by speed
            env |= {"CUDA_VISIBLE_DEVICES": str(self.gpu), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return env

    def command(
        self,
        arm: str,
        argv: list[str],
        *,
        memory: int,
        time_milli: int,
        class_: str = "training",
        options: Sequence[str] = (),
    ) -> tuple[list[str], dict[str, str]]:
        """Command line and environment of a program. `arm`: "bare"; "gpushare" for a share of `memory` bytes and
        `time_milli`, with these `options` of `gpushare run`; "past" for one in such a share that has thrown the
        interposer away."""
        if arm == "bare":
            return argv, self._bare_environment()
        if arm == "past":
            from gpushare import paths

            bare = self._bare_environment()
            # Elsewhere a command of root finds the interposer under the driver's names.
            bare["LD_LIBRARY_PATH"] = ":".join(
                filter(None, (f"{paths.PROCESS_SELF}/driver", bare.get("LD_LIBRARY_PATH")))
            )
            argv = ["env", "-i", *(f"{name}={value}" for name, value in bare.items()), *argv]
        share = [
            "--memory",
            str(memory),
            "--time",
            f"{time_milli}m",
            "--class",
            class_,
            "--gpu",
            str(self.gpu),
            *options,
        ]
        socket = ["--socket", str(self.client.path)]
        return [sys.executable, "-m", "gpushare", "run", *socket, *share, "--", *argv], clean_environment()

    def start(
        self,
        arm: str,
        argv: list[str],
        *,
        memory: int = 2 << 30,
        time_milli: int = 500,
        class_: str = "training",
        environment: dict[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Worker:
        command, env = self.command(arm, argv, memory=memory, time_milli=time_milli, class_=class_, options=options)
        return Worker(command, {**env, **(environment or {})}, self.log)

    def program(self, name: str) -> str:
        """Raises MissingError."""
        if name in self.config.not_built:
            raise MissingError(self.config.not_built[name])
        return str(Path(self.config.programs) / name)

    @property
    def spin_ptx(self) -> str:
        from gpushare import paths

        return str(paths.SPIN_PTX)

    @property
    def kernels(self) -> str:
        """The module with burn, stream and gemm; on the simulated device the only kernel with a duration."""
        return self.spin_ptx if self.simulated else self.program("kernels.cubin")

    def load(
        self,
        arm: str = "bare",
        kernel: str = "burn",
        *,
        memory: int = 2 << 30,
        time_milli: int = 500,
        class_: str = "training",
        options: Sequence[str] = (),
    ) -> Worker:
        """A load program with a calibrated kernel."""
        rate, launch_ns = self.calibrated(kernel)
        argv = [*self.load_argv(kernel), "--rate", repr(rate), "--launch", repr(launch_ns)]
        return self.start(arm, argv, memory=memory, time_milli=time_milli, class_=class_, options=options)

    def load_argv(self, kernel: str = "burn") -> list[str]:
        """A load program without a calibration: one iteration counts as one nanosecond."""
        return [self.program("load"), "--module", self.kernels, "--kernel", "spin_ns" if self.simulated else kernel]

    def calibrated(self, kernel: str) -> tuple[float, float]:
        """Iterations per nanosecond, and the nanoseconds of a launch on top of them; measured once while nothing else
        runs."""
        if self.simulated:
            return 1.0, 0.0
        if kernel not in self._calibrated:
            with self.start("bare", self.load_argv(kernel)) as worker:
                answer = worker.ask("calibrate")
            self._calibrated[kernel] = float(answer["rate"]), float(answer["launch_ns"])
        return self._calibrated[kernel]

    def python(self, script: str, *arguments: str) -> list[str]:
        return [sys.executable, str(PROGRAMS / script), *arguments]

    # Queries to gpushare and NVML.

    def grant_of(self, worker: Worker) -> Any:
        found = [grant for grant in self.client.grants() if worker.pid in (grant["pid"], *grant["processes"])]
        if not found:
            raise WorkerError(f"process {worker.pid} has no grant")
        return found[0]

    @property
    def nvml(self) -> Nvml:
        """A real device's."""
        if self._nvml is None:
            self._nvml = Nvml(self.gpu)
        return self._nvml

    def used_bytes(self) -> int:
        """Of the whole device, by NVML (simulated: by the simulator's books)."""
        if not self.simulated:
            return self.nvml.used_bytes()
        return int(self.device()["memory_used_bytes"])

    def device(self) -> Any:
        """The device in the node API."""
        return next(device for device in self.client.devices() if device["index"] == self.gpu)

    def settled_bytes(self, seconds: float = 5.0) -> int:
        """`used_bytes`, once two readings a tenth of a second apart agree."""
        deadline = time.monotonic() + seconds
        before = self.used_bytes()
        while time.monotonic() < deadline:
            time.sleep(0.1)
            now = self.used_bytes()
            if now == before:
                break
            before = now
        return before
