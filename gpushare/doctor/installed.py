"""What was installed: the parts of this version, and who may change or read them."""

import base64
import hashlib
import importlib.metadata
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpushare import __version__, paths
from gpushare.doctor.finding import Finding, read, shortened
from gpushare.engines import files
from gpushare.errors import FailedError

UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_CONFIG = Path("/etc/gpushare")


def look() -> Iterator[Finding]:
    """All of it."""
    yield from _parts()
    yield from _unit()
    yield from _permissions()


def _parts() -> Iterator[Finding]:
    needed = (*paths.INTERPOSERS, paths.HOOK, paths.RUNTIME_WRAPPER, paths.SIM_BINARY, paths.LOADER_CONFIG)
    absent = [file.name for file in needed if not file.is_file()]
    again = "install this version again: pip install --force-reinstall, or the package"
    if absent:
        yield Finding("installed parts", "missing", f"no {shortened(absent)} in {paths.LIB_DIR}", again)
        return
    unlike = _unlike_record()
    if unlike:
        found = f"{shortened(unlike)} in {paths.LIB_DIR}: not as version {__version__} has it, or damaged"
        yield Finding("installed parts", "wrong", found, again)
        return
    stuck = [file.name for file in (paths.HOOK, paths.RUNTIME_WRAPPER) if not os.access(file, os.X_OK)]
    if stuck:
        yield Finding("installed parts", "wrong", f"{shortened(stuck)}: cannot be executed", again)
        return
    yield Finding("installed parts", "ok", str(paths.LIB_DIR))
    way = [part for part in reversed(paths.INTERPOSER.parents) if not part.stat().st_mode & stat.S_IXOTH]
    if way or not paths.INTERPOSER.stat().st_mode & stat.S_IROTH:
        found = f"{way[0] if way else paths.INTERPOSER} is closed to users, whose programs load libgpushare.so"
        yield Finding("installed parts", "wrong", found, "install gpushare elsewhere, in /opt/gpushare for example")


def _unlike_record() -> list[str]:
    """Native parts that are not what the wheel had; none where no wheel was installed, as in a source tree."""
    try:
        listed = importlib.metadata.distribution("gpushare").files or []
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


def unit() -> Path | None:
    """The daemon's unit."""
    return next((path for name in UNITS if (path := Path(name) / "gpushare.service").exists()), None)


def _unit() -> Iterator[Finding]:
    path = unit()
    text = (read(path) if path else None) or b""
    for line in text.decode(errors="replace").splitlines():
        program = line.partition("ExecStart=")[2].partition(" ")[0].strip('"')
        if program.startswith("/") and "%" not in program and not os.access(program, os.X_OK):
            found = f"{path} starts {program}, which is not there or cannot be executed"
            yield Finding("unit", "missing", found, "run `gpushare install` again")


def _permissions() -> Iterator[Finding]:
    layout = paths.Layout.of()
    directories = [path for path in (_CONFIG, layout.run, layout.state, layout.cdi) if path.exists()]
    config = [path for path in (_CONFIG / "gpushare.toml", _CONFIG / "tenants.toml") if path.exists()]
    for path in [*directories, *config, paths.LIB_DIR, *paths.INTERPOSERS, paths.HOOK, paths.RUNTIME_WRAPPER]:
        try:
            files.check_writers(path, path.stat())
        except FailedError:
            info = path.stat()
            found = (
                f"{path} (uid {info.st_uid}, mode {stat.S_IMODE(info.st_mode):o}) can be changed by others than root"
            )
            yield Finding("permissions", "wrong", found, f"chown root: {path} && chmod go-w {path}")
        except OSError:
            continue  # gone meanwhile
