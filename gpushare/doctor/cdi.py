"""CDI specs of grants that have ended, of other versions of gpushare, and of drivers that are no longer installed."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpushare import paths
from gpushare.doctor.finding import Check, Finding, read, shortened
from gpushare.inject.edits import CDI_KIND

UNREADABLE = Check(
    "CDI spec",
    "wrong",
    "{path} is no spec: its device is unresolvable",
    "rm {path}",
    'The engine says only "unresolvable CDI devices", and the container does not start.',
)
GONE = Check(
    "CDI spec",
    "wrong",
    "{specs}: of grants that are gone; an engine that is asked for them fails in its hook",
    "start the daemon again, which removes them, or remove them by hand",
    "A daemon that was killed could not remove them.",
)
OTHER_VERSION = Check(
    "CDI spec",
    "wrong",
    "{path} names {hook}, {how}: of another version",
    "release the grant, or start the daemon of this version again",
    "Its hook is not the one that this daemon answers.",
)
OLD_DRIVER = Check(
    "CDI spec",
    "wrong",
    "{path} names {files}, not there any more: the driver has changed since it was made",
    "nvidia-ctk cdi generate --output={path}",
    "NVIDIA's spec names files of one version of the driver; containers that use this spec do not start.",
)

_FOREIGN = "nvidia.com/gpu"
# As nvidia-ctk writes YAML, a key on a line of its own. Nodes below /dev come and go with the driver's modules.
_YAML_KIND = re.compile(rf"^kind: *[\"']?{_FOREIGN}\b", re.MULTILINE)
_YAML_FILE = re.compile(r"""^[ -]*hostPath: *["']?(/(?!dev/)[^"'\n]*?)["']? *$""", re.MULTILINE)


def look(directories: list[Path], living: set[str] | None) -> Iterator[Finding]:
    """`living`: ids of the daemon's grants; None if it does not answer."""
    stale: list[str] = []
    for directory in dict.fromkeys(directories):
        try:
            files = sorted(path for path in directory.iterdir() if path.suffix in (".json", ".yaml"))
        except OSError:
            continue
        for path in files:
            if path.suffix == ".yaml":
                yield from _drivers(path, _named_by_yaml((read(path) or b"").decode(errors="replace")))
                continue
            spec = _parse(path)
            if spec is None:
                if path.name.startswith("gpushare.dev-"):
                    yield UNREADABLE(path=path)
            elif spec.get("kind") == CDI_KIND:
                yield from _ours(path, spec, living, stale)
            elif spec.get("kind") == _FOREIGN:
                mounts = (mount for edits in _edits(spec) for mount in _objects(edits.get("mounts")))
                yield from _drivers(path, [str(mount.get("hostPath")) for mount in mounts])
    if stale:
        yield GONE(specs=shortened(stale))


def _parse(path: Path) -> dict[str, Any] | None:
    """Returns None if it is no object that could be read."""
    try:
        spec = json.loads(read(path) or b"")
    except (ValueError, RecursionError):
        return None
    return spec if isinstance(spec, dict) else None


def _edits(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in (spec, *_objects(spec.get("devices"))):
        if isinstance(edits := one.get("containerEdits"), dict):
            yield edits


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    for one in value if isinstance(value, list) else ():
        if isinstance(one, dict):
            yield one


def _ours(path: Path, spec: dict[str, Any], living: set[str] | None, stale: list[str]) -> Iterator[Finding]:
    names = [str(device.get("name")) for device in _objects(spec.get("devices"))]
    if living is not None and any(name.startswith("g-") and name not in living for name in names):
        stale.append(str(path))
        return
    hooks = {str(hook.get("path")) for edits in _edits(spec) for hook in _objects(edits.get("hooks"))}
    if other := sorted(hooks - {str(paths.HOOK)}):
        gone = [name for name in other if not os.access(name, os.X_OK)]
        yield OTHER_VERSION(path=path, hook=other[0], how="which is not there" if gone else f"not {paths.HOOK}")


def _named_by_yaml(text: str) -> list[str]:
    """Returns the files that NVIDIA's spec in YAML mounts; empty for any other spec."""
    return _YAML_FILE.findall(text) if _YAML_KIND.search(text) else []


def _drivers(path: Path, named: list[str]) -> Iterator[Finding]:
    """NVIDIA's spec names files of one version of the driver, which an upgrade removes."""
    gone = [name for name in named if name.startswith("/") and not os.path.lexists(name)]
    if gone:
        yield OLD_DRIVER(path=path, files=shortened(gone, 2))
