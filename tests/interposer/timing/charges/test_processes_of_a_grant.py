"""Several processes of one grant: their total charge is the device time they used, whichever processes run together.
The reference is the simulator."""

from collections.abc import Callable

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant
from run.waiting import until
from timing.timed import busy

US = 1000
LONG = 400  # ms
HELPER = ("sync", 10 * US, 200 * US)
CROWDS = {
    "two loops": [("deep", 100 * US)] * 2,
    "four loops": [("deep", 100 * US)] * 4,
    "short loops": [("deep", 10 * US)] * 2,
    "a helper": [("deep", 22 * US), HELPER],
    "helpers": [("deep", 100 * US), *[HELPER] * 4],
    "helpers of a slow one": [("deep", 400 * US), *[HELPER] * 4],
    "helpers of one that waits": [("sync", 2000 * US), *[HELPER] * 4],
    "helpers of an uneven one": [("batch", 10 * US, 0, 2000 * US), *[HELPER] * 3],
    "a loop and one that waits": [("sync", 20 * US, 100 * US), ("deep", 100 * US)],
    "two that wait": [("sync", 20 * US, 50 * US)] * 2,
    "eight that wait": [("sync", 200 * US, 2 * US)] * 8,
    "eight that wait for short ones": [("sync", 20 * US, 2 * US)] * 8,
    "forty that wait": [("sync", 200 * US, 2 * US)] * 40,
    "ranks": [("batch", 10 * US, 100 * US)] * 2,
    "long kernels": [("deep", 5000 * US)] * 2,
    "four that wait for 100 ms": [("sync", 100 * MS, 2 * US)] * 4,
}

# Of a long launch of a known function that waited beside others, what may have been their changes is not charged.
LEAST = {"helpers of an uneven one": 0.91}
# These mostly wait for the device.
CALM = ("helpers of one that waits", "long kernels", "four that wait for 100 ms")

pytestmark = pytest.mark.timing


@pytest.mark.parametrize(
    "crowd", [*CALM, *busy(*(name for name in CROWDS if name not in CALM))], ids=lambda name: name.replace(" ", "-")
)
def test_processes_together(crowd: str, grant: Grant, sim: Simulator, run: Callable[..., Tenant]) -> None:
    grant.lease()
    tenants = []
    for way, *numbers in CROWDS[crowd]:
        tenants.append(run("company", grant, sim, way, LONG, *numbers))
        tenants[-1].line()

    def read() -> tuple[int, int, int]:
        """Returns the metered time, the true time, and the time the device took to switch between processes, in ns."""
        until(lambda: all(grant.slot(i).inflight == 0 for i in range(len(tenants))), "all is proven done")
        [device] = sim.books()["devices"]
        busy = sum(process["busy_ns"] for process in device["processes"])
        return sum(grant.slot(i).busy_ns for i in range(len(tenants))), busy, device["switch_ns"]

    before = read()
    for tenant in tenants:
        tenant.tell("go")
    for tenant in tenants:
        tenant.line()
    metered, true, switched = (b - a for a, b in zip(before, read(), strict=True))
    print(
        f"{crowd}: {metered / true - 1:+.1%} of {true / MS:.1f} ms, with changes {metered / (true + switched) - 1:+.1%}"
    )
    # Of the time in which the device changes between them, that is charged which cannot be told from work; and what may
    # be such time is not charged.
    least = LEAST.get(crowd, 0.95) * true - switched / 4 - MS
    assert least <= metered <= 1.05 * true + 0.6 * switched + MS
