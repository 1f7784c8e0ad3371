"""The scenario's table as text, and its result."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpushare.demo.live import Row, Table
from gpushare.demo.notebooks.script import NOTEBOOKS, PARTS, TRAINER, Device
from gpushare.demo.notebooks.story import Tick
from gpushare.demo.notebooks.verdict import Facts
from gpushare.demo.verdict import Claim, claims_as_json
from gpushare.text.units import format_size

_COLUMNS = (
    ("PROGRAM", 9),
    ("", 9),
    ("ON DEVICE", 12),
    ("AWAY", 10),
    ("WAITED", 10),
    ("VARIABLES", 11),
    ("STEPS/S", 9),
)


_REDRAW_SECONDS = 0.3


class Screen:
    """Prints each scene: its title when it begins, its programs while it is played, and how they are at its end."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._table = Table(_COLUMNS)
        self._next = 0.0

    def begin(self) -> None:
        """Prints the device and who is on it."""
        device, memory = self._device, sum(part.share for part in NOTEBOOKS)
        print(f"The device is SIMULATED: {format_size(device.size)}, and {device.link / 10**9:g} GB/s to host memory.")
        print(f"Three notebooks that together need {memory / 100:g} devices, and a trainer:")
        for part in PARTS:
            has = "borrows" if part.borrows else "is guaranteed"
            print(f"  {part.name} {has} {format_size(device.memory(part))}", flush=True)

    def began(self, title: str) -> None:
        """Prints the scene's title and the column titles."""
        print(f"\n{title}")
        self._table.head()

    def watched(self, ticks: Sequence[Tick]) -> None:
        """Shows the programs, on a terminal, and a few times a second."""
        if self._table.live and time.monotonic() >= self._next:
            self._next = time.monotonic() + _REDRAW_SECONDS
            self._table.rows([self._row(tick) for tick in ticks])

    def ended(self, ticks: Sequence[Tick]) -> None:
        """Prints how the programs are."""
        self._table.rows([self._row(tick) for tick in ticks])

    def _row(self, tick: Tick) -> Row:
        cells = [
            tick.name,
            tick.doing,
            format_size(tick.bytes),
            format_size(tick.away_bytes) if tick.away_bytes else "-",
            "-" if tick.wait_ms is None else f"{tick.wait_ms:.0f} ms",
            "-" if tick.wrong is None else f"{tick.wrong} wrong" if tick.wrong else "the same",
            "-" if tick.steps_per_s is None else f"{tick.steps_per_s:.0f}",
        ]
        return cells, tick.bytes / self._device.size


def as_json(facts: Facts, found: Sequence[Claim]) -> dict[str, Any]:
    """The whole result for `--json`."""
    return {
        "scenario": "notebooks",
        "simulated": True,
        "device_bytes": facts.capacity_bytes,
        "peak_bytes": facts.peak_bytes,
        "link_bytes_per_s": facts.link_bytes_per_s,
        "programs": [
            {
                "name": part.name,
                "borrows": part.borrows,
                "variables_bytes": facts.variables[part.name],
                "copy_ms": round(facts.copy_ms(part.name), 3),
                "left": part.name in facts.away,
            }
            for part in PARTS
        ],
        "wakes": [asdict(wake) for wake in facts.wakes],
        "checks": [asdict(check) for check in facts.checks],
        "moved_out_bytes": facts.moved_out_bytes,
        "moved_in_bytes": facts.moved_in_bytes,
        "illegal_accesses": facts.illegal_accesses,
        "trainer": {"name": TRAINER.name, "steps": facts.steps, "pace_milli": facts.pace, "returned": facts.returned},
        "killed": list(facts.killed),
        **claims_as_json(found),
    }
