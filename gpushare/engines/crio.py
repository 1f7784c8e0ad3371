"""CRI-O: the runtime handler in a file of ours beside crio.conf, which CRI-O reads again at SIGHUP."""

from pathlib import Path
from typing import Any

from gpushare.engines import toml_text
from gpushare.engines.edit import Edit, Facts, Options, Reload, Version, toml_edit


class Crio:
    """See Engine in edit.py."""

    name = "crio"
    executables = ("crio",)
    reload = Reload(("systemctl", "reload", "crio"), Path("/run/crio/crio.pid"))

    def edits(self, options: Options, version: Version | None) -> list[Edit]:
        path = options.config or Path("/etc/crio/crio.conf.d/99-gpushare.conf")

        def settings(_text: str) -> toml_text.Settings:
            # Nothing of annotations and CDI: CRI-O hands on all of a pod's, and reads /etc/cdi and /var/run/cdi.
            handler = {"runtime_path": str(options.runtime_path), "runtime_type": "oci"}
            wanted: dict[toml_text.Path, dict[str, Any]] = {
                ("crio", "runtime", "runtimes", options.runtime_name): handler
            }
            if options.set_as_default:
                return {("crio", "runtime"): {"default_runtime": options.runtime_name}, **wanted}
            return wanted

        return [toml_edit(path, settings)]

    def facts(self, options: Options, version: Version | None, text: str) -> Facts:
        return Facts()
