"""Makes, adopts and removes what a grant holds outside the daemon's memory: directory, pages, CDI spec, socket."""

import contextlib
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence

from gpushare.binding.page_words import GrantState, IdleMemory, Managed, Slot
from gpushare.binding.pages import USAGE_BYTES, LimitsPage, UsagePage, new_limits, new_usage
from gpushare.daemon.host.logs import Seldom
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import GrantRecord
from gpushare.daemon.workloads.door import Door
from gpushare.daemon.workloads.tenant_socket import Rules, TenantSocket
from gpushare.errors import FailedError, GpushareError
from gpushare.inject import cdi, grantdir, grantfiles, names
from gpushare.inject.node import Node
from gpushare.paths import INTERPOSERS, Layout
from gpushare.policy.grants.admission import Place
from gpushare.policy.grants.lifecycle import Kind

log = logging.getLogger(__name__)

_seldom = Seldom()


class Resources:
    """Each method makes all of its files or none."""

    def __init__(
        self, layout: Layout, node: Node, hardware: Hardware, door: Door, allocation_wait_s: float = 0
    ) -> None:
        """`allocation_wait_s`: as `[memory] allocation_wait_seconds`."""
        self._layout, self._node, self._hardware, self._door = layout, node, hardware, door
        self._allocation_wait_s = allocation_wait_s
        self._parts = [node.lib_dir / path.name for path in INTERPOSERS]
        if node.sim_dir is not None:
            self._parts += [node.sim_lib_dir / name for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
        self._unwritten: set[str] = set()
        """Grants whose CDI specs could not be written: they are tried again."""

    def check_parts(self) -> None:
        """Raises FailedError when a library cannot be read: a share that nothing would enforce must not start."""
        if self._node.sim_dir is None and not self._node.driver_files:
            raise FailedError("the driver's libcuda.so.1 is not in the loader's cache: run ldconfig, then start again")
        for part in self._parts:
            # A loader that cannot read a library to preload prints a warning and runs without it.
            try:
                mode = part.stat().st_mode
            except OSError:
                mode = 0
            if not (stat.S_ISREG(mode) and mode & stat.S_IROTH):
                raise FailedError(
                    f"a library is missing or not readable by all users, no share would hold: {part}: install again"
                )

    def offer(self) -> None:
        """Writes what is no single grant's: the names for plain processes, and the CDI devices that represent no grant.
        Raises FailedError."""
        try:
            names.make(self._layout, self._node)
            grantfiles.stand_in(self._layout, self._node)
            devices = self._hardware.all()
            cdi.write_offers(self._layout, self._node, devices)
        except OSError as error:
            raise FailedError(f"{self._layout.names}, or the CDI device of no grant, cannot be made: {error}") from None

    def make(self, live: Live) -> None:
        """Makes the directory with its pages, and the CDI spec unless a plain process has the grant. Raises
        FailedError."""
        record = live.record
        process = record.life.kind is Kind.PROCESS
        try:
            limits = [
                self._hardware.limits(place, place.guaranteed_milli, place.limit_milli) for place in record.places
            ]
            pages = grantfiles.Pages(
                new_limits(
                    record.id,
                    limits,
                    managed=Managed[record.request.managed.upper()],
                    idle_memory=IdleMemory[record.request.idle_memory.upper()],
                ),
                new_usage(record.id),
                USAGE_BYTES,
            )
            kind: grantdir.Kind = "process" if process else "container"
            grantfiles.create(self._layout, record.id, kind, (record.run_uid, record.run_gid), self._node, pages)
            if not process:
                cdi.write_spec(self._layout, record.id, self._node, self._hardware.granted(record))
        except OSError as error:
            self.unmake(live)
            raise FailedError(f"grant {record.id} cannot be made in {self._layout.grants}: {error}") from None
        except BaseException:
            self.unmake(live)
            raise

    def take_over(self, live: Live, rules: Rules) -> None:
        """Takes over the grant's files after a restart, and opens them where it is in use. Raises FailedError when a
        page is missing or invalid, and removes nothing then. No container that runs needs the CDI spec: one that cannot
        be written ends no grant."""
        record = live.record
        try:
            self._map(live)
            if record.phase.unused:
                self._check_whole(live)
                self.close(live)
            else:
                assert live.usage is not None
                _keep_slots(live, live.usage)
                self._listen(live, rules)
        except OSError as error:
            self.close(live)
            raise FailedError(f"its files cannot be used: {error}") from None
        except BaseException:
            self.close(live)
            raise
        if record.life.kind is not Kind.PROCESS:
            self._specify(record)

    def _specify(self, record: GrantRecord) -> None:
        try:
            cdi.write_spec(self._layout, record.id, self._node, self._hardware.granted(record))
        except OSError as error:
            self._unwritten.add(record.id)
            _seldom.warning("spec", "grant %s goes on, but its CDI spec cannot be written: %s", record.id, error)
        else:
            self._unwritten.discard(record.id)

    def restore(self, grants: Iterable[Live]) -> None:
        """Called every two seconds: writes the CDI specs that somebody has removed, or that could not be written."""
        grants = list(grants)
        self._unwritten &= {live.id for live in grants}
        try:
            there = {path.name for path in self._layout.cdi.iterdir()}
        except OSError:
            there = set()
        if cdi.name(cdi.ANY) not in there:
            try:
                self.offer()
            except FailedError as error:
                _seldom.warning("offer", "%s", error)
        for live in grants:
            has_spec = live.record.life.kind is not Kind.PROCESS and self._hardware.knows(live.record)
            if has_spec and (live.id in self._unwritten or cdi.name(live.id) not in there):
                self._specify(live.record)

    def _check_whole(self, live: Live) -> None:
        """Raises FailedError where an earlier daemon was killed while it made the directory: then its last file is
        absent or empty."""
        last = grantdir.preload_file(self._layout, live.id)
        if live.record.life.kind is not Kind.PROCESS and not (last.exists() and last.stat().st_size):
            raise FailedError("its files were not finished")

    def open(self, live: Live, rules: Rules) -> None:
        """Brings a reserved grant into use: maps its pages, and gives it a bell and a socket, by which processes join.
        Raises FailedError; `close` or `unmake` takes back what was opened."""
        self._map(live)
        try:
            self._listen(live, rules)
        except OSError as error:
            raise FailedError(f"grant {live.id} has no socket: {error}") from None

    def _map(self, live: Live) -> None:
        own = grantdir.self_dir(self._layout, live.id)
        live.limits = LimitsPage.open(own / "limits")
        live.usage = UsagePage.open(own / "usage")
        _check_owner(live, live.id)
        live.usage.set_capacity(self._hardware.capacity(live.record))
        live.limits.set_allocation_wait(self._allocation_wait_s)

    def _listen(self, live: Live, rules: Rules) -> None:
        assert live.limits is not None
        assert live.usage is not None
        live.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        own = grantdir.self_dir(self._layout, live.id)
        live.socket = TenantSocket(own, live.limits, live.usage, live.bell, rules, self._door)
        live.socket.listen()

    @contextlib.contextmanager
    def pages(self, live: Live) -> Iterator[tuple[LimitsPage, UsagePage]]:
        """The grant's pages; mapped for the `with` block where it is not in use. Raises FailedError."""
        if live.limits is not None and live.usage is not None:
            yield live.limits, live.usage
            return
        own = grantdir.self_dir(self._layout, live.id)
        with LimitsPage.open(own / "limits") as limits, UsagePage.open(own / "usage") as usage:
            yield limits, usage

    def resize(self, live: Live, places: Sequence[Place]) -> None:
        """Writes the limits of these places into its page. Raises FailedError."""
        with self.pages(live) as (limits, _):
            for ordinal, place in enumerate(places):
                limits.set_device(ordinal, self._hardware.limits(place, place.guaranteed_milli, place.limit_milli))

    def close(self, live: Live) -> None:
        """Closes everything; files and processes stay."""
        if live.socket is not None:
            live.socket.close()
        if live.bell is not None:
            os.close(live.bell)
        for page in (live.limits, live.usage):
            if page is not None:
                page.close()
        live.socket = live.bell = live.limits = live.usage = None

    def unmake(self, live: Live) -> None:
        """Removes whatever the grant still holds. What cannot be removed is only logged: the grant has ended anyway."""
        if live.limits is not None:
            live.limits.state = GrantState.RELEASED
        self.close(live)
        for remove in (cdi.remove_spec, grantfiles.remove):
            try:
                remove(self._layout, live.id)
            except (OSError, GpushareError) as error:
                log.warning("grant %s: %s", live.id, error)


def _keep_slots(live: Live, usage: UsagePage) -> None:
    """Gives the processes in the ledger their slots again, including those that have ended meanwhile: their slots are
    cleared next, which counts what they did."""
    boot_ns, now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.monotonic_ns()
    for member in live.record.members:
        age_ns = boot_ns - member.started * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        usage.keep(Slot(member.slot, member.generation, member.pid), now_ns - age_ns)


def _check_owner(live: Live, grant_id: str) -> None:
    for page in (live.limits, live.usage):
        if page is not None and page.grant != grant_id:
            raise FailedError(f"page {page.path} belongs to grant {page.grant[:40]!r}")
