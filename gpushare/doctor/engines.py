"""The container engines: which there are, whether they are configured, and what they would silently ignore."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpushare import advice
from gpushare.doctor.finding import Check, Finding, read
from gpushare.engines import configuration, crio, podman
from gpushare.engines.edit import Options
from gpushare.errors import GpushareError
from gpushare.paths import HOOK

_CONFIGURE = "gpushare runtime configure --engine {engine} --restart"
NO_ENGINE = Check(
    "container engines",
    "note",
    "none",
    "install an engine to share devices among containers, then `gpushare runtime configure --engine ENGINE`",
    "`gpushare run` works without one.",
)
NOT_CONFIGURED = Check(
    "{engine_version}",
    "note",
    "not configured, so it gives no shares by runtime or annotation",
    _CONFIGURE,
    "Its containers that ask for a share by annotation start without one.",
)
LACKS = Check(
    "{engine_version}",
    "missing",
    "{text}",
    f"mend that; what gpushare adds: {_CONFIGURE}",
    "It is configured but cannot give shares, or not in each way: its program or gpushare's is missing, its "
    "configuration unreadable or at odds with its flags, or it looks for CDI specs or hooks elsewhere.",
)
WOULD_LACK = Check(
    "{engine_version}",
    "note",
    "{text}",
    "mend it before you configure it",
    "It is not configured, and could not give shares if it were.",
)
NOTED = Check(
    "{engine_version}",
    "note",
    "{text}",
    "see docs/guides/engines.md for what works there",
    "Something that does not work with this version: annotations with Docker before 24; CDI with Docker before 25, and "
    "with containerd before 1.7, which silently ignores it. Or NRI is off, or does not require gpushare's plugin.",
)
READS_AT_START = Check(
    "docker {version}",
    "wrong",
    "it runs since before {file} was changed, and reads features.cdi only when it starts: CDI devices may fail",
    "{restart}",
    "Docker 25 to 27 does not read this setting at a reload. RESTART: `sudo systemctl restart docker` where systemd "
    "runs, else end dockerd and start it again.",
)
NO_PLUGIN = Check(
    "NRI plugin",
    "missing",
    "{engine} requires the NRI plugin, and gpushare-nri.service does not run: it starts no container",
    "`sudo systemctl enable --now gpushare-nri`",
    "The engine is configured to create no container without it.",
)
HOOK_UNREADABLE = Check(
    "hook",
    "wrong",
    "{path} cannot be read: Podman starts nothing",
    "mend it, or remove it",
    "Podman reads all files of that directory whenever it starts a container.",
)
_HOOK_GONE = "{path} names {program}, which is not there or cannot be executed: Podman passes over it in silence"
_HOOK_AGAIN = "`gpushare runtime unconfigure --engine podman`, then `gpushare runtime configure --engine podman`"
OWN_HOOK_GONE = Check(
    "hook",
    "missing",
    f"{_HOOK_GONE}, so containers start without their share",
    _HOOK_AGAIN,
    "It is gpushare's hook.",
)
OTHER_HOOK_GONE = Check("hook", "missing", _HOOK_GONE, "mend or remove {path}", "It is another program's hook.")
HOOK_OF_ANOTHER = Check(
    "hook",
    "wrong",
    "{path} names {program}, the hook of another installation than {hook}",
    _HOOK_AGAIN,
    "Its hook is not the one that this daemon answers.",
)
HOOK_STAGE = Check(
    "hook",
    "wrong",
    "{path} has a stage that CRI-O, which is here, does not know: it does not start",
    "gpushare runtime unconfigure --engine podman",
    "CRI-O also reads Podman's directory of hooks.",
)


def look() -> Iterator[Finding]:
    """Yields all findings about engines."""
    found = list(configuration.status(Options(), None))
    if not found:
        yield NO_ENGINE()
    for one in found:
        yield from _engine(one)
    yield from _docker(found)
    yield from _plugin()
    yield from _hooks()


def _engine(one: configuration.Status) -> Iterator[Finding]:
    words = {"engine": one.engine, "engine_version": f"{one.engine} {one.version or ''}".strip()}
    if not one.configured:
        yield NOT_CONFIGURED(**words)
    elif not one.missing:
        yield Finding(words["engine_version"], "ok", f"configured in {one.file}")
    for text in one.missing:
        if one.configured:
            yield LACKS(**words, text=text)
        elif not text.startswith("not configured"):
            yield WOULD_LACK(**words, text=text)
    for text in one.notes:
        yield NOTED(**words, text=text)


def _docker(found: list[configuration.Status]) -> Iterator[Finding]:
    """Versions 25 to 27 of dockerd read `features.cdi` only when they start, not at a reload."""
    version, path = next(((one.version, Path(one.file)) for one in found if one.engine == "docker"), (None, Path()))
    try:
        major = int((version or "0").partition(".")[0])
        enabled = json.loads(read(path) or b"{}")["features"]["cdi"] is True
        started = _start_time(int(Path("/run/docker.pid").read_text()))
        changed = path.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):
        return
    if 25 <= major < 28 and enabled and started < changed:
        restart = advice.service("restart", "docker", "end dockerd, and start it again as it was started")
        yield READS_AT_START(version=version, file=path, restart=restart)


def _plugin() -> Iterator[Finding]:
    """An engine that requires gpushare's NRI plugin starts no container without it."""
    systemctl = advice.systemctl()
    if systemctl is None:
        return
    for engine in configuration.requiring_plugin():
        done = subprocess.run([systemctl, "is-active", "--quiet", "gpushare-nri"], check=False, timeout=30)
        if done.returncode:
            yield NO_PLUGIN(engine=engine)


def _start_time(pid: int) -> float:
    """Seconds since the epoch. Raises OSError, ValueError."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    lines = Path("/proc/stat").read_text().splitlines()
    boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def _hooks() -> Iterator[Finding]:
    """If the program of a hook is missing, Podman silently starts the container without it."""
    # CRI-O reads the usual ones, whatever Podman is configured to read.
    for directory in dict.fromkeys([*crio.HOOKS, *_configured_hooks()]):
        try:
            names = sorted(path for path in directory.iterdir() if path.suffix == ".json")
        except OSError:
            continue
        for path in names:
            yield from _hook(path)


def _configured_hooks() -> list[Path]:
    """Directories in which Podman is configured to look for hooks."""
    try:
        return podman.hooks_dirs(Options())
    except GpushareError:
        return []  # the engine's own finding names the file that cannot be read


def _hook(path: Path) -> Iterator[Finding]:
    try:
        hook: Any = json.loads(read(path.resolve()) or b"")
        program = Path(hook["hook"]["path"])
    except (OSError, ValueError, KeyError, TypeError):
        yield HOOK_UNREADABLE(path=path)
        return
    ours = program.name == HOOK.name
    if not program.is_file() or not os.access(program, os.X_OK):
        yield (OWN_HOOK_GONE if ours else OTHER_HOOK_GONE)(path=path, program=program)
    elif ours and program != HOOK:
        yield HOOK_OF_ANOTHER(path=path, program=program, hook=HOOK)
    if ours and "precreate" in hook.get("stages", []) and Path("/etc/crio").is_dir():
        yield HOOK_STAGE(path=path)
