"""CDI specs: one file per grant, device name = grant id; and one for the devices that stand for no grant, `any` and
each GPU's UUID, whose share a container's annotations ask for.

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

from gpushare.inject import edits, steps
from gpushare.inject.node import Granted, Node
from gpushare.inject.steps import Step, Steps
from gpushare.paths import Layout

VERSION = "0.5.0"


def device_name(grant_id: str) -> str:
    """The grant's fully qualified CDI name, for an engine's `--device`."""
    return f"{edits.CDI_KIND}={grant_id}"


def spec_path(layout: Layout, grant_id: str) -> Path:
    """The grant's spec file. Engines read every *.json in the directory."""
    return Path(spec_file(layout, grant_id))


def spec_file(layout: Layout, grant_id: str) -> str:
    """Its path as text."""
    return f"{layout.cdi}/{_name(grant_id)}"


def _name(grant_id: str) -> str:
    return f"gpushare.dev-gpu_{grant_id}.json"


def spec(wanted: edits.Edits) -> dict[str, Any]:
    """The spec of one grant as a JSON object."""
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
    """What the grant's spec holds."""
    return _template(layout, node, tuple(granted)).replace(_GRANT, grant_id)


def appears(layout: Layout, path: str, by: str) -> Step:
    """Writes a spec that appears whole, where its directory is there. `by`: who does, a word: the name that it has
    meanwhile is another for each."""
    # Engines read *.json and *.yaml only, so they never see that name.
    return steps.replacement(path, 0o644, f"{layout.cdi}/.{_name(by)}.tmp")


def _write(layout: Layout, name: str, text: str) -> Path:
    path, writing = spec_path(layout, name), _writing(layout)
    writing.put("", text.encode())
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
"""The CDI device of no grant, on whichever GPU has room."""


def write_offers(layout: Layout, node: Node, devices: Sequence[Granted]) -> None:
    """Writes the spec of the devices that stand for no grant. Raises OSError."""
    offers = [(ANY, devices), *((device.id, [device]) for device in devices)]
    found = [_device(edits.offer(layout, name, node, those)) for name, those in offers]
    _write(layout, ANY, json.dumps({"cdiVersion": VERSION, "kind": edits.CDI_KIND, "devices": found}, indent=2) + "\n")


_GRANT = f"g-{secrets.token_hex(32)}"  # occurs nowhere else


@functools.lru_cache(maxsize=256)
def _template(layout: Layout, node: Node, granted: tuple[Granted, ...]) -> str:
    """The spec's text with _GRANT for the grant: to render it takes longer than all else that a new grant needs."""
    return json.dumps(spec(edits.container(layout, _GRANT, node, granted, blindly=True)), indent=2) + "\n"


def remove_spec(layout: Layout, grant_id: str) -> None:
    """Removes the grant's spec, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{layout.cdi}/{_name(grant_id)}")
