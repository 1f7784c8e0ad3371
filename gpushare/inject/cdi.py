"""CDI specs: one file per grant, device name = grant id.

`cdiVersion` is 0.5.0, and no field that is newer is used: Podman 4.3, the oldest engine supported, rejects a newer
version or an unknown field, and says only "unresolvable CDI devices".
"""

import contextlib
import functools
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpushare.inject import edits, files
from gpushare.inject.node import Granted, Node
from gpushare.paths import Layout

KIND = "gpushare.dev/gpu"
VERSION = "0.5.0"


def device_name(grant_id: str) -> str:
    """The grant's fully qualified CDI name, for an engine's `--device`."""
    return f"{KIND}={grant_id}"


def spec_path(layout: Layout, grant_id: str) -> Path:
    """The grant's spec file. Engines read every *.json in the directory."""
    return layout.cdi / _name(grant_id)


def _name(grant_id: str) -> str:
    return f"gpushare.dev-gpu_{grant_id}.json"


def spec(wanted: edits.Edits) -> dict[str, Any]:
    """The spec of one grant as a JSON object."""
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
    devices = [{"name": wanted.grant, "containerEdits": container_edits}]
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices}


def write_spec(layout: Layout, grant_id: str, node: Node, granted: Sequence[Granted] = ()) -> Path:
    """Writes the grant's spec; engines watch the directory, so the file appears whole or not at all."""
    # Engines read *.json and *.yaml only, so they never see the temporary name.
    temporary = f"{layout.cdi}/.{_name(grant_id)}.tmp"
    data = _template(layout, node, tuple(granted)).replace(_GRANT, grant_id).encode()
    try:
        files.write(temporary, data, 0o644)
    except FileNotFoundError:
        layout.cdi.mkdir(mode=0o755, parents=True, exist_ok=True)
        files.write(temporary, data, 0o644)
    path = spec_path(layout, grant_id)
    os.rename(temporary, path)
    return path


_GRANT = f"g-{secrets.token_hex(32)}"  # occurs nowhere else


@functools.lru_cache(maxsize=256)
def _template(layout: Layout, node: Node, granted: tuple[Granted, ...]) -> str:
    """The spec's text with _GRANT for the grant: to render it takes longer than all else that a new grant needs."""
    return json.dumps(spec(edits.container(layout, _GRANT, node, granted)), indent=2) + "\n"


def remove_spec(layout: Layout, grant_id: str) -> None:
    """Removes the grant's spec, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{layout.cdi}/{_name(grant_id)}")
