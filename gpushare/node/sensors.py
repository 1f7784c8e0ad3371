"""What the driver measures of a device: temperature, power, clocks, utilization."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# nvml.h: sensor and clock numbers, and the bits of nvmlClocksThrottleReasons.
_TEMPERATURE_GPU = 0
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_UNCORRECTED, _SINCE_LOADED = 1, 0
_SLOWED = (("power", 0x04 | 0x80), ("heat", 0x20 | 0x40))
_SLOWED_BY_HARDWARE = 0x08
_UNKNOWN_SPEED = 1000  # percent; some drivers answer with numbers that are none


@dataclass(frozen=True, slots=True)
class Sensors:
    """Fields as in gpushare.api.sensors."""

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
    slowed_by: tuple[str, ...] = ()


def read(ask: Callable[..., Any], handle: Any) -> Sensors:
    """Reads the sensors of a device. `ask`: calls a function of NVML by name; None where it is not supported."""
    rates = ask("nvmlDeviceGetUtilizationRates", handle)
    fan = _number(ask("nvmlDeviceGetFanSpeed", handle))
    return Sensors(
        temperature_celsius=_number(ask("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU)),
        fan_percent=fan if fan is not None and fan < _UNKNOWN_SPEED else None,
        power_milliwatts=_number(ask("nvmlDeviceGetPowerUsage", handle)),
        power_limit_milliwatts=_number(ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        sm_clock_mhz=_number(ask("nvmlDeviceGetClockInfo", handle, _CLOCK_SM)),
        sm_clock_max_mhz=_number(ask("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM)),
        memory_clock_mhz=_number(ask("nvmlDeviceGetClockInfo", handle, _CLOCK_MEMORY)),
        utilization_percent=_number(rates.gpu) if rates is not None else None,
        memory_utilization_percent=_number(rates.memory) if rates is not None else None,
        ecc_errors=_number(ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_LOADED)),
        slowed_by=_slowed(ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0),
    )


def _number(found: Any) -> int | None:
    return int(found) if found is not None else None


def _slowed(reasons: int) -> tuple[str, ...]:
    found = tuple(name for name, bits in _SLOWED if reasons & bits)
    # The driver sets this bit beside those that say why.
    return found or (("hardware",) if reasons & _SLOWED_BY_HARDWARE else ())
