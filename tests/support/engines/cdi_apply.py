"""Applies CDI specs as an engine does: puts the edits of devices into a config.json. Uses none of the product's code,
which writes the specs."""

import json
from pathlib import Path
from typing import Any


def own_usr(config: dict, where: Path) -> None:
    """The container's /usr is the machine's, and has what the driver's program is mounted onto: where that is missing,
    crun would make it in the machine's own directory, and runc cannot."""
    onto = where / "usr/bin/nvidia-smi"
    onto.parent.mkdir(parents=True, exist_ok=True)
    onto.touch()
    for mount in config["mounts"]:
        if mount["destination"] == "/usr":
            mount.update(type="overlay", source="overlay", options=[f"lowerdir={where / 'usr'}:/usr"])


def apply(config: dict[str, Any], directory: Path, *names: str) -> None:
    """`directory`: has the specs. `names`: of devices, as KIND=DEVICE."""
    found = {}
    for path in directory.glob("*.json"):
        spec = json.loads(path.read_text())
        for device in spec["devices"]:
            found[f"{spec['kind']}={device['name']}"] = device["containerEdits"]
    for name in names:
        _add(config, found[name])


def _add(config: dict[str, Any], edits: dict[str, Any]) -> None:
    config["process"]["env"] += edits.get("env", [])
    for mount in edits.get("mounts", ()):
        config["mounts"].append(
            {
                "destination": mount["containerPath"],
                "type": "bind",
                "source": mount["hostPath"],
                "options": mount["options"],
            }
        )
    for hook in edits.get("hooks", ()):
        one = {"path": hook["path"], "args": hook["args"], "timeout": hook["timeout"]}
        config.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(one)
    linux = config["linux"]
    for node in edits.get("deviceNodes", ()):
        number = {"type": "c", "major": node["major"], "minor": node["minor"]}
        linux.setdefault("devices", []).append({"path": node["path"], **number, "fileMode": 0o666, "uid": 0, "gid": 0})
        linux["resources"]["devices"].append({"allow": True, **number, "access": node["permissions"]})
