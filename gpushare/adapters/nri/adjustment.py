"""Translates NRI's description of a container into a config.json, and what was added to that into NRI's adjustment."""

from collections.abc import Iterable
from typing import Any

from gpushare.inject import nvidia
from gpushare.inject.oci import PREFIX

Json = dict[str, Any]


def request(pod: Json, container: Json) -> dict[str, str]:
    """Returns the annotations that can request a share, with our prefix in any case: the daemon validates them. The
    container's take precedence over its pod's. Raises ValueError."""
    asked = {**pod["annotations"], **container["annotations"]}
    theirs = nvidia.words(container["name"])
    return {name: value for name, value in asked.items() if name.lower().startswith(PREFIX) or name in theirs}


def config(container: Json, asked: dict[str, str]) -> Json:
    """Returns the config.json for the daemon to edit, as far as NRI describes it; the root file system is not
    included."""
    devices = container["linux"]["devices"] if container["linux"] else ()
    return {
        "annotations": {**asked, nvidia.NAMES[0]: container["name"]},
        "process": {"env": container["env"]},
        "mounts": container["mounts"],
        "linux": {"devices": [{"path": device["path"]} for device in devices]},
    }


def adjustment(before: Json, after: Json) -> Json:
    """Returns what the edits added, as a ContainerAdjustment."""
    env = (one.partition("=") for one in _added(before["process"]["env"], after["process"]["env"]))
    hooks = {
        stage: [_parts(one, "path", "args") | _wrapped(one, "timeout") for one in those]
        for stage, those in after.get("hooks", {}).items()
    }
    return {
        "annotations": dict(after["annotations"].items() - before["annotations"].items()),
        "mounts": [
            _parts(mount, "destination", "type", "source", "options")
            for mount in _added(before["mounts"], after["mounts"])
        ],
        "env": [{"key": name, "value": value} for name, _, value in env],
        "hooks": hooks,
        "linux": _linux(before["linux"], after["linux"]),
    }


def _added(before: list[Any], after: list[Any]) -> Iterable[Any]:
    return (entry for entry in after if entry not in before)


def _parts(given: Json, *names: str) -> Json:
    return {name: given[name] for name in names if name in given}


def _wrapped(given: Json, *names: str) -> Json:
    """The numbers as messages, in which 0 is not the same as none."""
    return {name: {"value": given[name]} for name in names}


def _linux(before: Json, after: Json) -> Json:
    rules = after.get("resources", {}).get("devices", ())
    found: Json = {
        "devices": [
            _parts(node, "path", "type", "major", "minor") | _wrapped(node, "fileMode", "uid", "gid")
            for node in _added(before["devices"], after["devices"])
        ]
    }
    if rules:
        found["resources"] = {
            "devices": [_parts(rule, "allow", "type", "access") | _wrapped(rule, "major", "minor") for rule in rules]
        }
    return found
