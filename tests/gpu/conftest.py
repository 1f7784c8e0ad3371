"""Imports the benchmarks' packages from the checkout, as they are not in the wheel."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "duel"), str(BENCH / "gpu")]
