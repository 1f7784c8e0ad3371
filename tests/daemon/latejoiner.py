"""A process that uses the simulated device by the simulator's own protocol, and joins its grant (`join`) or
takes bytes that its slot does not say (a number) when it is told to."""

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
for line in sys.stdin:
    if line == "join\n":
        Joined().say()
    else:
        error, _, _ = wire.call(MEM_ALLOC, 0, int(line))
        print(error, flush=True)
