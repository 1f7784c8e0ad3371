"""Which devices this node has: those that the driver shows, and those that it should show.

The driver does not show a device that was lost before the daemon started. The ledger remembers it, and the daemon
counts it as a device that does not work, where a living grant is on it or the driver counts more devices than it
shows. No grant ends because of it.
"""

import logging
from collections.abc import Collection

import msgspec

from gpushare.ledger.ledger import Ledger
from gpushare.node.devices import MAX_DEVICES, Backend, Device

log = logging.getLogger(__name__)


def all_devices(backend: Backend, ledger: Ledger, in_use: Collection[str]) -> list[Device]:
    """All devices, by number. `in_use`: ids of devices with living grants."""
    found = {device.id: device for device in backend.devices()}
    known = ledger.devices(_decode)
    missed = choose([device for device in known if device.id not in found], backend.absent, in_use)
    missed = missed[: MAX_DEVICES - len(found)]
    for device in missed:
        log.warning("device %s (%s) was here before and is missing", device.id, device.name)
    if missed:
        backend.miss(missed)
    remember(ledger, *found.values())
    return backend.devices()


def _decode(text: str) -> Device:
    return msgspec.json.decode(text, type=Device)


def choose(missing: Collection[Device], absent: int, in_use: Collection[str]) -> list[Device]:
    """The missing devices to count. `missing`: the last seen first; `absent`: how many more the driver counts than it
    shows."""
    wanted = sorted(missing, key=lambda device: device.id not in in_use)
    used = sum(device.id in in_use for device in wanted)
    return wanted[: max(absent, used)]


def remember(ledger: Ledger, *devices: Device) -> None:
    """Writes to the ledger that these devices are here now."""
    ledger.save_devices({device.id: msgspec.json.encode(device).decode() for device in devices})
