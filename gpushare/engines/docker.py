"""Docker: adds the runtime and CDI to daemon.json, which dockerd rereads at SIGHUP."""

from pathlib import Path

from gpushare.engines import dockerd, json_text
from gpushare.engines.edit import Edit, Facts, Options, Reload, Version, spec_dirs_lack
from gpushare.errors import FailedError

_FILE = Path("/etc/docker/daemon.json")
_EMPTY = "{\n}\n"


def reads_cdi_at_start(version: Version | None) -> bool:
    """Whether dockerd reads `features.cdi` only when it starts, not at a reload."""
    return version is not None and (25,) <= version < (28,)


class Docker:
    """See Engine in edit.py."""

    name = "docker"
    executables = ("dockerd",)
    reload = Reload(
        ("systemctl", "reload", "docker"),
        Path("/run/docker.pid"),
        "a runtime that is taken out goes when it starts anew",
    )

    def edits(self, options: Options, version: Version | None) -> list[Edit]:
        path = options.config or _FILE
        name = str(path)
        runtime = ("runtimes", options.runtime_name)

        def has(text: str) -> bool:
            return json_text.get(text, runtime) is not None if json_text.parse(text, name) else False

        def put(text: str) -> str:
            before = json_text.parse(text, name)
            text = text if text.strip() else _EMPTY
            text = json_text.put(text, runtime, {"path": str(options.runtime_path)}, name)
            if options.set_as_default:
                text = json_text.put(text, ("default-runtime",), options.runtime_name, name)
            if options.cdi:
                text = json_text.put(text, ("features", "cdi"), True, name)
            added = json_text.parse(text, name).keys() - before.keys()
            for conflict in dockerd.conflicts(path, added, "would get"):
                raise FailedError(conflict)
            return text

        def take(text: str, before: str) -> str:
            value = json_text.parse(text, name)
            if (value.get("features") or {}).get("cdi") is True:
                text = json_text.put_back(text, ("features", "cdi"), before)
            if value.get("default-runtime") == options.runtime_name:
                text = json_text.put_back(text, ("default-runtime",), before)
            text = json_text.put_back(text, runtime, before)
            return before if text == _EMPTY and not before.strip() else text

        return [Edit(path, has, put, take)]

    def facts(self, options: Options, version: Version | None, text: str) -> Facts:
        facts = Facts()
        value = json_text.parse(text, str(options.config or "daemon.json"))
        if version and version < (24,):
            facts.lacks.append(
                "Docker before 24 knows neither annotations nor CDI, so a container cannot ask for a share: update it, "
                "to 25 or later for CDI devices, or start such containers with Podman, ctr or runc"
            )
        elif version and version < (25,):
            facts.notes.append(
                "Docker before 25 knows no CDI: ask by --runtime=gpushare and --annotation, or update it"
            )
        if (
            version
            and version >= (25,)
            and not options.set_as_default
            and (value.get("features") or {}).get("cdi") is False
        ):
            facts.lacks.append('CDI is off: "features": {"cdi": false}')
        facts.lacks.extend(dockerd.conflicts(options.config or _FILE, value, "has"))
        facts.lacks.extend(spec_dirs_lack(value.get("cdi-spec-dirs") or dockerd.spec_dirs() or None, "cdi-spec-dirs"))
        return facts
