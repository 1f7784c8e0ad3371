"""CDI specs: one file per grant, whose device name is the grant id; and one file for the devices without a grant, `any`
and each GPU's UUID, for which the container's annotations request the share.

`cdiVersion` is 0.5.0, and no newer field is used: Podman 4.3, the oldest supported engine, rejects a newer version or
an unknown field, with nothing but "unresolvable CDI devices".
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpushare.inject import edits, files
from gpushare.inject.node import Granted, Node
from gpushare.paths import Layout

VERSION = "0.5.0"


def device_name(grant_id: str) -> str:
    """Returns the grant's fully qualified CDI name, for an engine's `--device`."""
    return f"{edits.CDI_KIND}={grant_id}"


def spec_path(layout: Layout, grant_id: str) -> Path:
    """Returns the path of the grant's spec. Engines read every *.json in the directory."""
    return layout.cdi / name(grant_id)


def name(grant_id: str) -> str:
    """Returns the name of the grant's spec in the directory."""
    return f"gpushare.dev-gpu_{grant_id}.json"


def spec(wanted: edits.Edits) -> dict[str, Any]:
    """Returns the spec of one grant as a JSON object."""
    return {"cdiVersion": VERSION, "kind": edits.CDI_KIND, "devices": [_device(wanted)]}


def _device(wanted: edits.Edits) -> dict[str, Any]:
    container_edits: dict[str, Any] = {
        "env": wanted.env,
        "mounts": [
            {"hostPath": mount.host, "containerPath": mount.container, "options": mount.options}
            for mount in wanted.mounts
        ],
        "hooks": [
            {"hookName": hook.stage, "path": hook.path, "args": hook.args, "timeout": hook.timeout}
            for hook in wanted.hooks
        ],
    }
    if wanted.devices:
        container_edits["deviceNodes"] = [
            {"path": node.path, "type": "c", "major": node.major, "minor": node.minor, "permissions": "rw"}
            for node in wanted.devices
        ]
    return {"name": wanted.grant, "containerEdits": container_edits}


def write_spec(layout: Layout, grant_id: str, node: Node, granted: Sequence[Granted] = ()) -> Path:
    """Writes the grant's spec. Raises OSError."""
    return _write(layout, grant_id, spec(edits.container(layout, grant_id, node, granted)))


def _write(layout: Layout, device: str, spec: dict[str, Any]) -> Path:
    """Engines watch the directory, so the file appears whole or not at all. They read *.json and *.yaml only, so they
    ignore the temporary name."""
    path = spec_path(layout, device)
    data, through = json.dumps(spec, indent=2).encode() + b"\n", layout.cdi / f".{name('new')}.tmp"
    try:
        files.replace(path, data, 0o644, through=through)
    except FileNotFoundError:
        layout.cdi.mkdir(mode=0o755, parents=True, exist_ok=True)
        files.replace(path, data, 0o644, through=through)
    return path


ANY = "any"
"""The CDI device without a grant, on any GPU that has room."""


def write_offers(layout: Layout, node: Node, devices: Sequence[Granted]) -> None:
    """Writes the spec of the devices without a grant. Raises OSError."""
    offers = [(ANY, devices), *((device.id, [device]) for device in devices)]
    found = [_device(edits.offer(layout, device, node, those)) for device, those in offers]
    _write(layout, ANY, {"cdiVersion": VERSION, "kind": edits.CDI_KIND, "devices": found})


def remove_spec(layout: Layout, grant_id: str) -> None:
    """Removes the grant's spec, if it is there."""
    spec_path(layout, grant_id).unlink(missing_ok=True)
