"""What an engine does with CDI specs: the edits of devices, put into a config.json. It is not the product's code, which
writes them."""

import json
from pathlib import Path
from typing import Any


def apply(config: dict[str, Any], directory: Path, *names: str) -> None:
    """`directory`: with the specs. `names`: kind=device."""
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
