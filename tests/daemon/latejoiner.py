"""A process that uses the simulated device by the simulator's own protocol, and joins its grant when it is told to."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from joiner import Joined
from simulated import CLIENT, MEM_ALLOC, Wire

wire = Wire(Path(os.environ["GPUSHARE_GRANT_DIR"], "sim", "sim.sock"), CLIENT)
error, _, _ = wire.call(MEM_ALLOC, 0, 1 << 20)
assert error == 0
print(os.getpid(), flush=True)
for _ in sys.stdin:
    Joined().say()
