"""The benchmarks' packages are not in the wheel; they are imported from the checkout."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "arbiter"), str(BENCH / "duel"), str(BENCH / "gpu")]
