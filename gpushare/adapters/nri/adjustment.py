"""Translates NRI's description of a container into a config.json, and what was added to that into NRI's adjustment.

Field numbers are those of NRI's api.proto; its field names are given where fields are read or written.
"""

from collections.abc import Iterable
from typing import Any

from gpushare.adapters.protobuf import Message, entries, every, field, mapping, parse, raw, text, texts
from gpushare.inject import nvidia
from gpushare.inject.oci import PREFIX

_STAGES = {"prestart": 1, "createRuntime": 2, "createContainer": 3, "startContainer": 4, "poststart": 5, "poststop": 6}


def request(pod: Message, container: Message) -> dict[str, str]:
    """Returns the annotations (PodSandbox.annotations, Container.annotations) that can request a share, with our prefix
    in any case: the daemon validates them. The container's take precedence over its pod's. Raises ValueError."""
    asked = {**mapping(pod, 6), **mapping(container, 6)}
    theirs = nvidia.words(text(container, 3))  # Container.name
    return {name: value for name, value in asked.items() if name.lower().startswith(PREFIX) or name in theirs}


def config(container: Message, asked: dict[str, str]) -> dict[str, Any]:
    """Returns the config.json for the daemon to edit, as far as NRI describes it; the root file system is not included.
    Raises ValueError."""
    linux = parse(raw(container, 11))  # Container.linux
    return {
        "annotations": {**asked, nvidia.NAMES[0]: text(container, 3)},
        "process": {"env": texts(container, 8)},
        "mounts": [_mount(parse(mount)) for mount in every(container, 9)],
        "linux": {"devices": [{"path": text(parse(device), 1)} for device in every(linux, 2)]},
    }


def _mount(mount: Message) -> dict[str, Any]:
    return {
        "destination": text(mount, 1),
        "type": text(mount, 2),
        "source": text(mount, 3),
        "options": texts(mount, 4),
    }


def adjustment(before: dict[str, Any], after: dict[str, Any]) -> bytes:
    """Returns what the edits added, as a ContainerAdjustment."""
    annotations = {
        name: value for name, value in after["annotations"].items() if before["annotations"].get(name) != value
    }
    mounts = [
        field(1, mount["destination"]) + field(2, mount["type"]) + field(3, mount["source"])
        + field(4, *mount.get("options", ()))
        for mount in _added(before["mounts"], after["mounts"])
    ]  # fmt: skip
    env = [
        field(1, name) + field(2, value)
        for name, _, value in (one.partition("=") for one in _added(before["process"]["env"], after["process"]["env"]))
    ]
    return (
        entries(2, annotations)
        + field(3, *mounts)
        + field(4, *env)
        + field(5, _hooks(after.get("hooks", {})))
        + field(6, _linux(before["linux"], after["linux"]))
    )


def _added(before: list[Any], after: list[Any]) -> Iterable[Any]:
    return (entry for entry in after if entry not in before)


def _hooks(hooks: dict[str, Any]) -> bytes:
    out = b""
    for stage, those in hooks.items():
        out += field(
            _STAGES[stage],
            *(field(1, one["path"]) + field(2, *one["args"]) + field(4, field(1, one["timeout"])) for one in those),
        )
    return out


def _linux(before: dict[str, Any], after: dict[str, Any]) -> bytes:
    devices = [
        field(1, node["path"]) + _identity(2, node) + field(5, field(1, node["fileMode"]))
        + field(6, field(1, node["uid"])) + field(7, field(1, node["gid"]))
        for node in _added(before["devices"], after["devices"])
    ]  # fmt: skip
    rules = [
        field(1, int(rule["allow"])) + field(2, rule["type"]) + field(3, field(1, rule["major"]))
        + field(4, field(1, rule["minor"])) + field(5, rule["access"])
        for rule in after.get("resources", {}).get("devices", ())
    ]  # fmt: skip
    return field(1, *devices) + (field(2, field(7, *rules)) if rules else b"")


def _identity(first: int, node: dict[str, Any]) -> bytes:
    return field(first, node["type"]) + field(first + 1, node["major"]) + field(first + 2, node["minor"])


def identity(container: Message) -> str:
    """Returns the container's id. Raises ValueError."""
    return text(container, 1)
