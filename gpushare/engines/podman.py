"""Podman: adds the runtime in our file in containers.conf.d, and a hook that reads annotations under any runtime."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpushare.engines import crio, files, toml_text
from gpushare.engines.edit import Edit, Facts, Options, Reload, Version, spec_dirs_lack, toml_edit
from gpushare.errors import FailedError
from gpushare.paths import HOOK

HOOK_FILE = "gpushare.json"
_FILE = Path("/etc/containers/containers.conf.d/50-gpushare.conf")
_HOOKS = "/usr/share/containers/oci/hooks.d"
_SPECS = ("/etc/cdi", "/var/run/cdi")


def hook_text() -> str:
    """Returns the hook's description in the format that podman reads."""
    hook = {"path": str(HOOK), "args": ["gpushare-hook", "precreate"], "timeout": 20}
    when = {"annotations": {r"(?i)^gpushare\.dev/": ".*"}}
    return json.dumps({"version": "1.0.0", "hook": hook, "when": when, "stages": ["precreate"]}, indent=2) + "\n"


def _is_ours(text: str) -> bool:
    try:
        return Path(json.loads(text)["hook"]["path"]).name == HOOK.name
    except (ValueError, KeyError, TypeError):
        return False


def _has_ours(directory: Path) -> bool:
    return _is_ours(files.read(directory / HOOK_FILE) or "")


def _crio_reads(directory: Path) -> bool:
    """Whether CRI-O reads the same directory: it does not start if a hook has a stage that it does not know."""
    return bool(shutil.which("crio") or Path("/etc/crio").is_dir()) and directory in crio.hooks_dirs()


def _documents(options: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the files, each with its settings, that Podman reads with ours, in its order."""
    path = options.config or _FILE
    read = [path]
    if path.parent.suffix == ".d":
        own = path.parent.with_suffix("")
        read = [Path("/usr/share/containers/containers.conf"), own, *sorted(path.parent.glob("*.conf"))]
    for one in read:
        yield str(one), toml_text.parse(files.read(one) or "", str(one))


def _directories(options: Options, key: str, usual: Sequence[str]) -> list[str] | None:
    """Returns the directories that Podman takes from this key of `[engine]`; None: no file sets it, so it takes the
    `usual` ones. The list of a later file replaces an earlier one, or is added to it where either has
    `{append = true}`."""
    found: list[str] | None = None
    appends = False
    for name, document in _documents(options):
        if toml_text.at(document, ("engine", key)) is None:
            continue
        listed = toml_text.listed(document, ("engine", key), name)
        for attributes in listed:
            if isinstance(attributes, dict):
                appends = attributes.get("append", appends) is True
        named = [str(one) for one in listed if not isinstance(one, dict)]
        found = [*(usual if found is None else found), *named] if appends else named
    return found


def hooks_dirs(options: Options) -> list[Path]:
    """Returns the directories in which Podman looks for hooks. A hook of a later one replaces one of the same name."""
    if options.hooks_dir is not None:
        return [options.hooks_dir]
    found = _directories(options, "hooks_dir", [_HOOKS])
    named = map(Path, [_HOOKS] if found is None else found)
    return [one for one in named if one.is_absolute()]  # others depend on where podman is started


def _place(directories: list[Path]) -> Path | None:
    """Returns the directory for our hook: where it is, else the last that is there. None: Podman reads none. One that
    CRI-O reads is the last choice."""
    free = [one for one in directories if not _crio_reads(one)]
    ours = [one for one in free if _has_ours(one)]
    there = [one for one in free if one.is_dir()]
    found = ours or there or free or directories
    return found[-1] if found else None


def _hook_edits(options: Options) -> Iterator[Edit]:
    """Yields the edit of our hook, and those that remove it from directories which Podman no longer reads."""
    directories = hooks_dirs(options)
    place = _place(directories)

    def put(text: str) -> str:
        if place is None or _crio_reads(place):
            return text
        if text:
            raise FailedError(
                f"{place / HOOK_FILE} is left alone: it is another program's hook: rename it, and configure again"
            )
        return hook_text()

    if place is not None:
        yield _hook_edit(place / HOOK_FILE, put)
    # Of directories that are named for this run only, none is known to be no longer read.
    usual = () if options.hooks_dir or options.config else crio.HOOKS
    for other in dict.fromkeys((*usual, *directories)):
        if other != place and _has_ours(other):
            yield _hook_edit(other / HOOK_FILE, lambda text: text)


def _hook_edit(path: Path, put: Callable[[str], str]) -> Edit:
    return Edit(path, has=_is_ours, put=put, take=lambda _text, _before: "", backed_up=False)


class Podman:
    """See Engine in edit.py."""

    name = "podman"
    executables = ("podman",)
    reload = Reload(note="podman has no daemon: the next container is started with it")

    def edits(self, options: Options, version: Version | None) -> list[Edit]:
        path = options.config or _FILE

        def settings(_text: str) -> toml_text.Settings:
            wanted: dict[toml_text.Path, dict[str, Any]] = {
                ("engine", "runtimes"): {options.runtime_name: [str(options.runtime_path)]}
            }
            if options.set_as_default:
                return {("engine",): {"runtime": options.runtime_name}, **wanted}
            return wanted

        return [toml_edit(path, settings), *_hook_edits(options)]

    def facts(self, options: Options, version: Version | None, text: str) -> Facts:
        facts = Facts()
        if version and version < (4, 1):
            facts.lacks.append("Podman before 4.1 knows no CDI: ask by annotations")
        facts.lacks.extend(spec_dirs_lack(_directories(options, "cdi_spec_dirs", _SPECS), "cdi_spec_dirs"))
        directories = hooks_dirs(options)
        place = _place(directories)
        if place is None:
            facts.lacks.append(
                f"it reads no hooks, since hooks_dir is empty, so annotations need --runtime {options.runtime_name}: "
                f"add {_HOOKS} to hooks_dir, and configure it again"
            )
        elif _crio_reads(place):
            facts.notes.append(
                f"no hook in {place}, where CRI-O would meet it and not start: annotations need "
                f"--runtime {options.runtime_name}"
            )
        elif toml_text.BEGIN in text and not _has_ours(place):
            facts.lacks.append(
                f"it reads hooks from {', '.join(map(str, directories))}, and gpushare's is not there, so containers "
                "that ask by annotation start without their share: gpushare runtime configure --engine podman"
            )
        return facts
