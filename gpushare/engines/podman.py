"""Podman: adds the runtime in our file in containers.conf.d, and a hook that reads annotations under any runtime."""

import json
import shutil
from pathlib import Path
from typing import Any

from gpushare.engines import files, toml_text
from gpushare.engines.edit import Edit, Facts, Options, Reload, Version, spec_dirs_lack, toml_edit
from gpushare.paths import HOOK

HOOK_FILE = "gpushare.json"
_FILE = Path("/etc/containers/containers.conf.d/50-gpushare.conf")


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


def _crio_reads_hooks(options: Options) -> bool:
    """Whether CRI-O reads the same directory: it does not start if a hook has a stage that it does not know."""
    usual = options.hooks_dir == Options().hooks_dir
    return usual and bool(shutil.which("crio") or Path("/etc/crio").is_dir())


def _spec_dirs(path: Path, text: str) -> Any:
    """Returns the directories of CDI specs that containers.conf, or the files of its directory, set; None: none does.
    `text`: of our file, at the path."""
    whole = toml_text.parse(text, str(path))
    if path.parent.suffix == ".d":
        whole = {}
        own = path.parent.with_suffix("")
        for other in (Path("/usr/share/containers/containers.conf"), own, *sorted(path.parent.glob("*.conf"))):
            toml_text.deep(whole, toml_text.parse(files.read(other) or "", str(other)))
    return toml_text.at(whole, ("engine", "cdi_spec_dirs"))


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

        crio = _crio_reads_hooks(options)
        hook = Edit(
            options.hooks_dir / HOOK_FILE,
            has=_is_ours,
            put=lambda text: text if crio or text else hook_text(),
            take=lambda _text, _before: "",
            backed_up=False,
        )
        return [toml_edit(path, settings), hook]

    def facts(self, options: Options, version: Version | None, text: str) -> Facts:
        facts = Facts()
        if version and version < (4, 1):
            facts.lacks.append("Podman before 4.1 knows no CDI: ask by annotations")
        facts.lacks.extend(spec_dirs_lack(_spec_dirs(options.config or _FILE, text), "cdi_spec_dirs"))
        if _crio_reads_hooks(options):
            facts.notes.append(
                f"no hook in {options.hooks_dir}, where CRI-O would meet it and not start: annotations need "
                f"--runtime {options.runtime_name}"
            )
        return facts
