"""The daemon from start to stop."""

import asyncio
import contextlib
import ctypes
import functools
import gc
import grp
import logging
import os
import resource
import signal
import socket
from pathlib import Path
from typing import Any

from aiohttp import web

from gpushare.binding.arbiter import Arbiter
from gpushare.daemon import config as configuration
from gpushare.daemon.config import Config
from gpushare.daemon.devices.health import all_devices
from gpushare.daemon.grants import strays
from gpushare.daemon.grants.resources import Resources
from gpushare.daemon.guard.exclusion import Exclusion
from gpushare.daemon.guard.tracepoint import Tracepoint, driver
from gpushare.daemon.host import backend as backends
from gpushare.daemon.host import directories, logs, pulse
from gpushare.daemon.host.pulse import Latency
from gpushare.daemon.host.readers import Readers
from gpushare.daemon.http.api import Api
from gpushare.daemon.http.reception import Reception
from gpushare.daemon.node import NodeContext
from gpushare.daemon.residency.opening import open_pool
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.records import open_records
from gpushare.daemon.state.state import State
from gpushare.daemon.state.tenants import Tenants
from gpushare.daemon.state.watch import Watch
from gpushare.daemon.timing import Timing
from gpushare.daemon.workloads.door import Door
from gpushare.daemon.workloads.tenant_socket import bind_unix
from gpushare.errors import FailedError, GpushareError
from gpushare.inject import grantfiles
from gpushare.ledger.ledger import Ledger
from gpushare.node import standins
from gpushare.node.simulator import SOCKET_NAME, Simulator
from gpushare.paths import Layout, in_memory
from gpushare.policy.grants.lifecycle import Phase
from gpushare.policy.quota.shares import DEVICE_MILLI

log = logging.getLogger("gpushare")

_IDLE_LEDGER_SECONDS = 60.0
_PROBE_SECONDS = 70.0
_M_MMAP_THRESHOLD = -3  # malloc.h
_DAY_NS = 86_400_000_000_000


def main(
    config_file: Path | None,
    simulate: str | None,
    state_dir: Path | None,
    socket_path: Path | None,
    log_level: str | None,
    timing: Timing | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT. An argument that is None takes its value from the configuration file. Raises
    GpushareError when it cannot start.

    `log_level`: `debug`, `info`, `warning` or `error`.
    """
    config = configuration.load(config_file)
    logs.start(log_level or config.log_level)
    simulate = simulate or config.simulate or None
    if state_dir is None and config.state_dir:
        state_dir = Path(config.state_dir)
    if socket_path is None and config.socket:
        socket_path = Path(config.socket)
    layout = Layout.of(state_dir, socket_path.absolute() if socket_path is not None else None)
    directories.check_names(layout.state, layout.socket, layout.sim / SOCKET_NAME)
    tenants_file = Path(config.tenants) if config.tenants else _tenants_file(state_dir)
    os.umask(0o022)
    _raise_descriptor_limit()
    _return_large_memory()
    with directories.locked(layout):
        # Objects made at start live on: scanning them at each full collection was half of the longest turn of the loop.
        gc.freeze()
        gc.set_threshold(*_COLLECT)
        latency = Latency()
        with asyncio.Runner(loop_factory=functools.partial(pulse.Loop, latency)) as runner:
            return runner.run(_Daemon(config, layout, simulate, tenants_file, latency, timing or Timing()).run())


_COLLECT = 20_000, 20, 50
"""Thresholds of Python's garbage collector: new objects before a collection of the youngest generation, and collections
of a generation before one of the next. A full collection takes 40 ms with 1,000 grants, during which no call is
answered; with Python's defaults there are several a second."""

_seldom = logs.Seldom()


def _loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an OSError, such as too many open files, as one rate-limited line, since it repeats; a bug gets a
    traceback."""
    error = context.get("exception")
    if isinstance(error, OSError):
        _seldom.warning(context["message"], "%s: %s", context["message"], error.strerror)
    else:
        loop.default_exception_handler(context)


def _tenants_file(state_dir: Path | None) -> Path:
    return configuration.DEFAULT_TENANTS if state_dir is None else state_dir.absolute() / "tenants.toml"


def _raise_descriptor_limit() -> None:
    """Raises the soft limit to the hard one: each joined process takes a descriptor here and one in the door."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _return_large_memory() -> None:
    """Fixes glibc's mmap threshold. By default it grows to the largest block ever freed, and memory of large bodies
    would be kept."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


class _Daemon:
    def __init__(
        self,
        config: Config,
        layout: Layout,
        simulate: str | None,
        tenants_file: Path,
        latency: Latency,
        timing: Timing,
    ) -> None:
        self._latency, self._timing = latency, timing
        self._config, self._layout, self._simulate, self._tenants_file = config, layout, simulate, tenants_file
        self._simulator: Simulator | None = None
        self._context: NodeContext | None = None
        """Set until it stops."""

    async def run(self) -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_loop_error)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        # From a terminal SIGHUP means that the terminal has closed: stop.
        loop.add_signal_handler(signal.SIGHUP, stop.set if os.isatty(0) else self._reload)
        async with contextlib.AsyncExitStack() as cleanup:
            try:
                context = self._context = self._open(cleanup)
                await context.health.check()
                await self._serve(context, cleanup)
            except BaseException:
                self._context = None
                self._stop_simulator(cleanup_only=True)
                with contextlib.suppress(OSError):
                    self._layout.grants.rmdir()
                raise
            # Separate tasks, because a driver may be slow to report that a device is lost.
            loops = [
                asyncio.create_task(one)
                for one in (self._tick(context), self._check_health(context), context.audit.run(), pulse.beat())
            ]
            for one in (asyncio.create_task(context.measuring.recall()), *loops):
                cleanup.push_async_callback(_cancel, one)
            done, _ = await asyncio.wait(
                {asyncio.create_task(stop.wait()), *loops}, return_when=asyncio.FIRST_COMPLETED
            )
            self._context = None
            for ended in done.intersection(loops):
                ended.result()
        return 0

    def _reload(self) -> None:
        if self._context is not None:
            self._context.tenancy.reload()

    # Start.

    def _open(self, cleanup: contextlib.AsyncExitStack) -> NodeContext:
        layout = self._layout
        grantfiles.prepare(layout)
        if not in_memory(layout.grants):
            log.warning("the files of grants are on a disk, in %s: mount a tmpfs on /dev/shm", layout.grants)
        directories.own(layout.cdi)
        ledger = Ledger(
            layout.ledger,
            layout.grants,
            self._config.ledger_days * _DAY_NS,
            self._config.ledger_seconds,
        )
        cleanup.callback(ledger.close)
        arbiter_config = configuration.arbiter(self._config.arbiter)
        smallest = configuration.smallest_share(arbiter_config)
        if self._simulate is None:
            backend = backends.real(ledger)
        else:
            backend, self._simulator = backends.simulated(layout, self._simulate)
        records = open_records(ledger)
        living = [] if ledger.rebooted else records
        found = all_devices(backend, ledger, {place.device for record in living for place in record.places})
        if not found and backend.absent:
            raise FailedError("none of the driver's devices works: see dmesg and `nvidia-smi`")
        count = len(found) + backend.absent
        capacity = sum(device.memory_bytes - device.reserved_bytes for device in found)
        if backend.absent:
            capacity = capacity * count // len(found)  # absent devices are assumed to be like those found
        tenants = Tenants(self._tenants_file, DEVICE_MILLI * count, capacity, smallest)
        watch = Watch(ledger.run)
        state = State(
            layout,
            found,
            tenants,
            ledger,
            watch,
            smallest,
            configuration.history(self._config.policy),
            configuration.reclaim(self._config.reclaim),
            self._config.placement,
            self._timing,
        )
        arbiter = Arbiter(arbiter_config)
        cleanup.callback(arbiter.close)
        readers, lookups = Readers(self._timing), Readers(self._timing)
        for one in (readers, lookups):
            cleanup.callback(one.close)
        readers.start()
        inject = backend.inject()
        try:
            door = Door()
        except OSError as error:
            raise FailedError(f"the door cannot be started: {error.strerror}") from None
        cleanup.callback(door.close)
        pool = open_pool(configuration.host_pool(self._config.memory), layout, self._timing, state.host_limits)
        cleanup.callback(pool.close)
        hardware = Hardware(inject, found)
        resources = Resources(layout, inject, hardware, door, self._config.memory.allocation_wait_seconds)
        tracepoint = Tracepoint(state, driver(inject, backend.driver_version), self._config.guard.tracepoint)
        cleanup.callback(tracepoint.close)
        context = NodeContext(
            state,
            hardware,
            resources,
            arbiter,
            backend,
            inject,
            self._simulator,
            readers,
            lookups,
            door,
            pool,
            self._latency,
            self._config.enforce,
            tracepoint,
            Exclusion(state, hardware, asked=self._config.exclusive, users=self._config.exclusive_users),
            configuration.audit(self._config.audit),
            self._config.memory.move_seconds,
            self._config.memory.idle_after_seconds,
            configuration.remote(self._config.remote),
        )
        cleanup.callback(self._close, context)
        if ledger.gap_ns:
            log.info("nothing was recorded for %.1f s before this start", ledger.gap_ns / 1e9)
        for record in records:
            context.adoption.adopt(record, rebooted=ledger.rebooted)
        context.accounts.moves.adopt()
        context.residency.adopt()
        context.ahead.start()
        context.preparing.adopt()
        context.exclusion.start()
        context.evictions.start()
        context.remote.start()
        if ledger.readable:  # otherwise they may belong to living grants
            strays.remove(state)
        try:
            resources.offer()
        except FailedError as error:  # grants go on, and it is tried again (Resources.restore)
            log.warning("%s", error)
        return context

    async def _serve(self, context: NodeContext, cleanup: contextlib.AsyncExitStack) -> None:
        path = self._layout.socket
        try:
            listener = bind_unix(path, socket.SOCK_STREAM, 0o600)
        except OSError as error:
            raise FailedError(
                f"{path} cannot be made ({error.strerror}): make room, or give another --socket"
            ) from None
        self._open_to_group(path)
        runner = web.AppRunner(Api(context).application(), shutdown_timeout=2.0)
        await runner.setup()
        cleanup.push_async_callback(runner.cleanup)
        assert runner.server is not None
        reception = Reception(listener, runner.server, self._timing)
        cleanup.callback(reception.close)
        # Before the runner's cleanup, which would wait for open streams.
        cleanup.callback(context.state.watch.close)
        reception.start()
        cleanup.callback(path.unlink, missing_ok=True)
        pulse.notify("READY=1")
        print(f"ready {path}", flush=True)

    def _open_to_group(self, path: Path) -> None:
        with contextlib.suppress(KeyError, PermissionError):
            os.chown(path, -1, grp.getgrnam(self._config.group).gr_gid)
            path.chmod(0o660)

    # While it runs.

    async def _tick(self, context: NodeContext) -> None:
        loop = asyncio.get_running_loop()
        written = loop.time()
        context.accounts.begin()
        served = False
        while True:
            await asyncio.sleep(self._timing.tick)
            try:
                reading = context.accounts.read()
                before, served = served, bool(reading.samples)
                now = loop.time()
                if served or before or now - written >= _IDLE_LEDGER_SECONDS:
                    written = now
                    context.accounts.write(reading)
                context.measuring.measure(reading.samples)
                context.walls.renew()
            except Exception:
                log.exception("this second is not measured")

    async def _check_health(self, context: NodeContext) -> None:
        while True:
            await asyncio.sleep(self._timing.health)
            try:
                await context.health.check()
            except Exception:
                log.exception("the devices' health is not known")

    # Stop.

    def _close(self, context: NodeContext) -> None:
        pulse.notify("STOPPING=1")
        context.accounts.write(context.accounts.read())
        context.room.close()
        context.evictions.close()
        context.ahead.close()
        context.residency.close()
        context.preparing.close()
        context.audit.close()
        context.programs.close()
        context.remote.close()
        context.adoption.let_go()
        context.exclusion.close()
        strays.await_empty_cgroups(context.state)
        if not any(live.record.phase is Phase.ACTIVE for live in context.state):
            self._stop_simulator()
        if not list(context.state):
            context.state.ledger.close()  # which has files in these directories until all is written
            strays.remove_run_files(self._layout)
        context.backend.close()

    def _stop_simulator(self, *, cleanup_only: bool = False) -> None:
        """Stops the simulator, unless it has clients: then it goes on, as hardware would."""
        simulator, self._simulator = self._simulator, None
        if simulator is None:
            return
        with contextlib.suppress(GpushareError):
            if not simulator.in_use():
                simulator.stop()
                standins.forget(self._layout.sim, len(simulator.devices))
        if cleanup_only:
            simulator.close()


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
