"""CDI specs: one file per grant, whose device name is the grant id; and one file for the devices without a grant, `any`
and each GPU's UUID, for which the container's annotations request the share.

`cdiVersion` is 0.5.0, and no newer field is used: Podman 4.3, the oldest supported engine, rejects a newer version or
an unknown field, and says only "unresolvable CDI devices".
"""

import contextlib
import functools
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpushare.inject import edits, files, steps
from gpushare.inject.node import Granted, Node
from gpushare.inject.steps import Step, Steps
from gpushare.paths import Layout

VERSION = "0.5.0"

_MODE = 0o644


def device_name(grant_id: str) -> str:
    """Returns the grant's fully qualified CDI name, for an engine's `--device`."""
    return f"{edits.CDI_KIND}={grant_id}"


def spec_path(layout: Layout, grant_id: str) -> Path:
    """Returns the path of the grant's spec. Engines read every *.json in the directory."""
    return Path(spec_file(layout, grant_id))


def spec_file(layout: Layout, grant_id: str) -> str:
    """As spec_path, as text."""
    return f"{layout.cdi}/{name(grant_id)}"


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
    """Writes the grant's spec; engines watch the directory, so the file appears whole or not at all."""
    return _write(layout, grant_id, text(layout, grant_id, node, granted))


def text(layout: Layout, grant_id: str, node: Node, granted: Sequence[Granted] = ()) -> str:
    """Returns the text of the grant's spec."""
    return _template(layout, node, tuple(granted)).replace(_GRANT, grant_id)


def appears(layout: Layout, path: str, by: str) -> Step:
    """Returns a step that writes a spec atomically; its directory must exist. `by`: a word that identifies the writer:
    each has its own temporary name."""
    # Engines read *.json and *.yaml only, so they ignore the temporary name.
    return steps.replacement(path, _MODE, f"{layout.cdi}/.{name(by)}.tmp")


def _write(layout: Layout, device: str, text: str) -> Path:
    path, writing = spec_path(layout, device), _writing(layout)
    data = text.encode()
    if files.has(os.fspath(path), data, _MODE):
        return path
    writing.put("", data)
    try:
        writing.run(path)
    except FileNotFoundError:
        layout.cdi.mkdir(mode=0o755, parents=True, exist_ok=True)
        writing.run(path)
    return path


@functools.lru_cache(maxsize=8)
def _writing(layout: Layout) -> Steps:
    return Steps(appears(layout, "", "new"))


ANY = "any"
"""The CDI device without a grant, on any GPU that has room."""


def write_offers(layout: Layout, node: Node, devices: Sequence[Granted]) -> None:
    """Writes the spec of the devices without a grant. Raises OSError."""
    offers = [(ANY, devices), *((device.id, [device]) for device in devices)]
    found = [_device(edits.offer(layout, device, node, those)) for device, those in offers]
    _write(layout, ANY, json.dumps({"cdiVersion": VERSION, "kind": edits.CDI_KIND, "devices": found}, indent=2) + "\n")


_GRANT = f"g-{secrets.token_hex(32)}"  # occurs nowhere else


@functools.lru_cache(maxsize=256)
def _template(layout: Layout, node: Node, granted: tuple[Granted, ...]) -> str:
    """Returns the spec's text with _GRANT as the grant id. Cached: rendering costs more than the rest of a grant."""
    return json.dumps(spec(edits.container(layout, _GRANT, node, granted)), indent=2) + "\n"


def remove_spec(layout: Layout, grant_id: str) -> None:
    """Removes the grant's spec, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(spec_file(layout, grant_id))
