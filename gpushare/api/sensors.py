"""Wire types of what the driver measures of a device."""

from typing import Literal

from msgspec import Struct

Slowed = Literal["power", "heat", "hardware"]


class Sensors(Struct, kw_only=True):
    """What the driver measures of a device, at most a second ago; None: it does not say. `power_milliwatts`: what it
    draws, `power_limit_milliwatts`: the most it may. `utilization_percent`: how much of the driver's last sample period
    any program's kernel ran, as nvidia-smi shows it; `memory_utilization_percent`: how much of it its memory was read
    or written. `ecc_errors`: uncorrected errors of its memory since the driver was loaded. `slowed_by`: why its clocks
    are below what its work asks for: its power limit, its temperature, or something else in the hardware. A simulated
    device has clocks, a power limit and a utilization: it gets no warmer and draws no power."""

    temperature_celsius: int | None = None
    fan_percent: int | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    ecc_errors: int | None = None
    slowed_by: list[Slowed] = []
