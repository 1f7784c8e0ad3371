"""How much memory the host pool has on this node, and what it is charged to."""

import hashlib
import logging
import os

from gpushare.daemon.residency.pool import HostPool, Limits
from gpushare.daemon.timing import Timing
from gpushare.enforce import memory_cgroup
from gpushare.enforce.cgroup import PREFIX, Cgroup
from gpushare.errors import FailedError
from gpushare.hostpool import memory_file
from gpushare.paths import Layout
from gpushare.text.units import GIB, PAGE

log = logging.getLogger(__name__)


def open_pool(asked: int | None, layout: Layout, timing: Timing, limits: Limits = lambda _: ()) -> HostPool:
    """A pool of as many bytes as were asked for; None: half of what the node has free, in whole GiB. What an earlier
    daemon's holds counts as free."""
    if asked == 0:
        return HostPool(0, timing, uncharged="there is no pool")
    free, group, why = memory_file.available(), None, ""
    try:
        group = _cgroup(layout)
        free += memory_cgroup.charged(group) or 0
        memory_cgroup.remove_unused(group)
    except FailedError as error:
        why = str(error)
        log.warning("the host pool counts as the daemon's own memory: %s", why)
    size = asked if asked is not None else free // 2 // GIB * GIB
    if size > free:
        log.warning("the host pool may take %d MiB, and the node has %d MiB of memory free", size >> 20, free >> 20)
    return HostPool(size if group is not None else _beside_daemon(size), timing, group, uncharged=why, limits=limits)


def _beside_daemon(size: int) -> int:
    """What of it a limit on the daemon's own cgroup leaves: at that limit the kernel would end the daemon."""
    room = memory_cgroup.room()
    if room is None or size <= room // 2:
        return size
    log.warning("the host pool is half of what the daemon's cgroup may still take, %d MiB", room >> 21)
    return room // 2 // PAGE * PAGE


def _cgroup(layout: Layout) -> Cgroup:
    """The pool's cgroup, of a name that a daemon with the same state has again. Made as a trial here, and again by the
    first helper. Raises FailedError where none can be made."""
    if os.geteuid() != 0:
        raise FailedError("the daemon is not root and may make no cgroups")
    name = hashlib.sha256(str(layout.state).encode()).hexdigest()[:12]
    return memory_cgroup.at_root(f"{PREFIX}pool-{name}")
