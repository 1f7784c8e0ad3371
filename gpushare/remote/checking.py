"""The link check alone. It needs an attachment, and so a grant: one of the least size and without time of its own, for
about a second."""

from pathlib import Path
from typing import Any

from gpushare.carriers.contract import Client, Contract
from gpushare.errors import RefusedError
from gpushare.policy.grants.admission import WORKING_BYTES
from gpushare.remote import attaching, nodes
from gpushare.remote.check import Checked
from gpushare.remote.reach import Node, opened
from gpushare.text.units import PAGE


def check(
    name: str, file: Path | None = None, carrier: str | None = None, tenant: str | None = None, link: Any = "tls"
) -> Checked:
    """Checks the link to a node. `file`: instead of the usual nodes.toml. Raises GpushareError."""
    wish = attaching.Wish(carrier, link, "any")
    with opened(nodes.find(name, file)) as node:
        name, version = _any(node, carrier)
        # No program will use it: that needs no client half here, of no version.
        found = Contract(name, client=Client("", ()))
        with (
            attaching.granted(node, {**_least(node), "tenant": tenant}) as grant,
            attaching.attached(node, found, grant, wish, lambda _: None, version) as attached,
        ):
            return attached.checked


def _any(node: Node, wanted: str | None) -> tuple[str, str]:
    """The name and the version of a carrier that the node can serve."""
    there = [one for one in attaching.served(node) if wanted in (None, one["name"])]
    for one in there:
        if not one["trouble"]:
            return one["name"], one["version"]
    why = "; ".join(f"{one['name']}: {one['trouble']}" for one in there) or f"it has no {wanted or 'carrier at all'}"
    raise RefusedError(f"{node.name} has no carrier with which a link can be checked: {why}")


def _least(node: Node) -> dict[str, Any]:
    """The smallest request that the node takes."""
    ready = [one for one in node.client.devices() if one["state"] == "ready" and one["health"] == "healthy"]
    if not ready:
        raise RefusedError(f"{node.name} has no device that takes grants: a link check needs a small one")
    device = max(ready, key=lambda one: one["allocatable"]["memory"])
    pages = -(-(device["context_bytes"] + WORKING_BYTES) // PAGE)
    return {"memory": pages * PAGE, "time": 0, "device": device["id"]}
