"""What `gpushare runtime` does: plans the changes to an engine's files, shows them, carries them out, looks at them."""

import difflib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushare.engines import files, nri, toml_text
from gpushare.engines.containerd import Containerd
from gpushare.engines.crio import Crio
from gpushare.engines.docker import Docker, reads_cdi_at_start
from gpushare.engines.edit import Edit, Engine, Options, installed
from gpushare.engines.podman import Podman
from gpushare.errors import FailedError, GpushareError

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (Docker(), Podman(), Containerd(), Crio())}


@dataclass(frozen=True, slots=True)
class Change:
    """One file: its text and what it becomes, None where there is no file. `backup`: where `old` is kept until it is
    taken back, None where it is not."""

    path: Path
    old: str | None
    new: str | None
    backup: Path | None
    drop_backup: Path | None

    def diff(self) -> str:
        """As a unified diff; empty where nothing changes."""
        of, to = ("/dev/null" if text is None else str(self.path) for text in (self.old, self.new))
        old, new = ((text or "").splitlines(keepends=True) for text in (self.old, self.new))
        out = []
        for line in difflib.unified_diff(old, new, of, to):
            out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
        return "".join(out)

    @property
    def changes(self) -> bool:
        """Whether anything is to be done."""
        return self.old != self.new


def _plan(edit: Edit, undo: bool) -> Change:
    path = files.resolve(edit.path)
    old, backup = files.read(path), files.backup_of(path)
    has = old is not None and edit.has(old)
    before = files.read(backup) if has and edit.backed_up else None
    base = edit.take(old or "", before or "") if has else old or ""
    new: str | None = base if undo else edit.put(base)
    # A file that we made has no backup; it goes when nothing but ours was in it.
    if (undo or not new) and not base.strip() and (before is None if has else old is None):
        new = None
    stays = new is not None and edit.has(new)
    drop = backup if before is not None and not stays else None
    keep = backup if edit.backed_up and not undo and not has and old is not None and old != new else None
    return Change(path, old, new, keep, drop)


def plan(engine: Engine, options: Options, undo: bool) -> list[Change]:
    """What configuring (or undoing it) would change. Raises FailedError where a file has to be left alone; then no
    file is touched."""
    return [_plan(edit, undo) for edit in engine.edits(options, installed(engine, options))]


def carry_out(changes: list[Change]) -> list[Path]:
    """Writes the changes; returns the backups that were made."""
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


def _process_of(pidfile: Path, engine: Engine) -> int | None:
    try:
        pid = int(pidfile.read_text())
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except (OSError, ValueError):
        return None
    return pid if name in engine.executables else None


def reload(engine: Engine) -> str:
    """Makes the engine read its configuration; returns what was done. Raises FailedError that says what is to do."""
    how = engine.reload
    if not how.command:
        return how.note
    command = " ".join(how.command)
    reason = "systemd does not run here"
    if shutil.which("systemctl") and Path("/run/systemd/system").is_dir():
        done = subprocess.run(how.command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return command
        reason = done.stderr.strip().replace("\n", "; ") or f"status {done.returncode}"
    pid = _process_of(how.pidfile, engine) if how.pidfile else None
    if pid is None:
        raise FailedError(f"{engine.name} was not told of its new configuration ({reason}): {advice(engine)}")
    os.kill(pid, signal.SIGHUP)
    return f"SIGHUP to {pid}"


def unread(engine: Engine, options: Options, changes: list[Change]) -> str:
    """Of what was changed, what the engine does not read at a reload; empty where it reads all."""
    if engine.reload.pidfile is None or not reads_cdi_at_start(installed(engine, options)):
        return ""
    if not any("cdi" in line for change in changes for line in change.diff().splitlines() if line.startswith("+")):
        return ""
    return f"this {engine.name} knows CDI devices from its next start on: `systemctl restart {engine.name}`"


def advice(engine: Engine) -> str:
    """How an administrator makes the engine read its configuration."""
    how = engine.reload
    if not how.command:
        return how.note
    other = f" (or send SIGHUP to the process in {how.pidfile})" if how.pidfile else ""
    return f"`{' '.join(how.command)}`{other}" + (f"; {how.note}" if how.note else "")


@dataclass(frozen=True, slots=True)
class Status:
    """Of one engine on this machine. `version` is None where its program is not found; `missing` says what to do."""

    engine: str
    version: str | None
    configured: bool
    file: str
    missing: list[str]
    notes: list[str]


def _status(engine: Engine, options: Options) -> Status:
    version = installed(engine, options)
    said = ".".join(map(str, version)) if version else None
    missing: list[str] = []
    configured, file, notes = False, str(options.config or ""), []
    try:
        edits = engine.edits(options, version)
        path = files.resolve(edits[0].path)
        file = str(path)
        text = files.read(path)
        configured = text is not None and edits[0].has(text)
        if not configured:
            plan(engine, options, undo=False)  # raises where that would fail
            missing.append(f"not configured: gpushare runtime configure --engine {engine.name}")
        facts = engine.facts(options, version, text or "")
        missing += facts.lacks
        notes += facts.notes
    except GpushareError as error:
        missing.append(str(error))
    if not os.access(options.runtime_path, os.X_OK):
        missing.append(f"{options.runtime_path} is not there or cannot be executed")
    return Status(engine.name, said, configured, file, missing, notes)


def status(options: Options, name: str | None) -> Iterator[Status]:
    """Of the engine of that name, else of each that is installed or configured."""
    for engine in ENGINES.values():
        if name in (None, engine.name):
            found = _status(engine, options)
            if name or found.version or found.configured:
                yield found


def requiring_plugin() -> Iterator[str]:
    """The engines whose files, as they are, require our NRI plugin: they make no container without it."""
    for name in ("containerd", "crio"):
        engine, options = ENGINES[name], Options()
        try:
            paths = [files.resolve(edit.path) for edit in engine.edits(options, installed(engine, options))]
            if any(nri.is_required(toml_text.parse(files.read(path) or "", str(path))) for path in paths):
                yield name
        except GpushareError:
            continue  # a file that we cannot read is none that we configured


def runtime_class(options: Options) -> str:
    """A Kubernetes RuntimeClass of the handler, as YAML: a pod uses it by `runtimeClassName`."""
    name = options.runtime_name
    return f"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: {name}\nhandler: {name}\n"
