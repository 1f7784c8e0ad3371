"""The container engines: what they are, whether they know gpushare, and what they would pass over in silence."""

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpushare.doctor.finding import Finding, read
from gpushare.engines import configuration
from gpushare.engines.edit import Options
from gpushare.paths import HOOK

HOOKS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
_DAEMON_JSON = Path("/etc/docker/daemon.json")


def look() -> Iterator[Finding]:
    """All of it."""
    found = list(configuration.status(Options(), None))
    if not found:
        mend = "install an engine to share devices among containers, then `gpushare runtime configure`"
        yield Finding("container engines", "note", "none", mend)
    for one in found:
        yield from _engine(one)
    yield from _docker(found)
    yield from _plugin()
    yield from _hooks()


def _engine(one: configuration.Status) -> Iterator[Finding]:
    what = f"{one.engine} {one.version or ''}".strip()
    configure = f"gpushare runtime configure --engine {one.engine} --restart"
    if not one.configured:
        yield Finding(what, "note", "not configured, so it gives no shares by runtime or annotation", configure)
    elif not one.missing:
        yield Finding(what, "ok", f"configured in {one.file}")
    for text in one.missing:
        if one.configured or not text.startswith("not configured"):
            level, mend = ("missing", configure) if one.configured else ("note", "mend it before you configure it")
            yield Finding(what, level, text, mend)  # type: ignore[arg-type] # mypy widens it
    for text in one.notes:
        yield Finding(what, "note", text, "see docs/engines.md for what works there")


def _docker(found: list[configuration.Status]) -> Iterator[Finding]:
    """From 25 to 27 dockerd reads `features.cdi` when it starts, and not at a reload."""
    version = next((one.version for one in found if one.engine == "docker" and one.version), "")
    try:
        major = int(version.partition(".")[0] or 0)
        enabled = json.loads(read(_DAEMON_JSON) or b"{}")["features"]["cdi"] is True
        started = _start_time(int(Path("/run/docker.pid").read_text()))
        changed = _DAEMON_JSON.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):
        return
    if 25 <= major < 28 and enabled and started < changed:
        text = f"it runs since before {_DAEMON_JSON} was changed, and reads features.cdi only when it starts"
        yield Finding(f"docker {version}", "wrong", f"{text}: CDI devices may fail", "systemctl restart docker")


def _plugin() -> Iterator[Finding]:
    """An engine that requires our NRI plugin starts nothing without it."""
    systemctl = shutil.which("systemctl", path="/usr/bin:/bin")
    if systemctl is None or not Path("/run/systemd/system").is_dir():
        return
    for engine in configuration.requiring_plugin():
        done = subprocess.run([systemctl, "is-active", "--quiet", "gpushare-nri"], check=False, timeout=30)
        if done.returncode:
            found = f"{engine} requires the NRI plugin, and gpushare-nri.service does not run: it starts no container"
            yield Finding("NRI plugin", "missing", found, "systemctl enable --now gpushare-nri")


def _start_time(pid: int) -> float:
    """Seconds since the epoch. Raises OSError, ValueError."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    lines = Path("/proc/stat").read_text().splitlines()
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def _hooks() -> Iterator[Finding]:
    """Podman starts a container without a hook whose program is missing, and says nothing."""
    for directory in map(Path, dict.fromkeys([*HOOKS, *_configured_hooks()])):
        try:
            names = sorted(path for path in directory.iterdir() if path.suffix == ".json")
        except OSError:
            continue
        for path in names:
            yield from _hook(path)


def _configured_hooks() -> Iterator[str]:
    """Where else Podman is told to look for hooks."""
    files = [Path("/usr/share/containers/containers.conf"), Path("/etc/containers/containers.conf")]
    for path in [*files, *sorted(Path("/etc/containers/containers.conf.d").glob("*.conf"))]:
        try:
            named = tomllib.loads((read(path.resolve()) or b"").decode())["engine"]["hooks_dir"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield from (name for name in named if isinstance(name, str) and name.startswith("/"))


def _hook(path: Path) -> Iterator[Finding]:
    what = "hook"
    try:
        hook: Any = json.loads(read(path.resolve()) or b"")
        program = Path(hook["hook"]["path"])
    except (OSError, ValueError, KeyError, TypeError):
        yield Finding(what, "wrong", f"{path} cannot be read: Podman starts nothing", "mend it, or remove it")
        return
    ours = program.name == HOOK.name
    again = "gpushare runtime unconfigure --engine podman, then configure" if ours else f"mend or remove {path}"
    if not program.is_file() or not os.access(program, os.X_OK):
        found = f"{path} names {program}, which is not there or cannot be executed: Podman passes over it in silence"
        yield Finding(what, "missing", found + (", so containers start without their share" if ours else ""), again)
    elif ours and program != HOOK:
        yield Finding(what, "wrong", f"{path} names {program}, the hook of another installation than {HOOK}", again)
    if ours and "precreate" in hook.get("stages", []) and Path("/etc/crio").is_dir():
        found = f"{path} has a stage that CRI-O, which is here, does not know: it does not start"
        yield Finding(what, "wrong", found, "gpushare runtime unconfigure --engine podman")
