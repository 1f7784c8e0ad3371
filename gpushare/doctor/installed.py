"""The installation: the parts of this version, and which users may change or read them."""

import base64
import hashlib
import importlib.metadata
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from gpushare import DISTRIBUTION, __version__, advice, paths
from gpushare.doctor.finding import Check, Finding, read, shortened
from gpushare.engines import files
from gpushare.errors import FailedError

_AGAIN = "install this version again: {again}"
_HOW = (
    "AGAIN: `PYTHON -m pip install --force-reinstall FILE` with the release's wheel, or `apt-get install --reinstall "
    "gpushare` where the Debian package is installed."
)
_PROMISED = f"Containers start without the share that they were promised, or not at all. {_HOW}"
ABSENT = Check("installed parts", "missing", "no {files} in {directory}", _AGAIN, _PROMISED)
CHANGED = Check(
    "installed parts",
    "wrong",
    "{files} in {directory}: not as version {version} has it, or damaged",
    _AGAIN,
    _PROMISED,
)
NOT_EXECUTABLE = Check(
    "installed parts", "wrong", "{files}: cannot be executed", _AGAIN, f"No container with a share starts. {_HOW}"
)
CLOSED = Check(
    "installed parts",
    "wrong",
    "{path} is closed to users, whose programs load libgpushare.so",
    "install gpushare elsewhere, in /opt/gpushare for example",
    "Programs of users other than root do not start in a share.",
)
NOT_FOUND = Check(
    "command",
    "note",
    "`gpushare` is not what a shell finds by that name: it is {program}",
    "say {program} wherever gpushare is to be run",
    "The directory of the command is not in PATH, or another gpushare comes before it.",
)
UNIT = Check(
    "unit",
    "missing",
    "{unit} starts {program}, which is not there or cannot be executed",
    "{install}",
    "The daemon does not start at the next boot. INSTALL: `gpushare install` again, with the gpushare that is to run.",
)
WRITABLE = Check(
    "permissions",
    "wrong",
    "{path} (uid {uid}, mode {mode}) can be changed by others than root",
    "chown root: {path} && chmod go-w {path}",
    "The daemon runs as root: any user who can change what it reads or starts can become root.",
)

_CONFIG = Path("/etc/gpushare")


def look() -> Iterator[Finding]:
    """Yields all findings about the installation."""
    yield from _parts()
    if (program := advice.program()) != "gpushare" and program != shutil.which("gpushare"):
        yield NOT_FOUND(program=program)
    yield from _unit()
    yield from _permissions()


def _parts() -> Iterator[Finding]:
    needed = (*paths.INTERPOSERS, paths.HOOK, paths.RUNTIME_WRAPPER, paths.SIM_BINARY, paths.LOADER_CONFIG)
    absent = [file.name for file in needed if not file.is_file()]
    if absent:
        yield ABSENT(files=shortened(absent), directory=paths.LIB_DIR, again=advice.again())
        return
    unlike = _unlike_record()
    if unlike:
        yield CHANGED(files=shortened(unlike), directory=paths.LIB_DIR, version=__version__, again=advice.again())
        return
    stuck = [file.name for file in (paths.HOOK, paths.RUNTIME_WRAPPER) if not os.access(file, os.X_OK)]
    if stuck:
        yield NOT_EXECUTABLE(files=shortened(stuck), again=advice.again())
        return
    yield Finding("installed parts", "ok", str(paths.LIB_DIR))
    way = [part for part in reversed(paths.INTERPOSER.parents) if not part.stat().st_mode & stat.S_IXOTH]
    if way or not paths.INTERPOSER.stat().st_mode & stat.S_IROTH:
        yield CLOSED(path=way[0] if way else paths.INTERPOSER)


def _unlike_record() -> list[str]:
    """Native parts that differ from the wheel's record; empty if no wheel was installed, as in a source tree."""
    try:
        listed = importlib.metadata.distribution(DISTRIBUTION).files or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for file in listed:
        path = Path(str(file.locate()))
        if file.hash is None or path.parent != paths.LIB_DIR:
            continue
        digest = hashlib.new(file.hash.mode, read(path, 1 << 28) or b"").digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != file.hash.value:
            found.append(file.name)
    return found


def _unit() -> Iterator[Finding]:
    path = advice.unit()
    text = (read(path) if path else None) or b""
    for line in text.decode(errors="replace").splitlines():
        program = line.partition("ExecStart=")[2].partition(" ")[0].strip('"')
        if program.startswith("/") and "%" not in program and not os.access(program, os.X_OK):
            yield UNIT(unit=path, program=program, install=f"`{advice.gpushare('install')}`")


def _permissions() -> Iterator[Finding]:
    layout = paths.Layout.of()
    directories = [path for path in (_CONFIG, layout.run, layout.state, layout.cdi) if path.exists()]
    config = [path for path in (_CONFIG / "gpushare.toml", _CONFIG / "tenants.toml") if path.exists()]
    for path in [*directories, *config, paths.LIB_DIR, *paths.INTERPOSERS, paths.HOOK, paths.RUNTIME_WRAPPER]:
        try:
            files.check_writers(path, path.stat())
        except FailedError:
            info = path.stat()
            yield WRITABLE(path=path, uid=info.st_uid, mode=f"{stat.S_IMODE(info.st_mode):o}")
        except OSError:
            continue  # removed meanwhile
