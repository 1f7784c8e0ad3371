"""Calls to systemd and to this machine's user database."""

import grp
import shutil
import subprocess
from pathlib import Path

from gpushare import advice
from gpushare.install.items import UNIT

GROUP = "gpushare"


def command(*words: str) -> str:
    """Runs a command; returns why it failed, empty on success."""
    program = shutil.which(words[0], path=advice.SYSTEM_PATH)
    if program is None:
        return f"there is no {words[0]} here"
    try:
        done = subprocess.run([program, *words[1:]], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return f"{words[0]} does not answer"
    if done.returncode == 0:
        return ""
    return done.stderr.strip().replace("\n", "; ") or f"{words[0]} ended with status {done.returncode}"


def daemon_is_active() -> bool:
    """Whether the unit runs."""
    return not command("systemctl", "is-active", "--quiet", UNIT)


def group_exists() -> bool:
    """Whether the group whose members may request grants exists."""
    try:
        grp.getgrnam(GROUP)
    except KeyError:
        return False
    return True


def make_group(sysusers: Path) -> str:
    """Makes the group; returns why that failed, empty on success."""
    if not command("systemd-sysusers", str(sysusers)) and group_exists():
        return ""
    return command("groupadd", "--system", GROUP)
