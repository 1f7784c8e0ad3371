"""Implements `gpushare runtime`: plans, shows and carries out changes to an engine's files, and reports status."""

import difflib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushare import advice
from gpushare.engines import files, k0s, k3s, nri, toml_text
from gpushare.engines.containerd import Containerd
from gpushare.engines.crio import Crio
from gpushare.engines.docker import Docker, reads_cdi_at_start
from gpushare.engines.edit import Edit, Engine, Options, installed
from gpushare.engines.podman import Podman
from gpushare.errors import FailedError, GpushareError

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (Docker(), Podman(), Containerd(), Crio(), *k3s.ENGINES)
}


def engine_of(name: str, options: Options) -> Engine:
    """Returns the engine of this name; where that is containerd, and the file belongs to one of k3s or RKE2, these."""
    program = k3s.program_of(options.config) if name == "containerd" and options.config else None
    return ENGINES[program or name]


def check_containerd(options: Options) -> None:
    """Raises FailedError, with what to do, where the containerd that is meant is that of k3s, RKE2 or k0s: it would not
    read the file, or lose what is written into it."""
    if options.config is not None:
        k3s.check_editable(options.config)
        return
    bundled = {one.name: f"gpushare runtime configure --engine {one.name}" for one in k3s.ENGINES if one.main.exists()}
    if k0s.MAIN.exists():
        bundled["k0s"] = k0s.advice(k0s.MAIN)
    if bundled and installed(ENGINES["containerd"], options) is None:
        name, how = next(iter(bundled.items()))
        raise FailedError(f"containerd is not installed here but for that of {name}, which reads other files: {how}")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one file. `old`, `new`: its text; None: no file. `backup`: where `old` is saved for a later undo;
    None: it is not. `drop_backup`: a backup to delete."""

    path: Path
    old: str | None
    new: str | None
    backup: Path | None
    drop_backup: Path | None

    def diff(self) -> str:
        """Returns a unified diff; empty if nothing changes."""
        of, to = ("/dev/null" if text is None else str(self.path) for text in (self.old, self.new))
        old, new = ((text or "").splitlines(keepends=True) for text in (self.old, self.new))
        out = []
        for line in difflib.unified_diff(old, new, of, to):
            out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
        return "".join(out)

    @property
    def changes(self) -> bool:
        """Whether the file changes."""
        return self.old != self.new


def _plan(edit: Edit, undo: bool) -> Change:
    path = files.resolve(edit.path)
    old, backup = files.read(path), files.backup_of(path)
    has = old is not None and edit.has(old)
    before = files.read(backup) if has and edit.backed_up else None
    base = edit.take(old or "", before or "") if has else old or ""
    new: str | None = base if undo else edit.put(base)
    # A file that we made has no backup; it is deleted if it contained only our parts.
    if (undo or not new) and not base.strip() and (before is None if has else old is None):
        new = None
    stays = new is not None and edit.has(new)
    drop = backup if before is not None and not stays else None
    keep = backup if edit.backed_up and not undo and not has and old is not None and old != new else None
    return Change(path, old, new, keep, drop)


def plan(engine: Engine, options: Options, undo: bool) -> list[Change]:
    """Returns the changes that configuring (or undoing it) would make. Raises FailedError if a file must be left alone;
    then none may be touched."""
    return [_plan(edit, undo) for edit in engine.edits(options, installed(engine, options))]


def carry_out(changes: list[Change]) -> list[Path]:
    """Writes the changes; returns the backups made. Raises FailedError."""
    made = []
    for change in changes:
        with files.locked(change.path):
            if files.read(change.path) != change.old:
                raise FailedError(f"{change.path} has just been changed by somebody else: try again")
            if change.backup is not None and change.old is not None:
                files.write(change.backup, change.old, like=change.path)
                made.append(change.backup)
            if change.new is None:
                files.delete(change.path)
            elif change.changes:
                files.write(change.path, change.new)
            if change.drop_backup is not None:
                files.delete(change.drop_backup)
    return made


_RESTART_BY_HAND = "start it again as it was started, since systemd does not run here"
_NEXT_START = "the next start, since it does not run now"


def _process_of(pidfile: Path, engine: Engine) -> int | None:
    try:
        pid = int(pidfile.read_text())
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except (OSError, ValueError):
        return None
    return pid if name in engine.executables else None


def _does_not_run(engine: Engine) -> bool:
    """Only where systemd, which would know, does not run, and the engine has a file with its process id."""
    pidfile = engine.reload.pidfile
    return pidfile is not None and not advice.systemd_runs() and _process_of(pidfile, engine) is None


def reload(engine: Engine) -> str:
    """Makes the engine read its configuration; returns what was done. Raises FailedError, with what to do."""
    how = engine.reload
    if not how.command:
        return how.note
    command = " ".join(how.command)
    reason = ""
    if advice.systemd_runs():
        done = subprocess.run(how.command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return command
        reason = f" ({done.stderr.strip().replace(chr(10), '; ') or f'status {done.returncode}'})"
    elif _does_not_run(engine):
        return f"at {_NEXT_START}"
    pid = _process_of(how.pidfile, engine) if how.pidfile else None
    if pid is None:
        raise FailedError(f"{engine.name} was not told of its new configuration{reason}: {how_to_reload(engine)}")
    os.kill(pid, signal.SIGHUP)
    return f"SIGHUP to {pid}"


def unread(engine: Engine, options: Options, changes: list[Change]) -> str:
    """Returns a hint if the engine does not read some of the changes at a reload; empty if it reads all."""
    if engine.reload.pidfile is None or not reads_cdi_at_start(installed(engine, options)):
        return ""
    if not any("cdi" in line for change in changes for line in change.diff().splitlines() if line.startswith("+")):
        return ""
    restart = advice.service("restart", engine.name, "end it and start it again as it was started")
    return f"this {engine.name} knows CDI devices from its next start on: {restart}"


def how_to_reload(engine: Engine) -> str:
    """Returns how an administrator makes the engine read its configuration."""
    how = engine.reload
    if not how.command:
        return how.note
    if _does_not_run(engine):
        return _NEXT_START
    by_hand = f"`{advice.as_root(f'kill -HUP $(cat {how.pidfile})')}`" if how.pidfile else _RESTART_BY_HAND
    done = f"`{advice.as_root(' '.join(how.command))}`" if advice.systemd_runs() else by_hand
    return done + (f"; {how.note}" if how.note else "")


@dataclass(frozen=True, slots=True)
class Status:
    """The status of one engine on this machine. `version`: None if its program is not found. `missing`: what to do."""

    engine: str
    version: str | None
    configured: bool
    file: str
    missing: list[str]
    notes: list[str]


def _status(engine: Engine, options: Options) -> Status:
    version = installed(engine, options)
    shown = ".".join(map(str, version)) if version else None
    missing: list[str] = []
    configured, file, notes = False, str(options.config or ""), []
    try:
        edits = engine.edits(options, version)
        path = files.resolve(edits[0].path)
        file = str(path)
        text = files.read(path)
        configured = text is not None and edits[0].has(text)
        if not configured:
            plan(engine, options, undo=False)  # raises if configuring would fail
            missing.append(f"not configured: gpushare runtime configure --engine {engine.name}")
        facts = engine.facts(options, version, text or "")
        missing += facts.lacks
        notes += facts.notes
    except GpushareError as error:
        missing.append(str(error))
    if not os.access(options.runtime_path, os.X_OK):
        missing.append(f"{options.runtime_path} is not there or cannot be executed")
    return Status(engine.name, shown, configured, file, missing, notes)


def status(options: Options, name: str | None) -> Iterator[Status]:
    """Yields the status of the engine `name`; None: of each that is installed or configured."""
    for engine in [engine_of(name, options)] if name else ENGINES.values():
        found = _status(engine, options)
        if name or found.version or found.configured:
            yield found


def requiring_plugin() -> Iterator[str]:
    """Yields the engines whose files currently require our NRI plugin: they create no container without it."""
    for name in ("containerd", "crio", "k3s", "rke2"):
        engine, options = ENGINES[name], Options()
        try:
            paths = [files.resolve(edit.path) for edit in engine.edits(options, installed(engine, options))]
            if isinstance(engine, k3s.K3s):  # its templates are no TOML; what it makes of them is
                paths = [engine.main, *(path for path in paths if path.suffix == ".toml")]
            if any(nri.is_required(toml_text.parse(files.read(path) or "", str(path))) for path in paths):
                yield name
        except GpushareError:
            continue  # we did not configure a file that we cannot read


def runtime_class(options: Options) -> str:
    """Returns a Kubernetes RuntimeClass for the handler, as YAML: a pod selects it by `runtimeClassName`."""
    name = options.runtime_name
    return f"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: {name}\nhandler: {name}\n"
