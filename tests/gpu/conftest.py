"""The benchmarks' packages are no part of the wheel: they are found where they lie."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "arbiter"), str(BENCH / "gpu")]
