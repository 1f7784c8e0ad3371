"""One duel: a daemon, an honest tenant of 75 % per device, and the evader with 25 %, as `gpushare run` starts them."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubench.config import clean_environment
from judge import Round
from run import built
from run.running import Daemon
from run.waiting import until
from timing import quiet

from gpushare import paths

HONEST_MILLI, EVADER_MILLI = 750, 250
MEMORY, MEMORY_BYTES = "2GiB", 2 << 30
WARM_SECONDS = 1.0
_READY_SECONDS = 60
_FOUND_SECONDS = 30
"""An evader that has to be found and is not within this plays all the same."""
_PAID_SECONDS = 5.0
"""In so long one that was found has stood still for what it had before: a second of the device, at 25 %."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Evasion:
    """A function of the program `duel`, which lists them itself. `devices`: of its grant, each with an honest tenant.
    `grants`: what its share is split into, a process each. `open`: why nothing holds it; empty for all that must be
    held. `options`: further ones of `gpushare run`, as words of `name=value`. `seconds`: the shortest duel that shows
    something. `found`: what holds it are the daemon's findings; the duel begins when it is found."""

    name: str
    kind: str
    about: str
    devices: int
    grants: int
    open: str
    options: str
    seconds: float
    found: bool

    @property
    def of_memory(self) -> bool:
        return self.kind == "memory"


def known() -> list[Evasion]:
    """All evasions, in the order of the table; the first is no evasion but the control."""
    command = [built.program("duel"), "--list"]
    env = {"LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return [Evasion(**json.loads(line)) for line in done.stdout.splitlines()]


class MatchError(Exception):
    """A duel that could not be measured."""


class _Tenant:
    """A process group of its own, since evaders have children."""

    def __init__(self, command: list[str], errors: Path) -> None:
        self._errors = errors
        with errors.open("ab") as file:
            self.process = subprocess.Popen(
                command, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file,
                start_new_session=True,
            )  # fmt: skip

    def ready(self) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            found = selector.select(_READY_SECONDS)
        line = self.process.stdout.readline() if found else b""
        if not line or json.loads(line).get("event") != "ready":
            raise MatchError(f"did not start: {line.decode()!r} {self.stderr()}")

    def stderr(self) -> str:
        return self._errors.read_text()[-400:]

    def check(self) -> None:
        if self.process.poll() is None:
            return
        assert self.process.stdout is not None
        rest = self.process.stdout.read(1000).decode() if self.process.returncode >= 0 else ""
        raise MatchError(f"ended with {self.process.returncode}: {rest!r} {self.stderr()}")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class _Match:
    def __init__(self, evasion: Evasion, scratch: Path, cleanup: ExitStack) -> None:
        self.evasion, self._scratch, self._cleanup = evasion, scratch, cleanup
        self.daemon = Daemon(scratch / "state", f"{evasion.devices}x16GiB", clean_environment())
        cleanup.callback(self.daemon.stop)
        self.daemon.start()

    def tenant(self, milli: int, name: str, *arguments: str, **options: str) -> _Tenant:
        command = self.daemon.run(MEMORY, f"{milli}m", built.program("duel"), name, *arguments, **options)
        tenant = _Tenant(command, self._scratch / f"{name}.err")
        self._cleanup.callback(tenant.end)
        return tenant

    def evaders(self) -> list[_Tenant]:
        milli = EVADER_MILLI // self.evasion.grants
        options = dict(word.split("=", 1) for word in self.evasion.options.split())
        if self.evasion.devices > 1:
            options["devices"] = str(self.evasion.devices)
        return [self.tenant(milli, self.evasion.name, **options) for _ in range(self.evasion.grants)]

    def books(self) -> list[Json]:
        return list(self.daemon.client.sim_stats()["devices"])

    def metered(self, pids: set[int]) -> int:
        """Of all grants but those of these processes."""
        grants = [grant for grant in self.daemon.client.grants(ended=True) if grant["pid"] not in pids]
        return sum(device["busy_ns"] for grant in grants for device in grant["devices"])

    def findings(self, pids: set[int]) -> list[str]:
        """Kinds of what was found so far, of all grants but those of these processes."""
        honest = {grant["id"] for grant in self.daemon.client.grants(ended=True) if grant["pid"] in pids}
        return sorted({one["kind"] for one in self.daemon.findings() if one["grant"] and one["grant"] not in honest})

    def until_found(self, pids: set[int]) -> tuple[float, int]:
        """Seconds until the evader is found, and what it has had by then beyond its share, ns."""
        began = time.monotonic_ns()
        with contextlib.suppress(AssertionError):
            until(lambda: self.findings(pids), "it is found", _FOUND_SECONDS)
        passed = time.monotonic_ns() - began
        had = sum(device["busy_ns"] - _honest(device, pids) for device in self.books())
        return passed / 1e9, had - passed * self.evasion.devices * EVADER_MILLI // 1000

    def duel_of_time(self, seconds: float) -> Round:
        honest = [self.tenant(HONEST_MILLI, "honest", gpu=str(device)) for device in range(self.evasion.devices)]
        evaders = self.evaders()
        tenants = [*honest, *evaders]
        for tenant in tenants:
            tenant.ready()
        pids = {tenant.process.pid for tenant in honest}
        before_seconds, before_ns = self.until_found(pids) if self.evasion.found else (0.0, 0)
        time.sleep(_PAID_SECONDS if self.evasion.found else WARM_SECONDS)
        usage, before, metered = quiet.Usage.now(), self.books(), self.metered(pids)
        waited, began = _waited_ns(pids), time.monotonic_ns()
        time.sleep(seconds)
        waited = (_waited_ns(pids) - waited) / (time.monotonic_ns() - began)
        after, metered = self.books(), self.metered(pids) - metered
        crowded = quiet.why_not(*quiet.Usage.now().others(usage)) or ""
        for tenant in tenants:
            tenant.check()
        mine = [_honest(last, pids) - _honest(first, pids) for first, last in zip(before, after, strict=True)]
        all_ns = [last["busy_ns"] - first["busy_ns"] for first, last in zip(before, after, strict=True)]
        return Round(
            seconds=seconds,
            honest_ns=mine,
            evader_ns=[whole - own for whole, own in zip(all_ns, mine, strict=True)],
            wall_ns=[last["wall_ns"] - first["wall_ns"] for first, last in zip(before, after, strict=True)],
            metered_ns=metered,
            crowded=crowded,
            waited=waited,
            found=self.findings(pids),
            before_ns=before_ns,
            before_seconds=before_seconds,
        )

    def duel_of_memory(self, seconds: float) -> Round:
        evaders = self.evaders()
        for tenant in evaders:
            tenant.ready()
        time.sleep(seconds)
        for tenant in evaders:
            tenant.check()
        peak = max(device["peak_bytes"] for device in self.books())
        for tenant in evaders:
            tenant.end()
        with contextlib.suppress(AssertionError):
            until(lambda: not self._held(), "the memory comes back", 10)
        return Round(
            seconds=seconds,
            limit_bytes=MEMORY_BYTES * self.evasion.grants,
            peak_bytes=peak,
            left_bytes=self._held(),
        )

    def _held(self) -> int:
        return sum(device["bytes"] for device in self.books())


def _honest(device: Json, pids: set[int]) -> int:
    return sum(row["busy_ns"] for row in device["processes"] if row["pid"] in pids)


def _waited_ns(pids: set[int]) -> float:
    """How long their threads were ready to run and had no processor, so far."""
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks)


def play(evasion: Evasion, seconds: float) -> Round:
    """Raises MatchError, or what a program's failure raises."""
    with ExitStack() as cleanup:
        scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="gsd-", dir="/tmp")))
        match = _Match(evasion, scratch, cleanup)
        return match.duel_of_memory(seconds) if evasion.of_memory else match.duel_of_time(seconds)
