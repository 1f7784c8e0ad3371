"""Which devices this node has, and whether they work.

The driver does not show a device that was lost before the daemon started. The ledger remembers it, and the daemon
counts it as a device that does not work, where a living grant is on it or the driver counts more devices than it
shows. No grant ends because of it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection

import msgspec

from gpushare.api import types
from gpushare.daemon.devices.devices import Devices
from gpushare.daemon.grants.resources import Resources
from gpushare.daemon.grants.serving import Serving
from gpushare.daemon.grants.tenancy import Tenancy
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.promises import Fault
from gpushare.daemon.state.state import State, now_ns
from gpushare.errors import FailedError
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


class Health:
    """Belongs to the event loop."""

    def __init__(
        self,
        state: State,
        backend: Backend,
        hardware: Hardware,
        devices: Devices,
        resources: Resources,
        serving: Serving,
        transitions: Transitions,
        tenancy: Tenancy,
        node: Callable[[], types.Node],
    ) -> None:
        """`node`: the node as the node API shows it."""
        self._state, self._backend, self._hardware, self._devices = state, backend, hardware, devices
        self._resources, self._serving, self._transitions = resources, serving, transitions
        self._tenancy, self._node = tenancy, node

    async def check(self) -> None:
        """Asks every device whether it works, and when that has changed updates shares, watchers and the log once. Also
        restores CDI specs."""
        self._resources.restore(self._state)
        faults = self._state.faults
        examined = await asyncio.to_thread(self._examine, list(self._state.devices), set(faults))
        changed = [(device, reason) for device, reason in examined if bool(reason) != (device.id in faults)]
        if not changed:
            return
        before = self._tenancy.by_name()
        for device, reason in changed:
            if reason:
                faults[device.id] = Fault(reason, now_ns())
                log.warning("device %d (%s) does not work: %s", device.index, device.id, reason)
            else:
                self._returned(device)
        self._serving.refresh_shares()
        for device, _ in changed:
            self._devices.publish(device, "DeviceHealth")
        self._state.watch.publish("node", "changed", lambda _: self._node(), "CapacityChanged")
        self._tenancy.publish(before)
        self._transitions.publish_on({device.id for device, _ in changed})

    def _examine(self, devices: list[Device], faulty: set[str]) -> list[tuple[Device, str]]:
        """Each device and why it does not work, empty if it does. One that came back is read anew. In a thread: the
        driver may be slow."""
        examined = []
        for device in devices:
            reason = self._backend.fault(device.index)
            if not reason and device.id in faulty:
                try:
                    device = self._backend.device(device.index)
                except FailedError as error:
                    reason = str(error)
            examined.append((device, reason))
        return examined

    def _returned(self, device: Device) -> None:
        del self._state.faults[device.id]
        self._state.devices[device.index] = device
        self._hardware.renew(device)
        try:
            self._resources.offer()
        except FailedError as error:
            log.warning("%s", error)
        remember(self._state.ledger, device)
        log.warning("device %d (%s) works again", device.index, device.id)
