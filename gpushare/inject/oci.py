"""Edits an OCI config.json as a CDI engine would by the grant's spec, for runtimes without CDI.

Unlike CDI this can inspect the image, so the interposer is mounted over every copy of the driver library in it.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.errors import RefusedError, UsageError
from gpushare.inject import edits, ldcache, names, nvidia, preload
from gpushare.inject.node import DeviceNode
from gpushare.inject.view import View
from gpushare.paths import CONTAINER_DIR, CONTAINER_LIB, CONTAINER_NAMES, CONTAINER_SELF
from gpushare.text.units import parse_idle_after

PREFIX = "gpushare.dev/"
# Annotations in which containerd and CRI-O mark a pod's sandbox.
_CONTAINER_TYPES = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
GRANT = PREFIX + "grant"

# Annotation -> field of api.types.GrantRequest.
_FIELDS = {
    "memory": "memory",
    "time": "time",
    "time-limit": "time_limit",
    "tenant": "tenant",
    "class": "class",
    "device": "device",
    "selector": "selector",
    "placement": "placement",
    "managed": "managed",
    "idle-memory": "idle_memory",
    "idle-after": "idle_after_seconds",
    "gang": "gang",
    "borrow-memory": "borrow_memory",
    "reclaim": "max_rung",
    "grace": "grace_seconds",
    "eviction-signal": "eviction_signal",
    "priority": "priority",
}
_NUMBERS = ("grace", "priority")
_SIZES = ("memory", "borrow-memory")
_DECIMAL = ("k", "M", "G", "T")
"""Units that are powers of 1000 in a Kubernetes manifest and of 1024 elsewhere (text/units.py)."""
_DURATION = "idle-after"
# Fields that a container's environment may give where its user has named a device without a grant. They give the
# size and the kind. The others name who pays for it, which an image, whose ENV is in the environment too, must
# not; only `gpushare run` reads GPUSHARE_EVICTION_SIGNAL.
_VARIABLES = {f"GPUSHARE_{name.upper().replace('-', '_')}": name for name in (*_FIELDS, "grant")}
_SIZING = ("memory", "time", "time-limit", "class")
_ELSEWHERE = "eviction-signal"
# Set by the device plugin for the container's slots: defaults for the share where nothing else specifies it.
_SLOTS = {"slot-memory": "memory", "slot-time": "time"}

_VALUE_MAX = 1024  # characters of an annotation: names have at most 512

# Time to live of a grant made for a container. The engine calls the hook while it creates the container: if no hook has
# used the grant by then, the start has failed.
CREATE_SECONDS = 20
# The same if the engine asks before it creates the container (NRI): other plugins, volumes and the order to start come
# in between. The plugin that asked ends the grant earlier if the container is abandoned.
PREPARE_SECONDS = 120


def request(config: dict[str, Any]) -> dict[str, str | float] | None:
    """Returns what the config's annotations request: `{"grant": id}` of an existing grant, or fields of a GrantRequest.
    Our annotations take precedence over NVIDIA's.

    None: it requests nothing, or is a pod's sandbox, which has the pod's annotations but no program. Raises UsageError
    for an unknown annotation with our prefix (in any case), since it may request a guarantee that this version does not
    give; for a value that is too long or not a number; for missing memory or time; and as nvidia.request does.
    """
    annotations = config.get("annotations") or {}
    if not isinstance(annotations, dict):
        raise UsageError("the config's annotations are not an object of names and values")
    if is_sandbox(annotations):
        return None
    ours = {name: str(value) for name, value in annotations.items() if name.lower().startswith(PREFIX)}
    theirs = nvidia.request(annotations) if GRANT not in ours else {}
    if not ours and not theirs:
        return None
    for name in ours:
        if name.removeprefix(PREFIX) not in (*_FIELDS, *_SLOTS, "grant"):
            known = ", ".join((*_FIELDS, "grant"))
            raise UsageError(f"annotation {name[:80]} is unknown: write one of {PREFIX}{{{known}}}, in small letters")
    found = {name.removeprefix(PREFIX): value for name, value in ours.items()}
    for name in found:
        if len(found[name]) > _VALUE_MAX:
            raise UsageError(f"annotation {PREFIX}{name} has {len(found[name])} characters: give at most {_VALUE_MAX}")
    if "grant" in found:
        return {"grant": found["grant"]}
    slots = {_SLOTS[name]: _whole(name, found.pop(name)) for name in _SLOTS if name in found}
    in_pod = nvidia.container_name(annotations) is not None
    asked = {_FIELDS[name]: _value(name, value, in_pod=in_pod) for name, value in found.items()}
    wanted = {**slots, **theirs, **asked}
    for name in ("memory", "time"):
        if name not in wanted:
            raise UsageError(f"annotation {PREFIX}{name} is missing: a share needs memory and time")
    return {**wanted, "ttl_seconds": CREATE_SECONDS}


def request_by_environment(config: dict[str, Any]) -> dict[str, str | float] | None:
    """Returns what the container's environment requests, as `request` does, for a container whose user has named a CDI
    device without a grant and whose annotations request nothing.

    None: no variable gives a size. Raises UsageError for a variable that would give more than the share's size or
    class, that is set twice, or too long; and for missing memory or time.
    """
    annotations = config.get("annotations") or {}
    if isinstance(annotations, dict) and is_sandbox(annotations):
        return None
    found: dict[str, str] = {}
    for variable in (config.get("process") or {}).get("env") or ():
        name, _, value = str(variable).partition("=")
        field = _VARIABLES.get(name)
        if field is None or field == _ELSEWHERE:
            continue
        if field not in _SIZING:
            raise UsageError(
                f"variable {name} is not read, since an image can set it: give {PREFIX}{field} as an annotation, or "
                "make a grant with it and name the grant as the device"
            )
        if found.setdefault(field, value) != value:
            raise UsageError(f"variable {name} is set twice: programs read that differently")
        if len(value) > _VALUE_MAX:
            raise UsageError(f"variable {name} has {len(value)} characters: give at most {_VALUE_MAX}")
    if not found:
        return None
    for field in ("memory", "time"):
        if field not in found:
            raise UsageError(f"variable GPUSHARE_{field.upper()} is missing: a share needs memory and time")
    return {**{_FIELDS[field]: value for field, value in found.items()}, "ttl_seconds": CREATE_SECONDS}


def _value(name: str, text: str, *, in_pod: bool) -> str | float:
    if in_pod and name in _SIZES and text.endswith(_DECIMAL):
        return str(nvidia.quantity(PREFIX + name, text))
    if name == _DURATION:
        try:
            return parse_idle_after(text)
        except UsageError as error:
            raise UsageError(f"annotation {PREFIX}{name}: {error}") from None
    return _whole(name, text) if name in _NUMBERS else text


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"annotation {PREFIX}{name} is {text[:40]!r}: give a whole number") from None


def is_sandbox(annotations: dict[str, Any]) -> bool:
    """Whether these are the annotations of a pod's sandbox, as containerd and CRI-O mark it."""
    return any(annotations.get(name) == "sandbox" for name in _CONTAINER_TYPES)


@dataclass(frozen=True, slots=True)
class Files:
    """Of ours, on the host. `lib_dir`: the interposer's directory. `preload`, `cache`: the grant's own."""

    lib_dir: Path
    preload: Path
    cache: Path


@dataclass(frozen=True, slots=True)
class Edited:
    """A config with a grant in it. `view`: of the container without our mounts. `mounts`: those of ours. `preload`: the
    libraries that the image itself preloads. `cache`: the loader cache to mount over the image's."""

    config: dict[str, Any]
    view: View
    mounts: list[dict[str, Any]]
    preload: list[str]
    cache: bytes | None


def apply(config: dict[str, Any], bundle: Path | None, wanted: edits.Edits, files: Files) -> Edited:
    """Returns the config with `wanted` applied; `config` is not modified. Idempotent: edits of ours that are in the
    config, of this grant or of a CDI device, are left out first.

    `bundle`: None if the image cannot be read yet: then it gets what any image gets, as with CDI. Reads the bundle and
    writes nothing. The config's shape is not validated: for a malformed one any Python error may occur.
    """
    below = _without(config, wanted, files)
    view = View(below, bundle)
    edited = edit(below, view, wanted, files.lib_dir)
    cache = _loader_cache(below, view)
    if cache is not None:
        edited["mounts"].append(mounted(edits.Mount(str(files.cache), ldcache.PATH, executable=False)))
    return Edited(edited, view, edited["mounts"][len(below["mounts"]) :], _image_preload(view), cache)


def _without(config: dict[str, Any], wanted: edits.Edits, files: Files) -> dict[str, Any]:
    """Returns the config without the mounts of ours, in whichever way they came into it."""
    grants = f"{files.preload.parent.parent}/"
    asked = {(mount.container, mount.host) for mount in wanted.mounts}
    over = {str(files.lib_dir / file) for file in names.NAMED.values()}

    def ours(mount: dict[str, Any]) -> bool:
        source = mount.get("source") or ""
        return source.startswith(grants) or source in over or (mount["destination"], source) in asked

    return {**config, "mounts": [mount for mount in config.get("mounts") or () if not ours(mount)]}


def edit(config: dict[str, Any], view: View, wanted: edits.Edits, lib_dir: Path) -> dict[str, Any]:
    """Returns a copy of the config with `wanted` applied, sharing unchanged parts. `view`: of the same config."""
    edited = {**config}
    _add_mounts(edited, view, wanted, lib_dir)
    _add_environment(edited, wanted.env)
    hooks = _member(edited, "hooks", {})
    for hook in wanted.hooks:
        _append(_member(hooks, hook.stage, []), {"path": hook.path, "args": hook.args, "timeout": hook.timeout})
    _add_devices(edited, wanted.devices)
    _member(edited, "annotations", {})[GRANT] = wanted.grant
    return edited


def _member(container: dict[str, Any], name: str, empty: Any) -> Any:
    """Replaces a member by a copy and returns the copy for modification; `empty` if the member is missing or null,
    which Go's encoders write for an empty list."""
    found = container.get(name)
    container[name] = empty if found is None else found.copy()
    return container[name]


def _append(entries: list[Any], entry: dict[str, Any]) -> None:
    if entry not in entries:
        entries.append(entry)


def _add_mounts(edited: dict[str, Any], view: View, wanted: edits.Edits, lib_dir: Path) -> None:
    _check_directory(view)
    mounts: list[Any] = _member(edited, "mounts", [])
    for mount in wanted.mounts:
        if mount.container == edits.PRELOAD_FILE and not view.creatable(mount.container):
            # The container's /etc is the host's: preload by environment instead. Programs started later by exec into
            # the container do not get it.
            theirs = preload.split(variable(edited, "LD_PRELOAD"))
            _add_environment(edited, [f"LD_PRELOAD={':'.join(preload.ordered(theirs, wanted.preload))}"])
            continue
        if mount.optional and not view.creatable(mount.container):
            continue
        _append(mounts, mounted(mount))
    for path, host in _driver_copies(edited, view):
        file = "libgpushare.so" if "libcuda" in path.rpartition("/")[2] else "libgpushare-ml.so"
        if host != lib_dir / file:
            _append(mounts, mounted(edits.Mount(str(lib_dir / file), path)))


def _check_directory(view: View) -> None:
    """Raises RefusedError where the mount points in CONTAINER_DIR cannot be made, or would be the host's own, or what
    is mounted there would be seen on the host."""
    host = view.resolve(CONTAINER_DIR).host
    if host is not None and os.path.realpath(host) == os.path.realpath(CONTAINER_DIR):
        raise RefusedError(
            f"the container has the host's own {CONTAINER_DIR}, in which programs of the host would take its mount "
            f"points for a share of theirs: mount a tmpfs, or in Kubernetes an emptyDir, on {CONTAINER_DIR} as well"
        )
    if view.is_shared(CONTAINER_DIR):
        raise RefusedError(
            f"a directory of the host that has {CONTAINER_DIR} is mounted shared, so that the host would see what the "
            "container gets there: mount it private or slave"
        )
    for path in (CONTAINER_SELF, CONTAINER_LIB, CONTAINER_NAMES):
        if not view.creatable(path, in_bind=True):
            raise RefusedError(
                f"{path} cannot be made in the container, where its file system is read-only: mount a tmpfs, or in "
                "Kubernetes an emptyDir, on /run"
            )


def mounted(mount: edits.Mount) -> dict[str, Any]:
    """Returns a mount as config.json has it."""
    return {"destination": mount.container, "type": "bind", "source": mount.host, "options": mount.options}


def _driver_copies(config: dict[str, Any], view: View) -> list[tuple[str, Path]]:
    """Returns (path in the container, file on the host) of every driver library that its programs could find."""
    directories = [*preload.LIBRARY_DIRS, *_search_path(config)]
    directories += [f"/usr/local/{name}/compat" for name in view.names("/usr/local", "cuda")]
    # Most of these are one directory under several names.
    directories = sorted({view.resolve(directory).container for directory in directories})
    candidates = [(directory, name) for directory in directories for name in view.names(directory, *preload.DRIVERS)]
    candidates += [(path.rpartition("/")[0], path.rpartition("/")[2]) for path in view.destinations()]
    found: dict[str, Path] = {}
    for directory, name in candidates:
        # The toolkit's stubs are for the linker only: nothing loads them.
        if preload.DRIVER_NAME.fullmatch(name) and not directory.endswith("/stubs"):
            place = view.resolve(f"{directory}/{name}")
            if place.host is not None and place.is_file() and not place.container.startswith(f"{CONTAINER_DIR}/"):
                found[place.container] = place.host
    return sorted(found.items())


def _search_path(config: dict[str, Any]) -> list[str]:
    return [directory for directory in variable(config, "LD_LIBRARY_PATH").split(":") if directory.startswith("/")]


def variable(config: dict[str, Any], wanted: str) -> str:
    """Returns the value of a variable in the config's environment; empty: it is not there."""
    for variable in (config.get("process") or {}).get("env") or ():
        name, _, value = variable.partition("=")
        if name == wanted:
            return str(value)
    return ""


def _add_environment(edited: dict[str, Any], variables: list[str]) -> None:
    process = _member(edited, "process", {})
    names = {variable.partition("=")[0] for variable in variables}
    kept = [variable for variable in process.get("env") or () if variable.partition("=")[0] not in names]
    process["env"] = [*kept, *variables]


def _add_devices(edited: dict[str, Any], devices: list[DeviceNode]) -> None:
    if not devices:
        return
    linux = _member(edited, "linux", {})
    nodes = _member(linux, "devices", [])
    rules = _member(_member(linux, "resources", {}), "devices", [])
    present = {node["path"] for node in nodes}
    for node in devices:
        identity = {"type": "c", "major": node.major, "minor": node.minor}
        if node.path not in present:
            nodes.append({"path": node.path, **identity, "fileMode": 0o666, "uid": 0, "gid": 0})
        _append(rules, {"allow": True, **identity, "access": "rw"})


def _loader_cache(config: dict[str, Any], view: View) -> bytes | None:
    """Returns the image's loader cache with the interposer added under the driver's names.

    None: the image's stays. That is so if the container can write it: `ldconfig`, which package managers run, renames a
    new file over it, which fails over a mount. NVIDIA's CDI hook runs ldconfig before the root becomes read-only.
    """
    hooks = (config.get("hooks") or {}).get("createContainer") or ()
    if any("update-ldcache" in (hook.get("args") or ()) for hook in hooks):
        return None
    place = view.resolve(ldcache.PATH)
    ours = place.container == ldcache.PATH and place.host is not None and not place.in_bind
    if not ours or (config.get("root") or {}).get("readonly") is not True or not view.creatable(ldcache.PATH):
        return None
    if place.exists() and not place.is_file():
        return None
    data = view.read(ldcache.PATH, ldcache.SIZE_MAX + 1)
    if len(data) > ldcache.SIZE_MAX:
        return None
    return ldcache.added(data, {name: f"{CONTAINER_NAMES}/{name}" for name in names.NAMED})


def _image_preload(view: View) -> list[str]:
    return preload.named(view.read(edits.PRELOAD_FILE, preload.SIZE_MAX))
