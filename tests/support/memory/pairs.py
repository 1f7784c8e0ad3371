"""Calls that share an object or a setting, two at a time: the first is held in the driver, before or after its effect,
while the second runs. For use inside the process that makes the calls (see holds.py).

`SCENES` is the table of objects and calls (scenes.py, poolscenes.py, settingscenes.py). `run` crosses each call with
each one, itself included, in a fresh scene, and returns what was wrong: less charged than the device has given,
something left at the end, or a call that never ends. The simulated driver itself says what the device has given, the
interposer in front of it what is charged.
"""

import ctypes
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as d
from memory import holds, poolscenes, scenes, settingscenes
from memory.scenes import MIB, Row, failed
from run.worker import ok, on_device

GRAIN = 2 * MIB  # granularity of physical memory
SCENES = scenes.SCENES | poolscenes.QUICK | poolscenes.LARGE | settingscenes.SCENES

# ---- what is charged, what is true


def _used(get_info: Callable[..., int]) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert get_info(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value


def truth() -> int:
    """Allocated bytes of the device, according to the simulated driver."""
    return _used(holds.library().cuMemGetInfo_v2)


def charged() -> int:
    free, total = ok(d.cuMemGetInfo())
    return int(total - free)


# ---- one pair after the other


@dataclass(frozen=True)
class Pair:
    scene: str
    first: Row
    second: Row
    function: str
    when: int

    def __str__(self) -> str:
        moment = "after" if self.when == holds.AFTER else "before"
        return f"{self.scene}: {self.first.name} held {moment} {self.function}, {self.second.name}"


def pairs(scene: str) -> Iterator[Pair]:
    rows = SCENES[scene].rows()
    for first, second in itertools.product(rows, rows):
        for function in first.functions:
            for when in (holds.BEFORE, holds.AFTER):
                yield Pair(scene, first, second, function, when)


def _judge(wrong: list[str], moment: str) -> None:
    asked, given = charged(), truth()
    if asked < given:
        wrong.append(f"{moment}: {(given - asked) / MIB:g} MiB not charged")


def _press() -> None:
    """Allocates what the limit still allows, and releases it: uncharged memory would exceed the limit meanwhile."""
    answer = d.cuMemCreate(ok(d.cuMemGetInfo())[0] // GRAIN * GRAIN, on_device(), 0)
    if not failed(answer):
        ok(d.cuMemRelease(answer[1]))  # unlike cuMemFree, it does not wait for the device


def cross(pair: Pair, context: Any) -> list[str]:
    """Runs a pair; returns what was wrong."""
    wrong: list[str] = []
    before = charged(), truth()
    scene = SCENES[pair.scene]()

    def work(row: Row) -> Callable[[], None]:
        def call() -> None:
            ok(d.cuCtxSetCurrent(context))
            row.call(scene)

        return call

    try:
        holds.cross(
            work(pair.first),
            pair.function,
            pair.when,
            work(pair.second),
            while_held=lambda: _judge(wrong, "meanwhile"),
        )
    except AssertionError as hangs:
        return [str(hangs)]
    _judge(wrong, "afterwards")
    _press()
    scene.close()
    if (charged(), truth()) != before:
        left = [f"{(now - then) / MIB:g}" for now, then in zip((charged(), truth()), before, strict=True)]
        wrong.append(f"at the end {left[0]} MiB charged, {left[1]} MiB not given back by the device")
    return wrong


def run(scene: str, context: Any) -> list[str]:
    """Runs all pairs of a scene; returns a line for each fault."""
    context = SCENES[scene].base(context)
    ok(d.cuCtxSetCurrent(context))
    return [f"{pair}: {what}" for pair in pairs(scene) for what in cross(pair, context)]
