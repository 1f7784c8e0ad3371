"""Files and cgroups of grants that have ended or were never recorded: a kill between two steps leaves them."""

import contextlib
import logging
import time

from gpushare.daemon.state.state import State
from gpushare.daemon.workloads import workloads
from gpushare.inject import cdi, grantdir, grantfiles, names
from gpushare.node.simulator import LOG_NAME, SOCKET_NAME
from gpushare.paths import Layout

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 1.0


def remove(state: State) -> None:
    """Removes what belongs to no grant of the state."""
    layout = state.layout
    for directory in layout.grants.iterdir():
        if directory.name not in state and directory.name != grantdir.STAND_IN and directory.is_dir():
            with contextlib.suppress(OSError):
                grantfiles.remove(layout, directory.name)
    specs = layout.cdi.glob("gpushare.dev-gpu_g-*.json")
    strays = [spec for spec in specs if spec.stem.removeprefix("gpushare.dev-gpu_") not in state]
    for stray in (*strays, *layout.cdi.glob(".gpushare.dev-gpu_*.tmp")):
        try:
            stray.unlink(missing_ok=True)
        except OSError as error:  # a directory, or a file system that takes no writes
            log.warning("%s stays (%s): remove it by hand", stray, error.strerror)
    for name in _cgroups(state):
        workloads.remove_cgroup(layout.cgroups, name)


def await_empty_cgroups(state: State) -> None:
    """Called when the daemon stops. Killed processes may take a moment to leave their cgroups; the next start removes
    what is left then."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    while (left := _cgroups(state)) and time.monotonic() < deadline:
        for name in left:
            workloads.remove_cgroup_now(state.layout.cgroups, name)
        time.sleep(0.01)


def remove_run_files(layout: Layout) -> None:
    """Called when no grant is left: removes run-time files and empty directories. Foreign files in them stay."""
    for path in (layout.sim / SOCKET_NAME, layout.sim.with_name(LOG_NAME)):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        cdi.remove_spec(layout, cdi.ANY)
        grantfiles.remove(layout, grantdir.STAND_IN)
        names.remove(layout)
    for directory in (layout.sim, layout.grants, layout.cgroups):
        with contextlib.suppress(OSError):
            directory.rmdir()


def _cgroups(state: State) -> list[str]:
    left = workloads.cgroup_names(state.layout.cgroups)
    return [name for name in left if workloads.grant_of(name) not in state]
