"""Random programs that do everything at once: metered time against the simulator's accounting, second by second.

The first two are new ones in each run; GPUSHARE_MIXED_SEED plays them again."""

import os
import random
from collections.abc import Callable

import pytest
from pages.handmade import MS, Grant, Simulator, Tenant
from timing.metered import judge, windows
from timing.timed import BUSY

pytestmark = [pytest.mark.timing, BUSY]


def mixed(
    grant: Grant, sim: Simulator, run: Callable[..., Tenant], seed: int, seconds: int, gaps: bool, rest: bool = False
) -> list[tuple[int, int]]:
    grant.lease()
    grant.set_bound(50 * MS)
    tenant = run("mixed", grant, sim, str(seed), seconds * 1000, int(gaps))
    return windows(grant, sim, tenant, seconds, f"seed {seed}, gaps {gaps}", rest)


@pytest.mark.parametrize("gaps", [False, True])
def test_a_random_program(grant: Grant, sim: Simulator, run: Callable[..., Tenant], gaps: bool) -> None:
    seed = int(os.environ.get("GPUSHARE_MIXED_SEED") or random.SystemRandom().getrandbits(31))
    judge(mixed(grant, sim, run, seed, 1, gaps, rest=gaps))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "gaps"), [(2, False), (3, True)])
def test_random_programs(grant: Grant, sim: Simulator, run: Callable[..., Tenant], seed: int, gaps: bool) -> None:
    judge(mixed(grant, sim, run, seed, 3, gaps))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 12])
def test_random_programs_of_one_thread(grant: Grant, sim: Simulator, run: Callable[..., Tenant], seed: int) -> None:
    """With pauses they leave the device idle for a third of the time or more, and a mark does not say which stream's
    work the device did."""
    judge(mixed(grant, sim, run, seed, 3, True, rest=True))
