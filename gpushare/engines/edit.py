"""Types shared by the engines' modules: the options, and an edit of one file."""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from gpushare.engines import toml_text
from gpushare.paths import RUNTIME_WRAPPER, Layout

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/opt/rke2/bin"
ANNOTATIONS = ("gpushare.dev/*", "nvidia.com/container.*")

Version = tuple[int, ...]
Nri = Literal["required", "optional"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options from the command line. `config`: file to edit instead of the engine's usual one. `executable`: the
    engine's program, run for its version. `hooks_dir`: where podman looks for hooks; None: where it is configured to.
    `nri`: turn NRI on for our plugin, required or optional."""

    runtime_name: str = "gpushare"
    runtime_path: Path = RUNTIME_WRAPPER
    set_as_default: bool = False
    cdi: bool = True
    nri: Nri | None = None
    config: Path | None = None
    executable: Path | None = None
    hooks_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of one file of an engine, by functions of the file's text. `has(text)`: whether our parts are there.
    `put(text)`: adds them; the text has none. `take(text, before)`: removes them; `before` is the text of the backup,
    empty without one. All raise FailedError if the file must be left alone."""

    path: Path
    has: Callable[[str], bool]
    put: Callable[[str], str]
    take: Callable[[str, str], str]
    backed_up: bool = True


@dataclass(frozen=True, slots=True)
class Reload:
    """How to make the engine reread its configuration. `pidfile`: of a daemon that rereads it at SIGHUP. An engine
    without a daemon has neither command nor pidfile."""

    command: tuple[str, ...] = ()
    pidfile: Path | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Findings about an engine. `lacks`: what prevents a share. `notes`: further information."""

    lacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Engine(Protocol):
    """One engine, implemented by a module of this package."""

    @property
    def name(self) -> str:
        """The engine's name on the command line."""
        ...

    @property
    def executables(self) -> tuple[str, ...]:
        """Possible names of its program."""
        ...

    @property
    def reload(self) -> Reload:
        """How to make it read its configuration."""
        ...

    def edits(self, options: Options, version: Version | None) -> list[Edit]:
        """Returns the edits of its files, in order. `version`: None if the engine is not installed."""
        ...

    def facts(self, options: Options, version: Version | None, text: str) -> Facts:
        """Returns findings about the engine. `text`: of the first edit's file."""
        ...


def installed(engine: Engine, options: Options) -> Version | None:
    """Returns the version that the engine's program reports; None if there is no program or it reports none."""
    path = str(options.executable) if options.executable else None
    for name in engine.executables:
        path = path or shutil.which(name) or shutil.which(name, path=_PATH)
    return None if path is None else version_of(path)


def version_of(path: str) -> Version | None:
    """Returns the version that the program at the path reports; None if there is none, or it reports none."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"(?<![\w.])v?(\d+(?:\.\d+)+)", answer.stdout)
    return tuple(map(int, number[1].split("."))) if number else None


def spec_dirs_lack(directories: Any, setting: str) -> list[str]:
    """Returns what prevents an engine from finding the daemon's CDI specs; empty if nothing does. `directories`: where
    it looks for specs; None: at the usual places. `setting`: the one that sets them."""
    ours = Layout.of().cdi
    if not isinstance(directories, list) or ours.resolve() in (Path(str(one)).resolve() for one in directories):
        return []
    where = ", ".join(map(str, directories)) or "nowhere"
    return [f"it reads CDI specs from {where}, and the daemon writes them into {ours}: add that to {setting}"]


def toml_edit(path: Path, settings: Callable[[str], toml_text.Settings]) -> Edit:
    """Returns an edit of a TOML file. `settings`: returns the settings for a text without our parts."""
    name = str(path)
    return Edit(
        path,
        has=lambda text: toml_text.BEGIN in text,
        put=lambda text: toml_text.apply(text, settings(text), name),
        take=lambda text, _before: toml_text.strip(text, name),
    )
