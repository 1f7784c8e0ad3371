"""Docker: adds the runtime and CDI to daemon.json, which dockerd rereads at SIGHUP."""

from pathlib import Path
from typing import Any

from gpushare.engines import dockerd, files, json_text
from gpushare.engines.edit import Edit, Facts, Options, Reload, Version, spec_dirs_lack
from gpushare.errors import FailedError
from gpushare.paths import RUNTIME_WRAPPER

_FILE = Path("/etc/docker/daemon.json")
_EMPTY = "{\n}\n"


def reads_cdi_at_start(version: Version | None) -> bool:
    """Whether dockerd reads `features.cdi` only when it starts, not at a reload."""
    return version is not None and (25,) <= version < (28,)


def _file(options: Options) -> Path:
    named = dockerd.config_file()
    return options.config or (named[0] if named else _FILE)


def _entry(value: dict[str, Any], name: str) -> Any:
    runtimes = value.get("runtimes")
    return runtimes.get(name) if isinstance(runtimes, dict) else None


def _cdi(value: dict[str, Any]) -> Any:
    features = value.get("features")
    return features.get("cdi") if isinstance(features, dict) else None


def _written(value: dict[str, Any], options: Options) -> tuple[Any, Any, Any]:
    """Returns all that `configure` writes into a file."""
    return _entry(value, options.runtime_name), _cdi(value), value.get("default-runtime")


def _made_here(value: dict[str, Any], options: Options) -> bool:
    """Whether `configure` made the entry in a file without a backup, a file that was not there before: the entry is
    nothing but the path of our runtime, or of another, which --runtime-path named, and then nothing else is there."""
    entry, name = _entry(value, options.runtime_name), options.runtime_name
    if not isinstance(entry, dict) or entry.keys() != {"path"} or (options.cdi and _cdi(value) is False):
        return False
    if Path(str(entry["path"])).name in (RUNTIME_WRAPPER.name, options.runtime_path.name):
        return True
    rest = {key: item for key, item in value.items() if (key, item) != ("default-runtime", name)}
    return rest == {"runtimes": {name: entry}, "features": {"cdi": True}}


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
        path = _file(options)
        name = str(path)
        runtime = ("runtimes", options.runtime_name)

        def has(text: str) -> bool:
            value = json_text.parse(text, name)
            entry = _entry(value, options.runtime_name)
            if entry is None:
                return False
            backup = files.backup_of(files.resolve(path))
            before = files.read(backup)
            if before is None:
                return _made_here(value, options)
            # What the file had under this name before is not ours, unless `configure` changed something else there.
            return _written(value, options) != _written(json_text.parse(before, str(backup)), options)

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
            if _cdi(value) is True:
                text = json_text.put_back(text, ("features", "cdi"), before)
            if value.get("default-runtime") == options.runtime_name:
                text = json_text.put_back(text, ("default-runtime",), before)
            text = json_text.put_back(text, runtime, before)
            return before if text == _EMPTY and not before.strip() else text

        return [Edit(path, has, put, take)]

    def facts(self, options: Options, version: Version | None, text: str) -> Facts:
        facts = Facts()
        path, named = _file(options), dockerd.config_file()
        value = json_text.parse(text, str(path))
        if named and named[0] != path.absolute():
            facts.notes.append(
                f"the docker service does not read {path} but {named[0]} (--config-file, {named[1]}): leave --config "
                "out for that one"
            )
        if version and version < (24,):
            facts.lacks.append(
                "Docker before 24 knows neither annotations nor CDI, so a container cannot ask for a share: update it, "
                "to 25 or later for CDI devices, or start such containers with Podman, ctr or runc"
            )
        elif version and version < (25,):
            facts.notes.append(
                "Docker before 25 knows no CDI: ask by --runtime=gpushare and --annotation, or update it"
            )
        if version and version >= (25,) and not options.set_as_default and _cdi(value) is False:
            facts.lacks.append('CDI is off: "features": {"cdi": false}')
        facts.lacks.extend(dockerd.conflicts(path, value, "has"))
        facts.lacks.extend(spec_dirs_lack(value.get("cdi-spec-dirs") or dockerd.spec_dirs() or None, "cdi-spec-dirs"))
        return facts
