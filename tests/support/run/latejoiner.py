"""A process that uses the simulated device through the simulator's protocol. Commands on standard input: `join` joins
its grant; a number allocates so many bytes, which its slot does not report."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from run.joiner import Joined
from run.simulated import CLIENT, MEM_ALLOC, Wire

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
