"""Sensors are read once for all who ask within a second."""

import asyncio
from types import SimpleNamespace

from gpushare.daemon.devices.devices import Devices
from gpushare.node.sensors import Sensors


def test_who_asks_while_they_are_read_gets_what_is_read(monkeypatch):
    read = Sensors(temperature_celsius=64)
    backend = SimpleNamespace(memory_used=lambda _: 0, sensors=lambda _: read)
    devices = Devices(SimpleNamespace(devices=[SimpleNamespace(id="GPU-0", index=0)]), backend, None, None)
    monkeypatch.setattr(Devices, "_view", lambda self, device, used: (used, self._sensors.get(device.id)))
    begun = []

    async def ask() -> None:
        answered = asyncio.Event()

        async def in_a_thread(act, *given):
            begun.append(act)
            if act == devices._read_sensors:
                await answered.wait()
            return act(*given)

        monkeypatch.setattr(asyncio, "to_thread", in_a_thread)
        both = [asyncio.create_task(devices.views()) for _ in range(2)]
        while begun.count(devices._memory_used) < 2:
            await asyncio.sleep(0)
        for _ in range(5):  # turns of the loop in which the second would answer without them
            await asyncio.sleep(0)
        answered.set()
        assert await asyncio.gather(*both, devices.views()) == [[(0, read)]] * 3

    asyncio.run(ask())
    assert begun.count(devices._read_sensors) == 1
