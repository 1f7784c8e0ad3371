"""The cost of waits and allocations, by what the program holds (tests/interposer/timing/cost/memorycost.c)."""

import json
import os
import subprocess
from dataclasses import astuple, dataclass

from pages.handmade import Grant
from run import built

from gpushare import paths


@dataclass(frozen=True)
class Held:
    """What the program holds while its calls are measured."""

    allocations: int = 1
    blocks: int = 1
    pools: int = 1
    streams: int = 1
    pending: int = 0  # frees queued in a blocked stream; calls that wait for all streams are then left out


def added(grant: Grant, how: str, held: Held) -> dict[str, tuple[float, float]]:
    """For each call: what the interposer adds, and what the driver alone takes. `how`: `time` (nanoseconds, medians of
    batches) or `steps` (instructions)."""
    driver = grant.directory / "driver" / "libcuda.so.1"
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR),
        "LD_PRELOAD": str(paths.INTERPOSER),
        "GPUSHARE_GRANT_DIR": str(grant.directory),
    }
    command = [built.program("memorycost"), driver, how, *map(str, astuple(held))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return {call: (ours - bare, bare) for call, (ours, bare) in json.loads(done.stdout).items()}
