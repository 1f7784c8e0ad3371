"""CRI-O: the runtime handler in a file of ours beside crio.conf, which CRI-O reads again at SIGHUP."""

from pathlib import Path
from typing import Any

from gpushare.engines import files, nri, toml_text
from gpushare.engines.edit import Edit, Facts, Options, Reload, Version, toml_edit

_FILE = Path("/etc/crio/crio.conf.d/99-gpushare.conf")


def _present(path: Path, text: str) -> dict[str, Any]:
    """All of CRI-O's settings, where `path` has that text: those of the files before it give way."""
    whole: dict[str, Any] = {}
    others = sorted(path.parent.glob("*")) if path.parent.name.endswith(".d") else []
    for other in ([path.parent.with_suffix("")] if others else []) + [other for other in others if other != path]:
        if other.is_file():
            toml_text.deep(whole, toml_text.parse(files.read(other) or "", str(other)))
    return toml_text.deep(whole, toml_text.parse(text, str(path)))


class Crio:
    """See Engine in edit.py."""

    name = "crio"
    executables = ("crio",)
    reload = Reload(("systemctl", "reload", "crio"), Path("/run/crio/crio.pid"), at_start="crio.nri")

    def edits(self, options: Options, version: Version | None) -> list[Edit]:
        path = options.config or _FILE

        def settings(text: str) -> toml_text.Settings:
            # Nothing of annotations and CDI: CRI-O hands on all of a pod's, and reads /etc/cdi and /var/run/cdi.
            handler = {"runtime_path": str(options.runtime_path), "runtime_type": "oci"}
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
        nri.crio_facts(_present(options.config or _FILE, text), facts)
        return facts
