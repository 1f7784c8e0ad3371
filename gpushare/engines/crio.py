"""CRI-O: adds a runtime handler in our own file in crio.conf.d, a copy of its default handler with another binary.

At SIGHUP CRI-O reports that it has reread its runtimes, but keeps using the old ones: it must be restarted.
"""

import contextlib
from pathlib import Path
from typing import Any

from gpushare.engines import files, nri, toml_text
from gpushare.engines.edit import Edit, Facts, Options, Reload, Version, spec_dirs_lack, toml_edit
from gpushare.errors import FailedError

_FILE = Path("/etc/crio/crio.conf.d/99-gpushare.conf")
HOOKS = (Path("/usr/share/containers/oci/hooks.d"), Path("/etc/containers/oci/hooks.d"))


def _present(path: Path, text: str) -> dict[str, Any]:
    """Returns all of CRI-O's settings if `path` has this text, which overrides the other files."""
    whole: dict[str, Any] = {}
    if path.parent.suffix == ".d":
        for other in (path.parent.with_suffix(""), *sorted(path.parent.glob("*"))):
            if other != path and other.is_file():
                toml_text.deep(whole, toml_text.parse(files.read(other) or "", str(other)))
    return toml_text.deep(whole, toml_text.parse(text, str(path)))


def _usual(present: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of the default runtime that apply to ours too."""
    runtime = present.get("crio", {}).get("runtime", {})
    usual = runtime.get("runtimes", {}).get(runtime.get("default_runtime", "crun"), {})
    if usual.get("runtime_type", "oci") not in ("", "oci"):
        return {}
    others = ("inherit_default_runtime", "runtime_config_path")
    return {key: value for key, value in usual.items() if not isinstance(value, dict) and key not in others}


def hooks_dirs() -> list[Path]:
    """Returns the directories in which CRI-O looks for hooks: the usual ones, and those that it is configured to."""
    named: list[Any] = []
    with contextlib.suppress(FailedError):  # with a file that cannot be read CRI-O does not start anyway
        present = _present(_FILE, files.read(_FILE) or "")
        named = toml_text.listed(present, ("crio", "runtime", "hooks_dir"), str(_FILE))
    return [*HOOKS, *(Path(str(one)) for one in named)]


class Crio:
    """See Engine in edit.py."""

    name = "crio"
    executables = ("crio",)
    reload = Reload(("systemctl", "restart", "crio"), note="its containers go on running")

    def edits(self, options: Options, version: Version | None) -> list[Edit]:
        path = options.config or _FILE

        def settings(text: str) -> toml_text.Settings:
            # No settings for annotations and CDI: CRI-O passes on all of a pod's, and reads /etc/cdi and /var/run/cdi.
            handler = {**_usual(_present(path, text)), "runtime_path": str(options.runtime_path), "runtime_type": "oci"}
            wanted: dict[toml_text.Path, dict[str, Any]] = {
                ("crio", "runtime", "runtimes", options.runtime_name): handler
            }
            if options.set_as_default:
                wanted = {("crio", "runtime"): {"default_runtime": options.runtime_name}, **wanted}
            if options.nri:
                wanted |= nri.crio(_present(path, text), options.nri == "required")
            return wanted

        return [toml_edit(path, settings)]

    def facts(self, options: Options, version: Version | None, text: str) -> Facts:
        facts = Facts()
        present = _present(options.config or _FILE, text)
        nri.crio_facts(present, facts)
        directories = toml_text.at(present, ("crio", "runtime", "cdi_spec_dirs"))
        facts.lacks.extend(spec_dirs_lack(directories, "cdi_spec_dirs"))
        return facts
