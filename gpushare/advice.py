"""How things are done on this machine: commands for advice, which can be followed where it is printed."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from gpushare import DISTRIBUTION

_OF_ROOT = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
"""Directories in which sudo finds a command by its name."""
UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
"""Directories in which the daemon's unit may be."""
_SYSTEMD = Path("/run/systemd/system")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where root looks for a program that it runs: the caller's PATH is not trusted."""


def systemctl() -> str | None:
    """The program that speaks to systemd; None where that is not this machine's init."""
    return shutil.which("systemctl", path=SYSTEM_PATH) if _SYSTEMD.is_dir() else None


def systemd_runs() -> bool:
    """Whether systemd is this machine's init, and can be spoken to."""
    return systemctl() is not None


def as_root(command: str) -> str:
    """The command line by which this user runs a command as root."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def program() -> str:
    """How this installation's command is called as root: by its name where that finds it, else by its path."""
    found, script = shutil.which("gpushare"), Path(sysconfig.get_path("scripts")) / "gpushare"
    # A package's Python has no script of ours.
    is_ours = found is not None and (not script.exists() or Path(found).samefile(script))
    if found is not None and is_ours and (os.geteuid() == 0 or str(Path(found).parent) in _OF_ROOT):
        return "gpushare"
    if script.exists():
        return str(script)
    return found or f"{sys.executable} -m gpushare"


def gpushare(verb: str) -> str:
    """The command line by which this user runs a verb as root."""
    return as_root(f"{program()} {verb}")


def service(act: str, unit: str, otherwise: str) -> str:
    """`systemctl ACT UNIT` where systemd runs, else `otherwise`. `unit`: without `.service`."""
    return f"`{as_root(f'systemctl {act} {unit}')}`" if systemd_runs() else otherwise


def unit() -> Path | None:
    """The daemon's unit, where one is installed."""
    return next((path for name in UNITS if (path := Path(name, "gpushare.service")).exists()), None)


def daemon() -> str:
    """How a daemon is started: the service where it is installed and systemd runs, else by hand."""
    if systemd_runs() and unit() is not None:
        return f"`{as_root('systemctl start gpushare')}`"
    return "`gpushare daemon`"


def again() -> str:
    """How this version is installed again over itself."""
    if Path(sys.prefix) == Path("/usr/lib/gpushare"):
        return f"`{as_root('apt-get install --reinstall gpushare')}`, with the package's file if no mirror has it"
    pip = as_root(f"{sys.executable} -m pip")
    return (
        f"`{pip} install --force-reinstall FILE`, with the wheel {DISTRIBUTION.replace('-', '_')}-*.whl of this version"
    )
