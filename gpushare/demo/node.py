"""The demo's own daemon, independent of any other on the machine: everything it creates is below one temporary
directory."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare.client import Client
from gpushare.demo.interrupts import uninterrupted
from gpushare.errors import FailedError, UnreachableError
from gpushare.paths import Layout
from gpushare.processes.helper import end_with_parent

SIMULATED_DEVICE = "1x16GiB"
START_SECONDS = 20.0
END_SECONDS = 10.0


def has_driver() -> bool:
    """Whether a real device may be used."""
    return Path("/dev/nvidiactl").exists()


class Node:
    """Call `start`, then always `end`."""

    def __init__(self, directory: Path) -> None:
        self._layout = Layout.of(directory)
        self._log = directory / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._simulator: int | None = None
        self.simulator_pid: int | None = None
        """None: the device is real, or nothing has started."""
        self.client = Client(self._layout.socket)

    @property
    def socket(self) -> Path:
        """The socket of the demo's own daemon."""
        return self._layout.socket

    def start(self, simulate: str = "", model: Mapping[str, str] | None = None) -> Any:
        """Starts the daemon; returns the node's facts once it answers. `simulate`: devices to simulate; empty: one if
        there is no driver. `model`: settings of the simulator, GPUSHARE_SIM_..."""
        command = [sys.executable, "-P", "-m", "gpushare", "daemon", "--state-dir", str(self._layout.state)]
        if simulate or not has_driver():
            command += ["--simulate", simulate or SIMULATED_DEVICE]
        environment = {**os.environ, **(model or {}), "PYTHONPATH": str(Path(__file__).parents[2])}
        with open(self._log, "wb") as log, uninterrupted():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
                preexec_fn=end_with_parent,  # the containers end at EOF on their stdin
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(UnreachableError):
                facts = self.client.node()
                break
            if self._process.poll() is not None:
                lines = self._log.read_text(errors="replace").strip().splitlines()
                raise FailedError(f"the daemon did not start: {lines[-1] if lines else 'it said nothing'}")
            if time.monotonic() > deadline:
                raise FailedError(f"the daemon did not answer within {START_SECONDS:.0f} s: see {self._log}")
            time.sleep(0.05)
        if facts["sim_pid"] is not None:
            self._simulator = os.pidfd_open(facts["sim_pid"])
            self.simulator_pid = facts["sim_pid"]
        return facts

    def wait_released(self, grants: list[str]) -> None:
        """Waits until these grants have ended, so that the next reader of the accounting does not see them in use."""
        deadline = time.monotonic() + END_SECONDS
        while any(grant["id"] in grants for grant in self.client.grants()) and time.monotonic() < deadline:
            time.sleep(0.05)

    def events(self, after: int, query: str = "") -> tuple[list[Any], int]:
        """Returns the arbiter's events after number `after`, and the number to continue from. `query`: only some, as
        `&kind=lease`."""
        found: list[Any] = []
        while True:
            answer = self.client.call("GET", f"/v1/events?after={after}{query}")
            if not answer["events"] and answer["after"] == after:
                return found, after
            found += answer["events"]
            after = answer["after"]

    @uninterrupted()
    def end(self) -> None:
        """Ends the daemon and the simulator, and removes what they leave outside the directory."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._simulator is not None:
            # The simulator outlives daemons by design; nothing else uses this one.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._simulator, signal.SIGTERM)
                select.select([self._simulator], [], [], END_SECONDS)
            os.close(self._simulator)
            self._simulator = None
        if self._layout.run not in self._layout.grants.parents:
            shutil.rmtree(self._layout.grants, ignore_errors=True)
