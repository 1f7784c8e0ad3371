"""The share of a task or an actor, as Ray's options and as options of our command. Pure."""

from collections.abc import Mapping
from typing import Any

from gpushare.text.units import parse_idle_after

NAME = "gpushare"
"""The field in a runtime_env."""

_OPTIONS = (
    "memory",
    "time",
    "time_limit",
    "tenant",
    "class",
    "devices",
    "placement",
    "managed",
    "idle_memory",
    "idle_after",
    "borrow_memory",
    "reclaim",
    "grace",
)
_TIMES = ("time", "time_limit")
_NEEDED = ("memory", "time")


def share(num_gpus: float, memory: int | str | None = None, **more: object) -> dict[str, object]:
    """Returns options for `remote` and `.options`: `num_gpus` for Ray's accounting, and the grant that enforces it.

    `num_gpus`: below 1 a part of one device, else whole devices. `memory`: bytes or text, per device; by default the
    same fraction as of time. `more`: other options of `gpushare run`, and `runtime_env` with further fields for Ray.
    Raises ValueError or TypeError.
    """
    whole = num_gpus % 1 == 0
    if not (0 < num_gpus < 1 or (whole and num_gpus >= 1)):
        raise ValueError(f"num_gpus {num_gpus}: give a part of one device, or whole devices")
    milli = 1000 if whole else round(num_gpus * 1000)
    if milli == 0:
        raise ValueError(f"num_gpus {num_gpus}: less than a thousandth of a device")
    environment = more.pop("runtime_env", None) or {}
    if not isinstance(environment, Mapping):
        raise TypeError("runtime_env is no dict")
    spec = {
        "memory": memory if memory is not None else f"{milli / 10:g}%",
        "time": f"{milli / 10:g}%",
        **({"devices": int(num_gpus)} if whole and num_gpus > 1 else {}),
        **more,
    }
    words(spec)
    return {"num_gpus": num_gpus, "runtime_env": {**environment, NAME: spec}}


def words(spec: object) -> list[str]:
    """Returns the options for `gpushare adapter ray`. Raises ValueError or TypeError for an invalid spec."""
    if not isinstance(spec, Mapping):
        raise TypeError(f"runtime_env's {NAME} is a dict, as {{'memory': '4GiB', 'time': '30%'}}")
    if unknown := [str(name) for name in spec if name not in _OPTIONS]:
        raise ValueError(f"{NAME} has no option {', '.join(unknown)}: it has {', '.join(_OPTIONS)}")
    if missing := [name for name in _NEEDED if name not in spec]:
        raise ValueError(f"{NAME} needs {' and '.join(missing)}")
    found = []
    for name, value in spec.items():
        option = f"--{name.replace('_', '-')}"
        if value is True and name == "borrow_memory":
            found.append(option)
        elif name in _TIMES and isinstance(value, int) and value not in (False, True):
            raise ValueError(f"{NAME}'s {name} {value!r} has no unit: write it as text, '50%' or '500m'")
        elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
            found.append(f"{option}={value}")
        else:
            raise ValueError(f"{NAME}'s {name} is {value!r}: give a number or text")
    return found


def request(spec: Mapping[str, object]) -> dict[str, Any]:
    """Returns the spec as fields of Client.plan. Raises UsageError for a duration that is none."""
    asked: dict[str, Any] = {name: f"{value:g}" if isinstance(value, float) else value for name, value in spec.items()}
    if "reclaim" in asked:
        asked["max_rung"] = asked.pop("reclaim")
    if "grace" in asked:
        asked["grace_seconds"] = asked.pop("grace")
    if "idle_after" in asked:
        asked["idle_after_seconds"] = parse_idle_after(str(asked.pop("idle_after")))
    return asked
