"""Preconditions of installing and removing."""

import contextlib
import fcntl
import os
import sys
import tomllib
from pathlib import Path

from gpushare import advice, paths
from gpushare.client import Client
from gpushare.engines import configuration, files
from gpushare.errors import FailedError, ForbiddenError, GpushareError, RefusedError, UnreachableError
from gpushare.install.items import CONFIG
from gpushare.install.root import Root


def check_own_files() -> None:
    """Checks the files that this process runs from: the daemon will run from them as root. Raises FailedError if a user
    other than root can change any of them."""
    package = paths.LIB_DIR.parent
    searched = [Path(name) / "gpushare" for name in sys.path if Path(name).is_dir()]
    try:
        for path in [Path(sys.executable), *searched, package / "x"]:
            files.resolve(path if not path.is_dir() else path / "x")
        for directory, _, names in os.walk(package):
            for path in (Path(directory), *(Path(directory) / name for name in names)):
                files.check_writers(path, path.lstat())
    except FailedError as error:
        raise FailedError(
            f"root's daemon would run from there, and {error}; or install gpushare where root alone can write: "
            "sudo python3 -m venv /opt/gpushare && sudo /opt/gpushare/bin/pip install WHEEL"
        ) from None


def layout(root: Root) -> paths.Layout:
    """Returns the paths of this node's daemon, as configured in gpushare.toml."""
    try:
        text = files.read(root.at(CONFIG / "gpushare.toml"))
        known = tomllib.loads(text or "")
    except (GpushareError, ValueError):
        known = {}
    state, socket = (known.get(name) or None for name in ("state_dir", "socket"))
    return paths.Layout.of(*(Path(one) if isinstance(one, str) else None for one in (state, socket)))


def refuse_while_grants_live(where: paths.Layout) -> None:
    """Raises RefusedError while there are grants."""
    try:
        living = [grant["id"] for grant in Client(str(where.socket)).grants()]
    except ForbiddenError:
        raise
    except UnreachableError:
        # Left by a killed daemon: its tenants may still run.
        living = sorted(one.name for one in where.grants.glob("g-*")) if where.grants.is_dir() else []
    if living:
        named = ", ".join(living[:5]) + (", ..." if len(living) > 5 else "")
        raise RefusedError(
            f"grants live ({named}), and would go on without a daemon and without a record: end them first "
            f"(`{advice.gpushare('grant release')} {living[0]}`), or give --force; nothing is removed"
        )


def refuse_while_required() -> None:
    """Raises RefusedError if an engine creates no container without our NRI plugin."""
    engines = list(configuration.requiring_plugin())
    if engines:
        raise RefusedError(
            f"{engines[0]} requires the NRI plugin, and would start no container without it: run "
            f"`{advice.gpushare(f'runtime unconfigure --engine {engines[0]} --restart')}` first, or give --force; "
            "nothing is removed"
        )


def refuse_while_daemon_runs(where: paths.Layout) -> None:
    """Raises RefusedError if a daemon runs, which systemd may not know of; FailedError if its lock cannot be opened."""
    lock = where.run / paths.LOCK
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise FailedError(f"{lock} cannot be looked at: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RefusedError(f"a daemon runs in {where.run}: {_stop(where)} first; nothing is removed") from None
    finally:
        os.close(descriptor)


def _stop(where: paths.Layout) -> str:
    try:
        return f"stop it (`kill {Client(str(where.socket)).node()['pid']}`)"
    except GpushareError:
        return "stop it"


def remove_run_files(where: paths.Layout) -> None:
    """Removes what a daemon that has ended leaves; the directory only if no grant is left."""
    with contextlib.suppress(OSError):
        (where.run / paths.LOCK).unlink()
        where.run.rmdir()
