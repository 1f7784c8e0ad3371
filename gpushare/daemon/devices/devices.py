"""Devices as the node API shows them, and what administrators do with them."""

import asyncio
import logging
import math
import time
from collections.abc import Callable

from gpushare.api import node as node_types
from gpushare.api import types
from gpushare.binding.arbiter import Arbiter
from gpushare.daemon.grants import view
from gpushare.daemon.state.drains import Drain
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, now_ns
from gpushare.errors import GpushareError, NotFoundError, UsageError
from gpushare.node.devices import Backend, Device
from gpushare.node.sensors import Sensors
from gpushare.node.simulator import Simulator

log = logging.getLogger(__name__)

SENSORS_SECONDS = 1.0
"""Sensors are read at most this often, however many ask: some drivers take milliseconds for one."""


class Devices:
    """Belongs to the event loop. `idle_bytes`: returns how many bytes of a device, by its id, grants have that lend
    their memory and have done nothing with it for so long that it may be moved away for others. `told_drained`: called
    with a device's id and a line about its drain."""

    def __init__(self, state: State, backend: Backend, arbiter: Arbiter, simulator: Simulator | None) -> None:
        self._state, self._backend, self._arbiter, self._simulator = state, backend, arbiter, simulator
        self.idle_bytes: Callable[[str], int] = lambda _device: 0
        self.told_drained: Callable[[str, str], None] = lambda _device, _text: None
        self._sensors: dict[str, Sensors] = {}
        self._read_at = -math.inf
        self._reading = asyncio.Lock()

    async def views(self) -> list[types.Device]:
        """Returns the answer to GET /v1/devices. Asks the driver for memory in use and its sensors, in a thread: it may
        be slow."""
        used = await asyncio.to_thread(self._memory_used)
        async with self._reading:  # who asks beside another gets what that one reads
            if time.monotonic() - self._read_at >= SENSORS_SECONDS:
                self._sensors = await asyncio.to_thread(self._read_sensors)
                self._read_at = time.monotonic()
        return [self._view(device, used[device.index]) for device in self._state.devices]

    def _view(self, device: Device, used: int) -> types.Device:
        stats = self._arbiter.device_stats(device.index)
        idle = self.idle_bytes(device.id)
        sensors = self._sensors.get(device.id, Sensors())
        return view.device_view(device, self._backend.name, self._state, stats, used, idle, sensors)

    def _read_sensors(self) -> dict[str, Sensors]:
        return {device.id: self._backend.sensors(device.index) for device in self._state.devices}

    def _memory_used(self) -> list[int]:
        used = []
        for device in self._state.devices:
            try:
                used.append(self._backend.memory_used(device.index))
            except GpushareError:
                used.append(0)
        return used

    def publish(self, device: Device, name: types.Name) -> types.Device:
        """Publishes the device as it is now, and returns that."""
        shown = self._view(device, 0)
        self._state.watch.publish("device", "changed", lambda _: shown, name)
        return shown

    def _named(self, name: str) -> Device:
        for device in self._state.devices:
            if name in (device.id, str(device.index)):
                return device
        raise NotFoundError(f"there is no device {name[:80]!r}: `gpushare devices` shows what there is")

    # Drains.

    async def drain(self, asked: node_types.DrainRequest) -> types.Device:
        """Drains a device: it takes no new grants from now on. Raises NotFoundError, UsageError or FailedError."""
        if len(asked.reason) > node_types.REASON_MAX or not (asked.reason.isascii() and asked.reason.isprintable()):
            raise UsageError(f"the reason is one line of ASCII of at most {node_types.REASON_MAX} characters")
        device = self._named(asked.device)
        # In a thread: a disk may be slow.
        await asyncio.to_thread(self._state.drains.put, device.id, Drain(now_ns(), asked.reason))
        log.info("device %d (%s) is drained: %s", device.index, device.id, asked.reason or "no reason given")
        why = f": {asked.reason}" if asked.reason else ""
        self.told_drained(device.id, f"device {device.index} of the node takes no new work{why}: end this one soon")
        return self.publish(device, "DeviceDrain")

    async def undrain(self, name: str) -> types.Device:
        """Ends a drain: the device takes grants again. One that is not drained is left as it is. Raises NotFoundError
        or FailedError."""
        device = self._named(name)
        await asyncio.to_thread(self._state.drains.remove, device.id)
        log.info("device %d (%s) takes grants again", device.index, device.id)
        return self.publish(device, "DeviceDrain")

    def freed(self, live: Live) -> None:
        """Publishes those devices of a grant that has ended which are now drained."""
        for place in live.record.places:
            if view.device_state(place.device, self._state) == "drained":
                self.publish(self._state.devices[place.index], "DeviceDrain")

    # The simulator.

    async def sim_stats(self) -> object:
        """The simulator's own books. Raises NotFoundError where the devices are real."""
        return await asyncio.to_thread(self._simulated().stats)

    async def set_sim_lost(self, index: str, *, lost: bool) -> None:
        """Makes a simulated device stop working or work again. Raises NotFoundError for one that is not there."""
        simulator = self._simulated()
        if index not in {str(device.index) for device in self._state.devices}:
            raise NotFoundError(f"there is no device {index[:20]!r}: give its index as `gpushare devices` shows it")
        number = simulator.number(self._state.devices[int(index)].id)
        if number is None:
            raise NotFoundError(f"the simulator does not have device {index}: it was started with others")
        await asyncio.to_thread(simulator.set_lost, number, lost=lost)

    def _simulated(self) -> Simulator:
        if self._simulator is None:
            raise NotFoundError("the devices are real: there is no simulator")
        return self._simulator
