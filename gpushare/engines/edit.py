"""What the modules of the engines share: the options, and an edit of one file."""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from gpushare.engines import toml_text
from gpushare.paths import RUNTIME_WRAPPER

ANNOTATIONS = ("gpushare.dev/*", "nvidia.com/container.*")

Version = tuple[int, ...]
Nri = Literal["required", "optional"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. `config`: the file to edit in place of the engine's usual one. `executable`: of the
    engine, asked for its version. `hooks_dir`: where podman looks for hooks. `nri`: our plugin for NRI is asked, and
    may be required to be there."""

    runtime_name: str = "gpushare"
    runtime_path: Path = RUNTIME_WRAPPER
    set_as_default: bool = False
    cdi: bool = True
    nri: Nri | None = None
    config: Path | None = None
    executable: Path | None = None
    hooks_dir: Path = Path("/usr/share/containers/oci/hooks.d")


@dataclass(frozen=True, slots=True)
class Edit:
    """One file of an engine. All functions are of the file's text alone; `before` is the text of the backup, empty
    without one. `put` is given a text without our parts. All raise FailedError and leave the file alone then."""

    path: Path
    has: Callable[[str], bool]
    put: Callable[[str], str]
    take: Callable[[str, str], str]
    backed_up: bool = True


@dataclass(frozen=True, slots=True)
class Reload:
    """How the engine reads its configuration again. `pidfile`: of the daemon, which does so at SIGHUP. An engine
    without a daemon has neither."""

    command: tuple[str, ...] = ()
    pidfile: Path | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the engine's own module has to say: `lacks` is what hinders a share, `notes` is good to know."""

    lacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Engine(Protocol):
    """A module of this room that knows one engine."""

    @property
    def name(self) -> str:
        """As on the command line."""
        ...

    @property
    def executables(self) -> tuple[str, ...]:
        """The names of its program."""
        ...

    @property
    def reload(self) -> Reload:
        """How it is made to read its configuration."""
        ...

    def edits(self, options: Options, version: Version | None) -> list[Edit]:
        """The files that are edited, in this order. `version`: None where the engine is not installed."""
        ...

    def facts(self, options: Options, version: Version | None, text: str) -> Facts:
        """What stands in the way of a share. `text`: of the first edit's file."""
        ...


def installed(engine: Engine, options: Options) -> Version | None:
    """The version that the engine's program says, None where there is none or it does not say."""
    path = str(options.executable) if options.executable else None
    for name in engine.executables:
        path = (
            path or shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
        )
    if path is None:
        return None
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"(?<![\w.])v?(\d+(?:\.\d+)+)", answer.stdout)
    return tuple(map(int, number[1].split("."))) if number else None


def toml_edit(path: Path, settings: Callable[[str], toml_text.Settings]) -> Edit:
    """An edit of a TOML file. `settings` is given the text without our parts."""
    name = str(path)
    return Edit(
        path,
        has=lambda text: toml_text.BEGIN in text,
        put=lambda text: toml_text.apply(text, settings(text), name),
        take=lambda text, _before: toml_text.strip(text, name),
    )
