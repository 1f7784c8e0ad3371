"""What is asked of systemd and of the user database of this machine."""

import grp
import shutil
import subprocess
from pathlib import Path

from gpushare.install.items import UNIT

GROUP = "gpushare"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # the caller's is not trusted


def runs() -> bool:
    """Whether systemd is this machine's init."""
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl", path=_PATH) is not None


def command(*words: str) -> str:
    """Runs it; returns why it failed, empty where it did not."""
    program = shutil.which(words[0], path=_PATH)
    if program is None:
        return f"there is no {words[0]} here"
    try:
        done = subprocess.run([program, *words[1:]], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return f"{words[0]} does not answer"
    if done.returncode == 0:
        return ""
    return done.stderr.strip().replace("\n", "; ") or f"{words[0]} ended with status {done.returncode}"


def is_active() -> bool:
    """Whether the unit runs."""
    return not command("systemctl", "is-active", "--quiet", UNIT)


def group_exists() -> bool:
    """Whether there is the group whose members may ask for grants."""
    try:
        grp.getgrnam(GROUP)
    except KeyError:
        return False
    return True


def make_group(sysusers: Path) -> str:
    """Makes it; returns why that failed."""
    if not command("systemd-sysusers", str(sysusers)) and group_exists():
        return ""
    return command("groupadd", "--system", GROUP)
